"""Anomaly maps as pictures: one colour scale for a whole run, at the size of the picture they belong to. Pure, no page and no file."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Rgb = NDArray[np.uint8]
"""(H, W, 3)."""
Map = NDArray[np.float32]
"""(H, W) anomaly map, raw."""

# fmt: off
INFERNO = ("#000004", "#1b0c41", "#4a0c6b", "#781c6d", "#a52c60", "#cf4446", "#ed6925", "#fb9b06", "#f7d13d", "#fcffa4")
# fmt: on
"""Inferno of matplotlib (van der Walt and Smith, CC0) in ten steps. Its lightness rises evenly, so that it also reads in grey and by
people who do not see all colours."""


@dataclass(frozen=True)
class Scale:
    """The anomaly values drawn as the darkest and the brightest colour. One for all pictures of a run, so that they compare."""

    low: float
    high: float
    background_sigma: float = 0.0
    """Of the run's scores, px at a side of 128: a prediction holds what stands out of a map's own blur; 0: what is high in the map."""

    def __post_init__(self) -> None:
        if not (np.isfinite(self.low) and np.isfinite(self.high) and self.high > self.low):
            raise ValueError(f"Scale: expected finite low < high, got {self.low} and {self.high}.")

    def of(self, values: Map) -> NDArray[np.float32]:
        """`values` on 0..1, clipped; NaN becomes 0."""
        shares = (np.asarray(values, np.float32) - np.float32(self.low)) / np.float32(self.high - self.low)
        clipped: NDArray[np.float32] = np.clip(np.nan_to_num(shares, nan=0.0), 0.0, 1.0)
        return clipped


def heat(values: Map, scale: Scale) -> Rgb:
    """The map in the colours of `colour_table`."""
    return colour_table()[np.round(scale.of(values) * 255).astype(np.uint8)]


def map_at(values: Map, size: tuple[int, int]) -> Map:
    """An anomaly map brought to `size` = (width, height) px of its picture, its values linearly interpolated; NaN becomes 0.

    The network sees a square of every picture, so the two directions are stretched by different factors.
    """
    image = Image.fromarray(np.nan_to_num(np.asarray(values, np.float32)))
    return np.asarray(image.resize(size, Image.Resampling.BILINEAR), dtype=np.float32)


def heat_map(values: Map, scale: Scale, size: tuple[int, int]) -> Rgb:
    """The heat map of a picture of `size` = (width, height) px: (height, width, 3), in the run's colours."""
    return heat(map_at(values, size), scale)


@functools.cache
def colour_table() -> Rgb:
    """(256, 3): `INFERNO`, linear between its steps."""
    stops = np.array([channels_of(colour) for colour in INFERNO], dtype=np.float64)
    places = np.linspace(0, len(stops) - 1, 256)
    table = np.stack([np.interp(places, np.arange(len(stops)), stops[:, channel]) for channel in range(3)], axis=1)
    rounded = table.round().astype(np.uint8)
    rounded.flags.writeable = False
    return rounded


def channels_of(colour: str) -> tuple[int, int, int]:
    """Red, green and blue of `#rrggbb`."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
