"""Which device a run would take now, and so in which lines it waits. Probes and the pure decision; TensorFlow is not imported."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from app.cae.config import CaeConfig
from app.core.cpu_probe import cpu_facts
from app.core.device_policy import Decision, decide
from app.core.gpu_probe import gpu_facts
from app.core.profile import HardwareProfile
from app.core.several_gpus import with_more_gpus
from app.core.tf_build import tensorflow_build
from app.runs.queue import Line, lines

CPU = "cpu"
_LEAVING_LIMIT_S = 10.0
_POLL_S = 0.25


@dataclass(frozen=True)
class DeviceChoice:
    """The lines to wait in: one, or one for each GPU of a run over several."""

    keys: tuple[str, ...]
    """`cpu`, or the UUIDs of GPUs (`gpu-` and the index where the driver tells no UUID), sorted: who needs several lines enters them in
    this order, so that no two runs ever wait for each other."""
    label: str
    reason: str
    others: tuple[str, ...] = ()
    """GPUs that would do as well, for a run over one that is free to take any: if one is free first, it is taken."""


def choose_device(config: CaeConfig, *, own: tuple[str, ...] = (), stay: bool = False) -> DeviceChoice:
    """What `configure_tensorflow` would decide now for `config`, GPUs of other runs left to them.

    Args:
        own: the lines in which this run stands itself.
        stay: whether a GPU of `own` that still passes is taken whatever the others offer.

    Raises:
        OptionError: `config.device` names a GPU that does not exist.
    """
    gpu, build = gpu_facts(), tensorflow_build()
    held = frozenset(found.key for found in gpu.gpus if found.key not in own and (stay or Line(found.key).tickets()))
    decision = decide(gpu, cpu_facts(), config.min_vram_mib, device=config.device, build_has_gpu=build.has_gpu, held=held)
    choice = choice_of(with_more_gpus(decision, gpu, config.gpus, build_has_gpu=build.has_gpu, held=held))
    if config.gpus > 1 or config.device.strip().lower() not in ("auto", "gpu", ""):
        return choice
    usable = (question.about_uuid or f"gpu-{question.about_gpu}" for question in decision.table if question.branch == "yes")
    return replace(choice, others=tuple(key for key in usable if key not in choice.keys))


def is_free(key: str) -> bool:
    """Whether nobody stands in that line."""
    return not Line(key).tickets()


def choice_of(answer: Decision | HardwareProfile) -> DeviceChoice:
    """The lines for what was decided, or for what TensorFlow really uses."""
    if answer.selected_device == CPU:
        return DeviceChoice((CPU,), "CPU", answer.reason)
    if answer.gpu is None:  # forced although nothing tells about it
        return DeviceChoice(("gpu-unknown",), "the GPU", answer.reason)
    gpus = (answer.gpu, *answer.more_gpus)
    label = " and ".join(f"GPU {gpu.index} '{gpu.name}'" if len(gpus) > 1 else f"GPU '{gpu.name}'" for gpu in gpus)
    return DeviceChoice(tuple(sorted(gpu.key for gpu in gpus)), label, answer.reason)


def wait_for_ended_runs(is_over: Callable[[str], bool], stop: Callable[[], bool], limit_s: float = _LEAVING_LIMIT_S) -> None:
    """Wait until processes of runs that have ended have left the GPU lines, at most `limit_s`.

    A process gives its VRAM back only when it is gone, a moment after its run was shown as finished. A run started in that moment
    would see a full GPU and go to the CPU, and the second of two equal runs would take another path than the first.

    Args:
        is_over: whether the run in this folder has ended.
    """
    until = time.monotonic() + limit_s
    while time.monotonic() < until and not stop():
        waiting = [ticket for line in lines() if line.key != CPU for ticket in line.tickets()[:1]]
        if not any(ticket.run_folder and is_over(ticket.run_folder) for ticket in waiting):
            return
        time.sleep(_POLL_S)


def run_is_over(run_folder: str) -> bool:
    """Whether the run in that folder has said its last word."""
    from app.runs.folder import RunFolder

    return RunFolder(Path(run_folder)).status().state in ("finished", "failed", "cancelled")
