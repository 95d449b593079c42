"""Starting and stopping runs as processes of their own, from whichever process one is in."""

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

import psutil

from app.cae.config import CaeConfig
from app.core.errors import RunError
from app.runs import sentences
from app.runs.detached import start_detached
from app.runs.files import write_json
from app.runs.folder import RunFolder
from app.runs.processes import ProcessMark, is_alive, mark
from app.runs.status import RunStatus, launched, utc_now

RESUMABLE = ("interrupted", "cancelled", "failed")


def start_run(config: CaeConfig, runs_dir: Path, *, name: str | None = None, program: Sequence[str] | None = None) -> RunFolder:
    """Make a run folder and start its process, which goes on whatever becomes of this one. Returns at once; the run may queue.

    Args:
        program: replaces `python -m app.main cae --run-folder`; the folder's path is added as last argument.

    Raises:
        RunError: the folder cannot be made, or the process cannot be started (the run is then shown as failed).
    """
    folder = RunFolder.create(runs_dir, config, name=name)
    _start(folder, program)
    return folder


def resume_run(folder: RunFolder, *, program: Sequence[str] | None = None) -> None:
    """Start the process of an ended run once more: it goes on after its last whole epoch, in the same folder, and its curve is joined.

    A run that was stopped before its first whole epoch begins anew. Returns at once; the run may queue.

    Raises:
        RunError: the run has finished or goes on, its folder cannot be read or written to, or the process cannot be started.
    """
    status = folder.status()
    if status.state not in RESUMABLE:
        raise RunError(sentences.NOT_RESUMABLE.format(run_id=folder.run_id, state=status.state, error=status.error or "").rstrip())
    folder.set_up_again(status)
    _start(folder, program)


def _start(folder: RunFolder, program: Sequence[str] | None) -> None:
    command = [*(program or (sys.executable, "-m", "app.main", "cae", "--run-folder")), str(folder.path)]
    try:
        process = start_detached(command, folder.path / "log.txt")
    except OSError as error:
        sentence = f"run {folder.run_id}: its process cannot be started ({error.strerror or error}): {command[0]}."
        failed = RunStatus(folder.run_id, "failed", created=utc_now(), ended=utc_now(), error=sentence)
        write_json(folder.path / "status.json", failed.to_json())
        raise RunError(sentence) from error
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
    process = status.mark or launched(folder.launch_record())
    first = folder.ask_cancel()
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


def _note_launch(folder: RunFolder, record: dict[str, object], returncode: int | None) -> None:
    fields = {"pid": record["pid"], "pid_started": record.get("started"), "pid_token": record.get("token"), "host": record.get("host")}
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
