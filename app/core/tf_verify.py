"""The proof behind `device --verify`: what TensorFlow really ran, from processes started for the purpose.

Each point is a process of its own, since threads are fixed at the start. oneDNN's verbose lines, the names of the process's
threads and TensorFlow's own getters are the witnesses.
"""

from __future__ import annotations

import os
import textwrap
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

from app.core import tf_device, tf_readback
from app.core.cpu_probe import cpu_facts
from app.core.device_policy import DEFAULT_MIN_VRAM_MIB
from app.core.facts import CpuFacts
from app.core.kernel_evidence import parse_onednn_verbose, threads_in_words
from app.core.profile import HardwareProfile
from app.core.tf_build import TensorFlowBuild, tensorflow_build
from app.core.tf_failures import last_telling_line
from app.core.tf_log import catch_descriptor
from app.core.tf_settings import onednn_wanted
from app.core.tf_trial import Trial, run_trial, trial_environment

_THREAD_VARIABLES = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")


@dataclass(frozen=True)
class ThreadWay:
    """One way to ask for threads, and what it gave in a process of its own. `None`: not seen."""

    key: str
    name: str
    asked_intra_op: int
    asked_inter_op: int
    onednn_threads: int | None = None
    """What oneDNN reported as its thread count; `None` where it computed no convolution."""
    compute_threads: int | None = None
    """Threads of the inter-op pool, by their name."""
    getter_intra_op: int | None = None
    """What `tf.config.threading` answers; 0 means automatic, also where the environment has set it."""
    getter_inter_op: int | None = None
    runtime: str | None = None
    effective: bool | None = None
    """Whether oneDNN used the number asked for; with oneDNN off, whether `tf.config.threading` answers with its own number."""
    problem: str | None = None


@dataclass(frozen=True)
class Verification:
    """What was configured, and what really ran."""

    profile: dict[str, Any] | None
    """`HardwareProfile.to_json()` of a process that configured itself as a run would; `None` when it could not."""
    report: str | None
    """Its report block."""
    ways: tuple[ThreadWay, ...] = ()
    problems: tuple[str, ...] = ()
    seconds: float = 0.0
    notes: tuple[str, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {**asdict(self), "ways": [asdict(way) for way in self.ways], "problems": list(self.problems), "notes": list(self.notes)}


_WAYS = (
    ("environment", "environment (TF_NUM_INTRAOP_THREADS, TF_NUM_INTEROP_THREADS)"),
    ("config", "tf.config.threading, before anything ran"),
    ("session", "session of old (tf.compat.v1.ConfigProto)"),
    ("omp", "OMP_NUM_THREADS"),
)

NOTES = (
    "The environment's numbers are in force although tf.config.threading answers 0 for them.",
    "tf.config.threading wins over the environment; after the first operation it is refused.",
    "A session's numbers count only when its session is the first thing to run in the process.",
)
"""What the rows cannot show; measured with TensorFlow 2.21."""
NOTE_ONEDNN_OFF = (
    "oneDNN is off (TF_ENABLE_ONEDNN_OPTS), and nothing else reports the threads of a convolution: only what tf.config.threading answers "
    "for its own numbers is judged."
)


def configure_with_evidence(**arguments: Any) -> HardwareProfile:
    """Configures this process, trains one convolution where the profile says, and adds what oneDNN reported about it.

    For a process started with `ONEDNN_VERBOSE=1` that has not configured TensorFlow yet: oneDNN names its threads and its
    instruction set only once, at its first primitive. `arguments` and errors are those of `configure_tensorflow`.
    """
    with catch_descriptor(1, pass_on=False) as verbose:
        profile = tf_device.configure_tensorflow(**arguments)
        tf_readback.training_convolutions(tf_readback.import_tensorflow(), profile.tf_device_string)
    return profile.with_evidence(parse_onednn_verbose(verbose.text))


def collect_evidence(
    min_vram_mib: int = DEFAULT_MIN_VRAM_MIB,
    device: str = "auto",
    *,
    intra_op_threads: int | None = None,
    inter_op_threads: int | None = None,
    timeout_s: float = 60.0,
) -> Verification:
    """Configures TensorFlow in a process of its own, and tries the ways of setting threads, each in another.

    Args:
        timeout_s: for each process; one that does not end in time is ended and told in `problems`.

    Never raises for what TensorFlow does; this process imports no TensorFlow.
    """
    started = time.perf_counter()
    build = tensorflow_build()
    environ = {**tf_device.user_environment(), "ONEDNN_VERBOSE": "1"}
    arguments = {
        "min_vram_mib": min_vram_mib,
        "device": device,
        "intra_op_threads": intra_op_threads,
        "inter_op_threads": inter_op_threads,
    }
    configured = run_trial({"action": "profile", "arguments": arguments}, environ, timeout_s)
    told = configured.step("profile") or {}
    if not told:
        return Verification(None, None, (), (_why(configured, "TensorFlow could not be configured"),), time.perf_counter() - started)
    cpu = cpu_facts()
    with ThreadPoolExecutor(max_workers=max(1, min(cpu.usable_cores, 2))) as pool:
        ways = tuple(pool.map(lambda way: _try_way(way[0], way[1], _most_cores(cpu), environ, build, timeout_s), _WAYS))
    notes = NOTES if onednn_wanted(environ.get("TF_ENABLE_ONEDNN_OPTS", "1")) is not False else (*NOTES, NOTE_ONEDNN_OFF)
    problems = tuple(f"{way.name}: {way.problem}" for way in ways if way.problem)
    return Verification(told["profile"], told["report"], ways, problems, time.perf_counter() - started, notes)


def _most_cores(cpu: CpuFacts) -> int:
    """The largest count that anything could take as its default: of this process's share, or of the machine."""
    return max(cpu.usable_cores, cpu.logical_cores or 0, os.cpu_count() or 1)


def _try_way(key: str, name: str, cores: int, environ: Mapping[str, str], build: TensorFlowBuild, timeout_s: float) -> ThreadWay:
    """Asks for one and two threads more than there are cores, so that what is read back cannot be the default."""
    intra, inter = cores + 1, cores + 2
    plain = {name: value for name, value in environ.items() if name not in _THREAD_VARIABLES}
    plain |= {"CUDA_VISIBLE_DEVICES": "-1", "TF_ENABLE_ONEDNN_OPTS": environ.get("TF_ENABLE_ONEDNN_OPTS", "1")}
    if key == "environment":
        plain |= {"TF_NUM_INTRAOP_THREADS": str(intra), "TF_NUM_INTEROP_THREADS": str(inter)}
    if key == "omp":
        plain["OMP_NUM_THREADS"] = str(intra)
    request = {"action": "threads", "way": key, "threads": [intra, inter]}
    return told_way(key, name, (intra, inter), run_trial(request, trial_environment(plain, build), timeout_s))


def told_way(key: str, name: str, asked: tuple[int, int], trial: Trial) -> ThreadWay:
    """What a trial tells about one way; `asked`: intra-op and inter-op threads."""
    intra, inter = asked
    evidence, told = parse_onednn_verbose(trial.output), trial.step("threads")
    off = evidence.onednn_convolutions is False  # then oneDNN's count is the machine's, whatever was asked for (measured)
    seen = None if off else evidence.threads
    answered = told["getter_intra"] == intra if off and told and key == "config" else None
    return ThreadWay(
        key=key,
        name=name,
        asked_intra_op=intra,
        asked_inter_op=inter,
        onednn_threads=seen,
        compute_threads=told["compute_threads"] if told else None,
        getter_intra_op=told["getter_intra"] if told else None,
        getter_inter_op=told["getter_inter"] if told else None,
        runtime=evidence.runtime,
        effective=answered if seen is None else seen == intra,
        problem=None if told else _why(trial, "no answer"),
    )


def _why(trial: Trial, otherwise: str) -> str:
    if (failed := trial.step("failed")) is not None:
        return str(failed["sentence"])
    if trial.status is None:
        return f"{otherwise}: the process did not end within {trial.limit_s:g} s"
    said = last_telling_line(trial.errors) or trial.signal_name or f"exit status {trial.status}"
    return f"{otherwise}: {said}"


def render_verification(verification: Verification) -> str:
    """The verification as text for a terminal."""
    lines = [verification.report or "TensorFlow was not configured."]
    if verification.profile is not None:
        lines += ["", "Variables", *_settings_text(verification.profile)]
        lines += ["", "Kernels that ran (oneDNN's own report)", *_kernels_text(verification.profile)]
    if verification.ways:
        lines += ["", "Ways to set threads, each in a process of its own", *_ways_text(verification.ways)]
        lines += [f"  {note}" for note in verification.notes]
    if verification.problems:
        lines += ["", "Problems", *(f"  • {problem}" for problem in verification.problems)]
    return "\n".join([*lines, "", f"Verified in {verification.seconds:.0f} s."])


def _settings_text(profile: dict[str, Any]) -> list[str]:
    lines = []
    for setting in [*profile["settings"], *profile["not_applied"]]:
        honoured = {True: "honoured", False: "not honoured", None: "not known whether honoured"}[setting["honoured"]]
        lines.append(f"  {setting['name']}={setting['value']}  set by the {setting['set_by']}; {honoured} ({setting['how_known']})")
        for text in (setting["changes"], setting["note"]):
            lines += textwrap.wrap(text or "", 100, initial_indent="      ", subsequent_indent="      ")
    return lines


def _kernels_text(profile: dict[str, Any]) -> list[str]:
    evidence = profile["evidence"] or {}
    rows = [("primitive", "implementation", "runs", "ms")]
    rows += [(k["primitive"], k["implementation"] or "–", str(k["count"]), f"{k['total_ms']:.2f}") for k in evidence.get("kernels", ())]
    if len(rows) == 1:
        return ["  none reported"]
    head = f"  {evidence['version'] or 'oneDNN'}, instruction set: {evidence['isa'] or '–'}, "
    return [f"{head}{threads_in_words(evidence)}, runtime {evidence['runtime'] or '–'}", *_table(rows)]


def _ways_text(ways: tuple[ThreadWay, ...]) -> list[str]:
    rows = [("way", "asked", "oneDNN uses", "inter-op pool", "getter says", "effective")]
    for way in ways:
        effective = {True: "yes", False: "no", None: "–"}[way.effective]
        getters = f"{_text(way.getter_intra_op)} / {_text(way.getter_inter_op)}"
        asked = f"{way.asked_intra_op} / {way.asked_inter_op}" if way.key != "omp" else str(way.asked_intra_op)
        rows.append((way.name, asked, _text(way.onednn_threads), _text(way.compute_threads), getters, effective))
    return _table(rows)


def _text(value: int | None) -> str:
    return "–" if value is None else str(value)


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
