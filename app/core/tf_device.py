"""TensorFlow's place on this machine: facts → decision → environment → import → apply → read back, once per process.

Threads, visible devices and memory growth are fixed when TensorFlow starts, so a second decision needs a second process.
The device a profile shows is the device that is used: where TensorFlow contradicts the decision, it says CPU and why.
"""

from __future__ import annotations

import os
import sys
import threading
import types
from collections.abc import Collection, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any

from app.core import tf_readback
from app.core.cpu_probe import cpu_facts
from app.core.device_policy import DEFAULT_MIN_VRAM_MIB, decide
from app.core.errors import DeviceError
from app.core.facts import CpuFacts, GpuFacts
from app.core.gpu_probe import gpu_facts
from app.core.profile import HardwareProfile
from app.core.several_gpus import with_more_gpus
from app.core.tf_build import tensorflow_build
from app.core.tf_gpu import GpuFailure
from app.core.tf_log import catch_descriptor
from app.core.tf_settings import Setting, ThreadPlan, plan_threads, planned_settings
from app.core.tf_start import Situation, Start
from app.core.tf_trial import gpu_request, judge_gpu_trial, run_trial, trial_environment

__all__ = ["DEFAULT_MIN_VRAM_MIB", "HardwareProfile", "Setting", "configure_tensorflow", "has_avx2", "user_environment"]

TRIAL_LIMIT_S = 120.0
"""For a child that imports TensorFlow and runs a convolution: importing takes 3-5 s here, a minute from a slow network disk."""

REASONS = {
    "not installed": "TensorFlow is not installed in this environment: install the extra cpu or gpu (pip install 'twopath[cpu]').",
    "no avx": "The CPU {name} offers no AVX, which TensorFlow needs; importing it would be an illegal instruction. {cause}",
    "vm": "Likely cause: the virtual machine's CPU type (kvm64, qemu64) hides it; set the CPU type to 'host'.",
    "old cpu": "If this is a virtual machine, set its CPU type to 'host'; a processor without AVX cannot run TensorFlow.",
    "import died": "Importing TensorFlow ended a test process with {signal}. {cause}",
    "import failed": "TensorFlow cannot be imported: {error}",
    "asked again": (
        "TensorFlow is configured once per process and stays as it is ({first}). "
        "For {now} a new process is needed: restart needed to change device or threads."
    ),
}


@dataclass(frozen=True)
class _Asked:
    """What a call of `configure_tensorflow` asks for."""

    min_vram_mib: int
    device: str
    intra_op_threads: int | None
    inter_op_threads: int | None
    gpus: int

    def __str__(self) -> str:
        threads = f", threads {self.intra_op_threads or 'auto'}/{self.inter_op_threads or 'auto'}"
        threads += f", {self.gpus} GPUs" if self.gpus > 1 else ""
        return f"threshold {self.min_vram_mib} MiB, device {self.device}{threads}"


@dataclass
class _State:
    """What must outlive a reload of this module, because TensorFlow outlives it too."""

    lock: Any = field(default_factory=threading.RLock)
    profile: HardwareProfile | None = None
    asked: tuple[object, ...] | None = None
    asked_text: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    """Variables that the app set in this process."""


_STATE_MODULE = "_twopath_tensorflow_state"


def _state() -> _State:
    """Kept in a module of its own that no reload knows: hot reloading drops app modules from `sys.modules`, not this one."""
    holder = sys.modules.get(_STATE_MODULE)
    if holder is None:
        holder = types.ModuleType(_STATE_MODULE)
        holder.__dict__["state"] = _State()
        holder = sys.modules.setdefault(_STATE_MODULE, holder)
    state: _State = holder.__dict__["state"]
    return state


def configure_tensorflow(
    min_vram_mib: int = DEFAULT_MIN_VRAM_MIB,
    *,
    device: str = "auto",
    intra_op_threads: int | None = None,
    inter_op_threads: int | None = None,
    gpus: int = 1,
    own: Collection[str] = (),
    gpu: GpuFacts | None = None,
    cpu: CpuFacts | None = None,
) -> HardwareProfile:
    """Brings TensorFlow up on the path decided for this machine, and reads back what it really uses.

    The first call of a process decides; later calls return its profile at once, with a warning when they ask for something else.
    Environment variables that the user has set are kept.

    Args:
        min_vram_mib: free VRAM, MiB, that a GPU must have to be chosen.
        device: `auto`, `cpu`, `gpu`, or one GPU by UUID or index.
        intra_op_threads: threads inside one operation; `None`: the environment's, else the usable cores.
        inter_op_threads: operations run at once; `None`: the environment's, else the usable cores.
        gpus: how many GPUs to use at most, for a `MirroredStrategy` over `strategy_devices` of the profile.
        own: keys of the GPUs (`Gpu.key`) that are this process's; another one is taken only where none of them passes. Empty: any.
        gpu, cpu: facts that are at hand already; probed when `None`.

    Raises:
        DeviceError: TensorFlow cannot run here at all (no AVX, not installed, broken installation).
        OptionError: `device` names nothing.
    """
    asked = _Asked(min_vram_mib, device, intra_op_threads, inter_op_threads, gpus)
    state = _state()
    with state.lock:
        if state.profile is not None:
            return _cached(state, asked)
        build = tensorflow_build()
        gpu = gpu if gpu is not None else gpu_facts()
        cpu = cpu if cpu is not None else cpu_facts()
        held = {found.key for found in gpu.gpus if own and found.key not in own}
        decision = decide(gpu, cpu, min_vram_mib, device=device, build_has_gpu=build.has_gpu, held=held)
        decision = with_more_gpus(decision, gpu, gpus, build_has_gpu=build.has_gpu, held=held)
        state.profile = _bring_up(Situation(gpu, cpu, build, decision), asked, state)
        state.asked, state.asked_text = _key(asked), str(asked)
        return state.profile


def has_avx2() -> bool | None:
    """Whether every processor offers AVX2; `None` when the system does not tell."""
    return cpu_facts().avx2


def user_environment() -> dict[str, str]:
    """This process's environment without what the app set in it: for a child that shall decide for itself."""
    ours = _state().environment
    return {name: value for name, value in os.environ.items() if ours.get(name) != value}


def _key(asked: _Asked) -> tuple[object, ...]:
    return (asked.min_vram_mib, asked.device, asked.intra_op_threads, asked.inter_op_threads, asked.gpus)


def _cached(state: _State, asked: _Asked) -> HardwareProfile:
    assert state.profile is not None
    if state.asked == _key(asked):
        return state.profile
    warning = REASONS["asked again"].format(first=state.asked_text, now=asked)
    return replace(state.profile, warnings=(*state.profile.warnings, warning))


def _bring_up(facts: Situation, asked: _Asked, state: _State) -> HardwareProfile:
    imported = "tensorflow" in sys.modules
    if not imported:
        _require_runnable(facts)
    initialised = imported and tf_readback.is_initialised(sys.modules["tensorflow"])
    threads = plan_threads(facts.cpu.usable_cores, asked.intra_op_threads, asked.inter_op_threads, os.environ)
    failure = None
    settings = _settings(facts, threads, "gpu" if facts.decision.selected_device == "gpu" else "cpu")
    if facts.decision.selected_device == "gpu" and not imported:
        failure = _try_gpu(facts, settings, threads)
        if failure is not None:
            settings = _settings(facts, threads, "cpu")
    if not initialised:
        _apply_environment(settings, state, os.environ)
    with catch_descriptor(2) as log:
        tf = _import()
        return Start(tf, facts, settings, threads, initialised, failure, log).profile()


def _require_runnable(facts: Situation) -> None:
    """Raises DeviceError where importing TensorFlow would end this process or cannot work."""
    if not facts.build.installed:
        raise DeviceError(REASONS["not installed"])
    if facts.cpu.architecture.lower() not in ("x86_64", "amd64", "i386", "i686") or facts.cpu.avx:
        return
    cause = REASONS["old cpu" if facts.cpu.hypervisor is False else "vm"]
    if facts.cpu.avx is False:
        raise DeviceError(REASONS["no avx"].format(name=f"'{facts.cpu.name}'" if facts.cpu.name else "of this machine", cause=cause))
    trial = run_trial({"action": "import"}, trial_environment(os.environ, facts.build), TRIAL_LIMIT_S)
    if trial.signal_name:
        raise DeviceError(REASONS["import died"].format(signal=trial.signal_name, cause=cause))


def _settings(facts: Situation, threads: ThreadPlan, path: str) -> tuple[Setting, ...]:
    gpus = [gpu for gpu in (facts.decision.gpu, *facts.decision.more_gpus) if gpu is not None]
    shown = ",".join(gpu.uuid or str(gpu.index) for gpu in gpus) or None
    return planned_settings(path="gpu" if path == "gpu" else "cpu", threads=threads, gpu=shown, environ=os.environ)


def _try_gpu(facts: Situation, settings: tuple[Setting, ...], threads: ThreadPlan) -> GpuFailure | None:
    """The GPU in a child of its own; on failure this process has not touched CUDA and can take the CPU path cleanly."""
    if facts.build.has_gpu is False:
        return None  # TensorFlow's own answer comes with the import and costs no child
    environ = {**os.environ, **{setting.name: setting.value for setting in settings}}
    # A negative number there would abort the child; see plan_threads.
    environ |= {"TF_NUM_INTRAOP_THREADS": str(threads.intra_op), "TF_NUM_INTEROP_THREADS": str(threads.inter_op)}
    chosen = facts.decision.gpu
    if chosen is not None and facts.decision.more_gpus and "CUDA_VISIBLE_DEVICES" not in os.environ:
        chosen = replace(chosen, logical_index=0)  # the first of those that the child will see
    request = gpu_request(chosen, facts.gpu.driver_version, TRIAL_LIMIT_S)
    trial = run_trial(request, trial_environment(environ, facts.build), TRIAL_LIMIT_S)
    return judge_gpu_trial(trial, facts.gpu.driver_version)


def _apply_environment(settings: tuple[Setting, ...], state: _State, environ: MutableMapping[str, str]) -> None:
    for setting in settings:
        if setting.set_by == "app" and environ.setdefault(setting.name, setting.value) == setting.value:
            state.environment[setting.name] = setting.value


def _import() -> Any:
    try:
        return tf_readback.import_tensorflow()
    except (ImportError, OSError, AttributeError, TypeError, RuntimeError) as error:  # what broken wheels and mixed versions raise
        text = " ".join(str(error).split())[:300]
        raise DeviceError(REASONS["import failed"].format(error=text or type(error).__name__)) from error
