"""`steps.csv`: the training loss of every optimizer step, beside the epochs of `history.csv`."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Sequence
from pathlib import Path

from app.cae.reporting import STEP_COLUMNS, Row
from app.runs.files import write_bytes

FILE = "steps.csv"
MOST_ROWS = 20_000
"""Rows kept; beyond that every other one goes, so that a long training neither fills memory nor the page."""
WRITE_COST = 20.0
"""After a write that took t seconds the next waits 20 t: at most 5 % of the time is spent on writing."""


class StepLog:
    """Owns `steps.csv` of one run. A resumed run goes on with the rows it has."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._rows: list[Row] | None = None
        self._thinned = 1
        self._not_before = 0.0
        self.unsaved = False

    def add(self, rows: Sequence[Row]) -> None:
        """Adds the steps of an epoch; steps that training repeats, because it began anew or went on from a backup, are replaced.

        Raises:
            RunError: the folder cannot be written to.
        """
        if not rows:
            return
        if self._rows is None:
            self._rows = read_steps(self._path)
        first = rows[0]["step"]
        kept = [row for row in self._rows if row["step"] < first] if self._rows and self._rows[-1]["step"] >= first else self._rows
        self._rows = kept + [row for row in rows if row["step"] % self._thinned == 0]
        if len(self._rows) > MOST_ROWS:
            self._thinned *= 2
            self._rows = [row for row in self._rows if row["step"] % self._thinned == 0]
        self.unsaved = True
        if time.monotonic() >= self._not_before:
            self.save()

    def save(self) -> None:
        """Writes what is unsaved, as a whole file.

        Raises:
            RunError: the folder cannot be written to.
        """
        if not self.unsaved or self._rows is None:
            return
        started = time.monotonic()
        text = io.StringIO()
        writer = csv.DictWriter(text, STEP_COLUMNS, restval="", lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(self._rows)
        write_bytes(self._path, text.getvalue().encode())
        now = time.monotonic()
        self.unsaved, self._not_before = False, now + WRITE_COST * (now - started)


def read_steps(path: Path) -> list[Row]:
    """The rows that `StepLog` wrote; none when there is no such file or it is damaged."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        return [
            {"step": int(row["step"]), "epoch": int(row["epoch"]), "seconds": float(row["seconds"]), "loss": float(row["loss"])}
            for row in rows
        ]
    except (OSError, ValueError, TypeError, KeyError, csv.Error):
        return []
