"""Memory that this process may still take, control groups (containers, SLURM) and limits of the process (`ulimit`) included."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil

from app.core.errors import OptionError

if sys.platform != "win32":
    import resource

_MIB = 2**20

LIMIT = "TWOPATH_MEMORY_MIB"
"""Environment variable: pictures and maps may count on no more than this, MiB, however much is free."""

CGROUP_ROOT, SELF_CGROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def free_mib(*, cgroup_root: Path = CGROUP_ROOT, self_cgroup: Path = SELF_CGROUP, environ: Mapping[str, str] = os.environ) -> float:
    """MiB free: what the system calls available, or what control groups, `ulimit` or TWOPATH_MEMORY_MIB still allow if that is less.

    Raises:
        OptionError: TWOPATH_MEMORY_MIB is no positive number.
    """
    group = container_memory_left_mib(cgroup_root, self_cgroup)
    known = [psutil.virtual_memory().available / _MIB, group, process_limit_left_mib(), _limit(environ)]
    return float(min(mib for mib in known if mib is not None))


def _limit(environ: Mapping[str, str]) -> float | None:
    text = environ.get(LIMIT, "").strip()
    if not text:
        return None
    with contextlib.suppress(ValueError):
        if 0 < float(text) < float("inf"):
            return float(text)
    raise OptionError(f"{LIMIT}: expected a number of MiB above 0, got {text!r}.")


def process_limit_left_mib() -> float | None:
    """What `ulimit -d` (RLIMIT_DATA) and `ulimit -v` (RLIMIT_AS) leave this process, MiB; `None` without such limits."""
    if sys.platform != "linux":
        return None
    left = []
    for limit, name in ((resource.RLIMIT_DATA, "VmData"), (resource.RLIMIT_AS, "VmSize")):
        most = resource.getrlimit(limit)[0]
        if most != resource.RLIM_INFINITY:
            left.append(max(0.0, most / _MIB - _status_kib(name) / 1024))
    return min(left, default=None)


def _status_kib(name: str) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1])
    return 0


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
    return max(0, limit - max(0, used - cache)) // _MIB if limit < 2**60 else None
