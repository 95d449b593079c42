"""More GPUs to the one that was decided on, for a run over several. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from app.core.device_policy import Decision, decide
from app.core.facts import CpuFacts, Gpu, GpuFacts

SEVERAL = "GPUs {gpus} have {free} MiB free (each ≥ threshold {threshold} MiB)."
FEWER = "{wanted} GPUs were asked for, {found} can be used: {reason}"
NAMED = "{wanted} GPUs were asked for, but one is named; only that one is used. {reason}"
SLICE = "{wanted} GPUs were asked for, but one program can use one MIG slice only. {reason}"


def with_more_gpus(
    decision: Decision, facts: GpuFacts, wanted: int, *, build_has_gpu: bool | None = None, held: Collection[str] = ()
) -> Decision:
    """`decision` for up to `wanted` GPUs, each of which passes the threshold on its own; the reason names them, or says why they are fewer.

    Args:
        wanted: 1 leaves the decision as it is.
        held: keys of GPUs that are other runs'; as in `decide`.
    """
    if wanted <= 1 or decision.selected_device != "gpu" or decision.gpu is None:
        return decision
    if decision.forced and decision.forced.lower() != "gpu":
        return replace(decision, reason=NAMED.format(wanted=wanted, reason=decision.reason))
    if decision.gpu.mig is not None:
        return replace(decision, reason=SLICE.format(wanted=wanted, reason=decision.reason))
    more = _passing(decision, facts, wanted - 1, build_has_gpu, held)
    if not more:
        return replace(decision, reason=FEWER.format(wanted=wanted, found=1, reason=decision.reason))
    gpus = sorted((decision.gpu, *more), key=lambda gpu: gpu.index)
    reason = SEVERAL.format(
        gpus=_listed([f"{gpu.index} '{gpu.name}'" for gpu in gpus]),
        free=_listed([str(_free(gpu, facts)) for gpu in gpus]),
        threshold=decision.min_vram_mib,
    )
    if len(gpus) < wanted:
        reason = FEWER.format(wanted=wanted, found=len(gpus), reason=reason)
    return replace(decision, more_gpus=tuple(more), reason=reason)


def _passing(decision: Decision, facts: GpuFacts, count: int, build_has_gpu: bool | None, held: Collection[str]) -> list[Gpu]:
    """The best `count` of the others: the same decision again and again, without those that are taken already."""
    found: list[Gpu] = []
    while len(found) < count:
        taken = {decision.gpu, *found}
        left = replace(facts, gpus=tuple(gpu for gpu in facts.gpus if gpu.mig is None and gpu not in taken))
        chosen = decide(left, _NO_CPU, decision.min_vram_mib, build_has_gpu=build_has_gpu, held=held).gpu
        if chosen is None:
            break
        found.append(chosen)
    return found


_NO_CPU = CpuFacts(None, "x86_64")
"""The processor plays no part in which GPUs pass."""


def _free(gpu: Gpu, facts: GpuFacts) -> int | None:
    return facts.system_memory_free_mib if gpu.unified_memory else gpu.free_mib


def _listed(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}"
