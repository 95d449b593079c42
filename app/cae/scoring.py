"""Pictures through the network to anomaly maps and scores, batch by batch. NumPy only; the forward pass comes in as a function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.cae.calibration import Calibration, ErrorSums, calibrate, image_threshold, uses_training_pictures
from app.cae.error_maps import Doubles, ScoringRule, error_maps, pooled
from app.cae.training import Floats, Throughput, in_batches, standardise
from app.core.errors import DataError

__all__ = [
    "Calibration",
    "ErrorSums",
    "Reconstruct",
    "Scored",
    "ScoringRule",
    "calibrate",
    "collected_errors",
    "error_maps",
    "image_threshold",
    "iter_errors",
    "pooled",
    "score_pictures",
    "summed_errors",
    "uses_training_pictures",
]

Reconstruct = Callable[[Floats], Floats]
"""float32 (N, H, W, C) in 0..1 → its reconstruction."""

SCORE_BATCH = 32
"""Pictures a forward pass; throughput does not depend on it beyond noise."""

_WRONG_SHAPE = "Pictures to score: expected shape (N, {size}, {size}, {channels}) as in training, got {shape}."


@dataclass(frozen=True)
class Scored:
    """Pictures with their scores."""

    maps: Floats
    """(N, H, W) raw anomaly maps, larger is worse; never clipped."""
    scores: Doubles
    """(N,)."""
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
    reconstruct: Reconstruct,
    calibration: Calibration,
    *,
    throughput: Throughput | None = None,
    tick: Callable[[int], None] | None = None,
) -> Scored:
    """Anomaly maps and scores of any pictures.

    Args:
        images: (N, S, S, C) uint8.
        reconstruct: the model's forward pass.
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
    for part, errors, pictures, rebuilt in iter_errors(images, reconstruct, calibration.rule, throughput or Throughput()):
        maps[part] = calibration.applied(errors)
        inputs[part], reconstructions[part] = _as_uint8(pictures), _as_uint8(rebuilt)
        if tick is not None:
            tick(len(errors))
    return Scored(maps, pooled(maps, calibration.rule), inputs, reconstructions)


def _as_uint8(pictures: Floats) -> NDArray[np.uint8]:
    return np.round(np.clip(pictures, 0.0, 1.0) * 255.0).astype(np.uint8)
