"""Listening to what TensorFlow's C++ part writes to file descriptor 2 (or oneDNN to 1), where Python's `sys.stderr` does not reach.

TensorFlow tells the true cause of a missing GPU only there. What was caught is passed on afterwards, without the start-up
banners that users read as errors.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import IO

from app.core.tf_failures import is_harmless


class CaughtOutput:
    """What was written to the descriptor so far; readable while the capture is going on and after it."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._text = ""

    @property
    def text(self) -> str:
        if self._file is None:
            return self._text
        _flush_c_buffers()
        # pread: the descriptor's position is shared with the writer.
        size = os.fstat(self._file.fileno()).st_size
        return os.pread(self._file.fileno(), size, 0).decode("utf-8", "replace")


@contextlib.contextmanager
def catch_descriptor(descriptor: int = 2, *, pass_on: bool = True) -> Iterator[CaughtOutput]:
    """Collects what this process writes to `descriptor`, then writes it on to where it would have gone.

    Nothing is caught, and nothing fails, where the descriptor is closed or no temporary file can be made.
    """
    caught = CaughtOutput()
    try:
        saved = os.dup(descriptor)
    except OSError:
        yield caught
        return
    try:
        file = tempfile.TemporaryFile()  # noqa: SIM115 - closed below, after what it holds has been read
    except OSError:
        os.close(saved)
        yield caught
        return
    _flush(descriptor)
    os.dup2(file.fileno(), descriptor)
    caught._file = file
    try:
        yield caught
    finally:
        _flush(descriptor)
        text = caught.text
        os.dup2(saved, descriptor)
        os.close(saved)
        caught._file, caught._text = None, text
        file.close()
        if pass_on:
            _write_on(descriptor, text)


def _flush(descriptor: int) -> None:
    stream = {1: sys.stdout, 2: sys.stderr}.get(descriptor)
    with contextlib.suppress(OSError, ValueError, AttributeError):
        if stream is not None:
            stream.flush()
    _flush_c_buffers()


def _flush_c_buffers() -> None:
    with contextlib.suppress(OSError, AttributeError, TypeError):  # TypeError: Windows has no handle of the whole process
        ctypes.CDLL(None).fflush(None)


def _write_on(descriptor: int, text: str) -> None:
    kept = "".join(line for line in text.splitlines(keepends=True) if not is_harmless(line))
    with contextlib.suppress(OSError):
        os.write(descriptor, kept.encode("utf-8", "replace"))
