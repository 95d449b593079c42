"""What makes errors comparable: statistics of good pictures, the image threshold and the colour scale of heat maps. NumPy only.

What is fitted here sees error maps of good pictures of the training folder and nothing else: no function takes labels, masks or test
pictures.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from app.cae.config import CaeConfig
from app.cae.error_maps import Doubles, ScoringRule, pooled
from app.cae.order import quantiles
from app.cae.rows import Rows, Zeros
from app.cae.training import Floats
from app.cae.whole_picture import WholePicture
from app.core.errors import DataError

SHRINKAGE = 10.0
"""Pictures that the global mean and variance count for beside those of a pixel (score R)."""

VARIANCE_FLOOR = 0.05
"""Share of the global variance added to each pixel's: z stays bounded where good pictures hardly differ (score R)."""

SMALL_SET = 50
"""Good pictures below which errors of training pictures, which the network has learnt, are too small to calibrate with (score R)."""

FEWEST_HELD_OUT = 5
"""Held-out pictures that a small set must have to be calibrated with them alone."""

HEAT_QUANTILES = (0.5, 0.999)
"""Of the held-out good maps: the ends of the colour scale, one for the whole run. What lies above hardly occurs on good pictures."""

SMALL_HELD_OUT = (
    "Only {held_out} of {total} good pictures held out: calibration also uses training pictures, whose errors are smaller, "
    "so new good pictures score somewhat high."
)
NOTHING_HELD_OUT = (
    "No good picture is held out: calibration and threshold come from training pictures, whose errors are smaller, so new good pictures "
    "may be called defective. Add good pictures or raise val_fraction."
)
_BAD_CALIBRATION = "{path}: expected the scoring.npz of a run, got {cause}."


@dataclass(frozen=True)
class ErrorSums:
    """Sums over the error maps of good pictures, from which mean and variance follow; a picture can be taken out again."""

    count: int
    total: Doubles
    """(H, W) Σ e."""
    squares: Doubles
    """(H, W) Σ e²."""

    @classmethod
    def of(cls, maps: Rows) -> Self:
        total, squares = np.zeros(maps.shape[1:]), np.zeros(maps.shape[1:])
        for one in maps:  # the order in which NumPy adds, without the maps as float64
            wide = one.astype(np.float64)
            total += wide
            squares += np.square(wide)
        return cls(len(maps), total, squares)

    def __add__(self, other: ErrorSums) -> ErrorSums:
        return ErrorSums(self.count + other.count, self.total + other.total, self.squares + other.squares)

    def scaled(self, factor: float) -> ErrorSums:
        """Sums as if every error were `factor` times as large."""
        return ErrorSums(self.count, self.total * factor, self.squares * factor**2)

    @property
    def mean(self) -> float:
        """Mean error over all pictures and pixels."""
        return float(self.total.sum()) / (self.count * self.total.size)

    def without(self, one: Floats) -> ErrorSums:
        """Sums over the other pictures; unchanged where `one` (H, W) is the only one."""
        if self.count < 2:
            return self
        wide = one.astype(np.float64)
        return ErrorSums(self.count - 1, self.total - wide, self.squares - np.square(wide))

    def moments(self, kind: Literal["pixel", "global", "none"]) -> tuple[Doubles, Doubles]:
        """What an error map is compared with: (mean, spread), each (H, W); z = (e - mean) / spread.

        "pixel", score R: μ = (n μ_pixel + 10 μ_global) / (n + 10), the same for the variance, spread = √(var + 0.05 var_global). The
        shrinkage lets many pictures speak for a pixel and keeps few from it: parts that lie anywhere are not calibrated to pieces.
        "global": the mean and standard deviation of all pixels. "none": 0 and 1.
        """
        if kind == "none":
            return np.zeros_like(self.total), np.ones_like(self.total)
        pixels = self.count * self.total.size
        global_mean = self.total.sum() / pixels
        global_variance = max(0.0, self.squares.sum() / pixels - global_mean**2)
        if kind == "global":
            mean, variance = np.full_like(self.total, global_mean), np.full_like(self.total, global_variance)
        else:
            own_mean = self.total / self.count
            own_variance = np.maximum(0.0, self.squares / self.count - own_mean**2)
            weight = self.count + SHRINKAGE
            mean = (self.count * own_mean + SHRINKAGE * global_mean) / weight
            variance = (self.count * own_variance + SHRINKAGE * global_variance) / weight + VARIANCE_FLOOR * global_variance
        # Good pictures that all have the same error everywhere: z is 0 for their like, not NaN.
        return mean, np.sqrt(np.maximum(variance, np.finfo(np.float32).tiny))


@dataclass(frozen=True)
class Calibration:
    """All that scoring a picture needs beside the model; what `scoring.npz` of a run holds."""

    rule: ScoringRule
    mean: Floats
    """(H, W)."""
    spread: Floats
    """(H, W)."""
    channels: int
    threshold: float
    """Image scores above it are called defective."""
    heat_low: float
    heat_high: float
    """Ends of the colour scale of all heat maps."""
    fitted_on: str
    """Which good pictures, and how many."""
    full_scale: float | None = None
    """White of pictures of more than 8 bits a sample in this data set; new ones are read with it."""
    whole: WholePicture | None = None
    """What a picture as a whole adds to its score; None: nothing."""
    offset: Floats | None = None
    """(H, W, C) added to every reconstruction (`app.cae.correction`); None: nothing."""

    @property
    def size(self) -> int:
        return int(self.mean.shape[0])

    def applied(self, errors: Floats) -> Floats:
        """Anomaly maps of error maps, float32 (N, H, W)."""
        return ((errors - self.mean) / self.spread).astype(np.float32, copy=False)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What `scoring.npz` holds: `mean`, `spread`, `offset`, and the rest as JSON text in `about`."""
        plain = replace(self, whole=None, offset=None)
        about = {name: value for name, value in asdict(plain).items() if name not in ("mean", "spread", "whole", "offset")}
        whole = {} if self.whole is None else self.whole.arrays()
        offset = {} if self.offset is None else {"offset": self.offset}
        return {"mean": self.mean, "spread": self.spread, "about": np.array(json.dumps(about)), **offset, **whole}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """The reverse of `arrays`. Raises KeyError, TypeError or ValueError where something is missing or odd."""
        about: dict[str, Any] = json.loads(str(arrays["about"]))
        rule = ScoringRule(**about.pop("rule"))
        offset, mean = arrays.get("offset"), arrays["mean"]
        if offset is not None and offset.shape != (*mean.shape, about["channels"]):
            raise ValueError(f"the offset has shape {offset.shape}, the mean {mean.shape}")
        return cls(rule=rule, mean=mean, spread=arrays["spread"], whole=WholePicture.from_arrays(arrays), offset=offset, **about)

    def save(self, path: Path) -> None:
        """Writes `path` as a whole."""
        part = path.with_name(f".{path.name}.part")
        with part.open("wb") as file:
            np.savez(file, **self.arrays())  # type: ignore[arg-type]  # the stub takes any dict for allow_pickle too
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)

    @classmethod
    def load(cls, path: Path) -> Self:
        """What `save` wrote; nothing in it is unpickled.

        Raises:
            DataError: the file is missing, damaged or something else.
        """
        try:
            # Opened here: NumPy leaves a file that is no archive open.
            with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                return cls.from_arrays({name: archive[name] for name in archive.files})
        except Exception as error:  # noqa: BLE001 - a damaged archive fails in zipfile's, zlib's, json's and NumPy's own ways
            raise DataError(_BAD_CALIBRATION.format(path=path, cause=str(error) or type(error).__name__)) from None


def uses_training_pictures(trained: int, held_out: int) -> bool:
    """Whether calibration takes training pictures in: with enough pictures yes (their errors are hardly smaller), in small sets only when
    too few are held out."""
    return trained + held_out >= SMALL_SET or held_out < FEWEST_HELD_OUT


def calibrate(
    rule: ScoringRule,
    config: CaeConfig,
    train: ErrorSums | None,
    held_out: Rows,
    *,
    channels: int,
    full_scale: float | None = None,
    from_held_out: bool = True,
    zeros: Zeros = np.zeros,
) -> tuple[Calibration, Doubles]:
    """Calibration, threshold and heat scale from good pictures.

    Errors of training pictures, which the network has learnt, are smaller than those of new good ones: they count scaled by the ratio of
    the two means, since where and how errors vary they tell as well. A held-out picture is scored with itself left out of the statistics,
    so that its score is that of a new good picture.

    Args:
        rule: how errors become scores.
        config: its threshold options.
        train: error sums of training pictures, None where `uses_training_pictures` says no.
        held_out: (M, H, W) error maps that the threshold comes from; where nothing is held out, those of the training pictures (and no
            `train`).
        channels: of the pictures.
        full_scale: see `Calibration`.
        from_held_out: False where nothing is held out and `held_out` are errors of training pictures; it is written down.
        zeros: makes room for the calibrated maps of `held_out`.

    Returns:
        The calibration, and the scores (M,) of `held_out`.
    """
    own = ErrorSums.of(held_out)
    sums = own if train is None else _as_new(train, own) + own
    maps = zeros(held_out.shape, held_out.dtype)
    for place, errors in enumerate(held_out):
        mean, spread = sums.without(errors).moments(rule.calibration)
        maps[place] = (errors - mean) / spread
    scores = pooled(maps, rule)
    mean, spread = sums.moments(rule.calibration)
    low, high = (float(value) for value in quantiles(maps, HEAT_QUANTILES))
    calibration = Calibration(
        rule,
        mean.astype(np.float32),
        spread.astype(np.float32),
        channels,
        image_threshold(scores, config),
        low,
        high if high > low else low + 1.0,
        f"{sums.count} good pictures, {len(held_out) if from_held_out else 'none'} of them held out of training",
        full_scale,
    )
    return calibration, scores


def _as_new(train: ErrorSums, held_out: ErrorSums) -> ErrorSums:
    """Error sums of training pictures, scaled to the mean error of held-out ones."""
    if not (train.count and held_out.count and train.mean > 0 and held_out.mean > 0):
        return train
    return train.scaled(held_out.mean / train.mean)


def with_whole_picture(
    calibration: Calibration, scores: Doubles, whole: WholePicture, added: Doubles, config: CaeConfig
) -> tuple[Calibration, Doubles]:
    """The calibration that also judges whole pictures, with its threshold, and the held-out scores (M,).

    Args:
        calibration: for maps alone.
        scores: (M,) of the held-out pictures, from their maps.
        whole: fitted to good pictures.
        added: (M,) what the held-out pictures have added, each measured by a fit that has not seen it.
        config: its threshold options.
    """
    together = scores + added
    return replace(calibration, whole=whole, threshold=image_threshold(together, config)), together


def image_threshold(scores: Doubles, config: CaeConfig) -> float:
    """A quantile, or mean + k σ, of good pictures' scores (N ≥ 1,)."""
    if config.threshold_rule == "sigma":
        return float(scores.mean() + config.threshold_sigma * scores.std())
    return float(np.quantile(scores, config.threshold_quantile))
