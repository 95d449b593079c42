"""The Measure section: an earlier result as bars and table, noise said, start and cancel through the real benchmark."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from app.runs.bench_folder import list_benches
from app.runs.bench_sentences import BUSY_MACHINE
from app.runs.processes import mark
from app.ui import state
from app.ui.measure import speed_bars

ROOT = Path(__file__).resolve().parents[2]
BENCH_ID = "20260101-120000-abcd"


@pytest.fixture(autouse=True)
def _fresh_caches() -> Iterator[None]:
    st.cache_resource.clear()
    yield
    state.sampler().stop()  # threads of many tests would queue for one nvidia-smi
    st.cache_resource.clear()


def _round(number: int, train: float, others: float) -> dict[str, Any]:
    seconds = {"train_pictures": 10, "train_seconds": 1.0, "score_pictures": 10, "score_seconds": 1.0, "process_seconds": 5.0}
    return {"number": number, "train_images_per_s": train, "score_images_per_s": 4 * train, "others_percent": others, **seconds}


def _point(name: str, label: str, **values: Any) -> dict[str, Any]:
    rounds = values.pop("rounds", [])
    return {
        "point": {"name": name, "label": label, "group": "instructions", **values},
        "rounds": rounds,
        "evidence": None,
        "problem": None,
        "notes": [],
    }


def _write_bench(runs_dir: Path, others: float = 3.0, *, rounds: bool = True, state: str = "finished", notes: Sequence[str] = ()) -> None:
    folder = runs_dir / "bench" / BENCH_ID
    folder.mkdir(parents=True)
    points = [
        _point("avx2", "AVX2", chosen=True, rounds=[_round(1, 90.0, others), _round(2, 100.0, others), _round(3, 120.0, others)]),
        _point("sse41", "SSE4.1", rounds=[_round(1, 20.0, others)]),
        _point("gpu", "GPU", available=False, why_not="No NVIDIA GPU found."),
    ]
    result = {
        "bench_id": BENCH_ID,
        "state": state,
        "created": "2026-01-01T12:00:00+00:00",
        "ended": "2026-01-01T12:05:00+00:00",
        "rounds": 3,
        "options": {"image_size": 128, "batch_size": 16, "channels": "grey", "steps": 12},
        "machine": {"cpu": "A CPU", "usable_cores": 1, "gpus": [], "tensorflow": "2.21.0"},
        "points": points,
        "notes": list(notes),
    }
    if not rounds:
        for point in points:
            point["rounds"] = []
    status = {"run_id": BENCH_ID, "state": state, "created": "2026-01-01T12:00:00+00:00", "ended": "2026-01-01T12:05:00+00:00"}
    (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
    (folder / "progress.json").write_text(json.dumps(status), encoding="utf-8")
    (folder / "options.json").write_text("{}", encoding="utf-8")


def _open() -> AppTest:
    app = AppTest.from_file(str(ROOT / "app/dashboard.py"), default_timeout=30)
    app.query_params["section"] = "Measure"
    app.run()
    assert not app.exception
    return app


def _table(app: AppTest) -> Any:
    return next(table.value for table in app.table if "× slowest" in table.value)


def test_a_result_is_shown_with_median_spread_speed_up_and_what_is_missing(tmp_path: Path) -> None:
    _write_bench(tmp_path / "runs")
    table = _table(_open())
    assert table.loc["AVX2 (a run now)", "training, images/s"] == "100 (90.0–120)"
    assert table.loc["AVX2 (a run now)", "× slowest"] == "5.00"
    assert table.loc["GPU", "training, images/s"] == "not available"
    assert table.loc["GPU", "remark"] == "No NVIDIA GPU found."


@pytest.mark.parametrize(("others", "warned"), [(3.0, False), (60.0, True)])
def test_a_noisy_machine_is_said(tmp_path: Path, others: float, warned: bool) -> None:
    _write_bench(tmp_path / "runs", others, notes=[BUSY_MACHINE.format(percent=others), "Another note."])
    app = _open()
    assert any("Measure again on a quiet machine" in str(warning.value) for warning in app.warning) == warned
    captions = " ".join(str(caption.value) for caption in app.caption)
    assert ("Other processes kept" in captions) != warned, "said once"
    assert "Another note." in captions


def test_a_benchmark_without_any_round_shows_a_sentence_and_no_empty_charts(tmp_path: Path) -> None:
    _write_bench(tmp_path / "runs", rounds=False, state="cancelled")
    app = _open()
    assert any("No round of any point has ended" in str(text.value) for text in app.markdown)
    assert not app.get("plotly_chart")
    assert set(_table(app)["training, images/s"]) == {"–", "not available"}


def test_one_core_is_one_core(tmp_path: Path) -> None:
    _write_bench(tmp_path / "runs")
    assert any("1 usable core, no NVIDIA GPU" in str(caption.value) for caption in _open().caption)


def test_nothing_is_measured_beside_a_proof(tmp_path: Path) -> None:
    folder = tmp_path / "runs/proofs/20260101-000000-aaaa"
    folder.mkdir(parents=True)
    own = mark(os.getpid())
    assert own
    (folder / "request.json").write_text(json.dumps({"started": time.time(), "process": asdict(own)}), encoding="utf-8")
    app = _open()
    assert app.button(key="bench_start").disabled
    assert any("Prove it" in str(info.value) for info in app.info)


def test_nothing_measured_yet(tmp_path: Path) -> None:
    assert any("Nothing has been measured here yet" in str(caption.value) for caption in _open().caption)


def test_bars_carry_whiskers_from_minimum_to_maximum() -> None:
    row = {"label": "AVX2", "device": "cpu", "train_median": 100.0, "train_min": 90.0, "train_max": 120.0, "train_speed_up": 5.0}
    unmeasured = {**row, "label": "AVX", "train_median": None}
    bars = speed_bars([row, unmeasured], "train", "Training").data[0]
    assert list(bars.y) == ["AVX2"]
    assert (list(bars.error_x.array), list(bars.error_x.arrayminus)) == ([20.0], [10.0])
    assert list(bars.text) == ["× 5.00"]


@pytest.mark.tensorflow
def test_start_and_cancel_from_the_page(tmp_path: Path) -> None:
    app = _open()
    app.button(key="bench_start").click().run()
    assert not app.exception
    benches = list_benches(tmp_path / "runs")
    assert len(benches) == 1
    assert app.button(key="bench_start").disabled
    app.button(key="bench_cancel").click().run()
    assert not app.error, "a cancel that does what it says is no error"
    end = time.monotonic() + 60
    while list_benches(tmp_path / "runs")[0].state in ("queued", "running") and time.monotonic() < end:
        time.sleep(0.1)
    assert list_benches(tmp_path / "runs")[0].state == "cancelled"
    app.run()
    assert not app.error
    assert not any("A second cancel" in str(info.value) for info in app.info)
