"""Memory that this process may still take, control groups (containers, SLURM) included."""

from __future__ import annotations

from pathlib import Path

import psutil

_MIB = 2**20


def free_mib(*, cgroup_root: Path = Path("/sys/fs/cgroup"), self_cgroup: Path = Path("/proc/self/cgroup")) -> float:
    """MiB free: what the system calls available, or what control groups (version 2) still allow if that is less."""
    free = float(psutil.virtual_memory().available)
    for group in _groups(cgroup_root, self_cgroup):
        try:
            most = int((group / "memory.max").read_text())
            used = int((group / "memory.current").read_text())
        except (OSError, ValueError):
            continue  # no such file at the root, or "max"
        free = min(free, float(max(0, most - used)))
    return free / _MIB


def _groups(root: Path, self_cgroup: Path) -> list[Path]:
    """The process's group and those above it."""
    try:
        lines = self_cgroup.read_text().splitlines()
    except OSError:
        return [root]
    inner = next((line.removeprefix("0::").strip("/") for line in lines if line.startswith("0::")), "")
    group = root / inner if ".." not in inner.split("/") else root
    return [group, *(above for above in group.parents if above.is_relative_to(root))]
