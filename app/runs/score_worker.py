"""The process of a scoring: takes its place in the device's line, scores new pictures with a run's model, writes, and says how it ended."""

from __future__ import annotations

import os
import shutil
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.cae.config import CaeConfig
from app.cae.folders import relative_to
from app.core.errors import AppError, OptionError, RunError
from app.runs.files import clean_leftovers, keep_reserve
from app.runs.folder import RunFolder
from app.runs.locks import try_lock
from app.runs.log import RunLog
from app.runs.processes import mark
from app.runs.recorder import Recorder, stopping_signals
from app.runs.reporter import FolderReporter
from app.runs.score_folder import CALIBRATION, MODEL, OWN_FILES, OWN_FOLDERS, UPLOADS, is_set_up, read_scoring, refuse_unusable, set_up
from app.runs.score_inputs import Given, Reading, find_pictures
from app.runs.sentences import cannot_write
from app.runs.status import RunStatus, utc_now
from app.runs.waiting import Turn
from app.runs.worker import explain

if TYPE_CHECKING:
    from app.cae.cae_pipeline import NewScores
    from app.cae.rows import Rows
    from app.cae.scoring import Calibration

Echo = Callable[[str], None]

BUSY = "--out: expected a scoring that nobody carries out, got {path}, which another process is working in."
STOPPED = "Stopped ({why}): {what}"
NOTHING_WRITTEN = "nothing was scored."
FIGURES_WRITTEN = "scores.csv and maps.npz are whole in {path}, heat maps are missing."


class UnexpectedError(RunError):
    """Something nobody foresaw; the log in the scoring's folder tells where, so that the folder stays."""


class _Stopped(Exception):  # noqa: N818 - a signal, not an error
    """Somebody wants the scoring to stop."""


@dataclass(frozen=True)
class Ended:
    """How a scoring ended: with `result.json`'s content, or stopped, with a sentence."""

    result: dict[str, Any] | None
    sentence: str = ""


def carry_out(
    folder: Path,
    run: RunFolder,
    paths: Sequence[Path],
    config: CaeConfig,
    *,
    echo: Echo = lambda _line: None,
    problem: Echo = lambda _line: None,
) -> Ended:
    """Score pictures into `folder`, which is made when nobody has set it up; call it in the main thread of a process of its own.

    Args:
        folder: of the scoring.
        run: whose model scores.
        paths: files and folders.
        config: its device and the VRAM it asks for are those of the scoring.
        echo: gets progress lines.
        problem: gets a sentence for each thing that is left out, as it is found.

    Raises:
        AppError: it could not be done; the sentence stands in the folder too, where somebody had set it up. A folder made here goes again.
    """
    ours = not is_set_up(folder)
    if not ours:
        place = RunFolder(folder)
    else:
        refuse_unusable(run)
        find_pictures(paths)  # what cannot work makes no folder
        asked = {"run_id": run.run_id, "pictures": [relative_to(path.absolute(), None) for path in paths], "names": {}}
        existed = folder.exists()
        place = set_up(folder, {**asked, "device": config.device, "min_vram_mib": config.min_vram_mib})
    worker = _Worker(place, run, paths, config, echo, problem)
    try:
        ended = worker.carried_out()
    except AppError as error:
        if ours and worker.claimed and not isinstance(error, UnexpectedError):
            _take_back(place, existed)
        raise
    if ours and ended.result is None:
        _take_back(place, existed)
    return ended


def _take_back(place: RunFolder, existed: bool) -> None:
    """Leave no folder that holds nothing of worth. What somebody else put there meanwhile stays."""
    if (place.path / "scores.csv").exists():
        return
    for name in OWN_FOLDERS:
        shutil.rmtree(place.path / name, ignore_errors=True)
    with suppress(OSError):
        for name in OWN_FILES:
            (place.path / name).unlink(missing_ok=True)
        clean_leftovers(place.path)
        if not existed:
            place.path.rmdir()


@dataclass
class _Worker:
    place: RunFolder
    run: RunFolder
    paths: Sequence[Path]
    config: CaeConfig
    echo: Echo
    told_problem: Echo
    problems: list[str] = field(default_factory=list)
    claimed: bool = False
    """Whether the folder is this process's to carry out."""

    def carried_out(self) -> Ended:
        with ExitStack() as stack:
            stack.callback(os.close, self._claim())
            self.claimed = True
            log = RunLog(self.place.path / "log.txt")
            stack.callback(log.close)
            clean_leftovers(self.place.path)
            keep_reserve(self.place.path)
            recorder = Recorder(self.place, self._first_status(), log)
            stack.enter_context(stopping_signals(recorder))
            recorder.start()
            stack.callback(recorder.close)
            stack.callback(shutil.rmtree, self.place.path / UPLOADS, ignore_errors=True)
            return self._to_the_end(recorder)

    def _claim(self) -> int:
        """Make sure that no other process carries it out. Returns a descriptor to keep open: the claim."""
        file = self.place.path / "request.json"
        try:
            descriptor = os.open(file, os.O_RDWR)
        except OSError as error:
            raise RunError(cannot_write(file, error)) from error
        if not try_lock(descriptor):
            os.close(descriptor)
            raise OptionError(BUSY.format(path=self.place.path))
        return descriptor

    def _first_status(self) -> RunStatus:
        me = mark()
        return RunStatus(
            self.place.run_id,
            "queued",
            created=self.place.status().created or utc_now(),
            pid=os.getpid(),
            pid_started=me.started if me else None,
            pid_token=me.token if me else None,
            host=me.host if me else None,
        )

    def _to_the_end(self, recorder: Recorder) -> Ended:
        try:
            result = self._score(recorder)
        except Exception as error:
            # Libraries that are stopped in the middle raise all sorts of things.
            if recorder.cancelled() and not isinstance(error, (AppError, OSError, MemoryError)):
                return self._stopped(recorder)
            sentence = explain(error, self.place)
            recorder.log.line(f"failed: {sentence}\n{traceback.format_exc()}")
            recorder.finish(state="failed", error=sentence, message=None)
            if isinstance(error, AppError):
                raise
            raise UnexpectedError(f"{sentence.removesuffix('.')} ({self.place.path}).") from error
        if result is None:
            return self._stopped(recorder)
        recorder.log.line("finished")
        recorder.finish(state="finished", message=None, score_images_per_s=result["images_per_s"])
        return Ended(result)

    def _stopped(self, recorder: Recorder) -> Ended:
        recorder.finish(state="cancelled", message=None)
        written = (self.place.path / "scores.csv").exists()
        what = FIGURES_WRITTEN.format(path=self.place.path) if written else NOTHING_WRITTEN
        return Ended(None, STOPPED.format(why="cancel was asked for" if not recorder.signalled else "it got a signal", what=what))

    def _score(self, recorder: Recorder) -> dict[str, Any] | None:
        """What `result.json` holds; `None` when it was stopped in the queue."""
        refuse_unusable(self.run)
        given = self._found(recorder)
        turn = Turn(self.place, self.config, recorder, self.echo)
        try:
            if not turn.wait():
                return None
            recorder.change(at_once=True, state="running", started=utc_now(), message=None)
            reporter = FolderReporter(recorder, self.config, on_profile=turn.settle, echo=self.echo, gpus=turn.keys)
            reading = Reading(given, partial(_tell, reporter, "reading"), partial(self._problem, recorder), folder=self.place.path)
            found = self._forward(reading, reporter)
        finally:
            turn.over()
        from app.runs.score_writer import Writer

        writer = Writer(self.place, self.run, reading, found, self.problems)
        return writer.write(partial(_tell, reporter, "writing"))

    def _found(self, recorder: Recorder) -> list[Given]:
        given, problems = find_pictures(self.paths, read_scoring(self.place.path).request.get("names"))
        for line in problems:
            self._problem(recorder, line)
        return given

    def _forward(self, reading: Reading, reporter: FolderReporter) -> NewScores:
        from app.cae.cae_pipeline import score_with_saved_model

        def read(rule: Calibration) -> Rows:
            images = reading(rule)
            # TensorFlow starts and the model is loaded before the first batch is told of.
            _tell(reporter, "scoring", 0, len(images))
            return images

        return score_with_saved_model(
            self.run.path / MODEL,
            self.run.path / CALIBRATION,
            read,
            device=self.config.device,
            min_vram_mib=self.config.min_vram_mib,
            reporter=reporter,
            gpus=reporter.gpus,
            work_dir=self.place.path,
        )

    def _problem(self, recorder: Recorder, sentence: str) -> None:
        self.problems.append(sentence)
        recorder.log.line(f"data: {sentence}")
        if not recorder.log.is_stderr():
            self.told_problem(sentence)


def _tell(reporter: FolderReporter, phase: str, done: int, total: int) -> None:
    reporter.phase(phase, done, total)
    if reporter.cancelled():
        raise _Stopped


def to_stderr(line: str) -> None:
    """For what people should see beside the answer on standard output."""
    print(line, file=sys.stderr, flush=True)
