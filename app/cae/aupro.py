"""AUPRO: area under the per-region overlap curve (Bergmann et al., IJCV 2021), exact. NumPy only."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.cae.metric_inputs import check_maps_and_masks

NO_REGION = "No mask marks a defect, so there is no region to overlap with: AUPRO needs test pictures with masks."
NO_GOOD_PIXEL = "The masks cover every pixel, so there is no false-positive rate: AUPRO needs unmarked pixels."
NOT_FINITE = "Some anomaly scores are NaN or infinite, so pixels cannot be ranked; expected finite numbers."


def aupro(maps: NDArray[Any], masks: NDArray[Any], *, fpr_limit: float = 0.3) -> float:
    """Mean over defect regions of the recall inside each, integrated over the false-positive rate in [0, fpr_limit], divided by the limit.

    Regions are 8-connected within an image; each counts the same, whatever its size. The false-positive rate is over all unmarked pixels of
    all images. A pixel is positive where score ≥ threshold; every distinct score is a threshold, the curve is joined linearly from (0, 0),
    and cut at the limit by interpolation.

    Args:
        maps: (N, H, W) raw floats.
        masks: (N, H, W) 0/1 or bool.
        fpr_limit: end of the integration range, in (0, 1].

    Raises:
        TypeError: maps are not floats, masks neither integers nor bool.
        ValueError: shapes or values do not fit, no region, no unmarked pixel, or scores that are not finite.
    """
    if not 0.0 < fpr_limit <= 1.0:
        raise ValueError(f"Expected fpr_limit in (0, 1], got {fpr_limit}.")
    check_maps_and_masks(maps, masks)
    if not np.isfinite(maps).all():
        raise ValueError(NOT_FINITE)
    regions, count = label_regions(masks)
    if not count:
        raise ValueError(NO_REGION)
    marked = regions > 0
    unmarked = np.sort(maps[~marked])
    if not unmarked.size:
        raise ValueError(NO_GOOD_PIXEL)
    # The curve bends only where the score of some pixel is met; below the score at which the limit is passed nothing counts.
    passed = unmarked[max(0, unmarked.size - 1 - int(np.ceil(fpr_limit * unmarked.size)))]
    inside, owner = maps[marked], regions[marked]
    share = 1.0 / (np.bincount(owner)[owner] * count)
    thresholds = np.unique(np.r_[inside[inside >= passed], unmarked[np.searchsorted(unmarked, passed) :]])[::-1]
    fpr = (unmarked.size - np.searchsorted(unmarked, thresholds, side="left")) / unmarked.size
    order = np.argsort(inside)
    recalled = np.r_[np.cumsum(share[order][::-1])[::-1], 0.0]
    overlap = recalled[np.searchsorted(inside[order], thresholds, side="left")]
    return area_up_to(np.r_[0.0, fpr], np.r_[0.0, overlap], fpr_limit) / fpr_limit


def area_up_to(x: NDArray[np.float64], y: NDArray[np.float64], limit: float) -> float:
    """Trapezoids under (x ascending, y) up to `limit`, the last one cut there."""
    within = int(np.searchsorted(x, limit, side="right"))
    area = float(np.trapezoid(y[:within], x[:within]))
    if within < len(x) and x[within - 1] < limit:
        end = y[within - 1] + (y[within] - y[within - 1]) * (limit - x[within - 1]) / (x[within] - x[within - 1])
        area += float((limit - x[within - 1]) * (y[within - 1] + end) / 2.0)
    return area


def label_regions(masks: NDArray[Any]) -> tuple[NDArray[np.int64], int]:
    """8-connected regions of each image, numbered from 1 over all images; 0 where nothing is marked.

    Runs of marked pixels in a row are the nodes, touching runs of neighbouring rows the edges; every node takes the smallest number it can
    reach. Regions of different images never touch.

    Args:
        masks: (N, H, W) 0/1 or bool.

    Returns:
        int64 (N, H, W), and the number of regions.
    """
    count, height, width = masks.shape
    rows = np.zeros((count * height, width + 1), np.int8)
    rows[:, :width] = masks.reshape(-1, width) != 0
    edges = np.diff(np.pad(rows, ((0, 0), (1, 0))).ravel(), prepend=np.int8(0))
    begins, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    row, left = np.divmod(begins, width + 2)
    right = ends - begins + left
    first, second = _touching(row, left, right, height)
    roots = _smallest_reachable(len(begins), first, second)
    numbers, labels = np.unique(roots, return_inverse=True)
    regions = np.zeros((count * height, width), np.int64)
    flat = regions.ravel()
    starts = row * width + left - 1
    lengths = right - left
    places = np.repeat(starts - np.r_[0, np.cumsum(lengths)[:-1]] if len(lengths) else starts, lengths) + np.arange(lengths.sum())
    flat[places] = np.repeat(labels + 1, lengths)
    return regions.reshape(masks.shape), len(numbers)


def _touching(
    row: NDArray[np.intp], left: NDArray[np.intp], right: NDArray[np.intp], height: int
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Pairs of runs [left, right) of neighbouring rows of one image that touch, corners included."""
    span = int(right.max(initial=0)) + 2
    keys_left, keys_right = row * span + left, row * span + right
    # Runs of the row above that end at or after our left edge and begin at or before our right edge: a contiguous stretch.
    above = np.where(row % height > 0, (row - 1) * span, -span)
    low = np.searchsorted(keys_right, above + left, side="left")
    high = np.searchsorted(keys_left, above + right, side="right")
    number = np.maximum(high - low, 0)
    first = np.repeat(np.arange(len(row)), number)
    offset = np.arange(number.sum()) - np.repeat(np.cumsum(number) - number, number)
    return first, np.repeat(low, number) + offset


def _smallest_reachable(count: int, first: NDArray[np.intp], second: NDArray[np.intp]) -> NDArray[np.intp]:
    """For each of `count` nodes the smallest node it is joined with by the edges (first, second): hooking and pointer jumping."""
    parent = np.arange(count)
    while True:
        low = np.minimum(parent[first], parent[second])
        high = np.maximum(parent[first], parent[second])
        before = parent.copy()
        np.minimum.at(parent, high, low)
        while True:
            jumped = parent[parent]
            if np.array_equal(jumped, parent):
                break
            parent = jumped
        if np.array_equal(parent, before):
            return parent
