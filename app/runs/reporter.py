"""What the pipeline reports, written into the run folder. Fulfils the `Reporter` protocol of `app.cae.reporting`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from app.cae.config import CaeConfig
from app.core.errors import RunError
from app.core.profile import HardwareProfile
from app.runs.files import write_json
from app.runs.processes import hostname
from app.runs.recorder import Recorder
from app.runs.steps import StepLog
from app.runs.trackers import Trackers


class FolderReporter:
    """Turns the pipeline's reports into `status.json`, `profile.json`, `dataset.json`, `history.csv`, `steps.csv` and `log.txt`."""

    def __init__(
        self,
        recorder: Recorder,
        config: CaeConfig,
        *,
        on_profile: Callable[[HardwareProfile], None] | None = None,
        echo: Callable[[str], None] | None = None,
        trackers: Trackers | None = None,
        gpus: tuple[str, ...] = (),
    ) -> None:
        """Args:
        on_profile: called once the device TensorFlow really uses is known, before any training.
        echo: gets one line an epoch and a phase, for a terminal.
        trackers: get every epoch too.
        gpus: the lines in which the run has its place, for the pipeline to take these GPUs and no others.
        """
        self._recorder = recorder
        self._config = config
        self._on_profile = on_profile
        self._echo = echo or (lambda _line: None)
        self._trackers = trackers
        self.gpus = gpus
        self._steps = StepLog(recorder.folder.path)
        recorder.before_last_word.append(lambda: self._keep_steps(self._steps.save))
        self._phase: str | None = None
        self._at_entry = 0
        self._first: tuple[float, int] | None = None

    def phase(self, name: str, done: int, total: int) -> None:
        """Progress: `done` of `total` steps of the phase reading, training, scoring or writing."""
        now = time.monotonic()
        if name != self._phase:
            self._phase, self._first, self._at_entry = name, None, done
            self._recorder.log.line(f"phase {name}")
            self._echo(f"{name} …")
            self._recorder.change(at_once=True, phase=name, progress_done=done, progress_total=total, eta_s=None)
        # The first step compiles, so the clock starts after it.
        if self._first is None and done > self._at_entry:
            self._first = now, done
        eta = None
        if self._first is not None and done > self._first[1]:
            eta = round((now - self._first[0]) / (done - self._first[1]) * max(0, total - done), 1)
        self._recorder.change(progress_done=done, progress_total=total, eta_s=eta)

    def profile(self, profile: HardwareProfile) -> None:
        """The path this run takes. Waits here when that is another device than the one whose place the run holds."""
        self._write("profile.json", {"host": hostname(), **profile.to_json()})
        self._recorder.log.line(profile.report())
        self._echo(f"{profile.path}: {profile.reason}")
        self._recorder.change(at_once=True, selected_device=profile.selected_device, path=profile.path, reason=profile.reason)
        for sentence in profile.warnings:
            self._recorder.warn(sentence)
        if self._on_profile is not None:
            self._on_profile(profile)

    def dataset(self, summary: Mapping[str, Any]) -> None:
        """What was read: counts and problems."""
        self._write("dataset.json", dict(summary))
        epochs = summary.get("epochs")
        if isinstance(epochs, int):
            self._recorder.change(epochs=epochs)
        for sentence in summary.get("problems") or ():
            self._recorder.log.line(f"data: {sentence}")

    def epoch(self, row: Mapping[str, float | int]) -> None:
        """One finished epoch, with the columns of `history.csv`."""
        self._recorder.add_epoch(row)
        if self._trackers is not None:
            self._trackers.epoch(dict(row))
        epochs = self._recorder.status.epochs
        figures = "  ".join(f"{name} {row[name]:.4g}" for name in ("loss", "val_loss", "images_per_s") if row.get(name) is not None)
        line = f"epoch {int(row['epoch'])}{f' of {epochs}' if epochs else ''}  {figures}"
        self._recorder.log.line(line)
        self._echo(line)

    def epoch_step_rows(self, rows: Sequence[Mapping[str, float | int]]) -> None:
        """The optimizer steps of an epoch, with the columns of `steps.csv`."""
        self._keep_steps(lambda: self._steps.add([dict(row) for row in rows]))

    def _keep_steps(self, write: Callable[[], None]) -> None:
        try:
            write()
        except RunError as error:
            self._recorder.warn(str(error))

    def warning(self, sentence: str) -> None:
        self._recorder.warn(sentence)
        self._echo(f"warning: {sentence}")

    def cancelled(self) -> bool:
        return self._recorder.cancelled()

    def _write(self, name: str, value: dict[str, Any]) -> None:
        try:
            write_json(self._recorder.folder.path / name, value)
        except RunError as error:
            with contextlib.suppress(RunError):
                self._recorder.warn(str(error))
