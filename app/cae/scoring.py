"""Pictures through the network to anomaly maps and scores, batch by batch. NumPy only; the forward pass comes in as a function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from app.cae.calibration import Calibration, ErrorSums, calibrate, image_threshold, uses_training_pictures, with_whole_picture
from app.cae.error_maps import Doubles, ScoringRule, error_maps, pooled
from app.cae.training import Floats, Throughput, in_batches, mean_picture, standardise
from app.core.errors import DataError

__all__ = [
    "Calibration",
    "ErrorSums",
    "Forward",
    "Observed",
    "Reconstruct",
    "Scored",
    "ScoringRule",
    "calibrate",
    "collected_errors",
    "error_maps",
    "image_threshold",
    "iter_errors",
    "observed",
    "pooled",
    "score_pictures",
    "summed_errors",
    "unexplained_share",
    "uses_training_pictures",
    "with_whole_picture",
]

Reconstruct = Callable[[Floats], Floats]
"""float32 (N, H, W, C) in 0..1 → its reconstruction."""


class Forward(Protocol):
    """A forward pass that also tells of the picture as a whole."""

    def __call__(self, pictures: Floats, /) -> Floats:
        """As `Reconstruct`."""

    def with_features(self, pictures: Floats) -> tuple[Floats, Floats]:
        """Reconstructions, and features (N, D) of the encoder."""


SCORE_BATCH = 32
"""Pictures a forward pass; throughput does not depend on it beyond noise."""

_WRONG_SHAPE = "Pictures to score: expected shape (N, {size}, {size}, {channels}) as in training, got {shape}."


@dataclass(frozen=True)
class Scored:
    """Pictures with their scores."""

    maps: Floats
    """(N, H, W) raw anomaly maps, larger is worse; never clipped."""
    scores: Doubles
    """(N,) pooled maps, and what the picture as a whole adds."""
    inputs: NDArray[np.uint8]
    """(N, H, W, C) as the network saw them."""
    reconstructions: NDArray[np.uint8]
    """(N, H, W, C)."""


def iter_errors(
    images: NDArray[np.uint8], reconstruct: Reconstruct, rule: ScoringRule, throughput: Throughput
) -> Iterator[tuple[slice, Floats, Floats, Floats]]:
    """(places, error maps, network inputs, reconstructions), batch by batch; a batch's time ends when the next is asked for."""
    throughput.start()
    for part in in_batches(len(images), SCORE_BATCH):
        pictures = standardise(images[part], rule.standardise)
        rebuilt = reconstruct(pictures)
        yield part, error_maps(pictures, rebuilt, rule), pictures, rebuilt
        throughput.step(len(pictures))


@dataclass(frozen=True)
class Observed:
    """What the model shows of good pictures."""

    errors: Floats | None
    """(N, H, W) error maps, where they were to be kept."""
    sums: ErrorSums
    features: Floats
    """(N, D) of the encoder."""
    squared_error: float
    """Mean of (x - x̂)² over all pictures and pixels."""


def observed(
    images: NDArray[np.uint8],
    forward: Forward,
    rule: ScoringRule,
    throughput: Throughput,
    tick: Callable[[int], None],
    *,
    keep_errors: bool,
) -> Observed:
    """One pass over good pictures (N ≥ 1, S, S, C). `tick` is told how many pictures were done, and may raise to stop."""
    maps, features, squared = np.zeros(images.shape[:3] if keep_errors else (0, 0, 0), np.float32), [], 0.0
    sums = ErrorSums(0, np.zeros(images.shape[1:3]), np.zeros(images.shape[1:3]))

    def seen(pictures: Floats) -> Floats:
        rebuilt, found = forward.with_features(pictures)
        features.append(found)
        return rebuilt

    for part, errors, pictures, rebuilt in iter_errors(images, seen, rule, throughput):
        if keep_errors:
            maps[part] = errors
        sums = sums + ErrorSums.of(errors)
        squared += float(np.square(pictures - rebuilt).mean(dtype=np.float64)) * len(errors)
        tick(len(errors))
    return Observed(maps if keep_errors else None, sums, np.concatenate(features), squared / len(images))


def unexplained_share(images: NDArray[np.uint8], squared_error: float, train: NDArray[np.uint8], mode: str) -> float:
    """Share of the variance of good pictures (M ≥ 1, S, S, C) that their reconstructions leave, 0..1.

    Args:
        images: good pictures, held out of training where there are any.
        squared_error: mean (x - x̂)² of these.
        train: training pictures, whose mean is what a picture is compared with.
        mode: as for `standardise`.
    """
    mean, total = mean_picture(train, mode), 0.0
    for part in in_batches(len(images), SCORE_BATCH):
        pictures = standardise(images[part], mode)
        total += float(np.square(pictures - mean).mean(dtype=np.float64)) * len(pictures)
    variance = total / len(images)
    return min(1.0, squared_error / variance) if variance > 0 else 0.0


def collected_errors(
    images: NDArray[np.uint8], reconstruct: Reconstruct, rule: ScoringRule, throughput: Throughput, tick: Callable[[int], None]
) -> Floats:
    """Error maps of all `images`, (N, H, W). `tick` is told how many pictures were done, and may raise to stop."""
    maps = np.zeros(images.shape[:3], np.float32)
    for part, errors, _, _ in iter_errors(images, reconstruct, rule, throughput):
        maps[part] = errors
        tick(len(errors))
    return maps


def summed_errors(
    images: NDArray[np.uint8], reconstruct: Reconstruct, rule: ScoringRule, throughput: Throughput, tick: Callable[[int], None]
) -> ErrorSums:
    """Sums over the error maps of `images`, which are not kept."""
    sums = ErrorSums(0, np.zeros(images.shape[1:3]), np.zeros(images.shape[1:3]))
    for _, errors, _, _ in iter_errors(images, reconstruct, rule, throughput):
        sums = sums + ErrorSums.of(errors)
        tick(len(errors))
    return sums


def score_pictures(
    images: NDArray[np.uint8],
    reconstruct: Reconstruct | Forward,
    calibration: Calibration,
    *,
    throughput: Throughput | None = None,
    tick: Callable[[int], None] | None = None,
) -> Scored:
    """Anomaly maps and scores of any pictures.

    Args:
        images: (N, S, S, C) uint8.
        reconstruct: the model's forward pass; a `Forward` where the calibration also judges whole pictures.
        calibration: of the run that trained it.
        throughput: fed batch by batch.
        tick: told how many more pictures are done; may raise to stop.

    Raises:
        DataError: size or channels are not those of training.
    """
    size, channels = calibration.size, calibration.channels
    if images.shape[1:] != (size, size, channels):
        raise DataError(_WRONG_SHAPE.format(size=size, channels=channels, shape=images.shape))
    maps = np.zeros(images.shape[:3], np.float32)
    inputs, reconstructions = np.zeros_like(images), np.zeros_like(images)
    whole, added = calibration.whole, np.zeros(len(images))
    features: list[Floats] = []

    def seen(pictures: Floats) -> Floats:
        rebuilt, found = reconstruct.with_features(pictures)  # type: ignore[union-attr]
        features.append(found)
        return rebuilt

    forward: Reconstruct = reconstruct if whole is None else seen
    for part, errors, pictures, rebuilt in iter_errors(images, forward, calibration.rule, throughput or Throughput()):
        maps[part] = calibration.applied(errors)
        if whole is not None:
            added[part] = whole.added(images[part], features.pop())
        inputs[part], reconstructions[part] = _as_uint8(pictures), _as_uint8(rebuilt)
        if tick is not None:
            tick(len(errors))
    return Scored(maps, pooled(maps, calibration.rule) + added, inputs, reconstructions)


def _as_uint8(pictures: Floats) -> NDArray[np.uint8]:
    return np.round(np.clip(pictures, 0.0, 1.0) * 255.0).astype(np.uint8)
