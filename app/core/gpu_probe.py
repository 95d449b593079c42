"""GPU facts: NVML first, nvidia-smi second. Never raises and never takes longer than its limits."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from app.core.facts import Gpu, GpuFacts, GpuSource
from app.core.gpu_trouble import CALM, Trouble, trouble
from app.core.nvidia_smi import USUAL_PLACES, SmiReading, read_smi
from app.core.nvml import NvmlReading, read_nvml
from app.core.visibility import apply_visibility

DEVICE_NODES = (Path("/dev/nvidiactl"), Path("/dev/nvidia0"), Path("/dev/nvhost-gpu"), Path("/dev/nvgpu"))
"""What the kernel offers where an NVIDIA driver is loaded: discrete GPUs, and Jetson's two."""
NOT_TOLD: dict[GpuSource | None, str] = {
    "nvml": "The driver does not tell who holds the memory of every GPU.",
    "nvidia-smi": "Only NVML tells who holds the memory; nvidia-smi stands in for it here.",
}
UNDER_WSL = "Not available under WSL: the driver tells processes and their memory on the Windows side only."


def gpu_facts(
    *,
    environ: Mapping[str, str] | None = None,
    meminfo: Path = Path("/proc/meminfo"),
    nvml_limit_s: float = 2.0,
    smi_limit_s: float = 10.0,
    smi_places: tuple[Path, ...] = USUAL_PLACES,
    device_nodes: tuple[Path, ...] = DEVICE_NODES,
    system: str | None = None,
) -> GpuFacts:
    """All GPUs of this machine now, with what `environ` (default `os.environ`) lets CUDA show of them.

    When NVML gives GPUs, or says for certain that there are none, nvidia-smi is not run. At most
    `nvml_limit_s + smi_limit_s` seconds, usually milliseconds. What went wrong is in `problems`; a machine without any
    NVIDIA tool has no problem, it has no GPU.
    """
    started = time.perf_counter()
    environ = os.environ if environ is None else environ
    nvml = read_nvml(nvml_limit_s)
    asked_smi = not nvml.gpus and nvml.trouble is not None and nvml.trouble.kind != "none"
    smi = read_smi(smi_limit_s, environ=environ, places=smi_places) if asked_smi else None
    node = any(_exists(path) for path in device_nodes)
    gpus, source, driver, problems, because = _join(nvml, smi, node)
    shown = apply_visibility(gpus, environ)
    untold = any(gpu.processes is None for gpu in gpus)
    wsl = any(path.parent.parts[-3:] == ("lib", "wsl", "lib") and _exists(path.parent) for path in smi_places)
    return GpuFacts(
        gpus=shown.gpus,
        source=source,
        driver_version=driver,
        cuda_driver_version=nvml.cuda_driver_version,
        system_memory_free_mib=memory_available_mib(meminfo),
        visibility_note=shown.note,
        no_gpu_because=because,
        device_node=node,
        processes_note=None if not untold else UNDER_WSL if wsl else NOT_TOLD[source],
        system=system if system is not None else platform.system(),
        problems=problems,
        probe_ms=round((time.perf_counter() - started) * 1000, 3),
    )


def _join(
    nvml: NvmlReading, smi: SmiReading | None, node: bool
) -> tuple[tuple[Gpu, ...], GpuSource | None, str | None, tuple[str, ...], str | None]:
    """(GPUs, where from, driver, problems, why there are none) of both readings."""
    troubles = [reading.trouble for reading in (nvml, smi) if reading is not None and reading.trouble is not None]
    if nvml.gpus:
        return nvml.gpus, "nvml", nvml.driver_version, nvml.problems, None
    if smi is not None and smi.gpus:
        alarming = tuple(_as_sentence(found) for found in troubles if found.kind not in CALM)
        return smi.gpus, "nvidia-smi", smi.driver_version, alarming + smi.problems, None
    cause = _cause(troubles, node)
    sentences = dict.fromkeys(_as_sentence(found) for found in (cause, *troubles) if found.kind not in CALM)
    return (), None, nvml.driver_version, tuple(sentences), cause.sentence


def _cause(troubles: list[Trouble], node: bool) -> Trouble:
    """The trouble that tells most. Where neither source exists, one sentence names both."""
    cause = min(troubles, key=lambda found: found.rank)
    if cause.kind in CALM:
        return trouble("no tools, device there" if node else "no tools", "")
    return cause


def _as_sentence(found: Trouble) -> str:
    """Standing alone: with a capital, but for names that begin small."""
    first, rest = found.sentence[:1], found.sentence[1:]
    return found.sentence if found.sentence.startswith("nvidia-smi") else first.upper() + rest


def memory_available_mib(meminfo: Path) -> int | None:
    """MemAvailable, MiB: what a unified-memory GPU can still get."""
    try:
        text = meminfo.read_text("utf-8", "replace")
    except OSError:
        return None
    match = re.search(r"^MemAvailable:\s*([0-9]{1,15})\s*kB", text, re.MULTILINE)
    return int(match[1]) // 1024 if match else None


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def with_environment(facts: GpuFacts, environ: Mapping[str, str]) -> GpuFacts:
    """The same GPUs as another environment would show them."""
    shown = apply_visibility(facts.gpus, environ)
    return replace(facts, gpus=shown.gpus, visibility_note=shown.note)
