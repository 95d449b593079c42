"""Pixel figures of test sets whose maps do not fit into memory: the numbers of `app.cae.metrics`, counted part by part.

Everything here is a count of pixels over thresholds, so parts add up. What stays in memory are the marked pixels, 20 to 60 bytes each.
Pixel AUROC and AUPIMO are the same to the last bit; AUPRO within rounding (1e-12), since its terms are added in another order. NumPy only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from app.cae import metrics
from app.cae.aupro import NO_GOOD_PIXEL, NO_REGION, area_up_to, label_regions
from app.cae.metrics import NOT_FINITE, ONE_CLASS
from app.cae.pimo import NO_ANOMALOUS, NO_NORMAL, Aupimo, Doubles, aupimo_from_counts, pimo_areas, spread_thresholds
from app.cae.rows import Rows, parts

BYTES_A_PIXEL = 32
"""What the figures of `app.cae.metrics` take of memory at their peak, maps and masks included: sorted copies, region numbers, the AUPRO
curve. Measured with 1000 maps of 256 px: 28."""

ALWAYS_MIB = 64.0
"""That much is taken in any case: the few test pictures of a large set need no other way."""

NUM_THRESHOLDS, FPR_LIMIT = 300_000, 0.3
"""As `metrics.aupimo` and `metrics.aupro` have them."""


class PixelMetrics(Protocol):
    """Pixel figures of one test set; each raises ValueError, AUPIMO also RuntimeError, as the function in `app.cae.metrics` does."""

    @property
    def any_marked(self) -> bool:
        """Whether any mask marks anything."""

    def pixel_auroc(self) -> float:
        """See `metrics.pixel_auroc`."""

    def aupro(self) -> float:
        """See `metrics.aupro`."""

    def aupimo(self) -> Aupimo:
        """See `metrics.aupimo`."""


def pixel_metrics(maps: Rows, masks: Rows, memory_mib: float) -> PixelMetrics:
    """Figures of maps (N, H, W) float32 and masks (N, H, W) uint8 0/1: in memory where they need no more than `memory_mib`."""
    needed = float(np.prod(maps.shape, dtype=np.float64)) * BYTES_A_PIXEL / 2**20
    if needed <= max(ALWAYS_MIB, memory_mib):
        return InMemory(np.asarray(maps), np.asarray(masks))
    return ByParts(maps, masks)


@dataclass(frozen=True)
class InMemory:
    """All pixels at once."""

    maps: NDArray[np.float32]
    masks: NDArray[np.uint8]

    @property
    def any_marked(self) -> bool:
        return bool(self.masks.any())

    def pixel_auroc(self) -> float:
        return metrics.pixel_auroc(self.maps, self.masks)

    def aupro(self) -> float:
        return metrics.aupro(self.maps, self.masks)

    def aupimo(self) -> Aupimo:
        return metrics.aupimo(self.maps, self.masks)


@dataclass(frozen=True)
class ByParts:
    """A few pictures at a time."""

    maps: Rows
    masks: Rows

    @property
    def any_marked(self) -> bool:
        return any(self.masks[part].any() for part in parts(self.masks))

    def pixel_auroc(self) -> float:
        marked = np.sort(np.concatenate([maps[masks] for maps, masks in self._parts()]))
        below = pixels = 0
        for maps, masks in self._parts():
            good = np.sort(maps[~masks])  # good pixels are looked up in marked ones: each once, however many parts there are
            below += 2 * marked.size * good.size
            below -= int(np.searchsorted(marked, good, side="left").sum(dtype=np.int64))
            below -= int(np.searchsorted(marked, good, side="right").sum(dtype=np.int64))
            pixels += good.size
        if not pixels or not marked.size:
            raise ValueError(ONE_CLASS.format(good=pixels, defective=marked.size, things="pixels"))
        pairs = pixels * marked.size
        # As `metrics` divides: the smaller set is looked up in the larger one.
        return float(below) / (2.0 * pairs) if marked.size <= pixels else 1.0 - float(2 * pairs - below) / (2.0 * pairs)

    def aupro(self) -> float:
        """The curve bends only at scores of marked pixels: between two of them the overlap stays, and unmarked pixels are counted."""
        inside, owner, count, pixels = [], [], 0, 0
        for maps, masks in self._parts():
            regions, more = label_regions(masks)
            inside.append(maps[masks])
            owner.append(regions[masks] + count)
            count, pixels = count + more, pixels + int((~masks).sum())
        scores, numbers = np.concatenate(inside), np.concatenate(owner)
        if not count:
            raise ValueError(NO_REGION)
        if not pixels:
            raise ValueError(NO_GOOD_PIXEL)
        levels, places = np.unique(scores, return_inverse=True)
        gained = np.bincount(places, weights=1.0 / (np.bincount(numbers)[numbers] * count), minlength=len(levels))
        lower, not_higher = np.zeros(len(levels) + 1, np.int64), np.zeros(len(levels) + 1, np.int64)
        for maps, masks in self._parts():
            good = np.sort(maps[~masks])
            _count(lower, np.searchsorted(levels, good, side="left"))
            _count(not_higher, np.searchsorted(levels, good, side="right"))
        # A good pixel is above the levels lower than it, and has reached those not higher.
        above, reached = pixels - np.cumsum(lower)[:-1], pixels - np.cumsum(not_higher)[:-1]
        overlap = np.cumsum(gained[::-1])
        fpr = np.stack([above[::-1], reached[::-1]], axis=1).ravel() / pixels
        recalled = np.stack([np.r_[0.0, overlap[:-1]], overlap], axis=1).ravel()
        return area_up_to(np.r_[0.0, fpr, 1.0], np.r_[0.0, recalled, 1.0], FPR_LIMIT) / FPR_LIMIT

    def aupimo(self) -> Aupimo:
        anomalous = np.concatenate([masks.any(axis=(1, 2)) for _, masks in self._parts()])
        if not anomalous.any():
            raise ValueError(NO_ANOMALOUS)
        if anomalous.all():
            raise ValueError(NO_NORMAL)
        ends = [(normal.min(), normal.max()) for normal in self._normal()]
        thresholds = spread_thresholds(min(low for low, _ in ends), max(high for _, high in ends), NUM_THRESHOLDS)
        positives, pixels = np.zeros(NUM_THRESHOLDS, np.int64), 0
        for normal in self._normal():
            positives += normal.size - np.searchsorted(np.sort(normal, axis=None), thresholds, side="left")
            pixels += normal.size

        def areas(window: slice, fpr: Doubles) -> Doubles:
            found = []
            for maps, masks in self._parts():
                of = masks.any(axis=(1, 2))
                found.append(pimo_areas(maps[of], masks[of], thresholds[window], fpr))
            return np.concatenate(found)

        return aupimo_from_counts(anomalous, thresholds, positives, pixels, areas)

    def _parts(self) -> Iterator[tuple[NDArray[np.float32], NDArray[np.bool_]]]:
        """Maps and what is marked of them. Raises ValueError where a score is not finite."""
        for part in parts(self.maps):
            maps = self.maps[part]
            if not np.isfinite(maps).all():
                raise ValueError(NOT_FINITE.format(things="pixels"))
            yield maps, self.masks[part] != 0

    def _normal(self) -> Iterator[NDArray[np.float32]]:
        for maps, masks in self._parts():
            normal = maps[~masks.any(axis=(1, 2))]
            if len(normal):
                yield normal


def _count(counts: NDArray[np.int64], places: NDArray[np.intp]) -> None:
    """Add 1 at each of `places`, which rise."""
    found, many = np.unique(places, return_counts=True)
    counts[found] += many
