"""What the process of a benchmark writes while it lives, and how it is asked to stop."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from app.core.errors import RunError
from app.runs.bench import BenchProgress
from app.runs.bench_folder import BenchFolder, read_bench
from app.runs.bench_result import BenchResult
from app.runs.bench_table import to_csv
from app.runs.files import write_bytes, write_json
from app.runs.log import RunLog
from app.runs.processes import mark
from app.runs.queue import Place
from app.runs.signals import handling_stop
from app.runs.status import HEARTBEAT_S, RunStatus, utc_now

_LOOK_EVERY_S = 0.25

Echo = Callable[[str], None]


class Writer:
    """Owns `progress.json`, `result.json` and `result.csv`. A disk that is full for a while does not end a measurement."""

    def __init__(self, folder: BenchFolder, log: RunLog, echo: Echo) -> None:
        me = mark()
        created = read_bench(folder).status.created or utc_now()
        self.folder = folder
        self.places: list[Place] = []
        self.total: int | None = None
        self._log = log
        self._echo = echo
        self.signalled = False
        self._asked = False
        self._point: dict[str, Any] = {"point": None, "round": None, "rounds": None}
        self._looked = self._wrote = 0.0
        self.status = RunStatus(
            folder.bench_id,
            "queued",
            created=created,
            pid=os.getpid(),
            pid_started=me.started if me else None,
            pid_token=me.token if me else None,
            host=me.host if me else None,
        )

    def cancelled(self) -> bool:
        """Whether somebody asked for a stop; keeps the heartbeat and the places in line on the way."""
        now = time.monotonic()
        if now - self._looked >= _LOOK_EVERY_S:
            self._looked = now
            self._asked = self._asked or self.folder.cancel_asked()
        if now - self._wrote >= HEARTBEAT_S:
            for place in self.places:
                place.touch()
            self.write()
        return self.signalled or self._asked

    def note_signal(self) -> None:
        """For the signal handler: takes no lock and writes nothing."""
        self.signalled = True

    def progress(self, progress: BenchProgress) -> None:
        self.total = progress.total
        self._point = {"point": progress.point, "round": progress.round, "rounds": progress.rounds}
        self._say(progress.sentence)
        self.change(
            phase=progress.part,
            progress_done=progress.done,
            progress_total=progress.total,
            eta_s=progress.eta_s,
            message=progress.sentence,
        )

    def change(self, **values: Any) -> None:
        before = self.status
        self.status = replace(before, **values)
        if self.status.state == "queued" and self.status.message and self.status.message != before.message:
            self._say(self.status.message)
        if self.status != before:
            self.write()

    def result(self, result: BenchResult) -> None:
        """Write what was found so far; only the last write has to succeed."""
        try:
            write_json(self.folder.path / "result.json", result.to_json())
            write_bytes(self.folder.path / "result.csv", to_csv(result).encode())
        except RunError as error:
            if result.state != "running":
                raise
            self._log.line(str(error))

    def end(self, state: str, **values: Any) -> None:
        """The last word."""
        if values.get("error"):
            self._log.line(str(values["error"]))
        self.change(**{"message": None, "state": state, "ended": utc_now(), "eta_s": None, **values})

    def write(self) -> None:
        self._wrote = time.monotonic()
        self.status = replace(self.status, heartbeat=utc_now())
        with contextlib.suppress(RunError):
            write_json(self.folder.path / "progress.json", {**self.status.to_json(), **self._point})

    def _say(self, sentence: str) -> None:
        self._log.line(sentence)
        if not self._log.is_stderr():
            self._echo(sentence)


def stopping_signals(writer: Writer) -> contextlib.AbstractContextManager[None]:
    """SIGTERM, SIGINT (Ctrl-C) and SIGHUP ask for a stop, a second one ends the process at once."""
    return handling_stop(lambda _name: writer.note_signal(), lambda: writer.signalled)


def terminal_echo() -> Echo:
    """Progress for people: on stderr when that is a terminal."""
    if sys.stderr is not None and sys.stderr.isatty():
        return lambda line: print(line, file=sys.stderr, flush=True)
    return lambda _line: None
