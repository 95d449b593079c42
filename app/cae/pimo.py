"""PIMO curves and AUPIMO (Bertoldo et al., arXiv 2401.01984), with the thresholds of the reference implementation. NumPy only.

The reference (anomalib 2.7, jpcbertoldo/aupimo) counts true and false positives of each image at 300 000 thresholds. The area is linear
in the pixels of a mask, though: each pixel adds the trapezoid weights of the thresholds it reaches. So one sort of the normal pixels and
one look-up of each marked pixel give the same number, in a hundredth of the time and memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.cae.metric_inputs import check_maps_and_masks

Doubles = NDArray[np.float64]

FEWEST_POINTS = 30
"""Thresholds between the bounds at or below which the reference refuses, unless forced."""

FEW_POINTS = 300
"""Thresholds between the bounds below which the reference warns."""

FEW_LEVELS = 30
"""Distinct false-positive rates between the bounds below which the value is coarse."""

BOUND_TOLERANCE = 1e-2
"""Relative distance of a real bound from the one asked for, beyond which the reference warns."""

NO_ANOMALOUS = "Expected at least one anomalous image (a mask that marks something), got none: AUPIMO is the recall on them."
NO_NORMAL = "Expected at least one normal image (an empty mask), got none: AUPIMO takes its false-positive rate from them."
FLAT = "All pixels of the normal images have the same score ({value}), so there is no range of thresholds. Keep the raw float maps."
NOT_INCREASING = (
    "{count} thresholds between the smallest and the largest normal score ({low} and {high}) are not strictly increasing in {dtype}: "
    "scores are NaN or infinite, or their offset is large against their range. Subtract the offset, use float64 maps or fewer thresholds."
)
OUT_OF_RANGE = (
    "The false-positive rate {level:g} is out of the range [{least:.3g}, 1] that {pixels} normal pixels can reach. It needs at least "
    "{needed} normal pixels without ties at the top: add good test pictures, use larger maps, or raise fpr_bounds."
)
SAME_THRESHOLD = (
    "Both fpr_bounds {bounds} fall on the same threshold: the normal scores have too few distinct values between them. Widen fpr_bounds, "
    "or keep the raw float maps."
)
TOO_FEW_POINTS = (
    "Only {points} thresholds lie between fpr_bounds {bounds}, expected more than {fewest}: a few extreme normal pixels stretch the range "
    "of thresholds. Raise num_thresholds, or pass force=True to accept the coarse value."
)
COARSE = "Coarse: {levels} distinct false-positive rates lie between the bounds; each normal image more refines it."
INACCURATE = "Only {points} thresholds lie between the bounds, fewer than 300: raise num_thresholds for an accurate value."
BOUND_MISSED = "The {which} bound {asked:g} is met only at {real:.4g}: the normal pixels do not allow a nearer one."


@dataclass(frozen=True)
class Aupimo:
    """AUPIMO of each image and their mean."""

    per_image: Doubles
    """(N,) in 0..1; NaN for normal images."""
    mean: float
    """Over the anomalous images."""
    num_points: int
    """Thresholds that the integral runs over."""
    fpr_lower: float
    """Real false-positive rate at the lower bound."""
    fpr_upper: float
    """Real false-positive rate at the upper bound."""
    threshold_at_lower: float
    """Score at which the false-positive rate is `fpr_lower`; the larger threshold."""
    threshold_at_upper: float
    fpr_bounds: tuple[float, float]
    """As asked for."""
    warnings: tuple[str, ...] = ()
    """What makes the value less exact than it looks."""


@dataclass(frozen=True)
class PimoCurves:
    """Recall on each image over the shared false-positive rate."""

    thresholds: NDArray[Any]
    """(K,) ascending."""
    shared_fpr: Doubles
    """(K,) descending."""
    per_image_tprs: Doubles
    """(N, K) descending; NaN for normal images."""


def aupimo(
    maps: NDArray[Any],
    masks: NDArray[Any],
    *,
    fpr_bounds: tuple[float, float] = (1e-5, 1e-4),
    num_thresholds: int = 300_000,
    force: bool = False,
) -> Aupimo:
    """Area under each image's PIMO curve between `fpr_bounds`, over the logarithm of the false-positive rate, divided by ln(upper / lower).

    A pixel is positive where score ≥ threshold. Thresholds are spread evenly between the smallest and the largest score of the normal
    images; the bounds are the thresholds whose mean false-positive rate is nearest to them, the lower threshold on a tie.

    Args:
        maps: (N, H, W) raw floats, larger is worse.
        masks: (N, H, W) 0/1 or bool; an image whose mask is empty is normal.
        fpr_bounds: lower and upper false-positive rate, 0 < lower < upper ≤ 1.
        num_thresholds: as many as published numbers use.
        force: accept 30 or fewer thresholds between the bounds.

    Raises:
        TypeError: bounds are no tuple of numbers, num_thresholds no integer, maps not floats, masks neither integers nor bool.
        ValueError: bounds or shapes or mask values do not fit; no normal or no anomalous image; flat, infinite or NaN normal maps; the
            lower bound is below the smallest false-positive rate there is.
        RuntimeError: both bounds fall on one threshold, or 30 or fewer lie between them.
    """
    _check_bounds(fpr_bounds)
    anomalous = _check(maps, masks, num_thresholds)
    normal = np.sort(maps[~anomalous], axis=None)
    thresholds = spread_thresholds(normal[0], normal[-1], num_thresholds)  # NaN sorts last
    positives = normal.size - np.searchsorted(normal, thresholds, side="left")

    def areas(window: slice, fpr: Doubles) -> Doubles:
        return pimo_areas(maps[anomalous], masks[anomalous], thresholds[window], fpr)

    return aupimo_from_counts(anomalous, thresholds, positives, normal.size, areas, fpr_bounds, force=force)


def aupimo_from_counts(
    anomalous: NDArray[np.bool_],
    thresholds: NDArray[Any],
    positives: NDArray[np.int64],
    pixels: int,
    areas: Callable[[slice, Doubles], Doubles],
    fpr_bounds: tuple[float, float] = (1e-5, 1e-4),
    *,
    force: bool = False,
) -> Aupimo:
    """The last step of `aupimo`, for whoever counts in another way.

    Args:
        anomalous: (N,) images with a mask.
        thresholds: (K,) ascending.
        positives: (K,) pixels of normal images that reach each threshold.
        pixels: of all normal images.
        areas: told the thresholds between the bounds and their false-positive rates; `pimo_areas` of the anomalous images.
        fpr_bounds: see `aupimo`.
        force: see `aupimo`.

    Raises:
        ValueError, RuntimeError: see `aupimo`.
    """
    lower, upper = fpr_bounds
    at_lower, at_upper = (_nearest(positives, pixels, level) for level in (lower, upper))
    if at_upper >= at_lower:
        raise RuntimeError(SAME_THRESHOLD.format(bounds=fpr_bounds))
    window = slice(at_upper, at_lower + 1)
    points = at_lower + 1 - at_upper
    if points <= FEWEST_POINTS and not force:
        raise RuntimeError(TOO_FEW_POINTS.format(points=points, bounds=fpr_bounds, fewest=FEWEST_POINTS))
    fpr = positives[window] / pixels
    per_image = np.full(len(anomalous), np.nan)
    per_image[anomalous] = areas(window, fpr) / math.log(upper / lower)
    np.clip(per_image, 0.0, 1.0, out=per_image)
    return Aupimo(
        per_image,
        float(np.nanmean(per_image)),
        points,
        float(fpr[-1]),
        float(fpr[0]),
        float(thresholds[at_lower]),
        float(thresholds[at_upper]),
        (float(lower), float(upper)),
        _warnings(positives[window], fpr, fpr_bounds),
    )


def pimo_curves(
    maps: NDArray[Any], masks: NDArray[Any], *, num_thresholds: int = 1001, thresholds: NDArray[Any] | None = None
) -> PimoCurves:
    """The curves at few thresholds, for drawing.

    Args:
        maps: (N, H, W) raw floats.
        masks: (N, H, W) 0/1 or bool.
        num_thresholds: spread evenly between the smallest and the largest normal score, as the reference does.
        thresholds: others, ascending, in place of those; for a smooth curve take them from `thresholds_at_fpr`.

    Raises:
        TypeError, ValueError: as `aupimo`.
    """
    anomalous = _check(maps, masks, num_thresholds)
    normal = np.sort(maps[~anomalous], axis=None)
    chosen = spread_thresholds(normal[0], normal[-1], num_thresholds) if thresholds is None else thresholds
    fpr = (normal.size - np.searchsorted(normal, chosen, side="left")) / normal.size
    tprs = np.full((len(maps), len(chosen)), np.nan)
    for place in np.flatnonzero(anomalous):
        inside = np.sort(maps[place][masks[place].astype(bool)])
        tprs[place] = (inside.size - np.searchsorted(inside, chosen, side="left")) / inside.size
    return PimoCurves(chosen, fpr, tprs)


def thresholds_at_fpr(maps: NDArray[Any], masks: NDArray[Any], levels: NDArray[np.float64]) -> NDArray[Any]:
    """Normal scores, ascending and distinct, at which the false-positive rate is about each of `levels`."""
    normal = np.sort(maps[~_check(maps, masks, 2)], axis=None)
    places = np.clip(normal.size - np.ceil(levels * normal.size).astype(np.int64), 0, normal.size - 1)
    return np.unique(normal[places])


def _check_bounds(bounds: object) -> None:
    if not isinstance(bounds, tuple):
        raise TypeError(f"Expected fpr_bounds as a tuple (lower, upper), got {type(bounds).__name__}.")
    if len(bounds) != 2:
        raise ValueError(f"Expected fpr_bounds as two numbers (lower, upper), got {len(bounds)}.")
    for bound in bounds:
        if isinstance(bound, bool) or not isinstance(bound, (int, float)):
            raise TypeError(f"Expected fpr_bounds as numbers, got {type(bound).__name__}.")
    lower, upper = bounds
    if not 0.0 < lower < upper <= 1.0:
        raise ValueError(f"Expected fpr_bounds with 0 < lower < upper ≤ 1 (the integral runs over ln F, so 0 is no bound), got {bounds}.")


def _check(maps: NDArray[Any], masks: NDArray[Any], num_thresholds: object) -> NDArray[np.bool_]:
    """(N,) whether an image is anomalous."""
    if isinstance(num_thresholds, bool) or not isinstance(num_thresholds, (int, np.integer)):
        raise TypeError(f"Expected num_thresholds as an integer, got {type(num_thresholds).__name__}.")
    if num_thresholds < 2:
        raise ValueError(f"Expected num_thresholds of at least 2, got {num_thresholds}.")
    check_maps_and_masks(maps, masks)
    anomalous: NDArray[np.bool_] = np.asarray(masks.any(axis=(1, 2)))
    if not anomalous.any():
        raise ValueError(NO_ANOMALOUS)
    if anomalous.all():
        raise ValueError(NO_NORMAL)
    return anomalous


def spread_thresholds(low: np.floating[Any], high: np.floating[Any], count: int) -> NDArray[Any]:
    """`count` thresholds from the smallest to the largest normal score, rounded as `torch.linspace` rounds in the maps' dtype.

    Raises:
        ValueError: there is no range, or it does not hold so many distinct ones.
    """
    if high <= low:
        raise ValueError(FLAT.format(value=low))
    # torch.linspace: the step in the maps' dtype, from either end towards the middle, each threshold rounded once (fused multiply-add).
    wide = np.longdouble if low.dtype.itemsize >= 8 else np.float64
    place = np.arange(count)
    with np.errstate(invalid="ignore", over="ignore"):
        step = wide((high - low) / low.dtype.type(count - 1))
        exact = np.where(place < count // 2, wide(low) + step * place, wide(high) - step * (count - 1 - place))
        thresholds = exact.astype(low.dtype)
        distinct = bool(np.all(np.diff(thresholds) > 0))
    if not distinct:
        raise ValueError(NOT_INCREASING.format(count=count, low=low, high=high, dtype=low.dtype))
    return thresholds


def _nearest(positives: NDArray[np.int64], pixels: int, level: float) -> int:
    """Index of the threshold whose false-positive rate is nearest to `level`, the first on a tie."""
    least = positives[-1] / pixels
    if level < least:
        raise ValueError(OUT_OF_RANGE.format(level=level, least=least, pixels=pixels, needed=math.ceil(1 / level)))
    if level == 1.0:  # the highest threshold that every normal pixel reaches
        return int(np.searchsorted(-positives, -pixels, side="right")) - 1
    return int(np.argmin(np.abs(positives / pixels - level)))


def pimo_areas(maps: NDArray[Any], masks: NDArray[Any], thresholds: NDArray[Any], fpr: Doubles) -> Doubles:
    """(N,) ∫ recall d(ln F) over the thresholds (ascending) with false-positive rates `fpr` (descending).

    A trapezoid sum gives threshold j the weight w_j; recall is the mean over the mask's pixels of "reaches threshold j". So an image's area
    is the mean over its pixels of w_0 + … + w_{c-1}, c being the number of thresholds the pixel reaches. NaN reaches all.
    """
    steps = -np.diff(np.log(fpr)) / 2.0
    weights = np.r_[steps, 0.0] + np.r_[0.0, steps]
    reached_sum = np.r_[0.0, np.cumsum(weights)]
    marked = masks.astype(bool, copy=False)
    reached = np.searchsorted(thresholds, maps[marked], side="right")
    image = np.repeat(np.arange(len(maps)), marked.sum(axis=(1, 2)))
    pixels = np.bincount(image, minlength=len(maps))
    result: Doubles = np.bincount(image, weights=reached_sum[reached], minlength=len(maps)) / pixels
    return result


def _warnings(positives: NDArray[np.int64], fpr: Doubles, bounds: tuple[float, float]) -> tuple[str, ...]:
    found = [
        BOUND_MISSED.format(which=which, asked=asked, real=real)
        for which, asked, real in (("lower", bounds[0], fpr[-1]), ("upper", bounds[1], fpr[0]))
        if abs(real - asked) > BOUND_TOLERANCE * asked
    ]
    levels = len(np.unique(positives))
    if levels < FEW_LEVELS:
        found.append(COARSE.format(levels=levels))
    if len(fpr) < FEW_POINTS:
        found.append(INACCURATE.format(points=len(fpr)))
    return tuple(found)
