"""A lock that the operating system takes back when its holder dies, however it dies."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from app.core.errors import RunError

if sys.platform != "win32":
    import fcntl


def try_lock(descriptor: int) -> bool:
    """Take the exclusive lock of an open file if nobody holds it. It lasts until the descriptor is closed in every process."""
    return _flock(descriptor, wait=False)


def wait_lock(descriptor: int) -> None:
    """Take the exclusive lock of an open file, waiting for whoever holds it."""
    _flock(descriptor, wait=True)


def _flock(descriptor: int, *, wait: bool) -> bool:
    if sys.platform == "win32":
        raise RunError("runs: expected Linux or macOS, whose file locks the queue of runs needs. On Windows use WSL2.")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock_dir() -> Path:
    """The folder where runs of this user on this machine queue: TWOPATH_LOCK_DIR, else one in the temporary folder.

    Raises:
        RunError: it cannot be made, or somebody else made it (locks of others would hold our runs up for ever).
    """
    chosen = os.environ.get("TWOPATH_LOCK_DIR")
    user = os.getuid() if hasattr(os, "getuid") else None
    path = Path(chosen) if chosen else Path(tempfile.gettempdir()) / f"twopath-{user if user is not None else 'user'}"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        ours = chosen or (not path.is_symlink() and user in (None, path.stat().st_uid))
    except OSError as error:
        raise RunError(f"{path}: the folder where runs queue cannot be made ({error.strerror or error}). Set TWOPATH_LOCK_DIR.") from None
    if not ours:
        raise RunError(f"{path}: expected a folder of your own for the queue of runs, got one of another user. Set TWOPATH_LOCK_DIR.")
    return path.absolute()


def line_dir(key: str) -> Path:
    """The folder that holds the line of the device `key`: `lock_dir()`, but for the CPU inside a SLURM job one of the job's own.

    A GPU has one line on a machine, whoever uses it and however it was started. The cores of a SLURM job are the job's own: two jobs on
    one node compute side by side, and must not wait for each other while their time limits run.

    Raises:
        RunError: as `lock_dir` does.
    """
    job_id = os.environ.get("SLURM_JOB_ID", "")
    return lock_dir() / f"slurm-{job_id}" if key == "cpu" and job_id.isdigit() else lock_dir()
