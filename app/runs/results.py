"""Writing what a run computed. Small and precious files first, so that a disk which fills up costs the pictures before the figures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from app.cae.rows import LazyRows, Rows, save_npz
from app.core.errors import RunError
from app.runs.files import plain, write_by
from app.runs.folder import RunFolder

if TYPE_CHECKING:
    from app.cae.cae_pipeline import CaeResult

Progress = Callable[[int, int], None]


def write_result(folder: RunFolder, result: CaeResult, *, progress: Progress = lambda _done, _total: None) -> None:
    """Write metrics.json, scores.csv, scoring.npz, model.keras and maps.npz, as far as the result has them (a cancelled run may not).

    A file that cannot be written does not keep the others from being written.

    Raises:
        RunError: some could not be written; one sentence that names them, with the free space when the disk is full.
    """
    steps = _steps(result)
    troubles: dict[str, str] = {}
    unexpected: Exception | None = None
    for done, (name, fill) in enumerate(steps):
        progress(done, len(steps))
        try:
            write_by(folder.path / name, fill)
        except RunError as error:
            troubles[name] = str(error)
        except Exception as error:  # noqa: BLE001 - raised below, once the rest is safe
            unexpected = unexpected or error
    progress(len(steps), len(steps))
    if unexpected is not None:
        raise unexpected
    if troubles:
        first, *others = troubles
        raise RunError(troubles[first] + (f" Not written either: {', '.join(others)}." if others else ""))


def _steps(result: CaeResult) -> list[tuple[str, Callable[[Path], object]]]:
    """(file, what fills a temporary one) for everything the result has."""
    steps: list[tuple[str, Callable[[Path], object]]] = []
    metrics, scores, calibration, model = result.metrics, result.scores, result.calibration, result.model
    if metrics:
        text = json.dumps(plain(metrics), indent=2, ensure_ascii=False, allow_nan=False)
        steps.append(("metrics.json", lambda temp: temp.write_text(text + "\n", encoding="utf-8")))
    if scores is not None:
        steps.append(("scores.csv", lambda temp: scores.to_csv(temp, index=False, lineterminator="\n")))
    if calibration is not None:
        steps.append(("scoring.npz", lambda temp: save_npz(temp, calibration.arrays())))
    if model is not None:
        steps.append(("model.keras", model.save))
    if result.maps is not None:
        steps.append(("maps.npz", lambda temp: save_npz(temp, _map_arrays(result))))
    return steps


def _map_arrays(result: CaeResult) -> dict[str, Rows]:
    """What `Maps` holds. The first rows of scores.csv are the pictures of the maps, in the same order."""
    assert result.maps is not None
    return {
        "maps": as_type(result.maps, np.float32),
        "inputs": as_type(result.inputs, np.uint8),
        "reconstructions": as_type(result.reconstructions, np.uint8),
        "masks": as_type(result.masks, np.uint8),
        "has_mask": np.asarray(result.has_mask, np.bool_),
        "indices": np.arange(len(result.maps), dtype=np.int64),
    }


def as_type(array: Any, dtype: npt.DTypeLike) -> Rows:
    """`array` as NumPy array of `dtype`; rows that lie outside memory, which have it, stay there."""
    return array if isinstance(array, LazyRows) else np.asarray(array, dtype)
