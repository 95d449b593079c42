"""Two processes that start runs on one device: at the same instant, and fifty in a row. Real starters, real runs, nothing lost."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from run_helpers import FAKE, run_python, until, wait_state

from app.runs.folder import RunFolder, load_history, load_metrics
from app.runs.keeping import run_folders
from app.runs.launch import cancel_run
from app.runs.queue import Line
from app.runs.status import RunStatus

RUNS = 50
RACES = 3
STARTER = f"""
import sys
from pathlib import Path
from app.cae.config import make_config
from app.runs.launch import start_run
print("ready", flush=True)
for line in sys.stdin:
    for _ in range(int(line)):
        print(start_run(make_config({{"data": "synthetic", "device": "cpu"}}), Path(sys.argv[1]), program={FAKE!r}).run_id, flush=True)
"""
Starters = tuple[subprocess.Popen[str], subprocess.Popen[str]]


@pytest.fixture
def script() -> dict[str, object]:
    return {"epochs": 2, "batch_s": 0.0, "pictures": 0, "note_line": True}


@pytest.fixture
def starters(runs_dir: Path, script: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> Iterator[Starters]:
    """Two processes, ready to start as many runs as a line on their standard input says. What still runs at the end is killed."""
    monkeypatch.setenv("FAKE_RUN", json.dumps(script))
    both = tuple(run_python(STARTER, str(runs_dir), stdin=subprocess.PIPE) for _ in range(2))
    for starter in both:
        assert starter.stdout
        assert starter.stdout.readline() == "ready\n"
    yield both[0], both[1]
    for starter in both:
        starter.kill()
        starter.communicate()
    for folder in run_folders(runs_dir):
        pid = (folder.launch_record() or {}).get("pid")
        if isinstance(pid, int) and folder.status().live:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)


def _go(starters: Starters, runs: int) -> None:
    for starter in starters:
        assert starter.stdin
        starter.stdin.write(f"{runs}\n")
        starter.stdin.flush()


def _started(starters: Starters, runs_dir: Path) -> list[RunFolder]:
    lines = [starter.stdout.readline().strip() for starter in starters if starter.stdout]
    return [RunFolder(runs_dir / run_id) for run_id in lines]


def _one_in_one_waiting(runs: list[RunFolder]) -> tuple[RunFolder, RunFolder] | None:
    """(running, queued with a sentence), as soon as both are there."""
    found: dict[str, RunFolder] = {}
    for run in runs:
        status = run.status()
        found["waits" if status.state == "queued" and status.message else status.phase or status.state] = run
    return (found["training"], found["waits"]) if {"training", "waits"} <= set(found) else None


@pytest.mark.parametrize("script", [{"epochs": 5000}])
def test_of_two_started_at_the_same_instant_one_runs_and_the_other_waits(starters: Starters, runs_dir: Path) -> None:
    for _ in range(RACES):
        _go(starters, 1)
        runs = _started(starters, runs_dir)
        first, second = until(lambda runs=runs: _one_in_one_waiting(runs), "one that trains and one that waits")
        assert second.status().message == f"Waiting for run {first.run_id} on CPU."
        assert [ticket.run_id for ticket in Line("cpu").tickets()] == [first.run_id, second.run_id]
        cancel_run(first)
        until(lambda second=second: second.status().phase == "training", "the turn of the second")
        cancel_run(second)
        assert [wait_state(run, "cancelled", "failed", "interrupted").state for run in (first, second)] == ["cancelled"] * 2


def test_fifty_runs_queued_by_two_processes_all_finish_in_their_order(starters: Starters, runs_dir: Path) -> None:
    _go(starters, RUNS // 2)
    for _ in range(RUNS // 2):
        _started(starters, runs_dir)
    for starter in starters:  # whoever started them is gone while they wait
        starter.kill()
    runs = run_folders(runs_dir)
    assert len(runs) == RUNS
    ends = {run.run_id: wait_state(run, "finished", "failed", "interrupted", "cancelled") for run in runs}
    assert {status.state for status in ends.values()} == {"finished"}
    for run in runs:
        assert load_history(run.path)["epoch"].tolist() == [1, 2]
        assert (load_metrics(run.path) or {})["image_auroc"] == 0.75

    in_order = sorted(ends.values(), key=lambda status: status.started or 0)
    for earlier, later in itertools.pairwise(in_order):
        assert earlier.ended
        assert later.started
        assert earlier.ended <= later.started, f"{earlier.run_id} and {later.run_id} ran at once"
    lines = {run.run_id: json.loads((run.path / "line.json").read_text()) for run in runs}
    assert [_head(lines, status) for status in in_order] == [status.run_id for status in in_order]
    joined = [lines[status.run_id][0]["since"] for status in in_order]
    assert joined == sorted(joined), "first come, first served"
    assert max(len(line) for line in lines.values()) > 2, "there was a queue at all"
    assert Line("cpu").tickets() == []


def _head(lines: dict[str, list[dict[str, object]]], status: RunStatus) -> object:
    """Who stood first in the line while that run computed."""
    return lines[status.run_id][0]["run_id"]
