"""What a run tells while it goes on, and the one thing it asks: whether to stop."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from app.core.tf_device import HardwareProfile

Phase = Literal["reading", "training", "scoring", "writing"]

Row = dict[str, float | int]
"""One epoch, as it stands in history.csv. A figure that is not known is left out, never 0."""

HISTORY_COLUMNS = (
    "epoch",
    "step",
    "seconds",
    "loss",
    "val_loss",
    "ssim_loss",
    "mse",
    "val_ssim_loss",
    "val_mse",
    "images_per_s",
    "learning_rate",
    "memory_mib",
    "gpu_memory_mib",
)
"""Columns of history.csv, in order. `epoch` counts from 1; `step` optimizer steps from the start of training; `seconds` wall time since
then, validation included; `loss` = a (1 - SSIM) + (1 - a) s MSE, of masked and (`val_…`) of unmasked held-out pictures, `ssim_loss` being
its 1 - SSIM; `images_per_s` training pictures a second, warm-up and validation left out; `memory_mib` resident memory of the process."""


STEP_COLUMNS = ("step", "epoch", "seconds", "loss")
"""Columns of steps.csv: `loss` is that of the step's batch alone; the others as in history.csv."""


def mean_images_per_s(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Training pictures a second over all epochs of a history, whichever process trained them.

    Every epoch shows the same number of pictures N, so N n over the sum of N / v is the harmonic mean of the rows' `images_per_s` v;
    an epoch whose first steps were warm-up counts like a whole one. None where no row has a speed.
    """
    known = [float(row.get("images_per_s") or 0.0) for row in rows]
    speeds = [speed for speed in known if 0 < speed < math.inf]  # a file that was edited by hand may hold anything
    return len(speeds) / sum(1 / speed for speed in speeds) if speeds else None


class Reporter(Protocol):
    """Receives what a run tells. Called from the thread that trains; must return quickly and not raise."""

    def phase(self, name: Phase, done: int, total: int) -> None:
        """`done` of `total` pictures (reading, scoring) or optimizer steps (training)."""

    def profile(self, profile: HardwareProfile) -> None:
        """The path taken, once TensorFlow is configured."""

    def dataset(self, summary: Mapping[str, Any]) -> None:
        """What was found and read; the keys are those of `summary.dataset_summary`."""

    def epoch(self, row: Row) -> None:
        """An epoch is over."""

    def epoch_step_rows(self, rows: Sequence[Row]) -> None:
        """The optimizer steps of the epoch that is over, with the columns `STEP_COLUMNS`; comes before `epoch`."""

    def warning(self, sentence: str) -> None:
        """Something the user should know."""

    def cancelled(self) -> bool:
        """Whether the run is to stop; asked at every batch."""


class SilentReporter:
    """Tells nobody and never stops. Base for reporters that care for a part only."""

    def phase(self, name: Phase, done: int, total: int) -> None:
        del name, done, total

    def profile(self, profile: HardwareProfile) -> None:
        del profile

    def dataset(self, summary: Mapping[str, Any]) -> None:
        del summary

    def epoch(self, row: Row) -> None:
        del row

    def epoch_step_rows(self, rows: Sequence[Row]) -> None:
        del rows

    def warning(self, sentence: str) -> None:
        del sentence

    def cancelled(self) -> bool:
        return False
