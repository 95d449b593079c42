"""NVML through the module `pynvml` (distribution nvidia-ml-py): the first door to the GPUs. Never raises, never blocks longer than asked.

NVML calls can block for ever behind a wedged driver, and a blocked C call cannot be interrupted. So they run in a daemon
thread; one that does not come back is remembered and no second one is started beside it.
"""

from __future__ import annotations

import importlib
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, TypeVar

from app.core.facts import Gpu, GpuProcess
from app.core.gpu_figures import RawMemory, clean_name, settle_memory, sick, usable_uuid, without_uuid
from app.core.gpu_trouble import Trouble, kind_of_code, kind_of_text, printable, trouble

MIB = 2**20
_T = TypeVar("_T")
_NOT_SUPPORTED = re.compile(r"not\s?supported", re.IGNORECASE)


@dataclass(frozen=True)
class NvmlReading:
    """What NVML told: either GPUs, or the trouble that kept it from telling."""

    gpus: tuple[Gpu, ...] = ()
    driver_version: str | None = None
    cuda_driver_version: str | None = None
    problems: tuple[str, ...] = ()
    trouble: Trouble | None = None


class _Attempt:
    """One round of NVML calls in a thread of its own."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.started = time.time()
        self.reading = NvmlReading()

    def run(self) -> None:
        try:
            self.reading = _read()
        except Exception as error:  # noqa: BLE001 bindings, shims and fakes raise anything; a probe raises nothing
            self.reading = NvmlReading(trouble=_trouble_of(error))
        finally:
            self.done.set()


_turn = threading.Lock()
_running: _Attempt | None = None


def read_nvml(limit_s: float = 2.0) -> NvmlReading:
    """All GPUs and MIG slices as NVML sees them, after at most `limit_s` seconds (twice that when another thread is asking)."""
    global _running
    if not _turn.acquire(timeout=max(limit_s, 0.0)):
        return NvmlReading(trouble=trouble("timeout", "NVML", seconds=limit_s))
    try:
        if _running is not None and not _running.done.is_set():
            return NvmlReading(trouble=trouble("hanging", "NVML", since=_clock(_running.started)))
        attempt = _running = _Attempt()
        threading.Thread(target=attempt.run, name="nvml", daemon=True).start()
        if attempt.done.wait(limit_s):
            return attempt.reading
        return NvmlReading(trouble=trouble("timeout", "NVML", seconds=limit_s))
    finally:
        _turn.release()


def _clock(moment: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(moment))


def _read() -> NvmlReading:
    try:
        nvml = importlib.import_module("pynvml")
    except Exception as error:  # noqa: BLE001 old forks call NVML while being imported
        found = _trouble_of(error) if hasattr(error, "value") else trouble("module", "NVML", detail=f"{type(error).__name__}: {error}")
        return NvmlReading(trouble=found)
    nvml.nvmlInit()
    try:
        return _read_all(nvml)
    finally:
        _ask(nvml.nvmlShutdown)


def _read_all(nvml: ModuleType) -> NvmlReading:
    gpus: list[Gpu] = []
    problems: list[str] = []
    count = int(nvml.nvmlDeviceGetCount())
    for index in range(count):
        try:
            gpus.extend(_read_gpu(nvml, index, problems))
        except Exception as error:  # noqa: BLE001 one sick GPU must not hide the others, and keeps its place
            gpu = Gpu(index=index, uuid=None, name=clean_name(None, index))
            lost = sick(gpu, printable(str(error), 80), "handle")
            gpus.append(replace(gpu, problem=lost))
            problems.append(lost)
    return NvmlReading(
        gpus=tuple(gpus),
        driver_version=_text(_ask(lambda: nvml.nvmlSystemGetDriverVersion())),
        cuda_driver_version=_cuda_version(_ask(lambda: nvml.nvmlSystemGetCudaDriverVersion())),
        problems=tuple(problems),
        trouble=None if gpus else trouble("none", "NVML", detail="it lists 0 GPUs"),
    )


def _read_gpu(nvml: ModuleType, index: int, problems: list[str]) -> list[Gpu]:
    """The GPU at `index`, followed by its MIG slices."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    slices = _read_slices(nvml, handle, index, problems)
    gpu = _describe_device(nvml, handle, index, mig="parent" if slices is not None else None)
    settled, sentence = settle_memory(gpu, _memory(nvml, handle))
    if slices is not None:
        # A parent may refuse its figures; nobody computes on it, so that is not a problem.
        return [replace(settled, problem=None), *slices]
    problems.extend(text for text in (sentence, _without_uuid(nvml, handle, settled)) if text)
    return [settled]


def _without_uuid(nvml: ModuleType, handle: Any, gpu: Gpu) -> str | None:
    """What follows where NVML tells no UUID of a GPU that could be computed on."""
    if gpu.uuid is not None or gpu.problem is not None:
        return None
    try:
        said = _text(nvml.nvmlDeviceGetUUID(handle))
    except Exception as error:  # noqa: BLE001 the message is what is wanted
        said = str(error)
    return without_uuid(gpu, said)


def _read_slices(nvml: ModuleType, parent: Any, index: int, problems: list[str]) -> list[Gpu] | None:
    """The MIG slices of `parent`; `None` where MIG is off or unknown to the device."""
    mode = _ask(lambda: nvml.nvmlDeviceGetMigMode(parent))
    if not mode or int(mode[0]) != 1:
        return None
    parent_uuid = _text(_ask(lambda: nvml.nvmlDeviceGetUUID(parent)))
    found: list[Gpu] = []
    for number in range(int(_ask(lambda: nvml.nvmlDeviceGetMaxMigDeviceCount(parent)) or 0)):
        handle = _ask(lambda number=number: nvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, number))  # type: ignore[misc]
        if handle is None:
            continue
        gpu = _describe_device(nvml, handle, index, mig="slice", parent=parent, parent_uuid=parent_uuid)
        gpu = replace(gpu, name=f"{gpu.name} {number}") if gpu.mig == "slice" else gpu
        settled, sentence = settle_memory(gpu, _memory(nvml, handle))
        problems.extend(text for text in (sentence, _without_uuid(nvml, handle, settled)) if text)
        found.append(settled)
    return found


def _describe_device(
    nvml: ModuleType, handle: Any, index: int, *, mig: str | None, parent: Any = None, parent_uuid: str | None = None
) -> Gpu:
    """Everything but the memory; each answer on its own, `None` where the driver does not give it."""
    board = parent if parent is not None else handle
    instance = (
        _ask(lambda: (nvml.nvmlDeviceGetGpuInstanceId(handle), nvml.nvmlDeviceGetComputeInstanceId(handle))) if mig == "slice" else None
    )
    name = clean_name(_text(_ask(lambda: nvml.nvmlDeviceGetName(handle))), index)
    profile: str | None = mig
    if mig == "slice":
        profile = _profile(nvml, handle, name)
        parent_name = clean_name(_text(_ask(lambda: nvml.nvmlDeviceGetName(parent))), index)
        name = name if "MIG" in name else f"{parent_name} MIG {profile}"
    return Gpu(
        index=index,
        uuid=usable_uuid(_text(_ask(lambda: nvml.nvmlDeviceGetUUID(handle)))),
        name=name,
        mig=profile,
        mig_parent_uuid=parent_uuid,
        mig_instance=_pair(instance),
        pci_bus_id=_text(_ask(lambda: nvml.nvmlDeviceGetPciInfo(board).busId)),
        compute_capability=_pair(_ask(lambda: nvml.nvmlDeviceGetCudaComputeCapability(board))),
        utilisation_percent=_number(_ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu), 0, 100),
        temperature_c=_number(_ask(lambda: nvml.nvmlDeviceGetTemperature(board, 0)), -50, 200),
        power_w=_power(_ask(lambda: nvml.nvmlDeviceGetPowerUsage(board))),
        processes=_processes(nvml, handle),
    )


def _profile(nvml: ModuleType, handle: Any, name: str) -> str:
    """`1g.5gb`: the tail of the slice's name, else made from its attributes, else just `slice`."""
    if " MIG " in name:
        return name.rsplit(" MIG ", 1)[1]
    attributes = _ask(lambda: nvml.nvmlDeviceGetAttributes(handle))
    slices, size = getattr(attributes, "gpuInstanceSliceCount", None), getattr(attributes, "memorySizeMB", None)
    return f"{slices}g.{round(size / 1024)}gb" if isinstance(slices, int) and isinstance(size, int) else "slice"


def _memory(nvml: ModuleType, handle: Any) -> RawMemory:
    """Memory by the v2 record, which keeps *reserved* apart from *used*; by v1 where v2 is missing or fails (WSL, old drivers)."""
    try:
        info = _ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2))
        if info is None:
            info = nvml.nvmlDeviceGetMemoryInfo(handle)
        reserved = getattr(info, "reserved", None)
        return RawMemory(info.total / MIB, info.free / MIB, info.used / MIB, reserved / MIB if reserved is not None else None)
    except Exception as error:  # noqa: BLE001 the figure is unknown, whatever the reason
        return RawMemory(None, None, said=str(error), unsupported=_NOT_SUPPORTED.search(f"{type(error).__name__} {error}") is not None)


def _processes(nvml: ModuleType, handle: Any) -> tuple[GpuProcess, ...] | None:
    """Who holds memory, computing or drawing; `None` where the driver tells neither (WSL, vGPU guests, missing rights)."""
    lists = [
        _ask(lambda: list(nvml.nvmlDeviceGetComputeRunningProcesses(handle))),
        _ask(lambda: list(nvml.nvmlDeviceGetGraphicsRunningProcesses(handle))),
    ]
    if all(found is None for found in lists):
        return None
    by_pid: dict[int, GpuProcess] = {}
    for process in (p for found in lists for p in found or ()):
        pid = _number(getattr(process, "pid", None), 0, 2**31)
        if pid is not None:
            used = _number(getattr(process, "usedGpuMemory", None), 0, 2**62)
            by_pid[pid] = GpuProcess(pid, _process_name(pid), None if used is None else used // MIB)
    return tuple(by_pid.values())


def _process_name(pid: int) -> str | None:
    import psutil

    try:
        return str(psutil.Process(pid).name())
    except (psutil.Error, OSError, ValueError):
        return None


def _ask(call: Callable[[], _T]) -> _T | None:
    """The answer, or `None`: NVMLError of any kind, UnicodeDecodeError in a name, a function a shim lacks."""
    try:
        return call()
    except Exception:  # noqa: BLE001 one missing figure is "not available", nothing more
        return None


def _text(value: object) -> str | None:
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    return value.strip() or None if isinstance(value, str) else None


def _number(value: object, low: int, high: int) -> int | None:
    return int(value) if isinstance(value, int | float) and low <= value <= high else None


def _power(milliwatts: object) -> float | None:
    return milliwatts / 1000 if isinstance(milliwatts, int | float) and 0 <= milliwatts < 10**8 else None


def _pair(value: object) -> tuple[int, int] | None:
    if isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(part, int) for part in value):
        return int(value[0]), int(value[1])
    return None


def _cuda_version(value: object) -> str | None:
    """12040 → `12.4` (nvml.h: 1000 x major + 10 x minor)."""
    return f"{value // 1000}.{value % 1000 // 10}" if isinstance(value, int) and value > 0 else None


def _trouble_of(error: Exception) -> Trouble:
    """The sentence for an error that ended the whole reading."""
    code = getattr(error, "value", None)
    kind = (kind_of_code(code) if isinstance(code, int) else None) or kind_of_text(f"{type(error).__name__} {error}") or "unknown"
    return trouble(kind, "NVML", detail=str(error) or type(error).__name__)
