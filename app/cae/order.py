"""Order statistics of float32 values that need not lie in memory, exact. NumPy only."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from app.cae.rows import Rows, parts

_HALF = 2**16


def quantiles(values: Rows, levels: Sequence[float]) -> list[float]:
    """`numpy.quantile(values, levels)` (linear between neighbours) of all values, float32, none of them NaN; the same to the last bit."""
    if isinstance(values, np.ndarray):
        return [float(value) for value in np.quantile(values, levels)]
    places = [level * (values.size - 1) for level in levels]
    ranks = sorted({near for place in places for near in (math.floor(place), math.ceil(place))})
    found = dict(zip(ranks, at_ranks(values, ranks), strict=True))
    return [_between(found[math.floor(place)], found[math.ceil(place)], place - math.floor(place)) for place in places]


def _between(low: np.float32, high: np.float32, share: float) -> float:
    """Linear, from the nearer end, as NumPy computes it."""
    step = np.float64(high - low)
    return float(low + step * share) if share < 0.5 else float(high - step * (1.0 - share))


def at_ranks(values: Rows, ranks: Sequence[int]) -> list[np.float32]:
    """The values at these places (0 is the least) of all values, float32, in ascending order; two passes over them."""
    upper = np.zeros(_HALF, np.int64)
    for part in parts(values):
        upper += np.bincount(_keys(values[part]) >> 16, minlength=_HALF)
    ends = np.cumsum(upper)
    bins = np.searchsorted(ends, ranks, side="right")
    lower = {int(number): np.zeros(_HALF, np.int64) for number in bins}
    for part in parts(values):
        keys = _keys(values[part])
        of_bin = keys >> 16
        for number, counts in lower.items():
            counts += np.bincount(keys[of_bin == number] & (_HALF - 1), minlength=_HALF)
    found = []
    for rank, number in zip(ranks, bins.tolist(), strict=True):
        within = rank - (int(ends[number - 1]) if number else 0)
        found.append(_value(number << 16 | int(np.searchsorted(np.cumsum(lower[number]), within, side="right"))))
    return found


def _keys(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Whole numbers in the order of the values: a float's bits, those of negative ones turned round."""
    bits = np.ascontiguousarray(values, np.float32).ravel().view(np.uint32)
    return bits ^ np.where(bits >> 31, np.uint32(0xFFFFFFFF), np.uint32(0x80000000))


def _value(key: int) -> np.float32:
    """The reverse of `_keys`."""
    bits = key ^ (0x80000000 if key >> 31 else 0xFFFFFFFF)
    return np.uint32(bits).view(np.float32)
