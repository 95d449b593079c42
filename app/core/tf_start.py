"""The second half of a start: TensorFlow is imported, so apply, run a first op, read back, and tell what came of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any

from app.core import tf_readback
from app.core.device_policy import Decision, after_start
from app.core.errors import DeviceError
from app.core.facts import CpuFacts, Gpu, GpuFacts
from app.core.gpu_probe import gpu_facts
from app.core.profile import HardwareProfile
from app.core.tf_build import TensorFlowBuild
from app.core.tf_failures import translate_tf_failure
from app.core.tf_gpu import GpuFailure, GpuStart, Log, start_gpu
from app.core.tf_settings import Setting, ThreadPlan, forbids_growth, is_inert, setting_warnings, with_readback

FIRST_OP_LIMIT_S = 60.0
"""For the first convolution in this process; on a GPU the trial's has left its compiled kernels in CUDA's cache."""

REASONS = {
    "cpu failed": "TensorFlow cannot compute a convolution on the CPU: {error}",
    "free now": "{sentence} (free VRAM now: {free} MiB)",
    "already": "TensorFlow was already initialised, thread settings not applied.",
    "not pinned": "TensorFlow was already initialised with a GPU visible; enter tf.device('/CPU:0') to stay on the CPU.",
    "own memory": "This process itself holds {mib} MiB of GPU {gpu}, which the free figure leaves out.",
    "narrowed": "kept; tf.config.set_visible_devices narrows it to this one GPU",
    "hidden": "kept; tf.config.set_visible_devices hides what it leaves visible",
}


@dataclass(frozen=True)
class Situation:
    """Everything known before TensorFlow is imported."""

    gpu: GpuFacts
    cpu: CpuFacts
    build: TensorFlowBuild
    decision: Decision


@dataclass(frozen=True)
class Start:
    """TensorFlow is imported; what is left is to apply, to run a first op, and to say what came of it.

    Raises:
        DeviceError: not even the CPU computes a convolution.
    """

    tf: Any
    facts: Situation
    settings: tuple[Setting, ...]
    threads: ThreadPlan
    initialised: bool
    failure: GpuFailure | None
    log: Log

    def profile(self) -> HardwareProfile:
        """Applies, verifies and tells."""
        refused = tuple(self._set_threads())
        gpu = self._start_gpu()
        start = gpu if gpu.failure is None else self._start_cpu(gpu.failure)
        on_gpu = gpu.failure is None and self.facts.decision.selected_device == "gpu"
        failure = self._named(gpu.failure) if self.facts.decision.selected_device == "gpu" else None
        applied, not_applied = self._sorted_settings(on_gpu)
        return HardwareProfile(
            selected_device="gpu" if on_gpu else "cpu",
            reason=" ".join((self._reason(failure), *start.left_out)),
            decision=self.facts.decision,
            happened=None if failure is None else failure.sentence,
            gpu=self.facts.decision.gpu if on_gpu else None,
            more_gpus=tuple(gpu for gpu, _ in start.more),
            strategy_devices=(start.device, *(device for _, device in start.more)) if start.more else (),
            gpu_facts=self.facts.gpu,
            cpu=self.facts.cpu,
            cuda_available=self._cuda_available(failure),
            settings=applied,
            not_applied=not_applied,
            intra_op_threads=self._in_force(self.threads.intra_op, "intra"),
            inter_op_threads=self._in_force(self.threads.inter_op, "inter"),
            onednn=tf_readback.is_onednn_on(self.tf),
            logical_devices=start.logical_devices,
            tf_device_string=start.device,
            first_op_device=start.first_op.device if start.first_op else None,
            first_op_ms=start.first_op.ms if start.first_op else None,
            memory_growth=start.memory_growth and not any(forbids_growth(setting) for setting in self.settings),
            tensorflow_version=str(getattr(self.tf, "__version__", "") or "") or None,
            keras_version=_version("keras"),
            warnings=(*refused, *start.warnings, *self._warnings()),
        )

    def _set_threads(self) -> Iterator[str]:
        """Through `tf.config.threading` what the environment cannot say without overwriting the user."""
        if self.initialised:
            yield REASONS["already"]
            return
        threading_config = self.tf.config.threading
        if self.threads.intra_through_config:
            trouble = tf_readback.refused(lambda: threading_config.set_intra_op_parallelism_threads(self.threads.intra_op))
            yield from (REASONS["already"],) if trouble else ()
        if self.threads.inter_through_config:
            trouble = tf_readback.refused(lambda: threading_config.set_inter_op_parallelism_threads(self.threads.inter_op))
            yield from (REASONS["already"],) if trouble else ()

    def _start_gpu(self) -> GpuStart:
        """The GPU decided on, or the failure that stands in its way; a decision for the CPU counts as one without a sentence."""
        if self.facts.decision.selected_device == "cpu":
            return GpuStart(failure=GpuFailure("unknown", ""))
        if self.failure is not None:
            return GpuStart(failure=self.failure)
        return start_gpu(
            self.tf,
            self.facts.decision.gpu,
            initialised=self.initialised,
            limit_s=FIRST_OP_LIMIT_S,
            log=self.log,
            driver=self.facts.gpu.driver_version,
            more=self.facts.decision.more_gpus,
            in_order=self._pinned_by_app(),
        )

    def _pinned_by_app(self) -> bool:
        """Whether CUDA_VISIBLE_DEVICES names the GPUs decided on, and nothing else."""
        return not self.initialised and any(item.name == "CUDA_VISIBLE_DEVICES" and item.set_by == "app" for item in self.settings)

    def _start_cpu(self, failure: GpuFailure) -> GpuStart:
        """The CPU path: no GPU visible to TensorFlow, or, where it is too late for that, the CPU named for every operation."""
        warnings: tuple[str, ...] = ()
        if failure.kind != "no_gpu_build" and tf_readback.refused(lambda: self.tf.config.set_visible_devices([], "GPU")):
            warnings = (REASONS["not pinned"],)
        try:
            first_op = tf_readback.first_convolution(self.tf, "/CPU:0", FIRST_OP_LIMIT_S)
        except tf_readback.FirstOpError as error:
            raise DeviceError(REASONS["cpu failed"].format(error=translate_tf_failure(str(error))[1])) from error
        return GpuStart("/CPU:0", None, first_op, tf_readback.device_names(self.tf), None, warnings)

    def _sorted_settings(self, on_gpu: bool) -> tuple[tuple[Setting, ...], tuple[Setting, ...]]:
        """(what took effect, what did not)."""
        by_user = any(setting.name == "CUDA_VISIBLE_DEVICES" and setting.set_by == "user" for setting in self.settings)
        told = with_readback(
            self.settings,
            onednn_on=tf_readback.is_onednn_on(self.tf),
            compute_threads=tf_readback.compute_threads(None if self.initialised else self.threads.inter_op),
            inter_op=self.threads.inter_op,
            built_with_gpu=tf_readback.is_built_with_gpu(self.tf),
            hidden_by_call=REASONS["narrowed" if on_gpu else "hidden"] if by_user and not self.initialised else None,
        )
        late = [setting for setting in told if self.initialised and setting.set_by == "app"]
        left_out = [setting for setting in told if is_inert(setting) or setting in late]
        late_note = REASONS["already"]
        return (
            tuple(setting for setting in told if setting not in left_out),
            tuple(replace(setting, honoured=False, note=late_note) if setting in late else setting for setting in left_out),
        )

    def _in_force(self, planned: int, pool: str) -> int | None:
        if not self.initialised:
            return planned
        getter = getattr(self.tf.config.threading, f"get_{pool}_op_parallelism_threads")
        return int(getter()) or None

    def _named(self, failure: GpuFailure | None) -> GpuFailure | None:
        """The failure; where memory may be the cause, with what is free now."""
        if failure is None or failure.kind not in ("out_of_memory", "process_died"):
            return failure
        chosen = self.facts.decision.gpu
        free = next((gpu.free_mib for gpu in gpu_facts().gpus if chosen is not None and _same(gpu, chosen)), None)
        return failure if free is None else replace(failure, sentence=REASONS["free now"].format(sentence=failure.sentence, free=free))

    def _reason(self, failure: GpuFailure | None) -> str:
        if failure is None:
            return self.facts.decision.reason
        return after_start(self.facts.decision, failure.sentence, self.facts.cpu).reason

    def _cuda_available(self, failure: GpuFailure | None) -> bool:
        usable = any(gpu.visible and gpu.problem is None and gpu.mig != "parent" for gpu in self.facts.gpu.gpus)
        return failure is None and usable and tf_readback.is_built_with_gpu(self.tf) is not False

    def _warnings(self) -> Iterator[str]:
        yield from self.facts.decision.warnings
        yield from self.facts.gpu.problems
        yield from self.facts.cpu.problems
        yield from setting_warnings(self.settings)
        for gpu in self.facts.gpu.gpus:
            held = sum(process.used_mib or 0 for process in gpu.processes or () if process.pid == os.getpid())
            if held:
                yield REASONS["own memory"].format(mib=held, gpu=f"'{gpu.name}'")


def _same(one: Gpu, other: Gpu) -> bool:
    return one.uuid == other.uuid if other.uuid else one.index == other.index


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
