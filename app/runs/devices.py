"""Which device a run would take now, and so in which line it waits. Probes and the pure decision; TensorFlow is not imported."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from app.cae.config import CaeConfig
from app.core.cpu_probe import cpu_facts
from app.core.device_policy import Decision, decide
from app.core.gpu_probe import gpu_facts
from app.core.profile import HardwareProfile
from app.core.tf_build import tensorflow_build
from app.runs.queue import lines

CPU = "cpu"
_LEAVING_LIMIT_S = 10.0
_POLL_S = 0.25


@dataclass(frozen=True)
class DeviceChoice:
    """The line to wait in."""

    key: str
    """`cpu`, or the UUID of the GPU (its index where the driver tells no UUID)."""
    label: str
    reason: str


def choose_device(config: CaeConfig) -> DeviceChoice:
    """What `configure_tensorflow` would decide now for `config`.

    Raises:
        OptionError: `config.device` names a GPU that does not exist.
    """
    build = tensorflow_build()
    return choice_of(decide(gpu_facts(), cpu_facts(), config.min_vram_mib, device=config.device, build_has_gpu=build.has_gpu))


def choice_of(answer: Decision | HardwareProfile) -> DeviceChoice:
    """The line for what was decided, or for what TensorFlow really uses."""
    gpu = answer.gpu
    if answer.selected_device == CPU:
        return DeviceChoice(CPU, "CPU", answer.reason)
    if gpu is None:  # forced although nothing tells about it
        return DeviceChoice("gpu-unknown", "the GPU", answer.reason)
    return DeviceChoice(gpu.uuid or f"gpu-{gpu.index}", f"GPU '{gpu.name}'", answer.reason)


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
