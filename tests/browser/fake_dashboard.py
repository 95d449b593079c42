"""The dashboard whose runs have a small pipeline in place of the real one (`tests/runs/fake_run.py`): all else is as it is."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from app.runs import launch
from app.runs.folder import RunFolder

ROOT = Path(__file__).resolve().parents[2]


def _command(folder: RunFolder, _program: Sequence[str] | None) -> list[str]:
    return [sys.executable, str(ROOT / "tests/runs/fake_run.py"), str(folder.path)]


launch._command = _command
DASHBOARD = ROOT / "app/dashboard.py"
# Not by runpy, which swaps modules for the whole process: each visitor's script has a thread of its own.
exec(compile(DASHBOARD.read_bytes(), str(DASHBOARD), "exec"), {"__name__": "__main__", "__file__": str(DASHBOARD)})
