"""Real run processes with a small pipeline."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from run_helpers import FAKE, Start, until

from app.cae.config import CaeConfig, make_config
from app.runs.folder import RunFolder
from app.runs.launch import start_run


@pytest.fixture
def config() -> CaeConfig:
    return make_config({"data": "synthetic", "device": "cpu"})


@pytest.fixture
def runs_dir(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def start(runs_dir: Path, config: CaeConfig, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Start a run process with a fake pipeline; keywords are the fake's script. What still runs at the end is killed."""
    folders: list[RunFolder] = []

    def start_one(**script: Any) -> RunFolder:
        monkeypatch.setenv("FAKE_RUN", json.dumps(script))
        folders.append(start_run(config, runs_dir, program=FAKE))
        return folders[-1]

    yield start_one
    for folder in folders:
        pid = (folder.launch_record() or {}).get("pid")
        if isinstance(pid, int):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            until(lambda pid=pid: not psutil.pid_exists(pid), f"end of process {pid}")
