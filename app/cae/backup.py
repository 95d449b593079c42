"""Training state after a whole epoch, in one file that is always whole: from it a killed run goes on. NumPy only.

Keras' own BackupAndRestore writes weights and epoch number as two files in place; killed between or within them, it restores a state that
never was, or none. One archive that replaces its predecessor atomically has neither trouble, and holds the best weights and the curve too.
"""

from __future__ import annotations

import json
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.cae.reporting import Row
from app.cae.training import Weights

FILE_NAME = "training.npz"


@dataclass
class Backup:
    """Everything training needs to go on after epoch `epoch`."""

    fingerprint: str
    """Of configuration and pictures; a backup of other ones is not used."""
    epoch: int
    batch_size: int
    rows: list[Row]
    best_epoch: int | None
    best_loss: float
    warnings: list[str]
    weights: Weights
    optimizer: Weights
    best_weights: Weights
    """Empty where the last epoch is the best: then they are `weights`."""


def write_backup(folder: Path, backup: Backup) -> None:
    """Replaces the backup in `folder` as a whole. Raises OSError where it cannot be written; the one before stays."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {
        "fingerprint": backup.fingerprint,
        "epoch": backup.epoch,
        "batch_size": backup.batch_size,
        "rows": backup.rows,
        "best_epoch": backup.best_epoch,
        "best_loss": backup.best_loss,
        "warnings": backup.warnings,
    }
    arrays: dict[str, NDArray[np.generic]] = {"state": np.array(json.dumps(state))}
    for name in ("weights", "optimizer", "best_weights"):
        for place, array in enumerate(getattr(backup, name)):
            arrays[f"{name}_{place:04d}"] = array
    part = folder / f".{FILE_NAME}.part"
    with part.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # the stub takes any dict for allow_pickle too
        file.flush()
        os.fsync(file.fileno())
    part.replace(folder / FILE_NAME)


def read_backup(folder: Path) -> Backup | None:
    """The backup in `folder`; None when there is none or it cannot be read."""
    try:
        # Opened here: NumPy leaves a file that is no archive open.
        with (folder / FILE_NAME).open("rb") as file, np.load(file, allow_pickle=False) as archive:
            state: dict[str, Any] = json.loads(str(archive["state"]))
            lists = {
                name: [archive[key] for key in sorted(archive.files) if key.startswith(f"{name}_")]
                for name in ("weights", "optimizer", "best_weights")
            }
            return Backup(**state, weights=lists["weights"], optimizer=lists["optimizer"], best_weights=lists["best_weights"])
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile):
        return None


def remove_backup(folder: Path) -> None:
    """Deletes the backup, for when the results it led to are written."""
    for name in (FILE_NAME, f".{FILE_NAME}.part"):
        (folder / name).unlink(missing_ok=True)
