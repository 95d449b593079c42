"""From rounds to medians, speed-ups, rows, CSV and text."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from typing import Any

import pytest

from app.runs.bench import contradictions
from app.runs.bench_points import BenchPoint
from app.runs.bench_result import BenchResult, PointResult, Round, Spread
from app.runs.bench_sentences import OTHER_ISA, OTHER_THREADS, STILL_ONEDNN
from app.runs.bench_table import MACHINE_COLUMNS, POINT_COLUMNS, figure, rows, to_csv, to_text

SEEN: dict[str, Any] = {
    "path": "CPU · AVX2 through oneDNN",
    "instruction_set": "AVX2",
    "onednn_threads": 2,
    "compute_threads": 2,
    "onednn_version": "oneDNN v3.7.3",
    "kernels": [
        {"primitive": "convolution", "implementation": "brg_conv_fwd:avx2", "count": 9, "total_ms": 9.0},
        {"primitive": "reorder", "implementation": "jit:uni", "count": 9, "total_ms": 5.0},
        {"primitive": "convolution", "implementation": "jit:avx2", "count": 9, "total_ms": 4.0},
        {"primitive": "convolution", "implementation": "brg_conv_fwd:avx2", "count": 9, "total_ms": 3.0},
    ],
}


def round_of(number: int, train: float, score: float) -> Round:
    return Round(number, train, score, 192, 192 / train, 256, 256 / score, 9.0)


@pytest.fixture
def result() -> BenchResult:
    automatic = BenchPoint("cpu", "CPU, all automatic (2 × 2 threads)", "cpu", chosen=True)
    points = (
        PointResult(BenchPoint("gpu", "GPU", "gpu", "gpu", available=False, why_not="No NVIDIA GPU found.")),
        PointResult(automatic, tuple(round_of(n, train, 400.0 + n) for n, train in ((1, 90.0), (2, 120.0), (3, 100.0))), SEEN),
        PointResult(BenchPoint("avx2", "AVX2", "instructions", same_as="cpu"), notes=("A note, with a comma.",)),
        PointResult(BenchPoint("onednn-off", "oneDNN off", "onednn"), (round_of(1, 20.0, 100.0), round_of(2, 30.0, 102.0)), {}),
        PointResult(BenchPoint("sse41", "SSE4.1", "instructions"), problem="Its process was ended by SIGILL."),
    )
    machine = {"cpu": "AMD EPYC", "usable_cores": 2, "gpus": [], "tensorflow": "2.21.0", "keras": "3.15.1", "system": "Linux 6.1"}
    options = {"image_size": 128, "batch_size": 16, "channels": "grey", "steps": 12}
    return BenchResult("b1", "finished", "2026-11-29T19:30:05.000+00:00", "2026-11-29T19:33:05.000+00:00", 3, options, machine, points)


@pytest.mark.parametrize(
    ("values", "spread"),
    [
        ([90.0, 120.0, 100.0], Spread(100.0, 90.0, 120.0, 3)),
        ([20.0, 30.0], Spread(25.0, 20.0, 30.0, 2)),
        ([7.0], Spread(7.0, 7.0, 7.0, 1)),
        ([], None),
    ],
)
def test_median_minimum_and_maximum(values: list[float], spread: Spread | None) -> None:
    assert Spread.of(values) == spread


def test_the_speed_up_is_over_the_slowest_median_of_all_points(result: BenchResult) -> None:
    assert (result.slowest("train"), result.slowest("score")) == (25.0, 101.0)
    assert result.speed_up("cpu", "train") == 4.0
    assert result.speed_up("onednn-off", "train") == 1.0
    assert result.speed_up("cpu", "score") == 402.0 / 101.0
    assert result.speed_up("gpu", "train") is None
    assert replace(result, points=result.points[:1]).slowest("train") is None


def test_a_point_that_is_another_has_its_figures_and_its_own_notes(result: BenchResult) -> None:
    shared = result.of("avx2")
    assert (shared.train, shared.kernels) == (result.of("cpu").train, ("brg_conv_fwd:avx2", "jit:avx2"))
    assert (shared.point.name, shared.notes) == ("avx2", ("A note, with a comma.",))
    assert result.speed_up("avx2", "train") == 4.0


def test_it_survives_json(result: BenchResult) -> None:
    told = json.loads(json.dumps(result.to_json()))
    assert BenchResult.from_json(told) == result
    assert told["points"][2]["train"] == {"median": 100.0, "low": 90.0, "high": 120.0, "rounds": 3, "speed_up": 4.0}
    assert told["points"][0]["train"] is None


@pytest.mark.parametrize("break_it", [{"points": 3}, {"points": [{}]}, {"points": [None]}, {"machine": None, "points": None}])
def test_json_of_something_else_is_refused(result: BenchResult, break_it: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"result\.json holds no result"):
        BenchResult.from_json({**json.loads(json.dumps(result.to_json())), **break_it})
    with pytest.raises(ValueError, match=r"result\.json holds no result"):
        BenchResult.from_json({})


def test_csv_has_a_row_a_point_with_the_machine_beside_it(result: BenchResult) -> None:
    table = list(csv.DictReader(io.StringIO(to_csv(result))))
    assert [row["name"] for row in table] == ["gpu", "cpu", "avx2", "onednn-off", "sse41"]
    assert tuple(table[0]) == (*POINT_COLUMNS, *MACHINE_COLUMNS)
    assert {row["cpu"] for row in table} == {"AMD EPYC"}
    assert {(row["tensorflow"], row["onednn"], row["image_size"], row["gpus"]) for row in table} == {("2.21.0", "oneDNN v3.7.3", "128", "")}
    assert (table[1]["train_median"], table[1]["train_min"], table[1]["train_max"], table[1]["train_speed_up"]) == (
        "100.0",
        "90.0",
        "120.0",
        "4.0",
    )
    assert (table[0]["train_median"], table[0]["reason"]) == ("", "No NVIDIA GPU found.")
    assert (table[2]["same_as"], table[2]["train_median"], table[2]["notes"]) == ("cpu", "100.0", "A note, with a comma.")
    assert (table[4]["measured"], table[4]["reason"]) == ("False", "Its process was ended by SIGILL.")


def test_the_text_shows_figures_reasons_and_what_a_run_would_take(result: BenchResult) -> None:
    text = to_text(result)
    (line,) = (line for line in text.splitlines() if line.startswith("CPU, all automatic"))
    assert " ".join(line.split()) == (
        "CPU, all automatic (2 × 2 threads) * 100 (90.0–120) 4.00 402 (401–403) 3.98 AVX2: brg_conv_fwd:avx2, jit:avx2 2 × 2"
    )
    assert "GPU: No NVIDIA GPU found." in text
    assert "SSE4.1: Its process was ended by SIGILL." in text
    assert "the same as cpu" in text
    assert "AMD EPYC, 2 usable cores; no NVIDIA GPU" in text
    assert max(map(len, text.splitlines())) <= 140


def test_the_load_of_others_is_the_median_of_what_was_seen(result: BenchResult) -> None:
    assert result.others_percent is None
    looked = [replace(one, others_percent=percent) for one, percent in zip(result.points[1].rounds, (5.0, 90.0, 20.0), strict=True)]
    busy = replace(result, points=(replace(result.points[1], rounds=tuple(looked)), *result.points[3:]))
    assert busy.others_percent == 20.0
    assert BenchResult.from_json(json.loads(json.dumps(busy.to_json()))) == busy


def test_rows_know_what_was_measured(result: BenchResult) -> None:
    assert [row["measured"] for row in rows(result)] == [False, True, True, True, False]


@pytest.mark.parametrize(
    ("value", "shown"),
    [(7.254, "7.25"), (9.996, "10.0"), (98.76, "98.8"), (99.96, "100"), (441.2, "441"), (999.7, "1000"), (12345.0, "12300")],
)
def test_three_significant_digits(value: float, shown: str) -> None:
    assert figure(value) == shown


def test_what_was_seen_against_what_was_asked_for() -> None:
    avx2 = BenchPoint("avx2", "AVX2", "instructions", asks_for="AVX2")
    off = BenchPoint("onednn-off", "oneDNN off", "onednn", environment={"TF_ENABLE_ONEDNN_OPTS": "0"})
    one = BenchPoint("intra-1", "intra-op 1", "intra-op", intra_op_threads=1)
    assert contradictions(avx2, SEEN) == ()
    assert contradictions(avx2, {}) == ()
    assert contradictions(avx2, {"instruction_set": "AVX"}) == (OTHER_ISA.format(asked="AVX2", seen="AVX"),)
    assert contradictions(off, {"convolutions_in_onednn": False}) == ()
    assert contradictions(off, {"convolutions_in_onednn": True}) == (STILL_ONEDNN,)
    assert contradictions(one, {"onednn_threads": 1, "compute_threads": 2}) == ()
    assert contradictions(one, SEEN) == (OTHER_THREADS.format(asked="1 intra-op thread", seen=2),)
