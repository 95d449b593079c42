"""Runs side by side: which are equal but for the path they took, what that made of them, and in what their configurations differ.

Everything is read from run folders; nothing here computes on pictures.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.cae.config import BEFORE, CaeConfig
from app.runs.files import read_json
from app.runs.folder import RunFolder, load_history
from app.runs.table import METRIC_COLUMNS

DEVICE_GROUP = "Device"
"""Options of `CaeConfig` in this group choose a path and do not change what is computed."""
_FAILED = ("failed", "interrupted", "unreadable")
_NO_DIFFERENCE = frozenset({"preset", "tensorboard"})
"""A preset only fills in other options, and those are compared one by one; event files change no figure."""
_STEER_SPEED = ("TF_ENABLE_ONEDNN_OPTS", "TF_NUM_", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "TF_XLA_FLAGS", "TF_GPU_ALLOCATOR")
"""Beginnings of the variables that make one path of a device another one."""

_IN_FORCE = {
    "TF_ENABLE_ONEDNN_OPTS": "onednn",
    "TF_NUM_INTRAOP_THREADS": "intra_op_threads",
    "TF_NUM_INTEROP_THREADS": "inter_op_threads",
}
LABELS = {
    "instruction_set": "Instruction set",
    "onednn": "oneDNN",
    "intra_op_threads": "Intra-op threads",
    "inter_op_threads": "Inter-op threads",
}
"""What is in force, as the profile names it."""


@dataclass(frozen=True)
class RunFacts:
    """One run as far as comparing needs it. Unknown is `None`."""

    run_id: str
    state: str
    config: Mapping[str, Any] = field(default_factory=dict)
    """Every option by name, as JSON."""
    selected_device: str | None = None
    path: str | None = None
    reason: str | None = None
    machine: str | None = None
    """GPU or processor that computed, and the host."""
    tensorflow: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    """What steers the speed of the path: threads, oneDNN, instruction set, and variables of the environment."""
    train_images_per_s: float | None = None
    score_images_per_s: float | None = None
    duration_s: float | None = None
    final_loss: float | None = None
    """Training loss of the last epoch."""
    best_val_loss: float | None = None
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    not_available: Mapping[str, str] = field(default_factory=dict)
    """Why a metric is missing."""

    @property
    def live(self) -> bool:
        return self.state in ("queued", "running")

    @property
    def path_key(self) -> tuple[object, ...]:
        """Equal for runs that took the same path."""
        return (self.selected_device, self.path, self.machine, *sorted(self.settings.items()))

    @property
    def task_key(self) -> str:
        """Equal for runs that were asked to do the same, whatever the path."""
        return task_key(self.config)


@dataclass(frozen=True)
class Pair:
    """Two runs that were asked the same and took different paths. `base` is what `other` is measured against."""

    base: RunFacts
    other: RunFacts

    @property
    def across_devices(self) -> bool:
        """GPU against CPU, rather than two settings of one device."""
        return self.base.selected_device != self.other.selected_device

    @property
    def train_speedup(self) -> float | None:
        """Training throughput of `other` over that of `base`."""
        return _ratio(self.other.train_images_per_s, self.base.train_images_per_s)

    @property
    def score_speedup(self) -> float | None:
        return _ratio(self.other.score_images_per_s, self.base.score_images_per_s)

    def difference(self, name: str) -> float | None:
        """`other` - `base` of a metric, of `final_loss` or of `best_val_loss`."""
        values = [run.metrics.get(name) if name in METRIC_COLUMNS else getattr(run, name) for run in (self.other, self.base)]
        return None if values[0] is None or values[1] is None else float(values[0]) - float(values[1])

    def different_settings(self) -> list[tuple[str, str, str]]:
        """(what, in `base`, in `other`) for machine, TensorFlow and settings that differ."""
        rows = [("Machine", self.base.machine, self.other.machine), ("TensorFlow", self.base.tensorflow, self.other.tensorflow)]
        names = dict.fromkeys((*self.base.settings, *self.other.settings))
        rows += [(LABELS.get(name, name), self.base.settings.get(name), self.other.settings.get(name)) for name in names]
        return [(name, first or "–", second or "–") for name, first, second in rows if first != second]


def read_run_facts(folder: RunFolder) -> RunFacts:
    """What a run folder tells about its run. Never raises; what is missing stays unknown."""
    status, profile, metrics = folder.status(), _json(folder.path / "profile.json"), _json(folder.path / "metrics.json")
    history = load_history(folder.path)
    losses = history["loss"].dropna()
    return RunFacts(
        run_id=folder.run_id,
        state=status.state,
        config=read_options(folder),
        selected_device=status.selected_device,
        path=status.path,
        reason=status.reason,
        machine=_machine(profile, status.host),
        tensorflow=_text(profile.get("tensorflow_version")),
        settings=_speed_settings(profile),
        train_images_per_s=_number(status.train_images_per_s),
        score_images_per_s=_number(status.score_images_per_s),
        duration_s=status.duration_s(),
        final_loss=float(losses.iloc[-1]) if len(losses) else None,
        best_val_loss=_number(status.best_val_loss),
        metrics={name: _number(metrics.get(name)) for name in METRIC_COLUMNS},
        not_available={str(name): str(why) for name, why in (metrics.get("not_available") or {}).items()},
    )


def read_options(folder: RunFolder) -> dict[str, Any]:
    """Every option of a run. Options that its version did not know yet are as it computed; options unknown here stay."""
    given = _json(folder.path / "config.json")
    if not given:
        return {}
    return {name: BEFORE.get(name, option.default) for name, option in CaeConfig.model_fields.items()} | given


def task_key(config: Mapping[str, Any]) -> str:
    """One text for all configurations that ask for the same computation; empty when nothing is known."""
    asked = {name: value for name, value in config.items() if name not in device_options() and name not in _NO_DIFFERENCE}
    return json.dumps(asked, sort_keys=True, default=str) if asked else ""


@functools.cache
def device_options() -> frozenset[str]:
    """Names of the options that only choose the path."""
    return frozenset(name for name, (group, _) in option_labels().items() if group == DEVICE_GROUP)


@functools.cache
def option_labels() -> dict[str, tuple[str, str]]:
    """(group, label) of each option, in the order of their declaration."""
    labels = {}
    for name, option in CaeConfig.model_fields.items():
        extra = option.json_schema_extra if isinstance(option.json_schema_extra, dict) else {}
        labels[name] = (str(extra.get("group", "Options")), str(extra.get("label", name)))
    return labels


def equal_tasks(folders: Iterable[RunFolder], keys: Collection[str]) -> list[RunFolder]:
    """The runs that were asked for one of these tasks. Only the small `config.json` is read, once."""
    return [folder for folder in folders if keys and task_key(read_options(folder)) in keys]


def find_pairs(runs: Sequence[RunFacts], ticked: Collection[str]) -> list[Pair]:
    """Pairs with at least one ticked run, GPU against CPU first.

    Where ticked runs of equal task took different paths, they are the pairs, one for each two paths. A ticked run that has no such
    partner gets the newest finished one that was not ticked, preferably from the other device.
    """
    groups: dict[str, list[RunFacts]] = {}
    for run in runs:
        if run.state == "finished" and run.selected_device and run.task_key:
            groups.setdefault(run.task_key, []).append(run)
    pairs = [pair for group in groups.values() for pair in _pairs_of(sorted(group, key=lambda run: run.run_id, reverse=True), ticked)]
    return sorted(pairs, key=lambda pair: not pair.across_devices)


def missing_halves(runs: Sequence[RunFacts], ticked: Collection[str]) -> list[RunFacts]:
    """Ticked runs, not failed, whose task no finished run did on the other device; the newest of each task and device."""
    done = {(run.task_key, run.selected_device) for run in runs if run.state == "finished"}
    found: dict[tuple[str, str], RunFacts] = {}
    for run in sorted(runs, key=lambda run: run.run_id, reverse=True):
        if run.run_id not in ticked or not run.selected_device or not run.task_key or run.state in _FAILED:
            continue
        if (run.task_key, other_device(run.selected_device)) not in done:
            found.setdefault((run.task_key, run.selected_device), run)
    return list(found.values())


def other_device(device: str) -> str:
    return "cpu" if device == "gpu" else "gpu"


def on_the_way(runs: Iterable[RunFacts], task: str, device: str) -> RunFacts | None:
    """A run of that task which is queued or running on that device, or was told to take it."""
    for run in runs:
        if run.live and run.task_key == task and (run.selected_device or _asked_device(run)) == device:
            return run
    return None


def _asked_device(run: RunFacts) -> str:
    """`cpu` or `gpu` where the run was told which to take, one GPU by number or UUID too; `auto` where it was not."""
    asked = str(run.config.get("device") or "auto").strip().lower()
    return asked if asked in ("auto", "cpu") else "gpu"


def config_differences(runs: Sequence[RunFacts]) -> list[tuple[str, str, list[str]]]:
    """(group, option, value in each run) for what is not the same in all; path, machine and TensorFlow last."""
    labels = option_labels()
    names = [*labels, *sorted({name for run in runs for name in run.config} - set(labels))]
    rows = [(*labels.get(name, ("Options", name)), [shown(run.config.get(name), name) for run in runs]) for name in names]
    differing = [row for row in rows if len(set(row[2])) > 1]
    came = {"Path": "path", "Machine": "machine", "TensorFlow": "tensorflow"}
    for label, attribute in came.items():
        # Known once a run has its path; what is not known yet is no difference.
        known = {getattr(run, attribute) for run in runs if run.path} - {None}
        if len(known) > 1:
            differing.append(("Ran on", label, [shown(getattr(run, attribute)) for run in runs]))
    return differing


def shown(value: Any, name: str = "") -> str:
    """A value of the configuration as text; an option that was left to the app is automatic."""
    if value is None:
        return "automatic" if name in option_labels() else "–"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _pairs_of(newest_first: list[RunFacts], ticked: Collection[str]) -> list[Pair]:
    chosen = [run for run in newest_first if run.run_id in ticked]
    one_each = list({run.path_key: run for run in reversed(chosen)}.values())
    if len(one_each) > 1:
        return [_pair(first, second) for first, second in itertools.combinations(one_each, 2)]
    for run in one_each:
        partners = [other for other in newest_first if other.path_key != run.path_key]
        partners.sort(key=lambda other: other.selected_device == run.selected_device)
        if partners:
            return [_pair(run, partners[0])]
    return []


def _pair(first: RunFacts, second: RunFacts) -> Pair:
    """The CPU is the base of a GPU; of two settings of one device the slower one is."""
    if first.selected_device != second.selected_device:
        base, other = sorted((first, second), key=lambda run: run.selected_device == "gpu")
    else:
        base, other = sorted((first, second), key=lambda run: run.train_images_per_s or 0.0)
    return Pair(base, other)


def _machine(profile: Mapping[str, Any], host: str | None) -> str | None:
    part = profile.get("gpu") if profile.get("selected_device") == "gpu" else profile.get("cpu")
    name = part.get("name") if isinstance(part, dict) else None
    return " on ".join(str(item) for item in (name, host) if item) or None


def _speed_settings(profile: Mapping[str, Any]) -> dict[str, str]:
    found = {name: profile.get(name) for name in LABELS if profile.get(name) is not None}
    for setting in profile.get("settings") or ():
        name = str(setting.get("name")) if isinstance(setting, dict) else ""
        # What is in force says more than the variable that asked for it.
        if name.startswith(_STEER_SPEED) and _IN_FORCE.get(name) not in found:
            found[name] = setting.get("value")
    return {name: shown(value) for name, value in found.items()}


def _ratio(numerator: float | None, denominator: float | None) -> float | None:
    return numerator / denominator if numerator and denominator else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _json(path: Path) -> dict[str, Any]:
    """The object in `path`, from memory when the file is as it was; empty when it cannot be read."""
    try:
        stat = path.stat()
    except OSError:
        return {}
    return _read(path, stat.st_mtime_ns, stat.st_size, stat.st_ino)


@functools.lru_cache(maxsize=4096)
def _read(path: Path, _changed_ns: int, _size: int, _inode: int) -> dict[str, Any]:
    try:
        return read_json(path) or {}
    except ValueError:
        return {}
