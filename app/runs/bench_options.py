"""What a benchmark is asked to do: each option once, with its bounds and its help."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from app.cae.config import make_config
from app.core.device_policy import DEFAULT_MIN_VRAM_MIB
from app.core.errors import OptionError

CHANNELS = {"grey": 1, "colour": 3}

_NUMBER = "{name}: expected a whole number from {low} to {high}, got {value!r}."
_CHANNELS = "channels: expected grey or colour, got {value!r}."
_POINTS = "points: expected names of points or groups, comma between them, got {value!r}; --list shows them."
_UNKNOWN = "{name}: the benchmark has no such option; it has {known}."


def _option(default: Any, help_: str, low: int | None = None, high: int | None = None) -> Any:
    return field(default=default, metadata={"help": help_, "low": low, "high": high})


@dataclass(frozen=True)
class BenchOptions:
    """Make it with `make_options`, which checks."""

    rounds: int = _option(3, "rounds; each measures every point once, in a process of its own", 1, 50)
    steps: int = _option(12, "timed training steps of each round, after 5 of warm-up; fast devices repeat them for a second", 1, 1000)
    points: tuple[str, ...] = _option((), "points or groups to measure, comma between them; not given: all. --list shows them")
    image_size: int = _option(128, "side of the pictures, px; a multiple of 16", 64, 512)
    batch_size: int = _option(16, "pictures a training step", 1, 512)
    channels: str = _option("grey", "grey (one channel) or colour (three)")
    min_vram_mib: int = _option(DEFAULT_MIN_VRAM_MIB, "MiB a GPU must have free to be measured", 0, 1_048_576)
    limit_s: int = _option(300, "time limit of each process, s", 5, 86_400)
    min_ms: int = field(default=1000, metadata={"low": 0, "high": 60_000})
    """Least time that counts in each timed part, ms; not an option of the command line."""

    def arguments(self) -> list[str]:
        """The options as a command line."""
        return [part for name, value in self._given() for part in (f"--{name.replace('_', '-')}", value)]

    def _given(self) -> Iterator[tuple[str, str]]:
        for item in fields(self):
            value = getattr(self, item.name)
            if value != item.default and "help" in item.metadata:
                yield item.name, ",".join(value) if isinstance(value, tuple) else str(value)


def make_options(values: Mapping[str, Any]) -> BenchOptions:
    """Checked options; numbers and points may be text, as a command line gives them; None counts as not given.

    Raises:
        OptionError: one sentence for the first option that does not fit.
    """
    known = {item.name: item for item in fields(BenchOptions)}
    checked: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            raise OptionError(_UNKNOWN.format(name=name, known=", ".join(known)))
        if value is not None:
            checked[name] = _checked(name, value, known[name].metadata)
    options = BenchOptions(**checked)
    # What the autoencoder itself cannot do is said by its own configuration.
    make_config({"image_size": options.image_size, "batch_size": options.batch_size, "min_vram_mib": options.min_vram_mib})
    return options


def _checked(name: str, value: Any, bounds: Mapping[str, Any]) -> Any:
    if name == "points":
        return _point_names(value)
    if name == "channels":
        if value not in CHANNELS:
            raise OptionError(_CHANNELS.format(value=value))
        return value
    low, high = bounds["low"], bounds["high"]
    try:
        number = int(value) if not isinstance(value, bool) and float(value) == int(float(value)) else math.nan
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not low <= number <= high:
        raise OptionError(_NUMBER.format(name=name, low=low, high=high, value=value))
    return number


def _point_names(value: Any) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)) or not all(isinstance(part, str) for part in parts):
        raise OptionError(_POINTS.format(value=value))
    names = tuple(dict.fromkeys(part.strip().lower() for part in parts if part.strip()))
    if isinstance(value, str) and not names:
        raise OptionError(_POINTS.format(value=value))
    return names
