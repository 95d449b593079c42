"""What a benchmark found: each point with its rounds and what was seen running. Reads and writes JSON."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from app.runs.bench_points import BenchPoint

KINDS = ("train", "score")


@dataclass(frozen=True)
class Round:
    """What one process measured; the warm-up is left out."""

    number: int
    """From 1."""
    train_images_per_s: float
    score_images_per_s: float
    train_pictures: int
    train_seconds: float
    score_pictures: int
    score_seconds: float
    process_seconds: float
    """From start to end of the process, import of TensorFlow included."""
    others_percent: float | None = None
    """Share of the machine's CPUs that was busy just before."""


@dataclass(frozen=True)
class Spread:
    """Images a second over the rounds."""

    median: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread | None:
        """None where nothing was measured."""
        found = sorted(values)
        return cls(statistics.median(found), found[0], found[-1], len(found)) if found else None


@dataclass(frozen=True)
class PointResult:
    """One point, measured or not."""

    point: BenchPoint
    rounds: tuple[Round, ...] = ()
    evidence: dict[str, Any] | None = None
    """What really ran; keys as `app.cae.bench_point.seen` has them."""
    problem: str | None = None
    """Why this point was not measured, or not in all rounds, as one sentence."""
    notes: tuple[str, ...] = ()

    @property
    def train(self) -> Spread | None:
        return Spread.of(found.train_images_per_s for found in self.rounds)

    @property
    def score(self) -> Spread | None:
        return Spread.of(found.score_images_per_s for found in self.rounds)

    @property
    def kernels(self) -> tuple[str, ...]:
        """Names of the kernels that computed convolutions, most time first; empty where none was seen."""
        found = (self.evidence or {}).get("kernels") or ()
        return tuple(dict.fromkeys(kernel["implementation"] for kernel in found if kernel["primitive"] in ("convolution", "deconvolution")))


@dataclass(frozen=True)
class BenchResult:
    """A whole benchmark, or what there is of it."""

    bench_id: str
    state: str
    """running, finished or cancelled."""
    created: str
    """ISO 8601, UTC."""
    ended: str | None
    rounds: int
    options: dict[str, Any]
    machine: dict[str, Any]
    points: tuple[PointResult, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def others_percent(self) -> float | None:
        """Median share of the machine's CPUs that others kept busy just before each timed process."""
        found = [one.others_percent for point in self.points for one in point.rounds if one.others_percent is not None]
        return statistics.median(found) if found else None

    def of(self, name: str) -> PointResult:
        """The point of that name, with the figures of the one that it shares them with. Raises KeyError."""
        by_name = {found.point.name: found for found in self.points}
        asked = by_name[name]
        owner = by_name.get(asked.point.same_as or "")
        return asked if owner is None else replace(owner, point=asked.point, notes=(*asked.notes, *owner.notes))

    def slowest(self, kind: str) -> float | None:
        """The lowest median of all points, images/s; `kind` is `train` or `score`."""
        medians = [spread.median for found in self.points if (spread := getattr(found, kind)) is not None]
        return min(medians, default=None)

    def speed_up(self, name: str, kind: str) -> float | None:
        """Median of a point over the lowest median of all; None where it was not measured."""
        spread: Spread | None = getattr(self.of(name), kind)
        slowest = self.slowest(kind)
        return None if spread is None or not slowest else spread.median / slowest

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types, with median, minimum, maximum and speed-up of every point."""
        values = asdict(self)
        values["others_percent"] = self.others_percent
        values["points"] = [self._point_json(found) for found in self.points]
        return values

    def _point_json(self, found: PointResult) -> dict[str, Any]:
        shown = self.of(found.point.name)
        figures = {
            kind: None
            if (spread := getattr(shown, kind)) is None
            else {**asdict(spread), "speed_up": self.speed_up(found.point.name, kind)}
            for kind in KINDS
        }
        return {**asdict(found), **figures, "kernels": list(shown.kernels)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> BenchResult:
        """The reverse of `to_json`.

        Raises:
            ValueError: it holds something else.
        """
        try:
            known = {item.name: values[item.name] for item in fields(cls)}
            points = tuple(_point_from_json(found) for found in known.pop("points"))
            return cls(**{**known, "points": points, "notes": tuple(known["notes"])})
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"result.json holds no result of a benchmark ({type(error).__name__}: {error})") from None


def _point_from_json(values: Mapping[str, Any]) -> PointResult:
    return PointResult(
        BenchPoint.from_json(values["point"]),
        tuple(Round(**found) for found in values["rounds"]),
        values["evidence"],
        values["problem"],
        tuple(values["notes"]),
    )
