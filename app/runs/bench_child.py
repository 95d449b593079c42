"""One process of the benchmark: started, watched for its time limit and for cancel, and ended with everything it started."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

import app
from app.core.tf_failures import last_telling_line
from app.core.tf_trial import MARK
from app.runs import bench_sentences as sentences

PROGRAM = (sys.executable, "-m", "app.cae.bench_point")
"""The request is added as last argument, as JSON."""
_POLL_S = 0.1


@dataclass(frozen=True)
class ChildEnd:
    """How a process ended and what it answered."""

    answers: Mapping[str, dict[str, Any]]
    """Its own lines, by step: `evidence`, `timed`, `failed`."""
    status: int | None
    """Exit status, negative for a signal; `None` when it was ended from here."""
    errors: str
    """Its standard error."""
    seconds: float
    limit_s: float
    cancelled: bool = False
    trouble: str | None = None
    """Why it could not be started."""

    def why(self) -> str:
        """Why there is no answer, as one sentence."""
        if self.trouble is not None:
            return sentences.CANNOT_START.format(why=self.trouble)
        if (failed := self.answers.get("failed")) is not None:
            return str(failed.get("sentence"))
        if self.status is None:
            return sentences.TOO_LONG.format(limit=self.limit_s)
        if self.status < 0:
            name = _signal_name(-self.status)
            return sentences.DIED.format(signal=name, hint=sentences.SIGNAL_HINTS.get(name, ""))
        line = last_telling_line(self.errors)
        said = f": {line.rstrip('.')}" if line else ""
        return sentences.ENDED.format(status=self.status, said=said) if self.status else sentences.NO_ANSWER.format(said=said)


def run_child(
    request: Mapping[str, Any],
    environ: Mapping[str, str],
    *,
    limit_s: float,
    cancelled: Callable[[], bool],
    program: Sequence[str] = PROGRAM,
) -> ChildEnd:
    """Run one process to its end, its limit, or until `cancelled`, which is asked ten times a second. Never raises for what it does."""
    started = time.perf_counter()
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        try:
            child = _start([*program, json.dumps(dict(request))], environ, output, errors)
        except OSError as error:
            return ChildEnd({}, None, "", 0.0, limit_s, trouble=f"{error.strerror or error}: {program[0]}")
        try:
            stopped = _wait(child, started + limit_s, cancelled)
        finally:
            if child.poll() is None:
                _end(child)
            assert child.stdin is not None
            child.stdin.close()
        texts = []
        for file in (output, errors):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace"))
    ended_itself = stopped is None
    status = child.returncode if ended_itself else None
    return ChildEnd(_answers(texts[0]), status, texts[1], time.perf_counter() - started, limit_s, cancelled=stopped == "cancelled")


def _start(command: list[str], environ: Mapping[str, str], output: Any, errors: Any) -> subprocess.Popen[bytes]:
    assert app.__file__ is not None
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,  # closed by the system when this process is gone: the child then leaves too
        stdout=output,
        stderr=errors,
        env=dict(environ),
        # `python -m` finds packages in the current folder first: it must be the one that holds this very package.
        cwd=Path(app.__file__).resolve().parents[1],
        start_new_session=True,
    )


def _wait(child: subprocess.Popen[bytes], until: float, cancelled: Callable[[], bool]) -> str | None:
    """`None` when the process ended by itself, else why it is to be ended."""
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_POLL_S)
            return None
        if cancelled():
            return "cancelled"
        if time.perf_counter() > until:
            return "limit"


def _end(child: subprocess.Popen[bytes]) -> None:
    end_tree(child.pid)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(5)  # a process stuck inside a driver cannot be ended before the driver returns


def end_tree(pid: int) -> None:
    """Kill a process and all that it started, whatever sessions they are in."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                one.kill()
    with contextlib.suppress(OSError, AttributeError):
        if os.getpgid(pid) == pid:
            os.killpg(pid, signal.SIGKILL)


def _answers(output: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for line in output.splitlines():
        if line.startswith(MARK):
            with contextlib.suppress(ValueError, KeyError, TypeError):  # cut when the process died
                answer = json.loads(line.removeprefix(MARK))
                found[answer["step"]] = answer
    return found


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
