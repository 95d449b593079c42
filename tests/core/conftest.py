"""Fakes at the door: a folder with an nvidia-smi for PATH, a folder with a pynvml for the import path."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from recorded_machines import MACHINES, case_of

from app.core import nvidia_smi, nvml

MakeFolder = Callable[[str | dict[str, Any]], Path]


settings.register_profile("shared machine", deadline=None, max_examples=80)
settings.load_profile("shared machine")


@pytest.fixture
def make_smi(tmp_path: Path) -> MakeFolder:
    """A folder with a fake nvidia-smi that answers as the named machine (or as the given case)."""

    def make(machine: str | dict[str, Any]) -> Path:
        folder = tmp_path / f"smi-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        shutil.copy(MACHINES / "smi" / "nvidia-smi", folder / "nvidia-smi")
        (folder / "nvidia-smi").chmod(0o755)
        (folder / "case.json").write_text(json.dumps(case_of("smi", machine)), "utf-8")
        return folder

    return make


@pytest.fixture
def make_nvml(tmp_path: Path) -> MakeFolder:
    """A folder with a fake pynvml that behaves as on the named machine (or as the given case)."""

    def make(machine: str | dict[str, Any]) -> Path:
        folder = tmp_path / f"nvml-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        shutil.copy(MACHINES / "nvml" / "pynvml.py", folder / "pynvml.py")
        (folder / "case.json").write_text(json.dumps(case_of("nvml", machine)), "utf-8")
        return folder

    return make


@pytest.fixture
def use_nvml(make_nvml: MakeFolder, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeFolder]:
    """Puts a fake pynvml first on this process's import path, until the test ends."""
    real = sys.modules.pop("pynvml", None)

    def use(machine: str | dict[str, Any]) -> Path:
        folder = make_nvml(machine)
        sys.modules.pop("pynvml", None)
        monkeypatch.syspath_prepend(folder)
        return folder

    yield use
    sys.modules.pop("pynvml", None)
    if real is not None:
        sys.modules["pynvml"] = real


@pytest.fixture
def bare_environ(tmp_path: Path) -> dict[str, str]:
    """An environment whose PATH holds no nvidia-smi, but what the fake's first line needs."""
    folder = tmp_path / "bare-path"
    folder.mkdir()
    (folder / "python3").symlink_to(sys.executable)
    return {"PATH": str(folder)}


@pytest.fixture
def smi_environ(make_smi: MakeFolder, bare_environ: dict[str, str]) -> Callable[[str | dict[str, Any]], dict[str, str]]:
    """An environment whose PATH begins with the fake nvidia-smi of a machine."""

    def environ(machine: str | dict[str, Any]) -> dict[str, str]:
        return {**bare_environ, "PATH": f"{make_smi(machine)}{os.pathsep}{bare_environ['PATH']}"}

    return environ


@pytest.fixture(autouse=True)
def _forget_hanging_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe that one test left hanging is not the next one's."""
    monkeypatch.setattr(nvml, "_running", None)
    monkeypatch.setattr(nvidia_smi, "_abandoned", [])
