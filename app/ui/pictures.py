"""Pictures of results as RGB arrays: heat maps on one scale for a whole run, overlays, contours. Pure, no page and no file."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import plotly.colors
from numpy.typing import NDArray
from PIL import Image

from app.ui.palette import THRESHOLD

Rgb = NDArray[np.uint8]
"""(H, W, 3)."""
Map = NDArray[np.float32]
"""(H, W) anomaly map, raw."""

TRUTH = "#00C2C7"
"""Contour of the ground truth; the prediction's is `palette.THRESHOLD`, the colour of the threshold line on every chart."""
PREDICTION = THRESHOLD


@dataclass(frozen=True)
class Scale:
    """The anomaly values drawn as the darkest and the brightest colour. One for all pictures of a run, so that they compare."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not (np.isfinite(self.low) and np.isfinite(self.high) and self.high > self.low):
            raise ValueError(f"Scale: expected finite low < high, got {self.low} and {self.high}.")

    def of(self, values: Map) -> NDArray[np.float32]:
        """`values` on 0..1, clipped; NaN becomes 0."""
        shares = (np.asarray(values, np.float32) - np.float32(self.low)) / np.float32(self.high - self.low)
        clipped: NDArray[np.float32] = np.clip(np.nan_to_num(shares, nan=0.0), 0.0, 1.0)
        return clipped


def robust_scale(maps: NDArray[np.float32], low_quantile: float = 0.5, high_quantile: float = 0.999) -> Scale:
    """A scale from quantiles of (N, H, W) maps of good pictures. A constant or empty stack gives a scale of width 1 around it."""
    values = np.asarray(maps)[np.isfinite(maps)]
    if not values.size:
        return Scale(0.0, 1.0)
    low, high = (float(np.quantile(values, quantile)) for quantile in (low_quantile, high_quantile))
    return Scale(low, high) if high > low else Scale(low, low + 1.0)


def to_rgb(picture: NDArray[np.uint8]) -> Rgb:
    """A picture of shape (H, W), (H, W, 1) or (H, W, 3) as (H, W, 3)."""
    pixels = picture[..., None] if picture.ndim == 2 else picture
    return np.ascontiguousarray(np.broadcast_to(pixels, (*pixels.shape[:2], 3)), dtype=np.uint8)


def enlarged(picture: NDArray[np.uint8], side: int) -> Rgb:
    """`picture` as RGB with its longer side at least `side` px, smoothly interpolated; never made smaller."""
    rgb = to_rgb(picture)
    return np.asarray(Image.fromarray(rgb).resize(_size(rgb, side), Image.Resampling.BICUBIC), dtype=np.uint8)


def enlarged_map(values: Map, side: int) -> Map:
    """An anomaly map enlarged as `enlarged` does it, its values linearly interpolated."""
    image = Image.fromarray(np.nan_to_num(np.asarray(values, np.float32)))
    return np.asarray(image.resize(_size(values, side), Image.Resampling.BILINEAR), dtype=np.float32)


def enlarged_mask(mask: NDArray[np.uint8] | NDArray[np.bool_], side: int) -> NDArray[np.bool_]:
    """A mask enlarged as `enlarged` does it, its edges kept where they are."""
    image = Image.fromarray(np.asarray(mask, dtype=np.bool_).astype(np.uint8) * 255)
    return np.asarray(image.resize(_size(mask, side), Image.Resampling.NEAREST)) > 127


def heat(values: Map, scale: Scale) -> Rgb:
    """The map in the colours of `colour_table`."""
    return colour_table()[np.round(scale.of(values) * 255).astype(np.uint8)]


def blended(picture: NDArray[np.uint8], values: Map, scale: Scale, opacity: float) -> Rgb:
    """The heat map over its picture.

    Args:
        picture: (H, W), (H, W, 1) or (H, W, 3).
        values: (H, W).
        scale: of the run.
        opacity: 0 shows the picture alone, 1 the heat map alone. In between, low values let more of the picture through
            (weight opacity · v^(1 - opacity) for a value v on 0..1), so that what is normal stays recognisable.
    """
    opacity = min(1.0, max(0.0, opacity))
    shares = scale.of(values)
    weight = (opacity * np.power(shares, 1.0 - opacity))[..., None]
    mixed = to_rgb(picture) * (1.0 - weight) + heat(values, scale) * weight
    return np.round(mixed).astype(np.uint8)


def outline(mask: NDArray[np.bool_], thickness: int = 1) -> NDArray[np.bool_]:
    """The inner border of what `mask` (H, W) marks, `thickness` px wide; the picture's own edge counts as border."""
    marked = inner = np.asarray(mask, dtype=np.bool_)
    for _ in range(max(1, thickness)):
        padded = np.pad(inner, 1)
        inner = inner & padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
    border: NDArray[np.bool_] = marked & ~inner
    return border


def with_outline(picture: NDArray[np.uint8], mask: NDArray[np.bool_], colour: str, thickness: int = 2) -> Rgb:
    """A copy of `picture` with the border of `mask` drawn in `colour` (`#rrggbb`)."""
    drawn = to_rgb(picture).copy()
    drawn[outline(mask, thickness)] = _channels(colour)
    return drawn


def grid(rows: Sequence[Sequence[Rgb]], gap: int = 8) -> NDArray[np.uint8]:
    """Pictures of one size in rows, `gap` px between them, as RGBA: what is empty is transparent, so that it suits any page."""
    side = rows[0][0].shape[0]
    step, columns = side + gap, max(len(row) for row in rows)
    canvas = np.zeros((len(rows) * step - gap, columns * step - gap, 4), np.uint8)
    for down, row in enumerate(rows):
        for along, picture in enumerate(row):
            place = canvas[down * step : down * step + side, along * step : along * step + side]
            place[..., :3], place[..., 3] = picture, 255
    return canvas


def colour_bar(width: int = 256, height: int = 12) -> Rgb:
    """The colours from the low end to the high end, left to right."""
    line = colour_table()[np.linspace(0, 255, width).round().astype(np.uint8)]
    return np.ascontiguousarray(np.broadcast_to(line, (height, width, 3)))


@functools.cache
def colour_table() -> Rgb:
    """(256, 3): Inferno, whose lightness rises evenly, so that it also reads in grey and by people who do not see all colours."""
    stops = np.array([_channels(colour) for colour in plotly.colors.sequential.Inferno], dtype=np.float64)
    places = np.linspace(0, len(stops) - 1, 256)
    table = np.stack([np.interp(places, np.arange(len(stops)), stops[:, channel]) for channel in range(3)], axis=1)
    rounded = table.round().astype(np.uint8)
    rounded.flags.writeable = False
    return rounded


def _channels(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _size(picture: NDArray[np.generic], side: int) -> tuple[int, int]:
    """(width, height) for Pillow."""
    height, width = picture.shape[:2]
    factor = max(1.0, side / max(height, width))
    return round(width * factor), round(height * factor)
