"""What the installed TensorFlow was built for, read from its files: nothing is imported, so it costs milliseconds and no memory."""

from __future__ import annotations

import importlib.util
import re
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

_DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu", "tensorflow-macos", "intel-tensorflow", "tensorflow-rocm")


@dataclass(frozen=True)
class TensorFlowBuild:
    """The installed TensorFlow. `None` where its files do not tell."""

    installed: bool
    version: str | None = None
    distribution: str | None = None
    """The package it came with: `tensorflow`, `tensorflow-cpu` …"""
    has_gpu: bool | None = None
    cuda_version: str | None = None
    folder: Path | None = None
    """Where the package lies."""


def tensorflow_build() -> TensorFlowBuild:
    """The TensorFlow that `import tensorflow` would bring in this process. Never raises."""
    folder = _folder()
    if folder is None and "tensorflow" not in sys.modules:
        return TensorFlowBuild(installed=False)
    name, version = _distribution()
    text = _build_information(folder) if folder else ""
    cuda = re.search(r"'cuda_version', '([\d.]+)'", text)
    flag = re.search(r"'is_cuda_build', (True|False)", text)
    return TensorFlowBuild(
        installed=True,
        version=version,
        distribution=name,
        has_gpu=None if flag is None else flag[1] == "True",
        cuda_version=cuda[1] if cuda else None,
        folder=folder,
    )


def _folder() -> Path | None:
    try:
        found = importlib.util.find_spec("tensorflow")
    except (ImportError, ValueError, AttributeError):  # ValueError: the module in place has no spec
        return None
    return Path(found.origin).parent if found is not None and found.origin else None


def _build_information(folder: Path) -> str:
    """TensorFlow's own generated build_info.py, as text."""
    try:
        return (folder / "python" / "platform" / "build_info.py").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _distribution() -> tuple[str | None, str | None]:
    for name in _DISTRIBUTIONS:
        try:
            return name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None, None
