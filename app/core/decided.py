"""The profile before TensorFlow was asked: what is decided, nothing applied and nothing read back."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from app.core.device_policy import Decision, decision_json
from app.core.facts import CpuFacts, GpuFacts
from app.core.profile import HardwareProfile
from app.core.reasons import REASONS
from app.core.tf_build import TensorFlowBuild
from app.core.tf_settings import Setting, is_inert, onednn_wanted, plan_threads, planned_settings, setting_warnings


def decided_profile(
    decision: Decision, gpu: GpuFacts, cpu: CpuFacts, build: TensorFlowBuild, environ: Mapping[str, str] = os.environ
) -> HardwareProfile:
    """What the report and the path's label say before a run: the decision, the facts, and the user's variables that bear on it."""
    usable = any(found.visible and found.mig != "parent" for found in gpu.gpus)
    settings = _users(decision, cpu, environ)
    return HardwareProfile(
        selected_device=decision.selected_device,
        reason=decision.reason,
        decision=decision,
        gpu=decision.gpu,
        gpu_facts=gpu,
        cpu=cpu,
        cuda_available=False if not usable or build.has_gpu is False else build.has_gpu,
        settings=tuple(setting for setting in settings if not is_inert(setting)),
        not_applied=tuple(setting for setting in settings if is_inert(setting)),
        onednn=onednn_wanted(environ.get("TF_ENABLE_ONEDNN_OPTS", "1")),
        tensorflow_version=build.version,
        warnings=(*decision.warnings, *beforehand_warnings(decision, build, cpu, environ), *gpu.problems, *cpu.problems),
    )


def _users(decision: Decision, cpu: CpuFacts, environ: Mapping[str, str]) -> tuple[Setting, ...]:
    """The variables that the user has set and that bear on a run; a run keeps them as they are."""
    threads = plan_threads(cpu.usable_cores, None, None, environ)
    planned = planned_settings(path=decision.selected_device, threads=threads, gpu=None, environ=environ)
    return tuple(setting for setting in planned if setting.set_by == "user")


def decided_json(
    decision: Decision, gpu: GpuFacts, cpu: CpuFacts, build: TensorFlowBuild, environ: Mapping[str, str] = os.environ
) -> dict[str, Any]:
    """What `device --json` prints: `decision_json`, all warnings beforehand, and under `settings` the variables that the user has set."""
    warnings = [*decision.warnings, *beforehand_warnings(decision, build, cpu, environ)]
    told = ("name", "value", "set_by", "changes", "note")
    settings = [{key: getattr(setting, key) for key in told} for setting in _users(decision, cpu, environ)]
    return {**decision_json(decision, gpu, cpu), "warnings": warnings, "settings": settings}


def beforehand_warnings(
    decision: Decision, build: TensorFlowBuild, cpu: CpuFacts, environ: Mapping[str, str] = os.environ
) -> tuple[str, ...]:
    """What a run would say beyond the decision: a build that cannot follow it, and variables of the user with odd values."""
    threads = plan_threads(cpu.usable_cores, None, None, environ)
    odd = setting_warnings(planned_settings(path=decision.selected_device, threads=threads, gpu=None, environ=environ))
    if decision.selected_device != "gpu" or build.has_gpu is not False:
        return odd
    name = f"'{decision.gpu.name}'" if decision.gpu else "that is there"
    return (f"{REASONS['build'].format(gpu=name)} A run takes the CPU path here.", *odd)
