"""`log.txt` of a run: one line an event, and the only place for tracebacks."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from app.runs.status import utc_now


class RunLog:
    """Appends whole lines. A log that cannot be written never ends a run."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        try:
            self._descriptor: int | None = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError:
            self._descriptor = None

    def line(self, text: str) -> None:
        """Append `text`, which may have several lines, with the time (UTC) before it."""
        with self._lock:
            if self._descriptor is None:
                return
            try:
                os.write(self._descriptor, f"{utc_now():%Y-%m-%d %H:%M:%S} {text}\n".encode(errors="replace"))
            except OSError:
                return

    def is_stderr(self) -> bool:
        """Whether this process's stderr goes to this very file, as it does for runs started in the background."""
        try:
            return self._descriptor is not None and os.path.sameopenfile(self._descriptor, sys.stderr.fileno())
        except (OSError, ValueError, AttributeError):
            return False

    def close(self) -> None:
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None
