"""CPU facts: what the processor can do, how many cores this process may use, and what limits them. Never raises."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import subprocess
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from app.core.cgroup import cgroup_limit
from app.core.cpu_text import FEATURES, CpuText, is_x86, no_x86_features, parse_cpuinfo, parse_sysctl
from app.core.facts import CpuFacts, Presence
from app.core.gpu_trouble import printable

CPUINFO = Path("/proc/cpuinfo")
CGROUP_ROOT = Path("/sys/fs/cgroup")
SELF_CGROUP = Path("/proc/self/cgroup")
ONEDNN_VARIABLES = ("TF_ENABLE_ONEDNN_OPTS", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
PROCESSOR_GROUP = 64
"""Most logical CPUs that one Windows processor group holds."""

UNREADABLE = "{path} cannot be read ({why}): the features of this processor are unknown."
TELLS_NOTHING = "{path} tells nothing about a processor: its features are unknown."
IMPLAUSIBLE_PHYSICAL = "{said} physical cores are reported for {logical} logical ones: not plausible, so logical cores are shown."
NO_PHYSICAL = "The number of physical cores is not known; logical ones are shown."
ODD_SLURM = "{name}='{value}' is no number of CPUs; it is ignored."


def cpu_facts(
    *,
    cpuinfo: Path = CPUINFO,
    cgroup_root: Path = CGROUP_ROOT,
    self_cgroup: Path | None = None,
    environ: Mapping[str, str] | None = None,
    affinity: Collection[int] | None = None,
    logical: int | None = None,
    physical: int | None = None,
    sysctl: str | None = None,
    machine: str | None = None,
    system: str | None = None,
) -> CpuFacts:
    """The processor of this machine, or of a recorded one put in its place.

    `affinity` (default: the scheduler's), `logical` and `physical` (default: what the operating system says) count CPUs;
    `sysctl` is the text of macOS' `sysctl machdep.cpu hw`, asked for there when not given. `self_cgroup` defaults to
    `<cgroup_root>/self_cgroup` where a recording has it, and to /proc/self/cgroup with the real `cgroup_root`.
    """
    environ = os.environ if environ is None else environ
    machine = machine or platform.machine() or "unknown"
    system = system or platform.system()
    recorded = Path(cpuinfo) != CPUINFO
    text, problems = _source(Path(cpuinfo), sysctl, system, recorded)
    architecture = text.architecture or machine
    features = text.features if is_x86(architecture) else no_x86_features()
    allowed = _affinity(affinity)
    counts = _counts(text, recorded, logical, allowed, system)
    cores, core_notes, core_problems = _physical(text, recorded, physical, counts.logical)
    usable, limited_by, slurm_problems = _usable(counts, Path(cgroup_root), self_cgroup, environ)
    return CpuFacts(
        name=text.name or (None if recorded else platform.processor() or None),
        architecture=architecture,
        features=features,
        microarchitecture=text.microarchitecture,
        physical_cores=cores,
        logical_cores=counts.logical,
        usable_cores=usable,
        limited_by=limited_by,
        hypervisor=text.hypervisor,
        notes=(*text.notes, *core_notes),
        problems=(*problems, *text.problems, *core_problems, *slurm_problems),
        variables={name: environ[name] for name in ONEDNN_VARIABLES if name in environ},
    )


def _source(cpuinfo: Path, sysctl: str | None, system: str, recorded: bool) -> tuple[CpuText, tuple[str, ...]]:
    """The first source that tells something, and why cpuinfo did not where it should have."""
    if sysctl is None and system == "Darwin" and not recorded:
        sysctl = _run_sysctl()
    if sysctl is not None:
        return parse_sysctl(sysctl), ()
    try:
        content = cpuinfo.read_bytes().decode("utf-8", "replace")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        if system == "Windows" and not recorded:
            return CpuText(features=windows_features()), ()
        return CpuText(), (UNREADABLE.format(path=cpuinfo, why=printable(why)),)
    found = parse_cpuinfo(content)
    return found, () if found.processors else (TELLS_NOTHING.format(path=cpuinfo),)


def _run_sysctl() -> str | None:
    try:
        done = subprocess.run(["/usr/sbin/sysctl", "machdep.cpu", "hw"], capture_output=True, timeout=2, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace")


WINDOWS_FEATURES = {"sse4_2": 38, "avx": 39, "avx2": 40, "avx512f": 41}
"""PF_…_INSTRUCTIONS_AVAILABLE of winnt.h, for IsProcessorFeaturePresent; the other features have no number there."""


def windows_features(present: Callable[[int], int] | None = None) -> dict[str, Presence]:
    """What Windows says about the processor; unknown where it cannot be asked."""
    features: dict[str, Presence] = dict.fromkeys(FEATURES)
    try:
        present = present or ctypes.windll.kernel32.IsProcessorFeaturePresent  # type: ignore[attr-defined]
        features.update({feature: bool(present(number)) for feature, number in WINDOWS_FEATURES.items()})
    except (AttributeError, OSError):
        pass
    return features


@dataclass(frozen=True)
class _Counts:
    """CPUs of the machine, those the scheduler lets this process run on, and what narrowed them."""

    logical: int | None
    everything: int
    allowed: int
    narrowed_by: str | None


def _affinity(affinity: Collection[int] | None) -> int | None:
    if affinity is not None:
        return len(affinity) or None
    ask = getattr(os, "sched_getaffinity", None)
    if ask is None:
        return None
    try:
        return len(ask(0)) or None
    except OSError:
        return None


def _counts(text: CpuText, recorded: bool, logical: int | None, allowed: int | None, system: str) -> _Counts:
    here = logical or os.cpu_count()
    stated = logical or text.processors or here
    everything = max(stated or 1, here or 1)
    if allowed is not None:
        # Affinity that spares no CPU of this machine does not limit a recorded one either.
        free = here is None or allowed >= here
        everything = max(everything, allowed) if free else (here or allowed)
        return _Counts(stated, everything, everything if free and recorded else min(allowed, everything), "CPU affinity")
    group = _other_count()
    smaller = group is not None and group < everything and (system == "Windows" or group == PROCESSOR_GROUP)
    if smaller and group is not None and not logical:
        return _Counts(stated, everything, group, "process sees one processor group")
    return _Counts(stated, everything, everything, None)


def _other_count() -> int | None:
    import psutil

    try:
        return psutil.cpu_count(logical=True)
    except (psutil.Error, OSError, NotImplementedError):
        return None


def _physical(
    text: CpuText, recorded: bool, physical: int | None, logical: int | None
) -> tuple[int | None, tuple[str, ...], tuple[str, ...]]:
    """(physical cores or `None`, notes, problems). A recorded machine is not asked through this one's system calls."""
    said = physical or text.physical_cores
    if said is None and not (recorded and text.processors):
        said = _physical_by_psutil()
    if said is None or said < 1:
        return None, (NO_PHYSICAL,), ()
    if logical is not None and said > logical:
        return None, (), (IMPLAUSIBLE_PHYSICAL.format(said=said, logical=logical),)
    return said, (), ()


def _physical_by_psutil() -> int | None:
    import psutil

    try:
        return psutil.cpu_count(logical=False)
    except (psutil.Error, OSError, NotImplementedError):
        return None


def _usable(
    counts: _Counts, cgroup_root: Path, self_cgroup: Path | None, environ: Mapping[str, str]
) -> tuple[int, str | None, tuple[str, ...]]:
    """(usable cores, what limits them, problems): the tightest of affinity, cpuset, quota and SLURM's share."""
    if self_cgroup is None:
        recorded = cgroup_root / "self_cgroup"
        self_cgroup = recorded if recorded.is_file() else SELF_CGROUP if cgroup_root == CGROUP_ROOT else None
    groups = cgroup_limit(cgroup_root, self_cgroup)
    cpuset = groups.cpuset_cpus
    if cgroup_root == CGROUP_ROOT and cpuset is not None and cpuset >= (os.cpu_count() or 1):
        cpuset = None  # it spares no CPU of this machine, so it does not limit a recorded one either
    slurm, problems = slurm_cpus(environ)
    limits = [
        (counts.allowed, counts.narrowed_by),
        (cpuset, "cpuset"),
        (groups.quota_cpus, "container limit"),
        (slurm, "SLURM allocation"),
    ]
    usable, by = counts.everything, None
    for limit, what in limits:
        if limit is not None and limit < usable:
            usable, by = limit, what
    usable = max(1, usable)
    return usable, f"{usable} of {counts.everything}, {by}" if by else None, problems


def slurm_cpus(environ: Mapping[str, str]) -> tuple[int | None, tuple[str, ...]]:
    """(CPUs that SLURM gave this task on this node, problems): per task, else per node, else this node's part of the job.

    `SLURM_JOB_CPUS_PER_NODE` is run-length coded: `4(x2),3` is 4, 4, 3 (sbatch manual).
    """
    problems: list[str] = []
    for name in ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE", "SLURM_JOB_CPUS_PER_NODE"):
        value = environ.get(name, "").strip()
        if not value:
            continue
        cpus = _of_node(value, environ.get("SLURM_NODEID", "0").strip())
        if cpus is not None:
            return cpus, tuple(problems)
        problems.append(ODD_SLURM.format(name=name, value=printable(value, 40)))
    return None, tuple(problems)


def _of_node(value: str, node: str) -> int | None:
    runs: list[tuple[int, int]] = []
    for part in value.split(","):
        match = re.fullmatch(r"\s*([1-9][0-9]{0,4})(?:\(x([1-9][0-9]{0,5})\))?\s*", part)
        if not match:
            return None
        runs.append((int(match[1]), int(match[2] or 1)))
    place = int(node) if re.fullmatch("[0-9]{1,6}", node) else 0
    for cpus, times in runs:
        if place < times:
            return cpus
        place -= times
    return min(cpus for cpus, _ in runs)
