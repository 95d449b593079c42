"""The command nvidia-smi: the second door to the GPUs, where NVML cannot be used. Never raises, never outlives its limit."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from app.core.facts import Gpu
from app.core.gpu_trouble import Trouble, kind_of_code, kind_of_text, printable, trouble
from app.core.smi_table import FIELDS, HANDLE_ERROR, SMALL_FIELDS, Table, parse_slices, parse_table

USUAL_PLACES = (
    Path("/usr/lib/wsl/lib/nvidia-smi"),
    Path(r"C:\Windows\System32\nvidia-smi.exe"),
    Path(r"C:\Program Files\NVIDIA Corporation\NVSMI\nvidia-smi.exe"),
)
"""Looked into after PATH: WSL's folder is missing from the PATH of ssh and cron shells, NVSMI is where old Windows drivers put it."""

MAX_OUTPUT = 2**20
"""More than any machine's table; a program that prints more is not nvidia-smi."""
USABLE_STATUS = frozenset({0, 8, 10, 14, 15, 16})
"""Besides success: trouble of single GPUs (power cable, interrupts, infoROM, one lost, one to be reset); the other rows still stand."""
STATUS_SENTENCE = "nvidia-smi ended with exit status {status} ({detail}); the complete rows that it printed are used."
MAX_REFUSED_FIELDS = 8


@dataclass(frozen=True)
class SmiReading:
    """What nvidia-smi told: either GPUs, or the trouble that kept it from telling."""

    gpus: tuple[Gpu, ...] = ()
    driver_version: str | None = None
    problems: tuple[str, ...] = ()
    trouble: Trouble | None = None


@dataclass(frozen=True)
class _Output:
    status: int | None
    """`None`: stopped at the limit."""
    out: str = ""
    err: str = ""

    @property
    def text(self) -> str:
        return f"{self.out}\n{self.err}"

    @property
    def message(self) -> str | None:
        """The line that tells most: one that names a known trouble, else the first that is no row of a table."""
        lines = [line for line in self.text.splitlines() if line.strip()]
        told = next((line for line in lines if kind_of_text(line)), None)
        return told or next((line for line in lines if line.count(",") < len(SMALL_FIELDS) - 1), None)

    @property
    def detail(self) -> str:
        return self.message or next((line for line in self.text.splitlines() if line.strip()), "no message")

    @property
    def usable(self) -> bool:
        """Whether the rows count: a sick GPU alone does not make the others' figures wrong, whatever the status (255 was seen)."""
        return self.status in USABLE_STATUS or (self.status is not None and HANDLE_ERROR.search(self.text) is not None)


class _CannotStartError(Exception):
    """The operating system refuses to start the file."""


def read_smi(limit_s: float = 10.0, *, environ: Mapping[str, str] | None = None, places: tuple[Path, ...] = USUAL_PLACES) -> SmiReading:
    """All GPUs as nvidia-smi lists them. `limit_s` bounds all calls together; the first is normally the only one."""
    if not _turn.acquire(timeout=limit_s):
        return SmiReading(trouble=trouble("timeout", "nvidia-smi", seconds=limit_s))
    try:
        return _read_smi(limit_s, environ, places)
    finally:
        _turn.release()


_turn = threading.Lock()
"""One nvidia-smi at a time: many at once make a slow driver slower."""


def _read_smi(limit_s: float, environ: Mapping[str, str] | None, places: tuple[Path, ...]) -> SmiReading:
    env = {**os.environ, **(environ or {})}
    tool, not_executable = find_smi(env, places)
    if tool is None:
        if not_executable is not None:
            return SmiReading(trouble=trouble("not executable", "nvidia-smi", path=not_executable))
        return SmiReading(trouble=trouble("smi absent", "nvidia-smi"))
    deadline = time.monotonic() + limit_s
    try:
        return _read(tool, env, deadline, limit_s)
    except _CannotStartError as error:
        return SmiReading(trouble=trouble("bad format", "nvidia-smi", path=tool, detail=error))


def find_smi(environ: Mapping[str, str], places: tuple[Path, ...] = USUAL_PLACES) -> tuple[Path | None, Path | None]:
    """(the first executable nvidia-smi on PATH or in `places`, the first one found that is not executable)."""
    names = ("nvidia-smi.exe", "nvidia-smi") if os.name == "nt" else ("nvidia-smi",)
    folders = [Path(folder) for folder in environ.get("PATH", "").split(os.pathsep) if folder]
    refused: Path | None = None
    for candidate in (*(folder / name for folder in folders for name in names), *places):
        try:
            if not candidate.is_file():
                continue
            if os.access(candidate, os.X_OK):
                return candidate, refused
        except (OSError, ValueError):
            continue
        refused = refused or candidate
    return None, refused


def _read(tool: Path, env: dict[str, str], deadline: float, limit_s: float) -> SmiReading:
    output, fields = _query(tool, env, deadline)
    if output.status is None:
        return SmiReading(trouble=trouble("timeout", "nvidia-smi", seconds=limit_s))
    table = parse_table(output.out, fields) if output.usable else Table()
    if not table.gpus:
        return SmiReading(trouble=_trouble_of(output, table))
    problems = list(table.problems)
    detail = printable(output.message or "no message")
    if output.status != 0 and not any(f"'{detail}'" in problem for problem in problems):
        problems.append(STATUS_SENTENCE.format(status=output.status, detail=detail))
    return SmiReading(_with_slices(tool, env, deadline, table), table.driver_version, tuple(problems))


def _query(tool: Path, env: dict[str, str], deadline: float) -> tuple[_Output, tuple[str, ...]]:
    """The table, asked for again without each field that this driver does not know (exit status 2, its name in the message)."""
    fields = FIELDS
    output = _Output(None)
    for _ in range(MAX_REFUSED_FIELDS):
        output = _run([str(tool), f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"], env, deadline)
        if output.status != 2:
            return output, fields
        refused = {field for field in re.findall(r'[Ff]ield "([^"]+)"', output.out + output.err) if field in fields}
        if not refused and fields == SMALL_FIELDS:
            break
        fields = tuple(field for field in fields if field not in refused) if refused else SMALL_FIELDS
    return output, fields


def _with_slices(tool: Path, env: dict[str, str], deadline: float, table: Table) -> tuple[Gpu, ...]:
    """The table's GPUs, those divided by MIG marked and followed by their slices."""
    if not table.mig_enabled:
        return table.gpus
    listed = _run([str(tool), "-L"], env, deadline)
    slices = parse_slices(listed.out, table.gpus) if listed.status == 0 else ()
    gpus: list[Gpu] = []
    for gpu in table.gpus:
        divided = gpu.index in table.mig_enabled
        gpus.append(replace(gpu, mig="parent", problem=None) if divided else gpu)
        gpus.extend(found for found in slices if divided and found.index == gpu.index)
    return tuple(gpus)


def _trouble_of(output: _Output, table: Table) -> Trouble:
    kind = (kind_of_code(output.status) if output.status else None) or kind_of_text(output.text)
    if kind == "nvml absent":
        kind = "library"
    if kind is not None:
        return trouble(kind, "nvidia-smi", detail=output.detail)
    if output.status != 0:
        return trouble("failed", "nvidia-smi", status=_in_words(output.status), detail=output.detail)
    if table.header_only:
        return trouble("header only", "nvidia-smi")
    return trouble("garbage" if output.out.strip() else "empty", "nvidia-smi", detail=output.detail)


def _in_words(status: int | None) -> str:
    """`3`, or `-11, SIGSEGV` for a program that a signal ended."""
    with contextlib.suppress(ValueError, TypeError):
        return f"{status}, {signal.Signals(-status).name}" if status is not None and status < 0 else str(status)
    return str(status)


_abandoned: list[subprocess.Popen[bytes]] = []
"""Children that a kill did not end (they wait inside the driver): no second one is started beside them."""


def _run(command: list[str], env: dict[str, str], deadline: float) -> _Output:
    """Runs `command` until `deadline`; bytes are decoded leniently, as Windows prints in its code page and drivers print garbage."""
    _abandoned[:] = [child for child in _abandoned if child.poll() is None]
    left = deadline - time.monotonic()
    if _abandoned or left <= 0:
        return _Output(None)
    try:
        child = subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
    except (OSError, ValueError) as error:
        raise _CannotStartError(getattr(error, "strerror", None) or str(error)) from error
    assert child.stdout is not None
    assert child.stderr is not None
    out, err = _Drain(child.stdout), _Drain(child.stderr)
    try:
        status: int | None = child.wait(left)
    except subprocess.TimeoutExpired:
        status = None
    # A grandchild may hold the pipes open after the child has gone: what came until now has to do.
    patience = min(1.0, max(0.0, deadline - time.monotonic())) if status is not None else 0.0
    texts = out.text(patience), err.text(0.1 if status is not None else 0.0)
    if status is None or out.is_alive() or err.is_alive():
        _kill_group(child)
    return _Output(status, *texts)


class _Drain(threading.Thread):
    """Reads a pipe to its end, keeping the first `MAX_OUTPUT` bytes, so that a talkative child never blocks on it."""

    def __init__(self, pipe: IO[bytes]) -> None:
        super().__init__(daemon=True, name="nvidia-smi")
        self._pipe, self._kept = pipe, bytearray()
        self.start()

    def run(self) -> None:
        with self._pipe, contextlib.suppress(OSError, ValueError):
            while chunk := self._pipe.read1(65536):  # type: ignore[attr-defined]
                self._kept += chunk[: MAX_OUTPUT - len(self._kept)]

    def text(self, patience: float) -> str:
        self.join(patience)
        return bytes(self._kept).decode("utf-8", "replace")


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    """Ends the child and all that it started (a wrapper script's own children hold the pipes open)."""
    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()
    try:
        child.wait(1.0)
    except subprocess.TimeoutExpired:
        _abandoned.append(child)
