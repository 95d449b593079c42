"""The recorded machines under tests/data/machines, by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MACHINES = Path(__file__).resolve().parent.parent / "data" / "machines"
EXPECTED: dict[str, dict[str, dict[str, Any]]] = json.loads((MACHINES / "expected.json").read_text("utf-8"))
NO_LIBRARY: dict[str, Any] = {"init_error": "LibraryNotFound", "gpus": []}


def case_of(kind: str, machine: str | dict[str, Any]) -> dict[str, Any]:
    """What the fake of `kind` (`smi`, `nvml`) does on a machine; a case given as such is passed on."""
    if isinstance(machine, dict):
        return machine
    case: dict[str, Any] = json.loads((MACHINES / kind / f"{machine}.json").read_text("utf-8"))
    return case


def environment_of(name: str) -> dict[str, str]:
    """The variables of `env/<name>.env`; `KEY=` is set but empty."""
    lines = (MACHINES / "env" / f"{name}.env").read_text("utf-8").splitlines()
    return {key: value for key, _, value in (line.partition("=") for line in lines if line)}
