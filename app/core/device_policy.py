"""Facts + threshold (+ a forced device) → Decision: device, reason, and the questions asked on the way. Pure.

The sentences are templates in `reasons.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from app.core.device_word import refuse_meaningless_device
from app.core.facts import CpuFacts, Gpu, GpuFacts
from app.core.gpu_figures import forced_by
from app.core.instruction_set import path_sentences, without_avx
from app.core.reasons import REASONS, WARN_FORCED, WARN_PTX

DEFAULT_MIN_VRAM_MIB = 2048
"""Free VRAM, MiB, that a GPU must have to be chosen; equal is enough."""

MIN_DRIVER = (525, 60, 13)
"""Oldest Linux driver for CUDA 12.x by minor-version compatibility (CUDA Toolkit release notes, table 2).

TensorFlow 2.16 and later use CUDA 12."""
MIN_COMPUTE_CAPABILITY = (6, 0)
"""TensorFlow 2.21 is built for 6.0, 7.0, 8.0, 8.9 and 9.0 (FACTS: its own build configuration)."""
NEWEST_COMPUTE_CAPABILITY = (9, 0)
"""Above this, kernels exist as PTX only and are compiled at first use."""

Device = Literal["cpu", "gpu"]


@dataclass(frozen=True)
class Question:
    """One question of the decision. General ones make the flow chart, in order; those about one GPU make the table."""

    key: str
    text: str
    answer: str
    """The answer as words; empty when the question was not reached."""
    branch: Literal["yes", "no"] | None = None
    """The branch taken; `None` when the question was not reached."""
    yes_leads_to: str = "gpu"
    """`cpu`, `gpu`, or the key of the next question."""
    no_leads_to: str = "cpu"
    about_gpu: int | None = None
    """Physical index of the GPU asked about; `None` for a general question."""
    about_uuid: str | None = None


@dataclass(frozen=True)
class Decision:
    """Where TensorFlow shall compute, and why."""

    selected_device: Device
    gpu: Gpu | None
    """The chosen GPU or MIG slice; `None` on the CPU path, and for a GPU forced blindly."""
    reason: str
    min_vram_mib: int
    questions: tuple[Question, ...] = ()
    forced: str | None = None
    """The device that was asked for, `None` for auto."""
    auto_would_say: str | None = None
    """When forced: auto's own reason."""
    warnings: tuple[str, ...] = field(default=())
    more_gpus: tuple[Gpu, ...] = ()
    """Further GPUs of a run over several, see `several_gpus`."""

    @property
    def chart(self) -> tuple[Question, ...]:
        """The general questions: the flow chart."""
        return tuple(question for question in self.questions if question.about_gpu is None)

    @property
    def table(self) -> tuple[Question, ...]:
        """One question for each GPU: can it be used?"""
        return tuple(question for question in self.questions if question.about_gpu is not None)


@dataclass(frozen=True)
class _Situation:
    facts: GpuFacts
    cpu: CpuFacts
    threshold: int
    build_has_gpu: bool | None
    held: frozenset[str] = frozenset()

    def free(self, gpu: Gpu) -> int | None:
        return self.facts.system_memory_free_mib if gpu.unified_memory else gpu.free_mib

    def named(self, gpu: Gpu) -> str:
        """The name, with the index where the name alone may mean several."""
        return f"'{gpu.name}'" if len({found.index for found in self.facts.gpus}) < 2 else f"{gpu.index} '{gpu.name}'"


_Check = tuple[str, str, Callable[[_Situation, Gpu], str | None]]


def decide(
    gpu: GpuFacts,
    cpu: CpuFacts,
    min_vram_mib: int = DEFAULT_MIN_VRAM_MIB,
    *,
    device: str = "auto",
    build_has_gpu: bool | None = None,
    held: Collection[str] = (),
) -> Decision:
    """The path for these facts. The usable GPU with most free memory wins, of equals the first; `min_vram_mib` free is enough.

    `device`: `auto`, `cpu`, `gpu`, or one GPU by physical index or by (the beginning of) its UUID. `build_has_gpu`: whether
    the installed TensorFlow can use GPUs at all, `None` when that was not looked up. `held`: keys of GPUs
    that are other runs'; one of them is taken only where no other passes. Raises OptionError for another device.
    """
    situation = _Situation(gpu, cpu, min_vram_mib, build_has_gpu, frozenset(held))
    auto = _auto(situation)
    wanted = device.strip()
    if wanted.lower() in ("auto", ""):
        return auto
    return _forced(situation, auto, wanted)


def _auto(situation: _Situation) -> Decision:
    rounds = _ask_all(situation)
    chosen = next((gpu for gpu, why in rounds if why is None), None)
    stopped = _stopped_at(situation, rounds)
    table = tuple(_about(situation, gpu, why, chosen) for gpu, why in _in_order(rounds))
    reason = _gpu_reason(situation, chosen) if chosen is not None else f"{stopped[1]} {cpu_path(situation.cpu)}"
    return Decision(
        selected_device="gpu" if chosen is not None else "cpu",
        gpu=chosen,
        reason=reason,
        min_vram_mib=situation.threshold,
        questions=(*_chart(situation, stopped[0], stopped[1], None), *table),
        warnings=_warnings(situation, chosen),
    )


def _platform(situation: _Situation, _: Gpu) -> str | None:
    return {"Windows": REASONS["windows"], "Darwin": REASONS["macos"]}.get(situation.facts.system or "")


def _visible(situation: _Situation, gpu: Gpu) -> str | None:
    if gpu.visible:
        return None
    note = situation.facts.visibility_note
    return REASONS["hidden"].format(note=note) if note else REASONS["hidden plainly"]


def _computes(situation: _Situation, gpu: Gpu) -> str | None:
    if gpu.mig != "parent":
        return None
    divided = any(other.index == gpu.index and other.mig not in (None, "parent") for other in situation.facts.gpus)
    return REASONS["divided" if divided else "no slice"].format(gpu=situation.named(gpu))


def _supported(situation: _Situation, gpu: Gpu) -> str | None:
    driver = situation.facts.driver_version
    parts = tuple(int(part) for part in driver.split(".") if part.isdigit()) if driver else ()
    if parts and parts < MIN_DRIVER and not gpu.unified_memory:
        return REASONS["driver too old"].format(driver=driver, needed=".".join(map(str, MIN_DRIVER)))
    if gpu.compute_capability is not None and gpu.compute_capability < MIN_COMPUTE_CAPABILITY:
        return REASONS["gpu too old"].format(
            gpu=situation.named(gpu), capability=_dotted(gpu.compute_capability), needed=_dotted(MIN_COMPUTE_CAPABILITY)
        )
    return None


def _known(situation: _Situation, gpu: Gpu) -> str | None:
    if situation.free(gpu) is not None:
        return None
    return gpu.problem or REASONS["memory unknown"].format(gpu=situation.named(gpu), forced=forced_by(gpu))


def _enough(situation: _Situation, gpu: Gpu) -> str | None:
    free = situation.free(gpu)
    if free is not None and free >= situation.threshold:
        return None
    key = "too little unified" if gpu.unified_memory else "too little"
    return REASONS[key].format(gpu=situation.named(gpu), free=free, threshold=situation.threshold)


def _built(situation: _Situation, gpu: Gpu) -> str | None:
    return REASONS["build"].format(gpu=situation.named(gpu)) if situation.build_has_gpu is False else None


_CHECKS: tuple[_Check, ...] = (
    ("platform", "Can TensorFlow use an NVIDIA GPU on this operating system?", _platform),
    ("visible", "Is one visible to this process?", _visible),
    ("slice", "Can it be computed on (not a GPU divided by MIG)?", _computes),
    ("supported", "Do driver and GPU suit this TensorFlow?", _supported),
    ("known", "Is its free memory known?", _known),
    ("enough", "Has the one with most free memory at least {threshold} MiB free?", _enough),
    ("build", "Does this TensorFlow build support GPUs?", _built),
)
"""The questions in order: each takes GPUs out of the race; the one that takes the last one out gives the reason."""


def _ask_all(situation: _Situation) -> list[tuple[Gpu, str | None]]:
    """(GPU, why not) with the best first: usable ones by free memory, of equals the lowest index, then those that got furthest."""
    ranked = []
    for place, gpu in enumerate(situation.facts.gpus):
        refusals = ((at, said) for at, (_, _, check) in enumerate(_CHECKS) if (said := check(situation, gpu)))
        step, why = next(refusals, (len(_CHECKS), None))
        ranked.append((-step, gpu.key in situation.held, -(situation.free(gpu) or 0), place, gpu, why))
    ranked.sort(key=lambda row: row[:4])
    return [(row[4], row[5]) for row in ranked]


def _in_order(rounds: list[tuple[Gpu, str | None]]) -> list[tuple[Gpu, str | None]]:
    return sorted(rounds, key=lambda pair: pair[0].index)


def _stopped_at(situation: _Situation, rounds: list[tuple[Gpu, str | None]]) -> tuple[str | None, str]:
    """(the question that took out the last GPU, the reason); no question when a GPU is left."""
    if not rounds:
        because = situation.facts.no_gpu_because
        return "present", REASONS["no gpu because"].format(because=because) if because else REASONS["no gpu"]
    gpu, why = rounds[0]
    if why is None:
        return None, ""
    return next(key for key, _, check in _CHECKS if check(situation, gpu)), why


def _chart(
    situation: _Situation, stopped: str | None, why: str, forced: str | None, selected: Device = "cpu", usable: Question | None = None
) -> tuple[Question, ...]:
    """All general questions; those behind the one that decided are not reached. `usable` is the one that a forced GPU has to answer."""
    rows = [("present", "Is there an NVIDIA GPU?"), *((key, text) for key, text, _ in _CHECKS)]
    pointless = {"build" if situation.build_has_gpu is None else "", "" if any(gpu.mig for gpu in situation.facts.gpus) else "slice"}
    rows = [row for row in rows if row[0] not in pointless]
    keys = [key for key, _ in rows]
    end = keys.index(stopped) if stopped in keys else len(keys)
    leads_to = selected if usable is None else usable.key
    questions = [Question("forced", "Is a path forced?", forced or "no, auto", "yes" if forced else "no", leads_to, keys[0])]
    questions += [] if usable is None else [usable]
    for at, (key, text) in enumerate(rows):
        reached = at <= end and not forced
        branch: Literal["yes", "no"] | None = None if not reached else "no" if at == end else "yes"
        answer = "" if branch is None else why if branch == "no" else _yes(situation, key)
        after = keys[at + 1] if at + 1 < len(keys) else "gpu"
        questions.append(Question(key, text.format(threshold=situation.threshold), answer, branch, after, "cpu"))
    return tuple(questions)


def _yes(situation: _Situation, key: str) -> str:
    if key == "present":
        return f"yes, {sum(gpu.mig in (None, 'parent') for gpu in situation.facts.gpus)}"
    return "yes"


def _about(situation: _Situation, gpu: Gpu, why: str | None, chosen: Gpu | None) -> Question:
    other = " It is left to another run." if gpu.key in situation.held else " Another one has more, or comes first."
    answer = why or _gpu_reason(situation, gpu) + ("" if gpu is chosen else other)
    text = f"Can GPU {gpu.index} '{gpu.name}' be used?"
    return Question("gpu", text, answer, "no" if why else "yes", about_gpu=gpu.index, about_uuid=gpu.uuid)


def _gpu_reason(situation: _Situation, gpu: Gpu) -> str:
    key = "gpu unified" if gpu.unified_memory else "gpu"
    return REASONS[key].format(gpu=situation.named(gpu), free=situation.free(gpu), threshold=situation.threshold)


def _forced(situation: _Situation, auto: Decision, device: str) -> Decision:
    said = f"Auto would say: {auto.reason}"
    if device.lower() == "cpu":
        return _answer(situation, auto, device, "cpu", None, f"{REASONS['forced cpu']} {cpu_path(situation.cpu)} {said}")
    wanted, why = _find(situation, device)
    facts = situation.facts
    blind = wanted is None and device.lower() == "gpu" and not facts.gpus and facts.device_node
    if situation.build_has_gpu is False and (wanted is not None or blind):
        why = REASONS["build"].format(gpu=situation.named(wanted) if wanted else "that is there")
        wanted, blind = None, False
    if wanted is not None:
        against = next((text for _, _, check in _CHECKS if (text := check(situation, wanted))), None)
        warnings = (WARN_FORCED.format(gpu=situation.named(wanted), why=against),) if against else ()
        return _answer(
            situation, auto, device, "gpu", wanted, f"{REASONS['forced gpu'].format(gpu=situation.named(wanted))} {said}", warnings
        )
    if blind:
        reason = REASONS["forced gpu blind"].format(because=facts.no_gpu_because or REASONS["no gpu"])
        return _answer(situation, auto, device, "gpu", None, f"{reason} {said}")
    reason = f"{REASONS['forced in vain'].format(device=device)} {why} {cpu_path(situation.cpu)}"
    repeats = auto.selected_device == "cpu" and why in auto.reason
    return _answer(
        situation, auto, device, "cpu", None, f"{reason} Auto would say the same." if repeats else f"{reason} {said}", refused=why
    )


def _answer(
    situation: _Situation,
    auto: Decision,
    device: str,
    selected: Device,
    gpu: Gpu | None,
    reason: str,
    warnings: tuple[str, ...] = (),
    refused: str | None = None,
) -> Decision:
    usable = None
    if device.lower() != "cpu":
        found = "nobody can tell; it is tried" if gpu is None else "yes"
        usable = Question("usable", "Can the forced GPU be used?", refused or found, "no" if refused else "yes")
    questions = (*_chart(situation, None, "", f"yes: {device}", selected, usable), *auto.table)
    return Decision(selected, gpu, reason, situation.threshold, questions, device, auto.reason, (*warnings, *_warnings(situation, gpu)))


def _find(situation: _Situation, device: str) -> tuple[Gpu | None, str]:
    """The GPU that a forced choice means, or why there is none. Memory, driver and build do not stand in its way."""
    facts = situation.facts
    refuse_meaningless_device(device)
    barred = _platform(situation, Gpu(0, None, ""))
    if barred or not facts.gpus:
        return None, barred or _stopped_at(situation, [])[1]
    rounds = _ask_all(situation)
    usable = [gpu for gpu, _ in rounds if gpu.visible and gpu.mig != "parent"]
    if device.lower() == "gpu":
        return (usable[0], "") if usable else (None, _stopped_at(situation, rounds)[1])
    if device.isdecimal():
        matching = [gpu for gpu in facts.gpus if gpu.index == int(device[:9]) and gpu.mig in (None, "parent")]
    else:
        named = [(gpu.uuid or "").lower() for gpu in facts.gpus]
        exact = device.lower() in named
        matching = [
            gpu
            for gpu, uuid in zip(facts.gpus, named, strict=True)
            if uuid == device.lower() or (not exact and uuid.startswith(device.lower()))
        ]
    if len(matching) != 1:
        known = ", ".join(f"{gpu.index} '{gpu.name}' ({gpu.uuid or 'no UUID'})" for gpu in matching or facts.gpus)
        return None, REASONS["ambiguous" if matching else "no such gpu"].format(device=device, known=known)
    wanted = matching[0]
    if wanted.mig == "parent":
        slices = [gpu for gpu in usable if gpu.index == wanted.index]
        return (slices[0], "") if slices else (None, REASONS["no slice"].format(gpu=situation.named(wanted)))
    return (wanted, "") if wanted.visible else (None, REASONS["forced hidden"].format(gpu=situation.named(wanted)))


def after_start(decision: Decision, happened: str, cpu: CpuFacts) -> Decision:
    """What became of a decision for a GPU that TensorFlow then could not use: one more question, and the chart ends on the CPU.

    `happened` says why, in lower case and without a full stop.
    """
    tried = Question("ran", "Does a first operation run?", happened, "no")
    questions = [
        replace(question, yes_leads_to=tried.key) if question.about_gpu is None and question.yes_leads_to == "gpu" else question
        for question in decision.questions
    ]
    after = max((at for at, question in enumerate(questions) if question.about_gpu is None and question.branch), default=-1) + 1
    reason = REASONS["gpu failed"].format(
        gpu=f"GPU '{decision.gpu.name}'" if decision.gpu else "The GPU",
        chosen="forced" if decision.forced else "chosen",
        happened=happened,
        path=cpu_path(cpu),
    )
    shown = (*questions[:after], tried, *questions[after:])
    return replace(decision, selected_device="cpu", gpu=None, more_gpus=(), reason=reason, questions=shown)


def _warnings(situation: _Situation, gpu: Gpu | None) -> tuple[str, ...]:
    no_avx = without_avx(situation.cpu)
    if gpu is None or gpu.compute_capability is None or gpu.compute_capability <= NEWEST_COMPUTE_CAPABILITY:
        return no_avx
    values = {"gpu": situation.named(gpu), "capability": _dotted(gpu.compute_capability), "newest": _dotted(NEWEST_COMPUTE_CAPABILITY)}
    return (*no_avx, WARN_PTX.format(**values))


def cpu_path(cpu: CpuFacts) -> str:
    """How a reason that ends on the CPU closes; see `instruction_set.path_sentences`."""
    return path_sentences(cpu)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def decision_json(decision: Decision, gpu: GpuFacts, cpu: CpuFacts) -> dict[str, Any]:
    """What `device --json` prints, ready for `json.dumps`."""
    return {
        "selected_device": decision.selected_device,
        "reason": decision.reason,
        "min_vram_mib": decision.min_vram_mib,
        "forced": decision.forced,
        "auto_would_say": decision.auto_would_say,
        "gpu": None if decision.gpu is None else asdict(decision.gpu),
        "gpus": [asdict(found) for found in gpu.gpus],
        "gpu_source": gpu.source,
        "driver_version": gpu.driver_version,
        "cuda_driver_version": gpu.cuda_driver_version,
        "system_memory_free_mib": gpu.system_memory_free_mib,
        "visibility_note": gpu.visibility_note,
        "processes_note": gpu.processes_note,
        "probe_ms": gpu.probe_ms,
        "problems": [*gpu.problems, *cpu.problems],
        "warnings": list(decision.warnings),
        "cpu": {**asdict(cpu), "avx": cpu.avx, "avx2": cpu.avx2},
        "questions": [asdict(question) for question in decision.questions],
    }
