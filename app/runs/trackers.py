"""Trackers beside the run folder: MLflow (where MLFLOW_TRACKING_URI is set) and TensorBoard (the option `tensorboard`).

Their absence or failure costs a run one sentence, and no step of training ever waits for them.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Protocol

import app
from app.cae.config import CaeConfig
from app.cae.reporting import Row
from app.runs.recorder import Recorder
from app.runs.trackers_record import MlflowRecord, read_record, without_secrets
from app.runs.trackers_tensorboard import TensorBoardLog

CONTACT_WITHIN_S = 12.0
"""How long a run that is over already waits to learn whether MLflow answered. Only runs of a few seconds ever do."""
LEAVE_WITHIN_S = 15.0
"""How long a run's process waits, after its last word, for MLflow to take it: containers end with their first process."""
LEAVE_JOB_WITHIN_S = 60.0
"""The same in a SLURM job, which kills what its process leaves behind."""
_POLL_S = 0.1

NO_MLFLOW = (
    "MLFLOW_TRACKING_URI is set, but the package mlflow is not installed, so the run is not logged there. "
    "Install it: pip install 'twopath[mlflow]'."
)
NOT_STARTED = "MLflow: the process that logs the run cannot be started ({why}); the run goes on."
SILENT = "MLflow at {uri} had not answered when the run ended, so it may not be logged there."


class Tracker(Protocol):
    """Gets what happens in a run. Neither raises nor waits, but where said."""

    def epoch(self, row: Row) -> None:
        """An epoch is over."""

    def settle(self) -> None:
        """The run is about to say its last word: warn now or never. May wait, see CONTACT_WITHIN_S."""

    def leave(self) -> None:
        """The last word is written. May wait, see LEAVE_WITHIN_S."""


class Trackers:
    """The trackers of one run, from the moment it leaves the queue."""

    def __init__(self, recorder: Recorder, config: CaeConfig) -> None:
        self._all: list[Tracker] = []
        if os.environ.get("MLFLOW_TRACKING_URI", "").strip():
            self._all.append(MlflowTracker(recorder))
        if config.tensorboard:
            self._all.append(TensorBoardLog(recorder.folder.path, recorder.warn))
        recorder.before_last_word.extend(tracker.settle for tracker in self._all)
        recorder.at_leave.extend(tracker.leave for tracker in self._all)

    def epoch(self, row: Row) -> None:
        for tracker in self._all:
            tracker.epoch(row)


class MlflowTracker:
    """Starts the companion process and brings its first complaint into the run."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._folder = recorder.folder.path
        self._began = time.monotonic()
        self._warned = False
        self._started = False
        if importlib.util.find_spec("mlflow") is None:
            self._warn(NO_MLFLOW)
            return
        try:
            _start_companion(self._folder)
        except OSError as error:
            self._warn(NOT_STARTED.format(why=error.strerror or error))
            return
        self._started = True
        recorder.on_tick.append(self._look)

    def epoch(self, row: Row) -> None:
        """Nothing: the companion reads `history.csv`."""

    def settle(self) -> None:
        limit = 1.0 if self._recorder.cancelled() else CONTACT_WITHIN_S
        while self._started and not self._warned and (self._record() is None or self._contact() is None):
            if time.monotonic() - self._began > limit:
                self._warn(SILENT.format(uri=without_secrets(os.environ.get("MLFLOW_TRACKING_URI", ""))))
                return
            time.sleep(_POLL_S)
        self._look()

    def leave(self) -> None:
        job = "SLURM_JOB_ID" in os.environ
        until = time.monotonic() + (LEAVE_JOB_WITHIN_S if job else 0.0 if self._recorder.cancelled() else LEAVE_WITHIN_S)
        while time.monotonic() < until and (record := self._record()) is not None and record.contact and not record.ended:
            time.sleep(_POLL_S)

    def _look(self) -> None:
        record = self._record()
        if record is not None and record.trouble:
            self._warn(record.trouble)

    def _record(self) -> MlflowRecord | None:
        """What the companion of this very process says."""
        record = read_record(self._folder)
        return record if record is not None and record.pid == os.getpid() else None

    def _contact(self) -> bool | None:
        record = self._record()
        return None if record is None else record.contact

    def _warn(self, sentence: str) -> None:
        if not self._warned:
            self._warned = True
            self._recorder.warn(sentence)


def _start_companion(folder: Path) -> None:
    """Raises OSError where no process can be started."""
    assert app.__file__ is not None
    process = subprocess.Popen(
        [sys.executable, "-m", "app.runs.trackers_mlflow", str(folder), str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd=Path(app.__file__).resolve().parents[1],
    )
    # It goes on in a child of its own; what is left of this one is taken without waiting for it.
    threading.Thread(target=process.wait, name="reap-companion", daemon=True).start()
