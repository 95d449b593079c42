"""A folder with the fake nvidia-smi of a recorded machine, to stand first on PATH of a real process."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

SMI = Path(__file__).resolve().parent / "data/machines/smi"


def smi_environment(folder: Path, machine: str) -> dict[str, str]:
    """PATH with a fake nvidia-smi in front that answers as tests/data/machines/smi/`machine`.json."""
    place = folder / f"smi-{machine}"
    place.mkdir(parents=True, exist_ok=True)
    shutil.copy(SMI / "nvidia-smi", place / "nvidia-smi")
    (place / "nvidia-smi").chmod(0o755)
    shutil.copy(SMI / f"{machine}.json", place / "case.json")
    return {"PATH": f"{place}{os.pathsep}{os.environ['PATH']}"}
