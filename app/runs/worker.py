"""The process of a run: takes its place in line, runs the pipeline, writes the folder, and says how it ended.

Every end but a kill leaves a last word in `status.json`: finished, cancelled, or failed with one sentence. Tracebacks go to `log.txt`.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from app.cae.config import CaeConfig
from app.core.errors import AppError, RunError
from app.runs import sentences, slurm_job
from app.runs.files import clean_leftovers, keep_reserve
from app.runs.folder import RunFolder, load_dataset_summary, load_history, load_metrics
from app.runs.locks import try_lock
from app.runs.log import RunLog
from app.runs.processes import hostname, mark, memory_now
from app.runs.recorder import Recorder, stopping_signals
from app.runs.reporter import FolderReporter
from app.runs.results import write_result
from app.runs.status import RunStatus, utc_now
from app.runs.trackers import Trackers
from app.runs.waiting import Turn

if TYPE_CHECKING:
    from app.cae.cae_pipeline import CaeResult

BACKUP = "backup"
"""Sub-folder of a run in which the pipeline keeps the state of training."""
CANCELLED_STATUS = 130
"""Exit status of a cancelled run, as shells give it for a command stopped by Ctrl-C."""
METRICS = ("image_auroc", "image_ap", "image_f1", "pixel_auroc")
_CLAIM_WITHIN_S = 15.0

Echo = Callable[[str], None]


class Pipeline(Protocol):
    """What carries a run out; `app.cae.cae_pipeline.run_keras_cae_pipeline` unless told otherwise."""

    def __call__(self, config: CaeConfig, *, reporter: FolderReporter, work_dir: Path) -> CaeResult: ...


def run_in_folder(folder: Path, *, pipeline: Pipeline | None = None, echo: Echo | None = None) -> int:
    """Carry out the run that `folder` was made for; call it in the main thread of a process of its own.

    Args:
        folder: a run folder in state queued.
        pipeline: replaces the real one.
        echo: gets progress lines. Default: stderr when it is a terminal.

    Returns:
        Exit status: 0 finished, 1 failed, 2 failed because of a bad option, 130 cancelled. A failure is also one sentence on stderr.

    Raises:
        RunError: the folder does not wait to be carried out (it runs already, or has ended), or cannot be written to.
    """
    run = RunFolder(folder)
    with ExitStack() as stack:
        stack.callback(os.close, _claim(run))
        log = RunLog(run.path / "log.txt")
        stack.callback(log.close)
        clean_leftovers(run.path)
        keep_reserve(run.path)
        if (job_id := slurm_job.job_id_here(run)) is not None:
            log.line(f"{slurm_job.STARTED_LINE.format(job_id=job_id)} on {hostname()}")
        recorder = Recorder(run, _first_status(run), log)
        stack.enter_context(stopping_signals(recorder))
        recorder.start()
        stack.callback(recorder.close)
        return _to_the_end(run, recorder, pipeline or _real_pipeline, echo or _terminal(log))


def _real_pipeline(config: CaeConfig, *, reporter: FolderReporter, work_dir: Path) -> CaeResult:
    from app.cae.cae_pipeline import run_keras_cae_pipeline

    return run_keras_cae_pipeline(config, reporter=reporter, work_dir=work_dir, gpus=reporter.gpus)


def _claim(run: RunFolder) -> int:
    """Make sure that no other process carries this run out; the claim dies with this process.

    Returns:
        A descriptor to keep open.
    """
    again = slurm_job.started_again(run)
    if not again:
        _refuse_unless_waiting(run)
    try:
        descriptor = os.open(run.path / "config.json", os.O_RDWR)
    except OSError as error:
        raise RunError(sentences.cannot_write(run.path / "config.json", error)) from error
    try:
        # A run that is resumed at once may have to wait for its former process to end.
        until = time.monotonic() + _CLAIM_WITHIN_S
        while not _locked(descriptor):
            if time.monotonic() > until:
                raise RunError(sentences.BUSY_FOLDER.format(run_id=run.run_id, what="is carried out by another process"))
            time.sleep(0.1)
        if again:  # whatever its former process could say last: it may have been killed, with its node
            run.set_up_again(run.status(), keep_launch=True)
        _refuse_unless_waiting(run)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _locked(descriptor: int) -> bool:
    try:
        return try_lock(descriptor)
    except OSError:  # a network file system without locks: the state in the folder must do
        return True


def _refuse_unless_waiting(run: RunFolder) -> None:
    status = run.status()
    if status.state == "unreadable":
        raise RunError(str(status.error))
    # Cancelled or "never started" without a process: it starts now after all, and says so itself.
    if status.pid is not None or status.state not in ("queued", "cancelled", "interrupted"):
        raise RunError(sentences.BUSY_FOLDER.format(run_id=run.run_id, what=f"is {status.state}"))


def _first_status(run: RunFolder) -> RunStatus:
    me, memory, before = mark(), memory_now(), run.status()
    return RunStatus(
        run.run_id,
        "queued",
        created=before.created or utc_now(),
        earlier_s=before.earlier_s,
        pid=os.getpid(),
        pid_started=me.started if me else None,
        pid_token=me.token if me else None,
        host=me.host if me else None,
        oom_kills=memory.oom_kills,
    )


def _to_the_end(run: RunFolder, recorder: Recorder, pipeline: Pipeline, echo: Echo) -> int:
    try:
        _carry_out(run, recorder, pipeline, echo)
    except Exception as error:  # noqa: BLE001 - the process ends here, so whatever happened becomes the run's last word
        sentence = explain(error, run)
        recorder.log.line(f"failed: {sentence}\n{traceback.format_exc()}")
        writing = recorder.status.phase == "writing"
        if recorder.cancelled() and not writing and not isinstance(error, (AppError, OSError, MemoryError)):
            # Libraries that are stopped in the middle raise all sorts of things.
            _finish_stopped(run, recorder, message=None)
            return CANCELLED_STATUS
        recorder.finish(state="failed", error=sentence, message=None)
        if not recorder.log.is_stderr():
            print(sentence, file=sys.stderr)
        return error.exit_status if isinstance(error, AppError) else 1
    if recorder.trouble:  # not even the last word could be written
        print(recorder.trouble, file=sys.stderr)
        return 1
    return 0 if recorder.status.state == "finished" else CANCELLED_STATUS


def _carry_out(run: RunFolder, recorder: Recorder, pipeline: Pipeline, echo: Echo) -> None:
    config = run.config()
    recorder.change(epochs=config.epochs)
    turn = Turn(run, config, recorder, echo)
    try:
        if not turn.wait():
            _finish_stopped(run, recorder, message=sentences.CANCELLED_IN_QUEUE)
            return
        recorder.change(at_once=True, state="running", started=utc_now(), message=None)
        reporter = FolderReporter(recorder, config, on_profile=turn.settle, echo=echo, trackers=Trackers(recorder, config), gpus=turn.keys)
        result = pipeline(config, reporter=reporter, work_dir=run.path)
        _write_down(run, recorder, reporter, result)
    finally:
        turn.over()


def _write_down(run: RunFolder, recorder: Recorder, reporter: FolderReporter, result: CaeResult) -> None:
    known = {name: getattr(result, name) for name in ("best_epoch", "batch_size", "train_images_per_s", "score_images_per_s")}
    recorder.change(**{name: value for name, value in known.items() if value is not None})
    write_result(run, result, progress=lambda done, total: reporter.phase("writing", done, total))
    if result.state == "finished":
        # A cancelled run keeps it, and can go on from there.
        shutil.rmtree(run.path / BACKUP, ignore_errors=True)
    if result.state == "cancelled":
        _finish_stopped(run, recorder, message=None)
        return
    recorder.log.line(result.state)
    recorder.finish(state=result.state, message=None)


def _finish_stopped(run: RunFolder, recorder: Recorder, *, message: str | None) -> None:
    """The last word of a run that was asked to stop: by people, or by SLURM, which may start it again."""
    word = slurm_job.last_word(run, signalled=recorder.signalled) or {"state": "cancelled", "message": message}
    recorder.log.line(" ".join(str(word[name]) for name in ("state", "message", "error") if word.get(name)))
    recorder.finish(**word)


def explain(error: Exception, run: RunFolder) -> str:
    """The sentence a user reads for `error`."""
    if isinstance(error, AppError):
        return str(error)
    memory = memory_now()
    # TensorFlow's own class is known by name only: this module does not import it.
    no_memory = isinstance(error, OSError) and error.errno == errno.ENOMEM
    if no_memory or isinstance(error, MemoryError) or type(error).__name__ == "ResourceExhaustedError":
        return sentences.memory_exhausted(memory.rss_mib, memory.free_mib, str(error))
    if isinstance(error, OSError):
        return sentences.other_os_error(error, run.path)
    text = str(error).strip().splitlines()
    return sentences.UNEXPECTED.format(kind=type(error).__name__, text=f"{text[0][:300].rstrip('.')}." if text else "")


def summary(folder: Path) -> dict[str, Any]:
    """What `cae --json` prints: how the run ended, the path it took, its throughput and metrics. Never raises."""
    run = RunFolder(folder)
    status, metrics = run.status(), load_metrics(run.path) or {}
    missing = dict(metrics.get("not_available") or {})
    for name in METRICS:
        if metrics.get(name) is None:
            missing.setdefault(name, status.error or f"The run is {status.state}; nothing was scored.")
    return {
        "run_id": run.run_id,
        "run_folder": str(run.path),
        "state": status.state,
        "selected_device": status.selected_device,
        "path": status.path,
        "reason": status.reason,
        "train_images_per_s": status.train_images_per_s,
        "score_images_per_s": status.score_images_per_s,
        "epochs": len(load_history(run.path)),
        "metrics": {**{name: metrics.get(name) for name in METRICS}, **metrics, "not_available": missing},
        "warnings": list(status.warnings),
        "problems": list((load_dataset_summary(run.path) or {}).get("problems") or ()),
    }


def _terminal(log: RunLog) -> Echo:
    """Progress for people: on stderr when that is a terminal, so that scripts see at most the one sentence of a failure."""
    if not log.is_stderr() and sys.stderr is not None and sys.stderr.isatty():
        return lambda line: print(line, file=sys.stderr, flush=True)
    return lambda _line: None
