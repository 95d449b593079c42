"""Reading tests/data/refvectors: score maps, masks and what the field's reference implementations made of them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).resolve().parent.parent / "data" / "refvectors"


@cache
def expected() -> dict[str, Any]:
    return json.loads((FOLDER / "expected.json").read_text())


@cache
def arrays(name: str) -> dict[str, np.ndarray]:
    with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as archive:
        return {key: archive[key] for key in archive.files}


SETS: tuple[str, ...] = tuple(expected()["sets"])
CONFIGS: dict[str, dict[str, Any]] = {
    name: {**config, "fpr_bounds": tuple(config["fpr_bounds"])} for name, config in expected()["meta"]["configs"].items()
}
