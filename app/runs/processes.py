"""Which process a run is, whether it still lives, and how much memory it holds."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
from dataclasses import dataclass
from pathlib import Path

import psutil

from app.cae.memory import container_memory_left_mib

MIB = 1024 * 1024
_CLOCK_TOLERANCE_S = 2.0
"""psutil derives start times from the boot time, which a clock that is being set can shift by a second."""


@dataclass(frozen=True)
class ProcessMark:
    """A process as one can recognise it later, from another process: a process id alone is reused sooner or later."""

    pid: int
    started: float | None
    """Start time, seconds since 1970 (`psutil.Process.create_time`)."""
    host: str | None
    token: str | None
    """Exact identity where the system offers one (Linux): boot, process-id namespace, start in clock ticks. Setting the clock does
    not change it, and a container that shares the host's name is not taken for the host."""


def mark(pid: int | None = None) -> ProcessMark | None:
    """The mark of a living process (default: this one); `None` when there is none."""
    number = os.getpid() if pid is None else pid
    try:
        process = psutil.Process(number)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return ProcessMark(number, process.create_time(), hostname(), _token(number))
    except (psutil.Error, OSError, ValueError):
        return None


def is_alive(known: ProcessMark) -> bool | None:
    """Whether that very process lives; `None` when it belongs to another machine, where nobody can tell from here."""
    if known.token and _machine():
        if not known.token.startswith(_machine()):
            return None
    elif known.host and known.host != hostname():
        return None
    now = mark(known.pid)
    if now is None:
        return False
    if known.token and now.token:
        return known.token == now.token
    return known.started is None or now.started is None or abs(now.started - known.started) <= _CLOCK_TOLERANCE_S


@functools.cache
def hostname() -> str:
    return socket.gethostname()


@functools.cache
def _machine() -> str:
    """Boot and process-id namespace; empty where the system does not tell."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}/"
    except OSError:
        return ""


def _token(pid: int) -> str | None:
    if not _machine():
        return None
    # proc(5): field 22 is the start in clock ticks since boot; the command's name, field 2, may hold spaces and brackets.
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    return f"{_machine()}{pid}/{fields[19]}"


@dataclass(frozen=True)
class Memory:
    """Memory at one instant, MiB."""

    rss_mib: int | None
    free_mib: int | None
    """What this process could still get: the machine's available memory, or what its container limit leaves, whichever is less."""
    oom_kills: int | None
    """How often the kernel's out-of-memory killer has struck since boot (`/proc/vmstat`)."""


def memory_now(cgroup_root: Path = Path("/sys/fs/cgroup"), self_cgroup: Path = Path("/proc/self/cgroup")) -> Memory:
    """Never raises; what is not known is `None`."""
    rss: int | None = None
    free: int | None = None
    with contextlib.suppress(psutil.Error, OSError):
        rss = int(psutil.Process().memory_info().rss // MIB)
    with contextlib.suppress(psutil.Error, OSError):
        free = int(psutil.virtual_memory().available // MIB)
    left = container_memory_left_mib(cgroup_root, self_cgroup)
    return Memory(rss, left if free is None or (left is not None and left < free) else free, oom_kills())


def oom_kills(vmstat: Path = Path("/proc/vmstat")) -> int | None:
    """How often the out-of-memory killer has struck since boot; `None` where the kernel does not count."""
    with contextlib.suppress(OSError, ValueError):
        for line in vmstat.read_text(encoding="ascii").splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return None
