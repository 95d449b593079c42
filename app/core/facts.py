"""What the probes found out, as values. Units stand in the names; unknown is `None`, never 0."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

GpuSource = Literal["nvml", "nvidia-smi"]


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds memory of a GPU."""

    pid: int
    name: str | None
    used_mib: int | None


@dataclass(frozen=True)
class Gpu:
    """One NVIDIA GPU, or one MIG slice of it, at one instant.

    `index` is the physical index (NVML's and nvidia-smi's: PCI bus order); `logical_index` is the position at which CUDA
    would show this GPU to a process started now, `None` when hidden. A slice carries its parent's `index`.
    """

    index: int
    uuid: str | None
    name: str
    total_mib: int | None = None
    free_mib: int | None = None
    used_mib: int | None = None
    reserved_mib: int | None = None
    unified_memory: bool = False
    mig: str | None = None
    """MIG: profile name of a slice (`1g.5gb`), `"parent"` for a GPU that is divided into slices, else `None`."""
    mig_parent_uuid: str | None = None
    mig_instance: tuple[int, int] | None = None
    """(GPU instance id, compute instance id) of a slice, as the legacy form `MIG-GPU-<uuid>/gi/ci` names it."""
    pci_bus_id: str | None = None
    compute_capability: tuple[int, int] | None = None
    utilisation_percent: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    processes: tuple[GpuProcess, ...] | None = None
    """Who holds memory; `None` when the driver does not tell."""
    visible: bool = True
    logical_index: int | None = None
    problem: str | None = None
    """Why this GPU cannot be used or measured, as one sentence."""

    @property
    def key(self) -> str:
        """Names this GPU among the others of the machine, from one process to the next: the UUID where the driver tells one."""
        return self.uuid or f"gpu-{self.index}"


@dataclass(frozen=True)
class GpuFacts:
    """All GPUs of the machine as one probe saw them."""

    gpus: tuple[Gpu, ...] = ()
    source: GpuSource | None = None
    driver_version: str | None = None
    cuda_driver_version: str | None = None
    system_memory_free_mib: int | None = None
    """What unified-memory parts share with the CPU: MemAvailable."""
    visibility_note: str | None = None
    """What CUDA_VISIBLE_DEVICES does here, as one sentence; `None` when it is not set."""
    no_gpu_because: str | None = None
    """Why `gpus` is empty, as one sentence; `None` when it is not empty."""
    device_node: bool = False
    """The kernel offers an NVIDIA device file, so that a GPU may be there although nobody can tell about it."""
    processes_note: str | None = None
    """Why nobody tells who holds the memory, as one sentence."""
    system: str | None = None
    """As `platform.system()` says it: `Linux`, `Windows`, `Darwin`; `None` counts as Linux."""
    problems: tuple[str, ...] = ()
    probe_ms: float = 0.0


Presence = bool | None
"""Present, absent, or `None` for unknown."""


@dataclass(frozen=True)
class CpuFacts:
    """The processor and how much of it this process may use."""

    name: str | None
    architecture: str
    """As `platform.machine()` says it: `x86_64`, `aarch64`, `arm64` …"""
    features: dict[str, Presence] = field(default_factory=dict)
    """Keys, in the order shown: sse4_2, avx, avx2, fma, avx512f, avx512_vnni, avx512_bf16, amx_tile."""
    microarchitecture: str | None = None
    physical_cores: int | None = None
    logical_cores: int | None = None
    usable_cores: int = 1
    limited_by: str | None = None
    """What makes `usable_cores` fewer than `logical_cores` (`"4 of 12, container limit"`), `None` when nothing does."""
    hypervisor: bool | None = None
    notes: tuple[str, ...] = ()
    """Worth knowing, nothing wrong: cores of different kinds, which count of cores is shown."""
    problems: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    """Of the user's environment, what says how oneDNN shall use this processor; only those that are set."""

    @property
    def avx(self) -> Presence:
        return self.features.get("avx")

    @property
    def avx2(self) -> Presence:
        return self.features.get("avx2")
