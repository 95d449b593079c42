"""Benchmarks as folders: one writer, many readers, like runs. They live in `bench/` beside the runs, which take no notice of it.

`options.json` asked for · `progress.json` state, progress, process, error (the fields of a run's status, and which point is
measured) · `result.json` and `result.csv` what was found so far · `log.txt` · `launch.json` who started the process · `cancel` please stop.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from app.core.errors import OptionError, RunError
from app.runs import bench_sentences as sentences
from app.runs.bench_child import end_tree
from app.runs.bench_options import BenchOptions
from app.runs.bench_result import BenchResult
from app.runs.detached import start_detached
from app.runs.files import read_json, write_json
from app.runs.processes import is_alive, mark
from app.runs.sentences import cannot_create, cannot_write
from app.runs.status import RunStatus, judged, launched, status_from_json, utc_now

BENCH_DIR = "bench"


@dataclass(frozen=True)
class BenchFolder:
    """One benchmark's folder."""

    path: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path).absolute())

    @classmethod
    def new(cls, runs_dir: Path) -> BenchFolder:
        """A name for a new benchmark, sortable by start (UTC, then 1/256 s); nothing is made yet."""
        now = time.time()
        name = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}-{int(now % 1 * 256):02x}{secrets.token_hex(1)}"
        return cls(Path(runs_dir) / BENCH_DIR / name)

    @property
    def bench_id(self) -> str:
        return self.path.name

    def set_up(self, options: BenchOptions) -> None:
        """Make the folder, state queued.

        Raises:
            RunError: it cannot be made.
            OptionError: it holds something already.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            taken = any(self.path.iterdir())
        except OSError as error:
            raise RunError(cannot_create(self.path, error)) from error
        if taken:
            raise OptionError(sentences.FOLDER_TAKEN.format(path=self.path))
        write_json(self.path / "options.json", asdict(options))
        write_json(self.path / "progress.json", RunStatus(self.bench_id, "queued", created=utc_now()).to_json())

    def cancel_asked(self) -> bool:
        return (self.path / "cancel").exists()

    def ask_cancel(self) -> bool:
        """Ask it to stop; False when that had been asked before. Raises RunError when the folder cannot be written to."""
        try:
            os.close(os.open(self.path / "cancel", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
        except FileExistsError:
            return False
        except OSError as error:
            raise RunError(cannot_write(self.path / "cancel", error)) from error
        return True

    def launch_record(self) -> dict[str, Any] | None:
        """The process as its starter knows it."""
        try:
            return read_json(self.path / "launch.json")
        except ValueError:
            return None


@dataclass(frozen=True)
class Bench:
    """A benchmark as a reader sees it now."""

    folder: BenchFolder
    status: RunStatus
    """As a run's: `state` (queued, running, finished, failed, cancelled, interrupted, unreadable), `progress`, `eta_s`, `message` …"""
    point: str | None = None
    """The point being measured."""
    round: int | None = None
    """0 while looking which kernels run."""
    rounds: int | None = None
    options: dict[str, Any] = field(default_factory=dict)
    result: BenchResult | None = None
    """What was found so far; `None` before the first process has ended."""

    @property
    def state(self) -> str:
        return self.status.state


def start_bench(options: BenchOptions, runs_dir: Path, *, program: Sequence[str] | None = None) -> BenchFolder:
    """Start a benchmark as a process that goes on whatever becomes of this one. Returns at once; it may wait for runs.

    Args:
        program: replaces `python -m app.main bench`; `--out FOLDER` and the options are added.

    Raises:
        RunError: the folder cannot be made or the process cannot be started.
    """
    folder = BenchFolder.new(runs_dir)
    folder.set_up(options)
    command = [*(program or (sys.executable, "-m", "app.main", "bench")), "--out", str(folder.path), *options.arguments()]
    try:
        process = start_detached(command, folder.path / "log.txt")
    except OSError as error:
        sentence = sentences.NOT_STARTED.format(bench_id=folder.bench_id, why=error.strerror or error, program=command[0])
        failed = RunStatus(folder.bench_id, "failed", created=utc_now(), ended=utc_now(), error=sentence)
        write_json(folder.path / "progress.json", failed.to_json())
        raise RunError(sentence) from error
    known = mark(process.pid)
    record: dict[str, Any] = {"pid": process.pid, "returncode": None}
    record |= {"pid_started": known.started, "pid_token": known.token, "host": known.host} if known else {}
    _note_launch(folder, record)
    threading.Thread(target=_see_it_end, args=(process, folder, record), name=f"reap-{process.pid}", daemon=True).start()
    return folder


def _note_launch(folder: BenchFolder, record: dict[str, Any]) -> None:
    with contextlib.suppress(RunError):  # a help for readers, not a need
        write_json(folder.path / "launch.json", record)


def _see_it_end(process: subprocess.Popen[bytes], folder: BenchFolder, record: dict[str, Any]) -> None:
    """Take the exit status, so that no zombie stays; a killed process cannot say itself what killed it."""
    returncode = process.wait()
    if returncode and folder.path.is_dir():
        _note_launch(folder, {**record, "returncode": returncode})


def cancel_bench(folder: BenchFolder) -> str:
    """Ask a benchmark to stop; asked a second time, kill it and its processes. What was measured stays.

    Returns:
        A sentence that says what was done.

    Raises:
        RunError: the folder cannot be written to.
    """
    status = read_bench(folder).status
    if not status.live:
        return sentences.CANCEL_OVER.format(bench_id=folder.bench_id, state=status.state)
    process = status.mark or launched(folder.launch_record())
    first = folder.ask_cancel()
    alive = is_alive(process) if process else False
    if process is not None and alive is None:
        return sentences.CANCEL_ELSEWHERE.format(bench_id=folder.bench_id, host=process.host)
    if process is not None and alive and not first:
        end_tree(process.pid)
        return sentences.CANCEL_KILLED.format(bench_id=folder.bench_id)
    # Once it has its own mark it handles the signal; before that it would only die without a word.
    if status.mark is not None and alive:
        with contextlib.suppress(ProcessLookupError):
            os.kill(status.mark.pid, signal.SIGTERM)
    return sentences.CANCEL_ASKED.format(bench_id=folder.bench_id)


def read_bench(folder: BenchFolder | Path) -> Bench:
    """A benchmark as of now. Never raises: a folder that does not tell gives the state *unreadable* and a sentence in `status.error`."""
    place = folder if isinstance(folder, BenchFolder) else BenchFolder(folder)
    try:
        values = read_json(place.path / "progress.json")
        if values is None:
            raise ValueError(sentences.NO_BENCH.format(path=place.path))
        result = _result(place)
        return _read(place, values, result)
    except ValueError as error:
        return Bench(place, RunStatus(place.bench_id, "unreadable", error=sentences.UNREADABLE.format(path=place.bench_id, why=error)))


def _result(folder: BenchFolder) -> BenchResult | None:
    values = read_json(folder.path / "result.json")
    return None if values is None else BenchResult.from_json(values)


def _read(folder: BenchFolder, values: dict[str, Any], result: BenchResult | None) -> Bench:
    status = _judged(folder, values)
    if status.state == "interrupted":
        # Its process is gone now, but may have said its last word between our two looks.
        values = read_json(folder.path / "progress.json") or values
        status, result = _judged(folder, values), _result(folder)
    numbers = {name: values[name] if isinstance(values.get(name), int) else None for name in ("round", "rounds")}
    point = values.get("point")
    options = read_json(folder.path / "options.json") or {}
    return Bench(folder, status, point if isinstance(point, str) else None, numbers["round"], numbers["rounds"], options, result)


def _judged(folder: BenchFolder, values: dict[str, Any]) -> RunStatus:
    status = status_from_json(folder.bench_id, values)
    return judged(status, launch=folder.launch_record(), cancel_asked=folder.cancel_asked())


def list_benches(runs_dir: Path) -> list[Bench]:
    """All benchmarks beside these runs, newest first."""
    try:
        children = sorted((child for child in (Path(runs_dir) / BENCH_DIR).iterdir() if child.is_dir()), reverse=True)
    except OSError:
        return []
    return [read_bench(BenchFolder(child)) for child in children if (child / "progress.json").exists()]
