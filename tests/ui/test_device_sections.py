"""The sections below the Device tab: what-if, memory needed, prove it."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
import streamlit as st
from fake_machine import smi_environment
from streamlit.testing.v1 import AppTest

from app.cae.config import make_config
from app.core.device_policy import after_start, decide
from app.core.facts import CpuFacts, Gpu, GpuFacts
from app.core.machines import simulated_machines
from app.runs.processes import mark
from app.ui import memory_need, state

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _fresh_caches() -> Iterator[None]:
    st.cache_resource.clear()
    yield
    state.sampler().stop()  # threads of many tests would queue for one nvidia-smi
    st.cache_resource.clear()


def _open(section: str, **query: str) -> AppTest:
    app = AppTest.from_file(str(ROOT / "app/dashboard.py"), default_timeout=30)
    for name, value in {"section": section, **query}.items():
        app.query_params[name] = value
    app.run()
    assert not app.exception
    return app


def _words(app: AppTest) -> str:
    kinds = (app.markdown, app.caption, app.warning, app.info, app.error, app.code, app.subheader)
    return " ".join(str(element.value) for kind in kinds for element in kind).replace("\\", "")


@pytest.mark.parametrize("machine", simulated_machines(), ids=lambda machine: machine.key)
def test_each_simulated_machine_shows_its_own_verdict(machine: object) -> None:
    app = _open("What if this were …")
    app.selectbox(key="what_if").set_value(machine.key).run()  # type: ignore[attr-defined]
    assert not app.exception
    words = _words(app)
    decision = machine.decide(2048)  # type: ignore[attr-defined]
    if happens := machine.what_happens(decision):  # type: ignore[attr-defined]
        decision = after_start(decision, happens, machine.cpu)  # type: ignore[attr-defined]
    assert decision.reason in words
    leaf = {"cpu": "CPU path", "gpu": "GPU path"}[decision.selected_device]
    assert f'label="{leaf}", style="rounded,filled"' in str(app.get("graphviz_chart")[-1].proto.spec)
    assert "simulated" in words


def test_a_missing_library_says_what_was_decided_and_what_is_read_back() -> None:
    app = _open("What if this were …")
    app.selectbox(key="what_if").set_value("libraries").run()
    assert "Decided: GPU. Read back: CPU, because CUDA libraries are missing" in _words(app)


def test_a_described_machine_follows_its_sliders() -> None:
    app = _open("What if this were …")
    app.selectbox(key="what_if").set_value("own").run()
    assert "has 3072 MiB free" in _words(app)
    app.slider(key="what_if_free").set_value(1024).run()
    assert "has only 1024 MiB free" in _words(app)
    app.slider(key="what_if_gpus").set_value(0).run()
    app.selectbox(key="what_if_isa").set_value("AVX").run()
    assert "Using the CPU path." in _words(app)
    assert "CPU · AVX through oneDNN" in _words(app)
    app.slider(key="what_if_cores").set_value(1).run()
    assert "1 usable core." in _words(app)


def test_a_described_cpu_that_cannot_start_tensorflow_is_warned_of() -> None:
    app = _open("What if this were …", what_if="A machine of your own", what_if_gpus="0", what_if_isa="none of them")
    none = dict.fromkeys(state.cpu().features, False) | {"sse4_2": True}
    warnings = decide(GpuFacts(), CpuFacts("Described CPU", "x86_64", none, usable_cores=8)).warnings
    assert warnings
    assert all(warning in _words(app) for warning in warnings)


def test_a_described_machine_stands_in_the_link_and_its_free_memory_ends_at_the_total() -> None:
    app = _open(
        "What if this were …",
        what_if="A machine of your own",
        what_if_total="4096",
        what_if_free="1500",
        what_if_cores="12",
        what_if_build="cpu",
    )
    assert (app.slider(key="what_if_free").value, app.slider(key="what_if_free").max) == (1500, 4096)
    assert app.slider(key="what_if_cores").value == 12
    assert not app.toggle(key="what_if_build").value
    app.slider(key="what_if_free").set_value(3968).run()
    app.slider(key="what_if_total").set_value(2048).run()
    assert (app.slider(key="what_if_free").value, app.slider(key="what_if_free").max) == (2048, 2048)
    linked = {name: str(value[0] if isinstance(value, list) else value) for name, value in app.query_params.items()}
    assert linked["what_if_free"] == linked["what_if_total"] == "2048"
    assert linked["what_if_build"] == "cpu"
    assert "what_if_gpus" not in linked
    odd = _open("What if this were …", what_if="A machine of your own", what_if_gpus="99", what_if_total="many", what_if_isa="MMX")
    assert (odd.slider(key="what_if_gpus").value, odd.slider(key="what_if_total").value) == (4, 8192)
    assert odd.selectbox(key="what_if_isa").value == "AVX2"


def test_memory_needed_names_what_fits_each_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", smi_environment(tmp_path, "A31")["PATH"])
    app = _open("Memory needed")
    table = next(frame.value for frame in app.dataframe if "largest batch that fits" in frame.value)
    assert list(table["largest batch that fits"]) == ["none", "512 (the largest allowed)", "512 (the largest allowed)"]
    metrics = {metric.label: metric.value for metric in app.metric}
    plan = memory_need.plan_of(make_config({}))
    assert metrics["Parameters"] == f"{plan.parameters:,}".replace(",", "\u202f")
    assert metrics["Suggested threshold"].startswith(str(plan.suggested_threshold_mib)[:1])


def test_layer_bars_hold_every_layer_that_weighs_something() -> None:
    plan = memory_need.plan_of(make_config({"channels": "grey"}))
    figure = memory_need.layer_bars(plan)
    kept = {layer.name for layer in plan.layers if layer.kept}
    assert kept <= set(figure.data[0].y)
    assert abs(sum(figure.data[0].x) - plan.activations_mib) < 1e-6
    assert memory_need.parts_bars(plan).data[0].y[0] == "framework context"


def _write_proof(runs_dir: Path, answer: dict[str, object] | None) -> None:
    folder = runs_dir / "proofs" / "20260101-000000-aaaa"
    folder.mkdir(parents=True)
    (folder / "request.json").write_text(json.dumps({"started": time.time(), "min_vram_mib": 2048, "device": "auto"}), encoding="utf-8")
    (folder / "log.txt").write_text("Something went wrong.\n", encoding="utf-8")
    if answer is not None:
        (folder / "verification.json").write_text(json.dumps(answer), encoding="utf-8")


GPU_A = GpuFacts(gpus=(Gpu(0, "GPU-a", "NVIDIA A", 10000, 9000),))
PROFILE = {
    "path": "CPU · AVX2 through oneDNN",
    "selected_device": "cpu",
    "reason": "The first convolution failed on the GPU.",
    "happened": "cuDNN mismatch: library 8.0.5 is loaded, this TensorFlow was built for 8.6.0",
    "decision": json.loads(json.dumps(asdict(decide(GPU_A, CpuFacts("A CPU", "x86_64"))))),
    "logical_devices": ["/device:CPU:0"],
    "first_op_device": "/job:localhost/replica:0/task:0/device:CPU:0",
    "first_op_ms": 12.3,
    "intra_op_threads": 2,
    "inter_op_threads": None,
    "evidence": {
        "version": "oneDNN v3.7.3",
        "isa": "Intel AVX2",
        "threads": 2,
        "runtime": "threadpool",
        "kernels": [{"primitive": "convolution", "implementation": "brg_conv_fwd:avx2", "count": 3, "total_ms": 1.5}],
    },
    "settings": [
        {
            "name": "OMP_NUM_THREADS",
            "value": "2",
            "set_by": "user",
            "honoured": False,
            "how_known": "read back",
            "changes": "",
            "note": None,
        }
    ],
    "not_applied": [],
}
WAY = {
    "key": "environment",
    "name": "environment",
    "asked_intra_op": 3,
    "asked_inter_op": 4,
    "onednn_threads": 3,
    "compute_threads": 4,
    "getter_intra_op": 0,
    "getter_inter_op": 0,
    "effective": True,
}


def test_a_proof_shows_what_was_decided_what_happened_and_what_ran(tmp_path: Path) -> None:
    verification = {"profile": PROFILE, "report": "=== report ===", "ways": [WAY], "problems": ["A problem."], "notes": ["A note."]}
    _write_proof(tmp_path / "runs", {"verification": verification})
    app = _open("Prove it")
    words = _words(app)
    assert "Decided before TensorFlow was asked: GPU 'NVIDIA A'" in words
    chart = str(app.get("graphviz_chart")[-1].proto.spec)
    assert "Does a first operation run?" in chart.replace("\\n", " ")
    assert re.findall(r'label="(\w+ path)", style="rounded,filled"', chart) == ["CPU path"]
    assert "cuDNN mismatch" in words
    assert "=== report ===" in words
    assert "A problem." in words
    kernels = next(frame.value for frame in app.dataframe if "implementation" in frame.value)
    assert list(kernels["implementation"]) == ["brg_conv_fwd:avx2"]
    variables, ways = app.table[-2].value, app.table[-1].value
    assert list(variables.loc["OMP_NUM_THREADS", ["set by", "honoured"]]) == ["user", "no"]
    assert list(ways.loc["environment", ["oneDNN uses", "getter says", "takes effect"]]) == ["3", "0 / 0", "yes"]


def test_a_proof_that_failed_says_so_and_can_be_tried_again(tmp_path: Path) -> None:
    _write_proof(tmp_path / "runs", None)
    app = _open("Prove it")
    assert "Something went wrong." in _words(app)
    assert not app.button(key="proof_start").disabled


def test_nothing_can_be_proven_beside_a_measurement(tmp_path: Path) -> None:
    folder = tmp_path / "runs/bench/20260101-120000-abcd"
    folder.mkdir(parents=True)
    own = asdict(mark(os.getpid()) or pytest.fail("this process has no mark"))
    status = {"run_id": folder.name, "state": "running", "pid": own["pid"], "pid_started": own["started"], "pid_token": own["token"]}
    (folder / "progress.json").write_text(json.dumps({**status, "host": own["host"]}), encoding="utf-8")
    app = _open("Prove it")
    assert app.button(key="proof_start").disabled
    assert "Measure* is at work, and nothing else may compute beside it" in _words(app)


def test_nothing_proven_yet() -> None:
    assert "Nothing has been proven here yet." in _words(_open("Prove it"))
