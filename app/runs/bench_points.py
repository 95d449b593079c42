"""The points of a benchmark: which paths this machine has, which it lacks and why, and which are one and the same (pure).

Two points are the same when device, oneDNN, widest instruction set and both thread counts are: they are measured once and share
the figures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from app.core.cpu_text import is_x86
from app.core.device_policy import Decision, decide
from app.core.errors import OptionError
from app.core.facts import CpuFacts, Gpu, GpuFacts
from app.core.tf_settings import ONEDNN_ISA_NAMES, ThreadPlan, onednn_wanted, plan_threads
from app.runs.bench_options import BenchOptions
from app.runs.bench_sentences import HOLDS, NOT_HERE, REPLACES, SETS_THREADS, VERBOSE

REFERENCE = "cpu"
"""The CPU with everything automatic, as a run would use it."""
GROUPS = {
    "gpu": "GPU",
    "cpu": "As a run would do it",
    "instructions": "Instruction set",
    "onednn": "oneDNN",
    "inter-op": "Inter-op threads",
    "intra-op": "Intra-op threads",
}
ISA_VARIABLES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
"""oneDNN reads the second where the first is not set (oneDNN, src/common/utils.cpp)."""
VERBOSE_VARIABLES = ("ONEDNN_VERBOSE", "DNNL_VERBOSE")
_FELT_EVERYWHERE = (*ISA_VARIABLES, "TF_ENABLE_ONEDNN_OPTS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "TF_XLA_FLAGS")
"""What the user may have set that changes how fast every point is."""
MANY_CORES = 8
"""Above this, thread counts are measured in powers of two."""


@dataclass(frozen=True)
class _Isa:
    name: str
    label: str
    value: str
    """Of ONEDNN_MAX_CPU_ISA."""
    feature: str
    """Of `CpuFacts.features`. oneDNN's SSE4.1 is told by SSE4.2, which all processors with AVX have."""


_ISAS = (
    _Isa("sse41", "SSE4.1", "SSE41", "sse4_2"),
    _Isa("avx", "AVX", "AVX", "avx"),
    _Isa("avx2", "AVX2", "AVX2", "avx2"),
    _Isa("avx512", "AVX-512", "AVX512_CORE", "avx512f"),
)
"""From narrow to wide."""


@dataclass(frozen=True)
class BenchPoint:
    """One path to measure, or one that does not exist here."""

    name: str
    label: str
    group: str
    """A key of `GROUPS`."""
    device: str = "cpu"
    """`cpu`, or the UUID (index where the driver tells none) of a GPU."""
    environment: dict[str, str] = field(default_factory=dict)
    """Variables that make this point what it is; everything else is as in a run."""
    intra_op_threads: int | None = None
    inter_op_threads: int | None = None
    available: bool = True
    why_not: str | None = None
    """Why this path does not exist here, as one sentence."""
    same_as: str | None = None
    """The point that is measured for this one too."""
    asks_for: str | None = None
    """The instruction set that this point is about, by its short name."""
    chosen: bool = False
    """Whether a run started now would take this path."""
    notes: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> BenchPoint:
        """The reverse of `dataclasses.asdict`. Raises KeyError or TypeError for something else."""
        known = {item.name: values[item.name] for item in fields(cls) if item.name in values}
        return cls(**{**known, "notes": tuple(known.get("notes") or ()), "environment": dict(known.get("environment") or {})})


@dataclass(frozen=True)
class BenchPlan:
    """What will be measured, in order."""

    points: tuple[BenchPoint, ...]
    options: BenchOptions
    machine: dict[str, Any] = field(default_factory=dict)
    """The machine's description, saved with the result."""
    notes: tuple[str, ...] = ()

    @property
    def measured(self) -> tuple[BenchPoint, ...]:
        """The points that get processes of their own."""
        return tuple(point for point in self.points if point.available and point.same_as is None)


@dataclass(frozen=True)
class _Place:
    """Facts that every point is made from."""

    cpu: CpuFacts
    environ: Mapping[str, str]
    threads: ThreadPlan
    """Of a run with everything automatic."""

    @property
    def cpu_name(self) -> str:
        return self.cpu.name or "This processor"

    @property
    def widest(self) -> _Isa | None:
        """The widest set the processor offers; None where that is not known."""
        for isa in reversed(_ISAS):
            present = self.cpu.features.get(isa.feature)
            if present is None:
                return None
            if present:
                return isa
        return None

    def isa_in_force(self, environment: Mapping[str, str]) -> str:
        """What oneDNN may use at most, by name; `any` where the processor does not tell."""
        text = next((value for name in ISA_VARIABLES if (value := environment.get(name, ""))), "").upper()
        cap = _ISAS[-1]
        if text in ONEDNN_ISA_NAMES and not text.startswith(("AVX512", "AVX10", "ALL", "DEFAULT")):
            cap = next(isa for isa in reversed(_ISAS) if text.startswith(isa.value))
        if self.widest is None:
            return cap.name if text else "any"
        return min(cap, self.widest, key=_ISAS.index).name

    def identity(self, point: BenchPoint) -> tuple[object, ...]:
        """Equal for points that are one and the same."""
        if point.device != "cpu":
            return (point.device,)
        environment = {**self.environ, **point.environment}
        threads = plan_threads(self.cpu.usable_cores, point.intra_op_threads, point.inter_op_threads, self.environ)
        onednn = onednn_wanted(environment.get("TF_ENABLE_ONEDNN_OPTS", "1"))
        return ("cpu", onednn, self.isa_in_force(environment), threads.intra_op, threads.inter_op)


def build_plan(
    cpu: CpuFacts,
    gpu: GpuFacts,
    environ: Mapping[str, str],
    options: BenchOptions,
    *,
    build_has_gpu: bool | None = None,
    machine: Mapping[str, Any] | None = None,
) -> BenchPlan:
    """All points of a machine, those it lacks with the reason.

    Args:
        environ: as a run would find it; what the user has set there holds for every point that is not about it.
        build_has_gpu: as in `decide`.

    Raises:
        OptionError: `options.points` names neither a point nor a group.
    """
    place = _Place(cpu, environ, plan_threads(cpu.usable_cores, None, None, environ))
    decision = decide(gpu, cpu, options.min_vram_mib, build_has_gpu=build_has_gpu)
    all_points = [*_gpu_points(gpu, decision), *_cpu_points(place, decision)]
    chosen = _select(all_points, options.points)
    return BenchPlan(tuple(_shared(chosen, place)), options, dict(machine or {}), tuple(_notes(environ)))


def _notes(environ: Mapping[str, str]) -> Iterator[str]:
    for name in _FELT_EVERYWHERE:
        if name in environ:
            yield HOLDS.format(name=name, value=environ[name])
    for name in VERBOSE_VARIABLES:
        if name in environ:
            yield VERBOSE.format(name=name)


def _gpu_points(gpu: GpuFacts, decision: Decision) -> Iterator[BenchPoint]:
    sliced = {found.index for found in gpu.gpus if found.mig not in (None, "parent")}
    shown = [found for found in gpu.gpus if not (found.mig == "parent" and found.index in sliced)]
    if not shown:
        why = next(
            (question.answer for question in decision.chart if question.branch == "no" and question.key != "forced"), decision.reason
        )
        yield BenchPoint("gpu", "GPU", "gpu", "gpu", available=False, why_not=why)
    for found in shown:
        asked = next(question for question in decision.table if _is(question.about_gpu, question.about_uuid, found))
        usable = asked.branch == "yes"
        yield BenchPoint(
            name=_gpu_name(found, shown),
            label=f"GPU {found.index} · {found.name}" + (f" {found.mig}" if found.mig not in (None, "parent", *found.name.split()) else ""),
            group="gpu",
            device=found.uuid or str(found.index),
            available=usable,
            why_not=None if usable else asked.answer,
            chosen=decision.gpu is found,
        )


def _is(index: int | None, uuid: str | None, gpu: Gpu) -> bool:
    return uuid == gpu.uuid if uuid else index == gpu.index


def _gpu_name(gpu: Gpu, shown: list[Gpu]) -> str:
    """`gpu-0`; a slice `gpu-0.1`, counted from 1."""
    same = [other for other in shown if other.index == gpu.index]
    return f"gpu-{gpu.index}" if gpu.mig is None else f"gpu-{gpu.index}.{same.index(gpu) + 1}"


def _cpu_points(place: _Place, decision: Decision) -> Iterator[BenchPoint]:
    automatic = f"{place.threads.intra_op} × {place.threads.inter_op} threads"
    points = [
        BenchPoint(REFERENCE, f"CPU, all automatic ({automatic})", "cpu", chosen=decision.selected_device == "cpu"),
        *(_isa_point(place, isa) for isa in reversed(_ISAS)),
        _with_environment(place, BenchPoint("onednn-off", "oneDNN off", "onednn"), {"TF_ENABLE_ONEDNN_OPTS": "0"}),
        *_thread_points(place),
    ]
    for point in points:
        barred = point.available and is_x86(place.cpu.architecture) and place.cpu.avx is False
        yield replace(point, available=False, why_not=NOT_HERE["no avx"]) if barred else point


def _isa_point(place: _Place, isa: _Isa) -> BenchPoint:
    point = BenchPoint(isa.name, isa.label, "instructions", asks_for=isa.label)
    if not is_x86(place.cpu.architecture):
        values = {"cpu": place.cpu_name, "architecture": place.cpu.architecture, "name": isa.label}
        return replace(point, available=False, why_not=NOT_HERE["not x86"].format(**values))
    if place.cpu.features.get(isa.feature) is False:
        return replace(point, available=False, why_not=NOT_HERE["no isa"].format(cpu=place.cpu_name, name=isa.label))
    return _with_environment(place, point, {"ONEDNN_MAX_CPU_ISA": isa.value, "TF_ENABLE_ONEDNN_OPTS": "1"})


def _with_environment(place: _Place, point: BenchPoint, wanted: dict[str, str]) -> BenchPoint:
    """`point` with the variables it needs; the notes name those of the user's that it replaces."""
    theirs = {name: place.environ[name] for name in wanted if name in place.environ and place.environ[name] != wanted[name]}
    notes = tuple(REPLACES.format(name=name, value=value, new=wanted[name]) for name, value in theirs.items())
    # TF_ENABLE_ONEDNN_OPTS=1 is what a run sets by itself.
    needed = {name: value for name, value in wanted.items() if (name, value) != ("TF_ENABLE_ONEDNN_OPTS", "1") or name in theirs}
    return replace(point, environment=needed, notes=notes)


def _thread_points(place: _Place) -> Iterator[BenchPoint]:
    cores = place.cpu.usable_cores
    for name, count in (("inter-1", 1), ("inter-auto", cores)):
        label = "inter-op 1" if name == "inter-1" else f"inter-op automatic ({cores})"
        notes = _thread_notes(place, "TF_NUM_INTEROP_THREADS", count)
        yield BenchPoint(name, label, "inter-op", inter_op_threads=count, notes=notes)
    for count in thread_counts(cores):
        notes = _thread_notes(place, "TF_NUM_INTRAOP_THREADS", count)
        yield BenchPoint(f"intra-{count}", f"intra-op {count}", "intra-op", intra_op_threads=count, notes=notes)


def _thread_notes(place: _Place, name: str, count: int) -> tuple[str, ...]:
    value = place.environ.get(name)
    return () if value in (None, str(count)) else (SETS_THREADS.format(name=name, value=value, new=count),)


def thread_counts(cores: int) -> list[int]:
    """1 … n; of many cores the powers of two and n."""
    if cores <= MANY_CORES:
        return list(range(1, cores + 1))
    return [*(2**power for power in range(cores.bit_length()) if 2**power < cores), cores]


def _select(points: list[BenchPoint], names: tuple[str, ...]) -> list[BenchPoint]:
    known = {point.name for point in points} | set(GROUPS)
    for name in names:
        if name not in known:
            raise OptionError(f"points: expected some of {', '.join(point.name for point in points)}, or a group, got {name!r}.")
    return [point for point in points if not names or point.name in names or point.group in names]


def _shared(points: list[BenchPoint], place: _Place) -> Iterator[BenchPoint]:
    first: dict[tuple[object, ...], str] = {}
    for point in points:
        if not point.available:
            yield point
            continue
        owner = first.setdefault(place.identity(point), point.name)
        yield point if owner == point.name else replace(point, same_as=owner)
