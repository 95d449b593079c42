"""Which process a run is, whether it still lives, and how much memory it holds."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
from dataclasses import dataclass
from pathlib import Path

import psutil

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


def container_memory_left_mib(cgroup_root: Path, self_cgroup: Path) -> int | None:
    """What the tightest memory limit of this cgroup (v2 or v1) and its parents leaves, MiB; `None` without a limit.

    Page cache that the kernel would give up first (`inactive_file`) does not count as used.
    """
    try:
        lines = self_cgroup.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    left: list[int] = []
    for line in lines:
        _, controllers, inner = line.split(":", 2) if line.count(":") >= 2 else ("", "?", "")
        if controllers != "" and "memory" not in controllers.split(","):
            continue
        root = cgroup_root if controllers == "" else cgroup_root / "memory"
        names = ("memory.max", "memory.current") if controllers == "" else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        place = Path(inner.lstrip("/"))
        left += [value for group in (place, *place.parents) if (value := _left_in(root / group, *names)) is not None]
    return min(left, default=None)


def _left_in(group: Path, limit_name: str, usage_name: str) -> int | None:
    try:
        limit, used = int((group / limit_name).read_text()), int((group / usage_name).read_text())
    except (OSError, ValueError):
        return None
    cache = 0
    with contextlib.suppress(OSError, ValueError):
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        cache = int(stat.get("total_inactive_file", stat.get("inactive_file", 0)))
    # cgroup v1 writes "no limit" as a number near 2**63.
    return max(0, limit - max(0, used - cache)) // MIB if limit < 2**60 else None


def oom_kills(vmstat: Path = Path("/proc/vmstat")) -> int | None:
    """How often the out-of-memory killer has struck since boot; `None` where the kernel does not count."""
    with contextlib.suppress(OSError, ValueError):
        for line in vmstat.read_text(encoding="ascii").splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return None
