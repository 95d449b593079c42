"""What runs say to people: every sentence about files, memory, queueing and ends, in one place."""

from __future__ import annotations

import errno
import shutil
import signal
from pathlib import Path

MIB = 1024 * 1024

STOPPING = "Stopping: {why}."
BY_FOLDER = "cancel was asked for"
BY_SIGNAL = {
    "SIGINT": "Ctrl-C was pressed",
    "SIGHUP": "the terminal it was started in was closed",
    "SIGTERM": "the system or another program asked it to end",
}
"""Why a run stops, by the signal that came without a request in its folder."""
TRIES_AGAIN = "{trouble} The run goes on and tries again."
WAITING = "Waiting for run {run_id} on {device}{others}."
MOVED = "The decision changed while waiting, from {before} to {after}: {reason}"
ANSWERED_CANCEL = "Asked run {run_id} to stop; what it has computed stays usable. A second cancel kills it."
ANSWERED_KILL = "Killed run {run_id}; what it had written stays."
ANSWERED_OVER = "Run {run_id} is not running (state: {state}): there is nothing to cancel."
ANSWERED_ELSEWHERE = "Asked run {run_id} to stop through its folder; it runs on {host} and looks there about twice a second."
CANNOT_KILL_ELSEWHERE = "run {run_id}: it runs on {host} and can be killed only there (process {pid}); it was asked to stop before."
KILLED_BY_CANCEL = "Cancelled; its process ended before it could write a result. What was written before stays."
NEVER_STARTED = "The run was set up but its process never started."
CANCELLED_IN_QUEUE = "Cancelled while it waited in the queue; nothing was computed."
UNEXPECTED = "The run stopped by an unexpected {kind}: {text} The log (log.txt) tells where."
BUSY_FOLDER = "run {run_id}: expected a run that waits to be carried out, got one that {what}. Start a new run instead."
NOT_RESUMABLE = "run {run_id}: expected a run that was interrupted, cancelled or failed, got one that is {state}. {error}"
PICTURES_GONE = "run {run_id}: it cannot go on, since its pictures are gone. {why}"
LIVE = "run {run_id}: it is {state}; cancel it first."


def mib(size: float) -> str:
    """`size` bytes as people read it: whole MiB, below 10 MiB and from 10 GiB up with one decimal."""
    if size >= 10 * 1024 * MIB:
        return f"{size / MIB / 1024:.1f} GiB"
    return f"{size / MIB:.{0 if size >= 10 * MIB else 1}f} MiB"


def free_space(path: Path) -> str:
    """Free and total space of the file system that holds `path` (or its nearest parent that exists)."""
    for place in (path, *path.parents):
        try:
            usage = shutil.disk_usage(place)
        except OSError:
            continue
        return f"{mib(usage.free)} of {mib(usage.total)} free"
    return "free space unknown"


def cannot_write(path: Path, error: OSError) -> str:
    """Why `path` could not be written and what to do about it."""
    where = path.parent
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            what = "the disk is full" if error.errno == errno.ENOSPC else "the disk quota is used up"
            return f"{path.name}: {what} in {where} ({free_space(where)}). Free some space; what was written before stays."
        case errno.EACCES | errno.EPERM | errno.EROFS:
            why = "the file system is read-only" if error.errno == errno.EROFS else "permission denied"
            return f"{path.name}: {where} cannot be written to ({why}). Choose another folder with --runs-dir or TWOPATH_RUNS_DIR."
        case errno.ENOENT | errno.ENOTDIR:
            return f"{path.name}: {where} is not a folder that exists. Choose another folder with --runs-dir or TWOPATH_RUNS_DIR."
        case errno.EFBIG:
            return f"{path.name}: the file would exceed the largest file size allowed in {where} ({free_space(where)}). See ulimit -f."
        case _:
            return f"{path.name}: cannot be written in {where} ({error.strerror or error}; {free_space(where)})."


def cannot_create(path: Path, error: OSError) -> str:
    """Why the folder `path` for runs could not be made."""
    return (
        f"{path}: a folder for runs cannot be made there ({error.strerror or error}; {free_space(path)}). Choose another with --runs-dir."
    )


def other_os_error(error: OSError, folder: Path) -> str:
    """An OSError from deep inside a run, with numbers where they help."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return cannot_write(Path(str(error.filename)) if error.filename else folder / "run", error)
    name = f"{error.filename}: " if error.filename else ""
    return f"{name}{error.strerror or error} ({free_space(folder)} in {folder})."


def memory_exhausted(rss_mib: int | None, free_mib: int | None, text: str) -> str:
    """Memory ran out inside the process, which lived to tell."""
    held = f"this process held {rss_mib} MiB" if rss_mib is not None else "how much this process held is unknown"
    free = f"{free_mib} MiB were free" if free_mib is not None else "free memory is unknown"
    asked = f" ({text.strip().splitlines()[0][:160]})" if text.strip() else ""
    return f"Memory is exhausted{asked}: {held}, {free}. Choose a smaller batch size or image size."


def gone(
    *, heartbeat: str | None, rss_mib: int | None, free_mib: int | None, oom: bool, returncode: int | None, elsewhere: str | None
) -> str:
    """A run whose process is gone without having said why: what is known, in one or two sentences."""
    if elsewhere:
        first = f"No sign of life from {elsewhere}"
    elif oom:
        first = "The system's out-of-memory killer most likely ended the process"
    elif returncode is not None and returncode < 0:
        first = f"The process was ended by {_signal_name(-returncode)}"
    elif returncode:
        first = f"The process ended with exit status {returncode} before it could say why; the log (log.txt) may tell"
    else:
        first = "The process is gone: killed, or the machine was restarted"
    last = f"; last sign of life {heartbeat}" if heartbeat else ""
    if last and rss_mib is not None:
        last += f", when it held {rss_mib} MiB" + (f" and {free_mib} MiB of memory were free" if free_mib is not None else "")
    return f"{first}{last}. What was written before stays."


def _signal_name(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
    hint = {"SIGKILL": ": kill -9 or the out-of-memory killer", "SIGILL": ": an instruction this CPU lacks"}.get(name, "")
    return f"{name} (signal {number}{hint})"
