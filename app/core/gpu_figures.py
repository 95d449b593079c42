"""Raw figures of one GPU → figures that can be trusted. Pure; used for NVML and nvidia-smi alike."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from app.core.facts import Gpu
from app.core.gpu_trouble import printable

MAX_PLAUSIBLE_MIB = 2**26
"""64 TiB: what is larger is an error code read as a number."""

INTEGRATED = re.compile(r"\b(GB10|Orin|Xavier|Thor|Tegra\w*|Jetson|nvgpu|GA10B|GV11B|T(124|186|194|210|234|264))\b", re.IGNORECASE)
"""Parts whose GPU shares the system's RAM: Tegra and Jetson chips by name, and the GB10 of DGX Spark. Grace Hopper and
Grace Blackwell superchips are not among them: their GPU has memory of its own."""

NO_MEMORY = "{gpu} does not report its free memory ({said}), so it cannot be compared with the threshold; {forced} tries it anyway."
ZERO_MEMORY = "{gpu} reports a memory of 0 MiB, which means unknown; {forced} tries it anyway."
NOT_CREDIBLE = (
    "{gpu} reports {figure} of free memory, which is not credible, so it cannot be compared with the threshold; {forced} tries it anyway."
)
TOTAL_NOT_CREDIBLE = "{gpu} reports a memory of {figure}, which is not credible; how much it has counts as unknown."
NO_UUID = (
    "{gpu} does not tell its UUID ('{said}'), so a run names it to CUDA by its number {index} in PCI bus order, "
    "which means another GPU where CUDA does not count one of those before it."
)
NO_SLICE_UUID = (
    "{gpu} does not tell its UUID ('{said}'), so a run can name only GPU {index} to CUDA, which then computes on the first slice of it."
)
FREE_ABOVE_TOTAL = "{gpu} reports {free} MiB free of {total} MiB; the free memory is taken as {total} MiB."
SICK = (
    "{gpu} answers '{said}' where its {what} should stand; it is left out. Look into dmesg for Xid messages, reset the GPU "
    "(nvidia-smi --gpu-reset -i {which}) or reboot."
)

_UUID = re.compile(r"^(GPU|MIG)-[0-9A-Za-z/-]+$")
_SICK_WORDS = re.compile(r"lost|unknown|err|unable|reset required|requires reset|fallen", re.IGNORECASE)
_NUMERIC = re.compile(r"^[+-]?[0-9]+(\.[0-9]+)?$")


@dataclass(frozen=True)
class RawMemory:
    """Memory as a source said it, MiB; `None` where it said no number. `said` is the first non-numeric answer.

    `unsupported`: the answer means "not supported here", the way unified-memory parts answer."""

    total_mib: float | None
    free_mib: float | None
    used_mib: float | None = None
    reserved_mib: float | None = None
    said: str | None = None
    unsupported: bool = False


def describe(gpu: Gpu) -> str:
    """How sentences name a GPU: index and name."""
    return f"GPU {gpu.index} '{gpu.name}'"


def forced_by(gpu: Gpu) -> str:
    """The option that means this GPU and no other, whatever else the machine has."""
    return f"--device {gpu.uuid if gpu.uuid and gpu.mig not in (None, 'parent') else gpu.index}"


def usable_uuid(text: str | None) -> str | None:
    """A UUID that CUDA would know; `None` for an error message in its place."""
    return text if text is not None and _UUID.match(text) else None


def without_uuid(gpu: Gpu, said: str | None) -> str | None:
    """What follows where no UUID is told, as a sentence; `None` where one is, and for integrated parts, which have none and stand alone."""
    if gpu.uuid is not None or gpu.mig == "parent" or gpu.unified_memory or INTEGRATED.search(gpu.name):
        return None
    sentence = NO_UUID if gpu.mig is None else NO_SLICE_UUID
    return sentence.format(gpu=describe(gpu), said=printable((said or "").strip("[] \t"), 60) or "nothing", index=gpu.index)


def clean_name(text: str | None, index: int) -> str:
    """The name without bytes that are not text; a placeholder where nothing readable is left or an error stands in its place."""
    if text is not None:
        name = printable(text)
        if re.search(r"[A-Za-z0-9]", name) and not name.startswith("[") and name.lower() not in _NOT_NAMES:
            return name
    return f"NVIDIA GPU {index} (name not readable)"


_NOT_NAMES = frozenset({"n/a", "unknown", "err!", "unknown error", "gpu is lost", "not supported", "function not found", "?"})


def settle_memory(gpu: Gpu, raw: RawMemory) -> tuple[Gpu, str | None]:
    """`gpu` with trustworthy memory figures, and a sentence for the list of problems where they were not.

    Totals below 1 MiB are unknown (some coherent-memory systems answer so), free above total is clamped, and only a known
    integrated part counts as unified memory: one that says "not supported", or gives the system's RAM as its own.
    """
    total, free = _mib(raw.total_mib), _mib(raw.free_mib)
    if raw.total_mib is not None and not raw.total_mib >= 1:
        zero = ZERO_MEMORY.format(gpu=describe(gpu), forced=forced_by(gpu))
        return replace(gpu, problem=gpu.problem or zero), zero
    if INTEGRATED.search(gpu.name) and (raw.unsupported or free is not None):
        # Where such a part does report numbers, they are those of the system's RAM, without what the kernel could give back.
        return replace(gpu, unified_memory=True), None
    sentence: str | None = None
    if free is None:
        sentence = _unreadable(gpu, raw)
        gpu = replace(gpu, problem=gpu.problem or sentence)
    elif total is not None and free > total:
        sentence = FREE_ABOVE_TOTAL.format(gpu=describe(gpu), free=free, total=total)
        free = total
    elif total is None and raw.total_mib is not None:
        sentence = TOTAL_NOT_CREDIBLE.format(gpu=describe(gpu), figure=_figure(raw.total_mib))
    limit = total if total is not None else MAX_PLAUSIBLE_MIB
    used, reserved = (value if value is not None and value <= limit else None for value in (_mib(raw.used_mib), _mib(raw.reserved_mib)))
    if used is None and total is not None and free is not None:
        used = max(0, total - free - (reserved or 0))
    return replace(gpu, total_mib=total, free_mib=free, used_mib=used, reserved_mib=reserved), sentence


def _unreadable(gpu: Gpu, raw: RawMemory) -> str:
    said = printable((raw.said or "no number").strip("[] \t"), 60) or "no number"
    if raw.free_mib is not None or _NUMERIC.match((raw.said or "").strip()):
        figure = _figure(raw.free_mib) if raw.free_mib is not None else f"{said} MiB"
        return NOT_CREDIBLE.format(gpu=describe(gpu), figure=figure, forced=forced_by(gpu))
    if _SICK_WORDS.search(said):
        return sick(gpu, said, "memory")
    return NO_MEMORY.format(gpu=describe(gpu), said=said, forced=forced_by(gpu))


def sick(gpu: Gpu, said: str, what: str) -> str:
    """The sentence about a GPU that answers an error, `said`, where its `what` should stand."""
    return SICK.format(gpu=describe(gpu), said=said, what=what, which=gpu.pci_bus_id or gpu.index)


def _figure(mib: float) -> str:
    return f"{mib:.0f} MiB" if math.isfinite(mib) else f"{mib} MiB"


def _mib(value: float | None) -> int | None:
    """Whole MiB, rounded down: 2047.9 free is not 2048. `None` for what cannot be an amount of memory."""
    if value is None or not math.isfinite(value) or not 0 <= value <= MAX_PLAUSIBLE_MIB:
        return None
    return int(value)
