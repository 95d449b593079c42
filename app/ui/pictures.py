"""Pictures of results as RGB arrays: heat maps on one scale for a whole run, overlays, contours. Pure, no page and no file."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from app.cae.heat_maps import Map, Rgb, Scale, channels_of, colour_table, heat, heat_map, map_at
from app.ui.palette import THRESHOLD

__all__ = [
    "PREDICTION",
    "TRUTH",
    "Map",
    "Rgb",
    "Scale",
    "blended",
    "colour_bar",
    "colour_table",
    "enlarged",
    "enlarged_map",
    "enlarged_mask",
    "fitted",
    "grid",
    "heat",
    "heat_map",
    "map_at",
    "mask_at",
    "outline",
    "picture_at",
    "robust_scale",
    "to_rgb",
    "with_outline",
]

TRUTH = "#00C2C7"
"""Contour of the ground truth; the prediction's is `palette.THRESHOLD`, the colour of the threshold line on every chart."""
PREDICTION = THRESHOLD


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
    return picture_at(picture, _size(picture, side))


def enlarged_map(values: Map, side: int) -> Map:
    """An anomaly map enlarged as `enlarged` does it, its values linearly interpolated."""
    return map_at(values, _size(values, side))


def enlarged_mask(mask: NDArray[np.uint8] | NDArray[np.bool_], side: int) -> NDArray[np.bool_]:
    """A mask enlarged as `enlarged` does it, its edges kept where they are."""
    return mask_at(mask, _size(mask, side))


def fitted(size: tuple[int, int], side: int) -> tuple[int, int]:
    """`size` = (width, height) with its longer side made `side` px, proportions kept; at least 1 px each way."""
    factor = side / max(size)
    return max(1, round(size[0] * factor)), max(1, round(size[1] * factor))


def picture_at(picture: NDArray[np.uint8], size: tuple[int, int]) -> Rgb:
    """`picture` as RGB of `size` = (width, height) px, smoothly interpolated."""
    rgb = to_rgb(picture)
    return rgb if rgb.shape[1::-1] == size else np.asarray(Image.fromarray(rgb).resize(size, Image.Resampling.BICUBIC), dtype=np.uint8)


def mask_at(mask: NDArray[np.uint8] | NDArray[np.bool_], size: tuple[int, int]) -> NDArray[np.bool_]:
    """A mask of `size` = (width, height) px, its edges kept where they are."""
    image = Image.fromarray(np.asarray(mask, dtype=np.bool_).astype(np.uint8) * 255)
    return np.asarray(image.resize(size, Image.Resampling.NEAREST)) > 127


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
    drawn[outline(mask, thickness)] = channels_of(colour)
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


def _size(picture: NDArray[np.generic], side: int) -> tuple[int, int]:
    """(width, height) for Pillow."""
    height, width = picture.shape[:2]
    factor = max(1.0, side / max(height, width))
    return round(width * factor), round(height * factor)
