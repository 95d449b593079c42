"""Bringing TensorFlow up on one GPU, or telling the true cause why it cannot be: pinned, memory growth on, a first op verified."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from app.core.facts import Gpu
from app.core.tf_failures import FailureKind, driver_too_old, failure_sentence, translate_tf_failure
from app.core.tf_readback import (
    FirstOp,
    FirstOpError,
    cuda_version,
    device_names,
    first_convolution,
    is_built_with_gpu,
    refused,
)


class Log(Protocol):
    """What TensorFlow has written to standard error so far."""

    @property
    def text(self) -> str: ...


@dataclass(frozen=True)
class GpuFailure:
    """Why TensorFlow cannot use the GPU."""

    kind: FailureKind
    sentence: str
    """Lower case, without a full stop, to stand behind “…, but”."""


@dataclass(frozen=True)
class GpuStart:
    """What came of it: either `failure`, or a device with a first op that ran on it."""

    device: str = "/GPU:0"
    failure: GpuFailure | None = None
    first_op: FirstOp | None = None
    logical_devices: tuple[str, ...] = ()
    memory_growth: bool | None = None
    warnings: tuple[str, ...] = field(default=())
    more: tuple[tuple[Gpu, str], ...] = ()
    """Further GPUs that computed a first op too, with their devices."""
    left_out: tuple[str, ...] = ()
    """A sentence for each further GPU that did not."""


def start_gpu(
    tf: Any,
    gpu: Gpu | None,
    *,
    initialised: bool,
    limit_s: float,
    log: Log,
    driver: str | None,
    more: Sequence[Gpu] = (),
    in_order: bool = False,
) -> GpuStart:
    """Pins TensorFlow to one GPU (or to several), lets their memory grow, and runs a convolution there.

    Args:
        tf: the imported module.
        gpu: the one decided on; `None` for a GPU that no probe can tell about.
        initialised: TensorFlow runs already, so nothing can be set any more.
        limit_s: for the first convolution.
        log: what TensorFlow wrote to standard error so far; it tells the cause there only.
        driver: version of the NVIDIA driver, to be named when it is the cause.
        more: further ones; those that fail are left out.
        in_order: CUDA_VISIBLE_DEVICES names exactly `gpu` and `more`, in this order.
    """
    if is_built_with_gpu(tf) is False:
        return GpuStart(failure=GpuFailure("no_gpu_build", failure_sentence("no_gpu_build")))
    physical = list(tf.config.list_physical_devices("GPU"))
    if not physical:
        return GpuStart(failure=_nothing_listed(tf, log.text, driver))
    in_order = in_order and len(physical) == 1 + len(more)  # where TensorFlow lists others too, their order counts
    chosen = physical[0 if in_order else _position(gpu, len(physical))]
    further = _further(physical, chosen, more, in_order) if not initialised else {}
    device = "/GPU:0"
    warnings: tuple[str, ...] = ()
    if initialised:
        device, warnings = _already_started(tf, physical.index(chosen))
    elif trouble := _pin(tf, [chosen, *further]):
        kind, sentence = translate_tf_failure(trouble, driver=driver)
        return GpuStart(failure=GpuFailure("growth_refused" if kind == "unknown" else kind, sentence))
    names = device_names(tf)
    if not any(name.endswith(device[1:]) for name in names):
        return GpuStart(failure=_ignored(log.text, gpu, driver), logical_devices=names)
    try:
        first_op = first_convolution(tf, device, limit_s)
    except FirstOpError as error:
        return GpuStart(failure=_failed_op(f"{error}\n{log.text}", driver), logical_devices=names)
    if "GPU" not in first_op.device.upper():
        sentence = f"the first convolution ran on {first_op.device} instead"
        return GpuStart(failure=GpuFailure("unknown", sentence), logical_devices=names)
    good, bad = _try_further(tf, list(further.values()), limit_s, f"{log.text}", driver)
    return GpuStart(device, None, first_op, names, None if initialised else True, warnings, good, bad)


def _further(physical: list[Any], chosen: Any, more: Sequence[Gpu], in_order: bool) -> dict[Any, Gpu]:
    """TensorFlow's devices for the further GPUs, as far as it lists them."""
    places = ((place if in_order else gpu.logical_index, gpu) for place, gpu in enumerate(more, start=1))
    found = {physical[place]: gpu for place, gpu in places if place is not None and place < len(physical)}
    return {device: gpu for device, gpu in found.items() if device is not chosen}


def _try_further(
    tf: Any, gpus: list[Gpu], limit_s: float, log: str, driver: str | None
) -> tuple[tuple[tuple[Gpu, str], ...], tuple[str, ...]]:
    """((GPU, device) that computed a convolution, a sentence for each that did not). They stand behind the first one, in order."""
    good, bad = [], []
    for place, gpu in enumerate(gpus, start=1):
        device = f"/GPU:{place}"
        try:
            ran_on = first_convolution(tf, device, limit_s).device
            trouble = None if "GPU" in ran_on.upper() else f"its first convolution ran on {ran_on} instead"
        except FirstOpError as error:
            trouble = _failed_op(f"{error}\n{log}", driver).sentence
        if trouble is None:
            good.append((gpu, device))
        else:
            bad.append(f"GPU {gpu.index} '{gpu.name}' is left out of the training: {trouble}.")
    return tuple(good), tuple(bad)


def _position(gpu: Gpu | None, count: int) -> int:
    """Where the GPU stands in TensorFlow's list: alone there when it was made visible by UUID, else as CUDA numbers it."""
    wanted = gpu.logical_index if gpu is not None and gpu.logical_index is not None else 0
    return wanted if count > 1 and wanted < count else 0


def _pin(tf: Any, chosen: list[Any]) -> str | None:
    """Visible devices first, then growth on every visible one: growth that differs between visible GPUs is refused."""
    return refused(lambda: tf.config.set_visible_devices(chosen, "GPU")) or next(
        (
            trouble
            for device in tf.config.get_visible_devices("GPU")
            if (trouble := refused(lambda device=device: tf.config.experimental.set_memory_growth(device, True)))  # type: ignore[misc]
        ),
        None,
    )


def _already_started(tf: Any, position: int) -> tuple[str, tuple[str, ...]]:
    gpus = [name for name in device_names(tf) if "GPU" in name]
    place = position if position < len(gpus) else 0
    note = "TensorFlow was already initialised: the GPU could not be pinned nor its memory growth set; it may hold the whole VRAM."
    return f"/GPU:{place}", (note,)


def _nothing_listed(tf: Any, text: str, driver: str | None) -> GpuFailure:
    kind, sentence = translate_tf_failure(text, driver=driver)
    if kind != "unknown":
        return GpuFailure(kind, sentence)
    if driver_too_old(driver, cuda_version(tf)):
        return GpuFailure("driver_too_old", translate_tf_failure("driver version is insufficient", driver=driver)[1])
    return GpuFailure("unknown", "TensorFlow lists no GPU, and gives no cause")


def _ignored(text: str, gpu: Gpu | None, driver: str | None) -> GpuFailure:
    kind, sentence = translate_tf_failure(text, driver=driver)
    if kind != "unknown":
        return GpuFailure(kind, sentence)
    name = f"'{gpu.name}'" if gpu else "it"
    return GpuFailure("gpu_ignored", f"TensorFlow lists {name} but does not use it (too few multiprocessors or compute capability)")


def _failed_op(text: str, driver: str | None) -> GpuFailure:
    kind, sentence = translate_tf_failure(text, driver=driver)
    if kind == "unknown" and "did not end within" in text:
        return GpuFailure("time_limit", text.splitlines()[0].partition(": ")[2] or text.splitlines()[0])
    return GpuFailure(kind, sentence)
