"""Measuring a plan: every point a process of its own, in interleaved rounds.

First each point runs once untimed while oneDNN reports its kernels; a point that cannot run is out then. Afterwards round 1 of every
point, round 2 of every point …, so that a machine that changes its speed changes it for all of them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import psutil

from app.core.tf_device import user_environment
from app.core.words import counted
from app.runs import bench_sentences as sentences
from app.runs.bench_child import PROGRAM, ChildEnd, run_child
from app.runs.bench_options import CHANNELS
from app.runs.bench_points import VERBOSE_VARIABLES, BenchPlan, BenchPoint
from app.runs.bench_result import BenchResult, PointResult, Round
from app.runs.status import iso, utc_now

BUSY_FROM_PERCENT = 15.0
"""A machine that others use more than this is not quiet; the result says so."""
_LOOK_S = 0.3

Part = Literal["evidence", "timed"]


@dataclass(frozen=True)
class BenchProgress:
    """Which process comes next, and how far the whole is."""

    done: int
    total: int
    """Processes."""
    point: str
    label: str
    part: Part
    round: int
    """From 1; 0 while looking which kernels run."""
    rounds: int
    eta_s: float | None = None
    """Seconds the rest takes, from the processes so far; `None` before the first."""

    @property
    def sentence(self) -> str:
        doing = sentences.KINDS[self.part].format(round=self.round, rounds=self.rounds)
        return f"{self.label}: {doing} ({self.done + 1} of {self.total})"


def run_bench(
    plan: BenchPlan,
    *,
    rounds: int | None = None,
    progress: Callable[[BenchProgress], None] = lambda _: None,
    cancelled: Callable[[], bool] = lambda: False,
    changed: Callable[[BenchResult], None] = lambda _: None,
    bench_id: str = "",
    environ: Mapping[str, str] | None = None,
    program: Sequence[str] = PROGRAM,
) -> BenchResult:
    """Measure all points of `plan`; this process imports no TensorFlow.

    A point whose process crashes, fails or takes too long gets the reason, keeps the rounds that it has, and is left out from then on.

    Args:
        rounds: in place of those of the plan's options.
        progress: told before each process.
        cancelled: asked ten times a second; the process that runs is then killed and what was measured is returned.
        changed: gets the result so far after each process.
        environ: that of a run; default: this process's, without what the app has set.
        program: replaces `python -m app.cae.bench_point`; the request is added as last argument.
    """
    base = user_environment() if environ is None else environ
    bench = _Bench(plan, rounds or plan.options.rounds, dict(base), tuple(program), bench_id)
    return bench.run(progress, cancelled, changed)


@dataclass
class _Bench:
    plan: BenchPlan
    rounds: int
    environ: dict[str, str]
    program: tuple[str, ...]
    bench_id: str
    created: str = field(default_factory=lambda: iso(utc_now()))
    found: dict[str, PointResult] = field(init=False)
    seconds: dict[tuple[str, Part], float] = field(default_factory=dict)
    """Of the last process of each point and part."""

    def __post_init__(self) -> None:
        self.found = {point.name: PointResult(point, notes=point.notes) for point in self.plan.points}

    def run(
        self, progress: Callable[[BenchProgress], None], cancelled: Callable[[], bool], changed: Callable[[BenchResult], None]
    ) -> BenchResult:
        work = list(self._work())
        for done, (point, part, number) in enumerate(work):
            if cancelled():
                return self.result("cancelled")
            if self.found[point.name].problem is not None:
                continue
            progress(BenchProgress(done, len(work), point.name, point.label, part, number, self.rounds, self._eta(work[done:])))
            busy = busy_percent() if part == "timed" else None
            end = self._child(point, part, cancelled)
            if end.cancelled:
                return self.result("cancelled")
            self._note(point, part, number, end, busy)
            changed(self.result("running"))
        return self.result("finished")

    def _work(self) -> Iterator[tuple[BenchPoint, Part, int]]:
        for point in self.plan.measured:
            if point.device == "cpu":  # on a GPU no oneDNN kernel computes
                yield point, "evidence", 0
        for number in range(1, self.rounds + 1):
            for point in self.plan.measured:
                yield point, "timed", number

    def _eta(self, rest: list[tuple[BenchPoint, Part, int]]) -> float | None:
        if not self.seconds:
            return None
        usual = {part: [took for (_, kind), took in self.seconds.items() if kind == part] for part in ("evidence", "timed")}
        # Before the first round: looking at kernels takes about as long as a round.
        mean = {part: statistics.mean(usual[part] or [took for many in usual.values() for took in many]) for part in usual}
        waiting = [(point.name, part) for point, part, _ in rest if self.found[point.name].problem is None]
        return math.fsum(self.seconds.get(key, mean[key[1]]) for key in waiting)

    def _child(self, point: BenchPoint, part: Part, cancelled: Callable[[], bool]) -> ChildEnd:
        options = self.plan.options
        request = {
            "part": part,
            "device": point.device,
            "min_vram_mib": options.min_vram_mib,
            "intra_op_threads": point.intra_op_threads,
            "inter_op_threads": point.inter_op_threads,
            "image_size": options.image_size,
            "batch_size": options.batch_size,
            "channels": CHANNELS[options.channels],
            "steps": options.steps,
            "min_seconds": options.min_ms / 1000,
            "leave_with_parent": True,
        }
        environ = {**self.environ, **point.environment}
        verbose = {name: "0" for name in VERBOSE_VARIABLES if name in environ}
        environ |= {"ONEDNN_VERBOSE": "1"} if part == "evidence" else verbose
        return run_child(request, environ, limit_s=options.limit_s, cancelled=cancelled, program=self.program)

    def _note(self, point: BenchPoint, part: Part, number: int, end: ChildEnd, busy: float | None) -> None:
        before = self.found[point.name]
        self.seconds[point.name, part] = end.seconds
        answer = end.answers.get(part)
        if answer is None or end.status != 0:
            self.found[point.name] = replace(before, problem=end.why())
            return
        if part == "evidence" or before.evidence is None:
            evidence = answer["evidence"]
            before = replace(before, evidence=evidence, notes=(*before.notes, *contradictions(point, evidence)))
        if part == "timed":
            before = replace(before, rounds=(*before.rounds, _round(number, answer, end.seconds, busy)))
        self.found[point.name] = before

    def result(self, state: str) -> BenchResult:
        """What was found so far."""
        ended = None if state == "running" else iso(utc_now())
        points = tuple(self.found[point.name] for point in self.plan.points)
        options = {**asdict(self.plan.options), "rounds": self.rounds}
        result = BenchResult(self.bench_id, state, self.created, ended, self.rounds, options, self.plan.machine, points, self.plan.notes)
        busy = result.others_percent
        if busy is None or busy < BUSY_FROM_PERCENT:
            return result
        return replace(result, notes=(*result.notes, sentences.BUSY_MACHINE.format(percent=busy)))


def busy_percent() -> float | None:
    """Share of the machine's CPUs that is busy while nothing of ours runs."""
    try:
        return float(psutil.cpu_percent(interval=_LOOK_S))
    except (psutil.Error, OSError):
        return None


def _round(number: int, answer: Mapping[str, Any], seconds: float, busy: float | None) -> Round:
    train, score = answer["train"], answer["score"]
    return Round(
        number,
        train["images_per_s"],
        score["images_per_s"],
        train["pictures"],
        train["seconds"],
        score["pictures"],
        score["seconds"],
        seconds,
        busy,
    )


def contradictions(point: BenchPoint, evidence: Mapping[str, Any]) -> tuple[str, ...]:
    """Where what was seen is not what the point is about, one sentence each."""
    seen = []
    if point.asks_for is not None and evidence.get("instruction_set") not in (None, point.asks_for):
        seen.append(sentences.OTHER_ISA.format(asked=point.asks_for, seen=evidence["instruction_set"]))
    if point.environment.get("TF_ENABLE_ONEDNN_OPTS") == "0" and evidence.get("convolutions_in_onednn"):
        seen.append(sentences.STILL_ONEDNN)
    pools = (("intra-op", point.intra_op_threads, "onednn_threads"), ("inter-op", point.inter_op_threads, "compute_threads"))
    for pool, asked, key in pools:
        if asked is not None and evidence.get(key) not in (None, asked):
            seen.append(sentences.OTHER_THREADS.format(asked=counted(asked, f"{pool} thread"), seen=evidence[key]))
    return tuple(seen)
