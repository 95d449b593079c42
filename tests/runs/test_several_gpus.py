"""Runs on a machine with several GPUs: real processes, a fake nvidia-smi, a stub in place of TensorFlow."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from fake_machine import smi_environment
from run_helpers import HERE, until, wait_phase, wait_state

from app.cae.config import make_config
from app.runs.folder import RunFolder, load_profile
from app.runs.launch import cancel_run, start_run

PROGRAM = [sys.executable, str(HERE / "fake_gpu_run.py")]
GPUS = [f"GPU-00000000-0000-0000-0000-00000000000{number}" for number in range(3)]
StartOn = Callable[..., RunFolder]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence[int]], None]:
    """Make this a machine with GPUs of the given free memory, MiB."""

    def has(free: Sequence[int]) -> None:
        for name, value in smi_environment(tmp_path, "A00").items():
            monkeypatch.setenv(name, value)
        gpus = [
            {
                **{"index": number, "uuid": GPUS[number], "name": "NVIDIA RTX A4000"},
                **{"memory.total": 16376, "memory.free": mib, "memory.used": 16376 - mib, "pci.bus_id": f"00000000:0{number + 1}:00.0"},
            }
            for number, mib in enumerate(free)
        ]
        (tmp_path / "smi-A00/case.json").write_text(json.dumps({"gpus": gpus}))
        monkeypatch.setenv("PYTHONPATH", str(HERE.parent / "data/tf_stub"))
        monkeypatch.setenv("STUB_TF", json.dumps({"gpus": len(free)}))

    return has


@pytest.fixture
def start_on(runs_dir: Path) -> Iterator[StartOn]:
    started: list[RunFolder] = []

    def start(**options: Any) -> RunFolder:
        started.append(start_run(make_config({"data": "synthetic", **options}), runs_dir, program=PROGRAM))
        return started[-1]

    yield start
    for run in started:
        pid = (run.launch_record() or {}).get("pid")
        if isinstance(pid, int):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            until(lambda pid=pid: not psutil.pid_exists(pid), f"end of process {pid}")


def _gpu(run: RunFolder) -> str:
    return str((load_profile(run.path) or {})["gpu"]["uuid"])


def test_two_runs_go_side_by_side_on_two_gpus_and_a_third_waits(machine: Callable[..., None], start_on: StartOn) -> None:
    machine([9000, 8000])
    # Started in the same moment: both would like the GPU with most free memory best.
    first, second = start_on(), start_on()
    for run in (first, second):
        wait_phase(run, "training")
    assert {_gpu(first), _gpu(second)} == set(GPUS[:2])
    assert [run.status().state for run in (first, second)] == ["running", "running"]
    reasons = {_gpu(run): str(run.status().reason) for run in (first, second)}
    assert "GPU 0 'NVIDIA RTX A4000' has 9000 MiB free" in reasons[GPUS[0]]
    assert "GPU 1 'NVIDIA RTX A4000' has 8000 MiB free" in reasons[GPUS[1]]

    third = start_on()
    until(lambda: "Waiting for run" in str(third.status().message), "the third waits")
    assert third.status().state == "queued"
    # It stands in the line of the one with most memory; the other one is free first, and it does not wait on.
    on_second_gpu = first if _gpu(first) == GPUS[1] else second
    (on_second_gpu.path / "go").touch()
    wait_phase(third, "training")
    assert _gpu(third) == GPUS[1]
    assert (first if on_second_gpu is second else second).status().state == "running", "the first GPU's run still goes on"


def test_a_gpu_below_the_threshold_is_no_place_to_go_to(machine: Callable[..., None], start_on: StartOn) -> None:
    machine([9000, 500])
    first = start_on()
    wait_phase(first, "training")
    second = start_on()
    until(lambda: "Waiting for run" in str(second.status().message), "the second waits")
    cancel_run(second)
    wait_state(second, "cancelled")


def test_a_run_over_two_gpus_holds_both(machine: Callable[..., None], start_on: StartOn) -> None:
    machine([9000, 500, 8000])
    both = start_on(gpus=2)
    wait_phase(both, "training")
    profile = load_profile(both.path) or {}
    assert profile["reason"] == (
        "GPUs 0 'NVIDIA RTX A4000' and 2 'NVIDIA RTX A4000' have 9000 and 8000 MiB free (each ≥ threshold 2048 MiB)."
    )
    assert profile["path"] == "GPU · 2 × NVIDIA RTX A4000"
    assert profile["strategy_devices"] == ["/GPU:0", "/GPU:1"]
    visible = next(setting["value"] for setting in profile["settings"] if setting["name"] == "CUDA_VISIBLE_DEVICES")
    assert visible == f"{GPUS[0]},{GPUS[2]}"

    another = start_on(gpus=3)
    until(lambda: "Waiting for run" in str(another.status().message), "a run that wants one of them waits")
    (both.path / "go").touch()
    wait_phase(another, "training")
    assert "3 GPUs were asked for, 2 can be used: GPUs 0" in str(another.status().reason)
