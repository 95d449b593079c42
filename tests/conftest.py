"""Fixtures every folder of tests uses. Tests leave nothing behind: environment, locks and runs live in temporary folders."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

_MACHINE_VARIABLES = ("CUDA_", "TF_", "OMP_", "ONEDNN_", "SLURM_", "NVIDIA_", "TWOPATH_", "STREAMLIT_", "DNNL_", "KMP_", "MLFLOW_")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test sees the variables of the machine it runs on, nor the locks and runs of a dashboard that happens to run here."""
    for name in list(os.environ):
        if name.startswith(_MACHINE_VARIABLES):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TWOPATH_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.setenv("TWOPATH_RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("TWOPATH_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def python() -> str:
    return sys.executable


@pytest.fixture
def root() -> Path:
    return ROOT


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that import TensorFlow into this process come last: the others check that this process has none."""
    items.sort(key=lambda item: item.get_closest_marker("tensorflow_in_this_process") is not None)
