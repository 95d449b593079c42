"""Starting `python -m app.main …` as a process that goes on whatever becomes of this one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import app

FOLDER_VARIABLES = ("TWOPATH_RUNS_DIR", "TWOPATH_LOCK_DIR", "TWOPATH_CACHE_DIR", "TWOPATH_DATA_ROOT")


def start_detached(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start `command` in a session of its own, its output appended to `log`: no Ctrl-C of our terminal and no hang-up reaches it.

    Raises:
        OSError: the program or the log cannot be opened.
    """
    assert app.__file__ is not None
    with log.open("ab") as output:
        return subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # `python -m` finds packages in the current folder first: it must be the one that holds this very package.
            cwd=Path(app.__file__).resolve().parents[1],
            env={"PYTHONUNBUFFERED": "1", **os.environ, **absolute_folders()},
        )


def absolute_folders() -> dict[str, str]:
    """Our own folder variables, absolute: the child starts in another folder, and must queue and keep where its starter does."""
    return {name: str(Path(value).absolute()) for name in FOLDER_VARIABLES if (value := os.environ.get(name))}
