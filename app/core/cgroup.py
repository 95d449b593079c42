"""How many CPUs a control group allows: quota and cpuset, of version 1 and 2, parents included. Never raises.

Sources: kernel documentation, admin-guide/cgroup-v2 (`cpu.max`, `cpuset.cpus.effective`), scheduler/sched-bwc
(`cpu.cfs_quota_us`, `cpu.cfs_period_us`), cgroup-v1/cpusets.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAX_PLAUSIBLE_CPUS = 65536


@dataclass(frozen=True)
class CgroupLimit:
    """CPUs allowed by quota (rounded up, at least 1) and by cpuset; `None` where there is no limit or no telling."""

    quota_cpus: int | None = None
    cpuset_cpus: int | None = None


def cgroup_limit(root: Path, self_cgroup: Path | None) -> CgroupLimit:
    """The tightest limit on the way from this process's group up to `root`, over both versions.

    `self_cgroup` is a file like `/proc/self/cgroup`; without it the process is taken to be in the root group. The groups'
    paths are often those of the host while `root` is the container's own: what does not exist below `root` is skipped.
    """
    memberships = _memberships(self_cgroup)
    quotas: list[int] = []
    cpusets: list[int] = []
    unified = memberships.get("", "/")
    for base in (root, root / "unified"):
        for group in _upwards(base, unified):
            quotas.extend(_some(_quota_v2(group / "cpu.max")))
        cpusets.extend(_innermost(base, unified, ("cpuset.cpus.effective", "cpuset.cpus")))
    for folder in ("cpu,cpuacct", "cpuacct,cpu", "cpu"):
        for group in _upwards(root / folder, memberships.get("cpu", "/")):
            quotas.extend(_some(_quota_v1(group)))
    cpusets.extend(_innermost(root / "cpuset", memberships.get("cpuset", "/"), ("cpuset.effective_cpus", "cpuset.cpus")))
    return CgroupLimit(min(quotas, default=None), min(cpusets, default=None))


def count_cpus(text: str) -> int | None:
    """CPUs in a list like `0,2-3` or `0-14:2`; `None` when it is empty or no such list."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        match = re.fullmatch(r"\s*([0-9]{1,6})(?:-([0-9]{1,6})(?::[0-9]+(?:/[0-9]+)?)?)?\s*", part)
        if not match:
            return None
        low, high = int(match[1]), int(match[2] or match[1])
        if not low <= high < MAX_PLAUSIBLE_CPUS:
            return None
        cpus.update(range(low, high + 1))
    return len(cpus) or None


def _memberships(self_cgroup: Path | None) -> dict[str, str]:
    """Controller → path of the group; the empty key is version 2."""
    result: dict[str, str] = {}
    for line in (_read(self_cgroup) if self_cgroup is not None else "").splitlines():
        parts = line.strip().split(":", 2)
        if len(parts) == 3:
            result.update(dict.fromkeys(parts[1].split(","), parts[2]))
    return result


def _upwards(base: Path, group: str) -> Iterator[Path]:
    """The folders of `group` and its parents up to `base`, the innermost first."""
    parts = [part for part in group.split("/") if part not in ("", ".", "..") and "\0" not in part]
    for length in range(len(parts), -1, -1):
        yield base.joinpath(*parts[:length])


def _innermost(base: Path, group: str, names: tuple[str, ...]) -> list[int]:
    for folder in _upwards(base, group):
        for name in names:
            if count := count_cpus(_read(folder / name)):
                return [count]
    return []


def _quota_v2(path: Path) -> int | None:
    match = re.match(r"\s*([0-9]{1,18})\s+([0-9]{1,18})\s*$", _read(path))
    return _cpus(int(match[1]), int(match[2])) if match else None


def _quota_v1(group: Path) -> int | None:
    numbers = [re.fullmatch(r"\s*([0-9]{1,18})\s*", _read(group / name)) for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
    return _cpus(int(numbers[0][1]), int(numbers[1][1])) if numbers[0] and numbers[1] else None


def _cpus(quota: int, period: int) -> int | None:
    """`-1` and `max` do not get here; a zero quota or period is no limit either."""
    return max(1, math.ceil(quota / period)) if quota > 0 and period > 0 else None


def _some(value: int | None) -> list[int]:
    return [] if value is None else [value]


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except (OSError, ValueError):
        return ""
