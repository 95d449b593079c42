"""Each test of the pages is a dashboard of its own, with runs and pictures in temporary folders."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def runs_dir(tmp_path: Path) -> Path:
    """The folder of runs of the page under test (`tests/conftest.py` names it to the dashboard)."""
    folder = tmp_path / "runs"
    folder.mkdir()
    return folder


@pytest.fixture
def data_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that typed paths must stay inside."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("TWOPATH_DATA_ROOT", str(folder))
    return folder
