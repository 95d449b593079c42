"""What the process of a run writes while it lives: its status, a heartbeat, the history and the log.

A disk that is full for a while must not end a training: what cannot be written now stays in memory and is written as soon as there
is room. Only results that cannot be written at the very end make a run fail.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from app.cae.reporting import HISTORY_COLUMNS, mean_images_per_s
from app.core.errors import RunError
from app.runs import sentences
from app.runs.files import give_reserve, plain, write_bytes, write_json
from app.runs.folder import RunFolder
from app.runs.log import RunLog
from app.runs.processes import memory_now
from app.runs.signals import handling_stop
from app.runs.status import HEARTBEAT_S, RunStatus, utc_now

_TICK_S = 0.25
_SAVE_EVERY_S = 0.75
_HISTORY_COST = 20.0
"""After a write of the history that took t seconds the next waits 20 t: long histories then cost at most 5 % of the time."""


class Recorder:
    """Owns `status.json` and `history.csv` of one run. Its methods may be called from any thread and never raise."""

    def __init__(self, folder: RunFolder, status: RunStatus, log: RunLog) -> None:
        self.folder = folder
        self.log = log
        self.on_tick: list[Callable[[], None]] = []
        self.before_last_word: list[Callable[[], None]] = []
        self.at_leave: list[Callable[[], None]] = []
        """Called in `close`, when all is written."""
        self.trouble: str | None = None
        """Why the last write failed; `None` when it did not."""
        # A resumed run goes on with the curve it has.
        self._rows: list[dict[str, Any]] = read_history(folder.path / "history.csv")
        self._status = status if not self._rows else dataclasses.replace(status, **_figures(self._rows))
        self._lock = threading.RLock()
        self._cancel = threading.Event()
        self._signal: str | None = None
        self._stop = threading.Event()
        self._unsaved = True
        self._history_unsaved = False
        self._history_not_before = 0.0
        self._saved_at = 0.0
        self._troubled: set[str] = set()
        self._finished = False
        self._thread = threading.Thread(target=self._beat, name="run-heartbeat", daemon=True)

    @property
    def status(self) -> RunStatus:
        with self._lock:
            return self._status

    @property
    def history_rows(self) -> list[dict[str, Any]]:
        with self._lock:
            return list(self._rows)

    def start(self) -> None:
        self._look_for_cancel()
        self.save()
        self._thread.start()

    def close(self) -> None:
        """Stop the heartbeat and write what is unsaved. After the last word nothing is written: the folder may be another process's."""
        self._stop_heartbeat()
        if not self._finished:
            self.save()
        for action in self.at_leave:
            action()

    def _stop_heartbeat(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def change(self, *, at_once: bool = False, **values: Any) -> None:
        """Change fields of the status; `at_once` writes them now, else the heartbeat does within a second."""
        with self._lock:
            self._status = dataclasses.replace(self._status, **values)
            self._unsaved = True
        if at_once:
            self.save()

    def add_epoch(self, row: Mapping[str, Any]) -> None:
        """Add one row to the history. Training that began anew (smaller batch) or went on from a backup replaces the epochs it repeats."""
        with self._lock:
            self._rows = [old for old in self._rows if old["epoch"] < row["epoch"]] + [dict(row)]
            self._status = dataclasses.replace(self._status, **_figures(self._rows))
            self._unsaved = self._history_unsaved = True
        self._save_history()

    def warn(self, sentence: str) -> None:
        with self._lock:
            if sentence in self._status.warnings:
                return
            self._status = dataclasses.replace(self._status, warnings=(*self._status.warnings, sentence))
            self._unsaved = True
        self.log.line(f"warning: {sentence}")

    def cancelled(self) -> bool:
        """Whether somebody asked for a stop; cheap enough to ask at every batch."""
        return self._signal is not None or self._cancel.is_set()

    @property
    def signalled(self) -> bool:
        """Whether a signal has asked for a stop, as opposed to the file in the folder."""
        return self._signal is not None

    def note_signal(self, name: str) -> None:
        """For signal handlers: takes no lock, since the interrupted code may hold any. The heartbeat does the rest."""
        self._signal = name

    def wait_cancelled(self, seconds: float) -> bool:
        return self._cancel.wait(seconds) or self.cancelled()

    def request_cancel(self, by: str) -> None:
        if not self._cancel.is_set():
            self._cancel.set()
            self.log.line(f"stopping: {by}")
            self.change(at_once=True, cancel_requested=True, message=sentences.STOPPING.format(why=by))

    def save(self) -> bool:
        """Write what is unsaved now; False (and a warning, once) when the disk does not take it."""
        with self._lock:
            self._save_history(at_once=True)
            memory = memory_now()
            self._status = dataclasses.replace(
                self._status, heartbeat=utc_now(), memory_mib=memory.rss_mib, memory_free_mib=memory.free_mib
            )
            saved = self._try(lambda: write_json(self.folder.path / "status.json", self._status.to_json()))
            self._unsaved = not saved
            self._saved_at = time.monotonic()
            return saved

    def finish(self, **values: Any) -> None:
        """The last word: write it, if need be into the room that was set aside for it."""
        for action in self.before_last_word:
            action()
        self._stop_heartbeat()
        self._finished = True
        self.change(**{"ended": utc_now(), "eta_s": None, **values})
        written = self.save() and not self._history_unsaved
        give_reserve(self.folder.path)
        if not written:
            self.save()

    def _save_history(self, *, at_once: bool = False) -> None:
        with self._lock:
            started = time.monotonic()
            if not self._history_unsaved or (started < self._history_not_before and not at_once):
                return
            if self._try(lambda: write_bytes(self.folder.path / "history.csv", history_csv(self._rows))):
                self._history_unsaved = False
            now = time.monotonic()
            self._history_not_before = now + _HISTORY_COST * (now - started)

    def _try(self, write: Callable[[], None]) -> bool:
        try:
            write()
        except RunError as error:
            self.trouble = str(error)
            file = self.trouble.partition(":")[0]
            if file not in self._troubled:  # once a file: the numbers in the sentence change all the time
                self._troubled.add(file)
                self.warn(sentences.TRIES_AGAIN.format(trouble=error))
            return False
        self.trouble = None
        return True

    def _look_for_cancel(self) -> None:
        # Whoever cancels leaves a request in the folder before the signal that hurries it: that says more than the signal.
        if self.folder.cancel_asked():
            self.request_cancel(sentences.BY_FOLDER)
        elif self._signal is not None:
            self.request_cancel(sentences.BY_SIGNAL.get(self._signal, f"it got {self._signal}"))

    def _beat(self) -> None:
        while not self._stop.wait(_TICK_S):
            self._look_for_cancel()
            for action in tuple(self.on_tick):
                action()
            age = time.monotonic() - self._saved_at
            if age >= HEARTBEAT_S or (age >= _SAVE_EVERY_S and (self._unsaved or self._history_unsaved)):
                self.save()


def _figures(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What the status tells of a history: where it stands, which epoch was best, and the mean speed of all its epochs."""
    losses = [(row["val_loss"], row["epoch"]) for row in rows if row.get("val_loss") is not None and math.isfinite(row["val_loss"])]
    best, best_epoch = min(losses, default=(None, None))
    return {
        "epoch": int(rows[-1]["epoch"]),
        "best_val_loss": None if best is None else float(best),
        "best_epoch": None if best_epoch is None else int(best_epoch),
        "train_images_per_s": mean_images_per_s(rows),
    }


def read_history(path: Path) -> list[dict[str, Any]]:
    """The rows that `history_csv` wrote; none when there is no such file or it is damaged."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return [{name: _number(value) for name, value in row.items() if value} for row in csv.DictReader(file) if row.get("epoch")]
    except (OSError, ValueError, TypeError, csv.Error):
        return []


def _number(text: str) -> float | int:
    number = float(text)
    return int(number) if text.isdigit() else number


def history_csv(rows: list[dict[str, Any]]) -> bytes:
    """Rows as CSV: the known columns first, in their order, then others in order of appearance; unknown values stay empty."""
    extra = dict.fromkeys(name for row in rows for name in row if name not in HISTORY_COLUMNS)
    text = io.StringIO()
    writer = csv.DictWriter(text, [*HISTORY_COLUMNS, *extra], restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: "" if (value := plain(row[name])) is None else value for name in row} for row in rows)
    return text.getvalue().encode()


def stopping_signals(recorder: Recorder) -> AbstractContextManager[None]:
    """SIGTERM, SIGINT (Ctrl-C) and SIGHUP ask the run to stop; a second one ends the process at once."""

    def second() -> bool:
        # Only a signal after a signal: the file that asks for a cancel comes with one of its own, and may be seen first.
        if recorder.signalled:
            recorder.folder.ask_cancel()
        return recorder.signalled

    return handling_stop(recorder.note_signal, second)
