"""Measuring a plan with real child processes that answer, crash, hang and get cancelled. No TensorFlow."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from run_helpers import HERE, until

from app.core.facts import CpuFacts, Gpu, GpuFacts, Presence
from app.runs import bench
from app.runs.bench import BenchProgress, run_bench
from app.runs.bench_options import make_options
from app.runs.bench_points import BenchPlan, build_plan
from app.runs.bench_result import BenchResult, Spread
from app.runs.bench_sentences import BUSY_MACHINE, TOO_LONG

POINT = (sys.executable, str(HERE / "fake_bench_point.py"))
FEATURES: dict[str, Presence] = {"sse4_2": True, "avx": True, "avx2": True, "fma": True, "avx512f": False}
CPU = CpuFacts("AMD EPYC", "x86_64", FEATURES, usable_cores=2)


def plan_of(points: str, environ: dict[str, str] | None = None, **options: Any) -> BenchPlan:
    return build_plan(CPU, GpuFacts(), environ or {}, make_options({"points": points, **options}), machine={"cpu": "AMD EPYC"})


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"PYTHONPATH": str(HERE.parents[1]), "FAKE_BENCH_PIDS": str(tmp_path)}


def measure(plan: BenchPlan, environ: dict[str, str], script: dict[str, Any] | None = None, **more: Any) -> BenchResult:
    return run_bench(plan, environ={**environ, "FAKE_BENCH": json.dumps(script or {})}, program=POINT, **more)


def test_rounds_are_interleaved_and_every_point_is_looked_at_first(environ: dict[str, str]) -> None:
    told: list[BenchProgress] = []
    seen: list[BenchResult] = []
    plan = plan_of("cpu,avx2,sse41", rounds=2, steps=7, image_size=64, batch_size=4, channels="colour")
    result = measure(plan, environ, {"plain": 100, "SSE41": 20}, progress=told.append, changed=seen.append)
    assert [(step.part, step.point, step.round) for step in told] == [
        ("evidence", "cpu", 0),
        ("evidence", "sse41", 0),
        ("timed", "cpu", 1),
        ("timed", "sse41", 1),
        ("timed", "cpu", 2),
        ("timed", "sse41", 2),
    ]
    assert [step.done for step in told] == list(range(6))
    assert {step.total for step in told} == {6}
    assert told[0].eta_s is None
    assert all(step.eta_s and step.eta_s > 0 for step in told[1:])
    assert told[2].sentence == "CPU, all automatic (2 × 2 threads): round 1 of 2 (3 of 6)"
    assert [len(result.of("cpu").rounds) for result in seen] == [0, 0, 1, 1, 2, 2]
    assert (result.state, seen[-1].state, result.rounds) == ("finished", "running", 2)
    assert [spread.median for name in ("cpu", "avx2", "sse41") if (spread := result.of(name).train)] == [100.0, 100.0, 20.0]
    assert result.of("sse41").kernels == ("jit:SSE41",)
    assert result.speed_up("cpu", "score") == 5.0
    request = result.of("cpu").evidence["request"] if result.of("cpu").evidence else {}
    asked = ("steps", "image_size", "batch_size", "channels", "device", "intra_op_threads", "min_seconds")
    assert [request[name] for name in asked] == [7, 64, 4, 3, "cpu", None, 1.0]


@pytest.mark.parametrize(("users", "timed"), [({}, "not set"), ({"ONEDNN_VERBOSE": "2"}, "0")])
def test_kernels_are_reported_in_the_untimed_process_only(
    environ: dict[str, str], tmp_path: Path, users: dict[str, str], timed: str
) -> None:
    measure(plan_of("cpu", rounds=1), {**environ, **users})
    assert (tmp_path / "verbose-evidence").read_text() == "1"
    assert (tmp_path / "verbose-timed").read_text() == timed


def test_a_gpu_is_timed_only_and_tells_what_it_is_on_the_way(environ: dict[str, str]) -> None:
    gpu = GpuFacts((Gpu(0, "GPU-big", "NVIDIA RTX A4000", 16376, 12000, 4376),), "nvml", system="Linux")
    told: list[BenchProgress] = []
    plan = build_plan(CPU, gpu, {}, make_options({"points": "gpu", "rounds": 1}))
    result = measure(plan, environ, {"plain": 900}, progress=told.append)
    assert [(step.part, step.point) for step in told] == [("timed", "gpu-0")]
    evidence = result.of("gpu-0").evidence
    assert evidence is not None
    assert (evidence["path"], evidence["request"]["device"]) == ("CPU", "GPU-big")


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("crash", "ended by SIGILL: an instruction this CPU lacks"),
        ("fail", "The pictures are too wide."),
        ("status", "exit status 1 before it had measured anything: ValueError: it broke."),
        ("mute", "ended without an answer"),
        ("timed:crash", "ended by SIGILL"),
    ],
)
def test_a_point_that_fails_gets_the_reason_and_the_others_go_on(environ: dict[str, str], what: str, words: str) -> None:
    result = measure(plan_of("avx,sse41", rounds=1), environ, {"AVX": what})
    assert words in str(result.of("avx").problem)
    assert result.of("avx").rounds == ()
    assert (result.state, len(result.of("sse41").rounds), result.of("sse41").problem) == ("finished", 1, None)
    assert result.speed_up("avx", "train") is None


def test_a_point_that_fails_is_not_tried_again(environ: dict[str, str]) -> None:
    told: list[BenchProgress] = []
    result = measure(plan_of("cpu,avx", rounds=2), environ, {"AVX": "crash"}, progress=told.append)
    assert [step.point for step in told] == ["cpu", "avx", "cpu", "cpu"]
    assert result.of("cpu").train == Spread(100.0, 100.0, 100.0, 2)


def test_a_point_that_hangs_is_ended_at_its_limit(environ: dict[str, str], tmp_path: Path) -> None:
    result = measure(plan_of("avx,sse41", rounds=1, limit_s=5), environ, {"SSE41": "hang"})
    assert result.of("sse41").problem == TOO_LONG.format(limit=5)
    assert len(result.of("avx").rounds) == 1
    (pid,) = (int(file.name) for file in tmp_path.iterdir() if file.name.isdigit())
    assert not psutil.pid_exists(pid)


def test_cancel_kills_the_process_and_keeps_what_was_measured(environ: dict[str, str], tmp_path: Path) -> None:
    def hanging() -> list[int]:
        return [int(file.name) for file in tmp_path.iterdir() if file.name.isdigit()]

    started: list[float] = []

    def cancelled() -> bool:
        if hanging():
            started.append(time.monotonic())
        return bool(hanging())

    result = measure(plan_of("avx,sse41", rounds=1), environ, {"SSE41": "timed:hang"}, cancelled=cancelled)
    assert time.monotonic() - started[0] < 10
    assert (result.state, len(result.of("avx").rounds), result.of("sse41").rounds) == ("cancelled", 1, ())
    assert result.of("sse41").problem is None
    assert result.ended is not None
    until(lambda: not psutil.pid_exists(hanging()[0]), "end of the hanging process")


@pytest.mark.parametrize(("busy", "told"), [(80.0, True), (3.0, False), (None, False)])
def test_a_busy_machine_is_told(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, busy: float | None, told: bool) -> None:
    monkeypatch.setattr(bench, "busy_percent", lambda: busy)
    result = measure(plan_of("cpu", rounds=1), environ)
    assert (result.notes == (BUSY_MACHINE.format(percent=80.0),)) is told
    assert result.of("cpu").rounds[0].others_percent == busy


def test_a_program_that_does_not_exist_is_a_reason_too(environ: dict[str, str]) -> None:
    result = run_bench(plan_of("cpu", rounds=1), environ=environ, program=("/no/such/program",))
    assert "cannot be started" in str(result.of("cpu").problem)
    assert result.state == "finished"
