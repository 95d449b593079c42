"""Starting and stopping runs as processes of their own, from whichever process one is in: on this machine, or as jobs of SLURM."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NoReturn

import psutil

from app.cae.config import CaeConfig
from app.cae.memory import free_mib
from app.core.errors import AppError, RunError
from app.runs import sentences, slurm_submit
from app.runs import slurm_sentences as slurm_say
from app.runs.data_there import missing_data, refuse_meaningless_data, refuse_missing_data
from app.runs.detached import start_detached
from app.runs.files import write_json
from app.runs.folder import RunFolder
from app.runs.keeping import annotate_run
from app.runs.processes import ProcessMark, is_alive, mark
from app.runs.slurm_options import SlurmSettings, make_settings
from app.runs.slurm_queue import QUEUE
from app.runs.slurm_state import job_of
from app.runs.status import RunStatus, iso, launched, utc_now

Launcher = Literal["local", "slurm"]
RESUMABLE = ("interrupted", "cancelled", "failed")


def start_run(
    config: CaeConfig,
    runs_dir: Path,
    *,
    name: str | None = None,
    program: Sequence[str] | None = None,
    slurm: SlurmSettings | None = None,
    tags: Sequence[str] = (),
    one_of: str | None = None,
) -> RunFolder:
    """Make a run folder and start its process, which goes on whatever becomes of this one. Returns at once; the run may queue.

    Args:
        program: replaces `python -m app.main cae --run-folder`; the folder's path is added as last argument.
        slurm: submit the run as a job with these settings; default: a process on this machine.
        tags: for the notes of the run.
        one_of: name of a SLURM job; jobs of one name run one after the other.

    Raises:
        OptionError: the folder of pictures is not there, or `data` names none; then no run folder is made.
        RunError: the folder cannot be made, or the process or job cannot be started (the run is then shown as failed).
    """
    if slurm is None:  # a node of the cluster may see folders that this machine does not
        refuse_missing_data(config.data)
        free_mib()  # refuses a bad TWOPATH_MEMORY_MIB
    else:
        refuse_meaningless_data(config.data)
    folder = RunFolder.create(runs_dir, config, name=name)
    if tags:
        annotate_run(folder, tags=tags)
    if slurm is None:
        _start(folder, program)
    else:
        _submit(folder, program, slurm, one_of)
    return folder


def resume_run(
    folder: RunFolder, *, program: Sequence[str] | None = None, launcher: Launcher | None = None, slurm: SlurmSettings | None = None
) -> None:
    """Start the process of an ended run once more: it goes on after its last whole epoch, in the same folder, and its curve is joined.

    A run that was stopped before its first whole epoch begins anew. Returns at once; the run may queue.

    Args:
        launcher: default: the one that started the run before, with the same settings.
        slurm: other settings for the launcher `slurm`.

    Raises:
        RunError: the run has finished or goes on, its pictures are gone, its folder cannot be read or written to, or the process or job
            cannot be started.
        OptionError: the settings of the former job cannot be read.
    """
    status = folder.status()
    if status.state not in RESUMABLE:
        raise RunError(sentences.NOT_RESUMABLE.format(run_id=folder.run_id, state=status.state, error=status.error or "").rstrip())
    record = folder.launch_record() or {}
    by_slurm = launcher == "slurm" or (launcher is None and job_of(record) is not None)
    before = record.get("settings")
    settings = slurm or (make_settings(before, {}) if isinstance(before, dict) else make_settings({})) if by_slurm else None
    if settings is None and (gone := missing_data(folder.config().data)):
        raise RunError(sentences.PICTURES_GONE.format(run_id=folder.run_id, why=gone))
    folder.set_up_again(status)
    if settings is None:
        _start(folder, program)
    else:
        _submit(folder, program, settings, None)


def _submit(folder: RunFolder, program: Sequence[str] | None, settings: SlurmSettings, one_of: str | None) -> None:
    submitted = utc_now()
    try:
        on_cpu = folder.config().device == "cpu"
        job_id = slurm_submit.submit(
            folder.path, _command(folder, program), settings, with_gpus=not on_cpu, job_name=one_of, in_turn=one_of is not None
        )
    except AppError as error:
        _failed_to_start(folder, f"run {folder.run_id}: {error}", error)
    record = {"launcher": "slurm", "job_id": job_id, "submitted": iso(submitted), "settings": settings.given()}
    write_json(folder.path / "launch.json", record)


def _command(folder: RunFolder, program: Sequence[str] | None) -> list[str]:
    return [*(program or (sys.executable, "-m", "app.main", "cae", "--run-folder")), str(folder.path)]


def _failed_to_start(folder: RunFolder, sentence: str, error: Exception) -> NoReturn:
    now = utc_now()
    failed = RunStatus(folder.run_id, "failed", created=folder.status().created or now, ended=now, error=sentence)
    with contextlib.suppress(RunError):
        write_json(folder.path / "status.json", failed.to_json())
    raise RunError(sentence) from error


def _start(folder: RunFolder, program: Sequence[str] | None) -> None:
    command = _command(folder, program)
    try:
        process = start_detached(command, folder.path / "log.txt")
    except OSError as error:
        _failed_to_start(folder, f"run {folder.run_id}: its process cannot be started ({error.strerror or error}): {command[0]}.", error)
    known = mark(process.pid)
    record: dict[str, object] = dataclasses.asdict(known) if known else {"pid": process.pid}
    _note_launch(folder, record, None)
    threading.Thread(target=_see_it_end, args=(process, folder, record), name=f"reap-{process.pid}", daemon=True).start()


def cancel_run(folder: RunFolder) -> str:
    """Ask a run to stop; asked a second time, kill it and all its processes. Works from any process, whoever started the run.

    Returns:
        A sentence that says what was done.

    Raises:
        RunError: the folder cannot be written to, or a run on another machine would have to be killed from here.
    """
    status = folder.status()
    if not status.live:
        return sentences.ANSWERED_OVER.format(run_id=folder.run_id, state=status.state)
    record = folder.launch_record()
    first = folder.ask_cancel()
    if (job_id := job_of(record)) is not None:
        return _cancel_job(folder, job_id, first=first)
    process = status.mark or launched(record)
    alive = is_alive(process) if process else False
    if process is not None and alive is None:
        if not first:
            raise RunError(sentences.CANNOT_KILL_ELSEWHERE.format(run_id=folder.run_id, host=process.host, pid=process.pid))
        return sentences.ANSWERED_ELSEWHERE.format(run_id=folder.run_id, host=process.host)
    if process is not None and alive:
        if not first:
            _kill(process)
            return sentences.ANSWERED_KILL.format(run_id=folder.run_id)
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)
    return sentences.ANSWERED_CANCEL.format(run_id=folder.run_id)


def _cancel_job(folder: RunFolder, job_id: str, *, first: bool) -> str:
    names = {"run_id": folder.run_id, "job_id": job_id}
    if not first:
        if trouble := slurm_submit.kill_job(job_id):
            raise RunError(slurm_say.CANNOT_KILL.format(trouble=trouble, **names))
        return slurm_say.ANSWERED_KILL.format(**names)
    QUEUE.forget()
    job = QUEUE.job(job_id).job
    if job is not None and job.waits:
        # Should it start in this very moment, it finds the request in its folder.
        trouble = slurm_submit.stop_waiting_job(job_id)
        answer = slurm_say.ANSWERED_WAITING
    else:
        trouble = slurm_submit.signal_job(job_id)
        answer = slurm_say.ANSWERED_CANCEL
    return (slurm_say.ANSWERED_FOLDER_ONLY if trouble else answer).format(trouble=trouble, **names)


def _note_launch(folder: RunFolder, record: dict[str, object], returncode: int | None) -> None:
    fields = {
        "launcher": "local",
        "pid": record["pid"],
        "pid_started": record.get("started"),
        "pid_token": record.get("token"),
        "host": record.get("host"),
    }
    with contextlib.suppress(RunError):  # a help for readers, not a need
        write_json(folder.path / "launch.json", {**fields, "returncode": returncode})


def _see_it_end(process: subprocess.Popen[bytes], folder: RunFolder, record: dict[str, object]) -> None:
    """Take the exit status, so that no zombie stays, and note it: a killed run cannot say itself what killed it."""
    returncode = process.wait()
    # A run that was resumed meanwhile has another process by now.
    if returncode != 0 and (folder.launch_record() or {}).get("pid") == process.pid:
        _note_launch(folder, record, returncode)


def _kill(process: ProcessMark) -> None:
    """Kill the run and what it started: its process group when it leads one of its own, else its descendants one by one."""
    with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
        if os.getpgid(process.pid) == process.pid and os.getpgid(0) != process.pid:
            os.killpg(process.pid, signal.SIGKILL)
            return
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        os.kill(process.pid, signal.SIGKILL)
