"""Patience with limits instead of sleeps, and processes to test with."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.runs.folder import RunFolder
from app.runs.status import RunStatus

HERE = Path(__file__).parent
FAKE = [sys.executable, str(HERE / "fake_run.py")]
LIMIT_S = 30.0

Start = Callable[..., RunFolder]


def until(condition: Callable[[], Any], what: str = "it", limit_s: float = LIMIT_S) -> Any:
    """The first true value of `condition`; fails the test after `limit_s`."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.02)
    pytest.fail(f"{what} did not come true within {limit_s:.0f} s")


def wait_state(folder: RunFolder, *states: str) -> RunStatus:
    def reached() -> RunStatus | None:
        status = folder.status()
        return status if status.state in states else None

    try:
        return until(reached, f"{states} of {folder.run_id}")
    except BaseException:
        print(folder.status(), (folder.path / "log.txt").read_text() if (folder.path / "log.txt").exists() else "no log")
        raise


def wait_phase(folder: RunFolder, phase: str) -> RunStatus:
    return until(lambda: (status := folder.status()).phase == phase and status, f"phase {phase} of {folder.run_id}")


def run_python(code: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=HERE.parents[1], **options
    )


def as_from_a_terminal() -> None:
    """Signals that whoever runs the tests ignores (`nohup`, a shell's background) would be ignored by their children too."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
