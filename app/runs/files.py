"""Whole files or none: everything in a run folder is written beside its place, synced, and moved there in one step.

A reader sees the old file or the new one, never half of one, whenever the writer is killed. Leftovers of a killed writer
begin with `.tmp-`; readers ignore them and the next writer of the folder removes them.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from app.core.errors import RunError
from app.runs.sentences import cannot_write

TEMP_PREFIX = ".tmp-"
RESERVE = ".reserve"
RESERVE_BYTES = 64 * 1024
"""Room kept so that a run that fills the disk can still say so in its status.json and keep its history."""
_LEFTOVER_AGE_S = 3600.0


def write_by(path: Path, fill: Callable[[Path], object]) -> None:
    """Let `fill` write a temporary file (same folder, same suffix), then put it in place of `path` at once.

    Raises:
        RunError: the file cannot be written; says why, with the free space when the disk is full. `path` is as before.
    """
    temp = path.with_name(f"{TEMP_PREFIX}{os.getpid()}-{threading.get_ident()}-{path.name}")
    try:
        fill(temp)
        _sync(temp)
        temp.replace(path)
    except OSError as error:
        _remove(temp)
        raise RunError(cannot_write(path, error)) from error
    except BaseException:
        _remove(temp)
        raise


def write_bytes(path: Path, content: bytes) -> None:
    """Replace `path` by `content`. Raises RunError as `write_by` does."""
    write_by(path, lambda temp: temp.write_bytes(content))


def write_json(path: Path, value: Any) -> None:
    """Replace `path` by `value` as JSON; what JSON does not know becomes text, NaN and infinity become null."""
    write_bytes(path, (json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in `path`; `None` when there is no such file.

    Raises:
        ValueError: the file cannot be read or does not hold a JSON object; the message says what is wrong with it.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(f"{path.name} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise ValueError(f"{path.name} is not JSON: {error}") from None
    except RecursionError:
        raise ValueError(f"{path.name} is not JSON that can be read: nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path.name} holds a JSON {type(value).__name__}, expected an object")
    return value


def plain(value: Any) -> Any:
    """`value` made of what JSON knows. NumPy numbers become Python's; NaN and infinity, which JSON lacks, become None."""
    if hasattr(value, "tolist"):  # NumPy scalars and arrays
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if abs(value) != float("inf") and value == value else None
    return value if value is None or isinstance(value, (str, int, bool)) else str(value)


def clean_leftovers(folder: Path) -> None:
    """Remove temporary files whose writer is gone. Never raises: a leftover does no harm."""
    with contextlib.suppress(OSError):
        for leftover in folder.glob(f"{TEMP_PREFIX}*"):
            pid = leftover.name.removeprefix(TEMP_PREFIX).split("-")[0]
            # The writer may live on another machine that shares the file system: then only age tells.
            gone = pid.isdigit() and (int(pid) == os.getpid() or not psutil.pid_exists(int(pid)))
            if gone or time.time() - leftover.stat().st_mtime > _LEFTOVER_AGE_S:
                _remove(leftover)


def keep_reserve(folder: Path) -> None:
    """Set some room of the file system aside, see `RESERVE_BYTES`. Raises RunError when there is not even that much."""
    write_bytes(folder / RESERVE, os.urandom(RESERVE_BYTES))


def give_reserve(folder: Path) -> None:
    """Free the room that `keep_reserve` set aside."""
    _remove(folder / RESERVE)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
