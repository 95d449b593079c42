"""Pictures through the network to anomaly maps and scores, batch by batch. NumPy only; the forward pass comes in as a function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.cae.calibration import Calibration, ErrorSums, calibrate, image_threshold, uses_training_pictures, with_whole_picture
from app.cae.correction import Forward
from app.cae.error_maps import Doubles, ScoringRule, error_maps, pooled
from app.cae.rows import Rows, Zeros, parts
from app.cae.training import Floats, Throughput, in_batches, mean_picture, spread_about, standardise
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
    "pooled_errors",
    "score_pictures",
    "summed_errors",
    "unexplained_share",
    "uses_training_pictures",
    "with_whole_picture",
]

Reconstruct = Callable[[Floats], Floats]
"""float32 (N, H, W, C) in 0..1 → its reconstruction."""


SCORE_BATCH = 32
"""Pictures a forward pass; throughput does not depend on it beyond noise."""

_WRONG_SHAPE = "Pictures to score: expected shape (N, {size}, {size}, {channels}) as in training, got {shape}."


@dataclass(frozen=True)
class Scored:
    """Pictures with their scores."""

    maps: Rows
    """(N, H, W) float32, raw anomaly maps, larger is worse; never clipped."""
    scores: Doubles
    """(N,) pooled maps, and what the picture as a whole adds."""
    inputs: Rows
    """(N, H, W, C) uint8, as the network saw them."""
    reconstructions: Rows
    """(N, H, W, C) uint8."""


def iter_errors(
    images: Rows, reconstruct: Reconstruct, rule: ScoringRule, throughput: Throughput
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

    errors: Rows | None
    """(N, H, W) float32, error maps, where they were to be kept."""
    sums: ErrorSums
    features: Floats
    """(N, D) of the encoder."""
    squared_error: float
    """Mean of (x - x̂)² over all pictures and pixels."""


def observed(
    images: Rows,
    forward: Forward,
    rule: ScoringRule,
    throughput: Throughput,
    tick: Callable[[int], None],
    *,
    keep_errors: bool,
    zeros: Zeros = np.zeros,
) -> Observed:
    """One pass over good pictures (N ≥ 1, S, S, C). `tick` is told how many pictures were done, and may raise to stop; `zeros` makes room
    for the maps that are kept."""
    maps, features, squared = zeros(images.shape[:3], np.float32) if keep_errors else None, [], 0.0
    sums = ErrorSums(0, np.zeros(images.shape[1:3]), np.zeros(images.shape[1:3]))

    def seen(pictures: Floats) -> Floats:
        rebuilt, found = forward.with_features(pictures)
        features.append(found)
        return rebuilt

    for part, errors, pictures, rebuilt in iter_errors(images, seen, rule, throughput):
        if maps is not None:
            maps[part] = errors
        sums = sums + ErrorSums.of(errors)
        squared += float(np.square(pictures - rebuilt).mean(dtype=np.float64)) * len(errors)
        tick(len(errors))
    return Observed(maps, sums, np.concatenate(features), squared / len(images))


def unexplained_share(images: Rows, squared_error: float, train: Rows, mode: str) -> float:
    """Share of the variance of good pictures (M ≥ 1, S, S, C) that their reconstructions leave, 0..1.

    Args:
        images: good pictures, held out of training where there are any.
        squared_error: mean (x - x̂)² of these.
        train: training pictures, whose mean is what a picture is compared with.
        mode: as for `standardise`.
    """
    variance = spread_about(images, mean_picture(train, mode), mode)
    return min(1.0, squared_error / variance) if variance > 0 else 0.0


def collected_errors(
    images: Rows, reconstruct: Reconstruct, rule: ScoringRule, throughput: Throughput, tick: Callable[[int], None]
) -> Floats:
    """Error maps of all `images`, (N, H, W). `tick` is told how many pictures were done, and may raise to stop."""
    maps = np.zeros(images.shape[:3], np.float32)
    for part, errors, _, _ in iter_errors(images, reconstruct, rule, throughput):
        maps[part] = errors
        tick(len(errors))
    return maps


def summed_errors(
    images: Rows, reconstruct: Reconstruct, rule: ScoringRule, throughput: Throughput, tick: Callable[[int], None]
) -> ErrorSums:
    """Sums over the error maps of `images`, which are not kept."""
    sums = ErrorSums(0, np.zeros(images.shape[1:3]), np.zeros(images.shape[1:3]))
    for _, errors, _, _ in iter_errors(images, reconstruct, rule, throughput):
        sums = sums + ErrorSums.of(errors)
        tick(len(errors))
    return sums


def score_pictures(
    images: Rows,
    reconstruct: Reconstruct | Forward,
    calibration: Calibration,
    *,
    throughput: Throughput | None = None,
    tick: Callable[[int], None] | None = None,
    zeros: Zeros = np.zeros,
) -> Scored:
    """Anomaly maps and scores of any pictures.

    Args:
        images: (N, S, S, C) uint8.
        reconstruct: the model's forward pass, without the calibration's offset; a `Forward` where the calibration also judges whole
            pictures.
        calibration: of the run that trained it.
        throughput: fed batch by batch.
        tick: told how many more pictures are done; may raise to stop.
        zeros: makes room for maps, inputs and reconstructions.

    Raises:
        DataError: size or channels are not those of training.
    """
    size, channels = calibration.size, calibration.channels
    if images.shape[1:] != (size, size, channels):
        raise DataError(_WRONG_SHAPE.format(size=size, channels=channels, shape=images.shape))
    maps = zeros(images.shape[:3], np.float32)
    inputs, reconstructions = zeros(images.shape, np.uint8), zeros(images.shape, np.uint8)
    whole, scores = calibration.whole, np.zeros(len(images))
    features: list[Floats] = []

    def seen(pictures: Floats) -> Floats:
        rebuilt, found = reconstruct.with_features(pictures)  # type: ignore[union-attr]
        features.append(found)
        return rebuilt

    def corrected(pictures: Floats) -> Floats:
        rebuilt = (reconstruct if whole is None else seen)(pictures)
        return rebuilt if calibration.offset is None else rebuilt + calibration.offset

    for part, errors, pictures, rebuilt in iter_errors(images, corrected, calibration.rule, throughput or Throughput()):
        found = calibration.applied(errors)
        maps[part], scores[part] = found, pooled(found, calibration.rule)
        if whole is not None:
            scores[part] += whole.added(images[part], features.pop())
        inputs[part], reconstructions[part] = _as_uint8(pictures), _as_uint8(rebuilt)
        if tick is not None:
            tick(len(errors))
    return Scored(maps, scores, inputs, reconstructions)


def pooled_errors(errors: Rows, calibration: Calibration) -> Doubles:
    """Scores (N,) of error maps (N, H, W) by their maps alone, without holding all maps at once."""
    by_part = (pooled(calibration.applied(errors[part]), calibration.rule) for part in parts(errors))
    return np.concatenate([np.empty(0), *by_part])


def _as_uint8(pictures: Floats) -> NDArray[np.uint8]:
    return np.round(np.clip(pictures, 0.0, 1.0) * 255.0).astype(np.uint8)
