"""SIGTERM, SIGINT (Ctrl-C) and SIGHUP as a request to stop."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def handling_stop(first: Callable[[str], None], second: Callable[[], bool]) -> Iterator[None]:
    """Call `first` with the signal's name; where `second` answers True, the signal ends the process at once instead.

    A signal that the starter had set to be ignored (`nohup`, a background job) stays ignored; outside the main thread nothing is handled.
    """

    def handle(number: int, _frame: object) -> None:
        if second():
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        first(signal.Signals(number).name)

    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for name in ("SIGTERM", "SIGINT", "SIGHUP"):
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) not in (signal.SIG_IGN, None):
                before[number] = signal.signal(number, handle)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
