"""Drawing clean textures, one object, and defects with their masks, from a random generator."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

Field = NDArray[np.float64]
"""(size, size) or (size, size, C), values in 0..1."""

Mask = NDArray[np.bool_]
"""(H, W)."""


def add_defect(clean: Field, ground: Mask, kind: str, contrast: float, extent: float, random: np.random.Generator) -> tuple[Field, Mask]:
    """A defect on a clean picture.

    Args:
        clean: (H, W, C) in 0..1, C = 1 or 3.
        ground: (H, W) where the thing inspected is; the defect stays on it.
        kind: one of `DEFECTS`.
        contrast: how far its pixels go from the clean ones, 0..1.
        extent: its size as a share of the side.
        random: draws place, shape and colour.

    Returns:
        The picture, and the mask (H, W), in which at least one pixel is set.
    """
    inside = np.argwhere(ground)
    row, column = inside[random.integers(len(inside))]
    shape = DEFECTS[kind](clean.shape[:2], float(row), float(column), max(2.0, extent * min(clean.shape[:2])), random) & ground
    shape[row, column] = True
    soft = ndimage.gaussian_filter(shape.astype(np.float64), 0.5)[..., None] * shape[..., None]
    picture = clean * (1 - soft) + _painted(clean, ground, kind, contrast, random) * soft
    return np.clip(picture, 0.0, 1.0), shape


def _painted(clean: Field, ground: Mask, kind: str, contrast: float, random: np.random.Generator) -> Field:
    """What stands where the defect is, (H, W, C)."""
    if kind == "missing":
        behind = clean[~ground].mean(axis=0) if not ground.all() else np.zeros(clean.shape[2])
        return np.broadcast_to(clean.mean(axis=(0, 1)) * (1 - contrast) + behind * contrast, clean.shape)
    if kind == "colour":
        tint = np.roll(np.array([1.0, -0.5, -0.5]), random.integers(3))[: clean.shape[2]]
        return np.clip(clean + contrast * 0.5 * tint, 0.0, 1.0)
    to = 1.0 if clean.mean() < 0.5 else 0.0
    if random.random() < 0.3:
        to = 1.0 - to
    return clean * (1 - contrast) + to * contrast


# Shapes of defects: (H, W) bool around a place


def _scratch(size: tuple[int, ...], row: float, column: float, extent: float, random: np.random.Generator) -> Mask:
    angle, bend = random.uniform(0, np.pi), random.normal(0, 0.3 / extent)
    rows, columns = np.mgrid[: size[0], : size[1]].astype(np.float64)
    along = (columns - column) * np.cos(angle) + (rows - row) * np.sin(angle)
    across = (rows - row) * np.cos(angle) - (columns - column) * np.sin(angle) - bend * along**2
    inside: Mask = (np.abs(along) <= extent) & (np.abs(across) <= max(0.7, extent / 16))
    return inside


def _spot(size: tuple[int, ...], row: float, column: float, extent: float, random: np.random.Generator) -> Mask:
    rows, columns = np.mgrid[: size[0], : size[1]].astype(np.float64)
    radius = extent / 4 * random.uniform(0.8, 1.3)
    inside: Mask = (rows - row) ** 2 + (columns - column) ** 2 <= max(1.0, radius) ** 2
    return inside


def _blob(size: tuple[int, ...], row: float, column: float, extent: float, random: np.random.Generator) -> Mask:
    rows, columns = np.mgrid[: size[0], : size[1]].astype(np.float64)
    distance = np.hypot(rows - row, columns - column)
    wobble = ndimage.gaussian_filter(random.normal(size=size), max(1.0, extent / 6), mode="wrap")
    inside: Mask = distance + wobble / (wobble.std() + 1e-9) * extent / 6 <= extent / 2
    return inside


def _missing(size: tuple[int, ...], row: float, column: float, extent: float, random: np.random.Generator) -> Mask:
    rows, columns = np.mgrid[: size[0], : size[1]].astype(np.float64)
    height, width = extent / 2 * random.uniform(0.7, 1.3, 2)
    inside: Mask = (np.abs(rows - row) <= height) & (np.abs(columns - column) <= width)
    return inside


# Textures: (H, W, 3) in 0..1, and (H, W) where defects may lie


Drawn = tuple[Field, Mask]


def _weave(size: int, random: np.random.Generator) -> Drawn:
    rows, columns = _grid(size, random, shift=8.0)
    period = 2 * np.pi / 8.0
    warp, weft = np.sin(rows * period), np.sin(columns * period)
    over = np.sin(rows * period / 2) * np.sin(columns * period / 2) > 0
    return _tinted(0.5 + 0.18 * np.where(over, warp, weft), (1.0, 0.95, 0.85), random)


def _brushed(size: int, random: np.random.Generator) -> Drawn:
    streaks = ndimage.gaussian_filter(random.normal(size=(size, size)), (0.6, size / 6), mode="wrap")
    return _tinted(0.6 + 0.08 * streaks / (streaks.std() + 1e-9), (0.95, 0.98, 1.0), random)


def _grain(size: int, random: np.random.Generator) -> Drawn:
    fine = ndimage.gaussian_filter(random.normal(size=(size, size)), 1.0, mode="wrap")
    coarse = ndimage.gaussian_filter(random.normal(size=(size, size)), 5.0, mode="wrap")
    return _tinted(0.5 + 0.08 * fine / fine.std() + 0.05 * coarse / coarse.std(), (1.0, 0.9, 0.75), random)


def _dots(size: int, random: np.random.Generator) -> Drawn:
    rows, columns = _grid(size, random, shift=16.0)
    near = np.hypot((rows % 16) - 8, (columns % 16) - 8)
    return _tinted(0.65 - 0.35 / (1 + np.exp((near - 4.5) * 2)), (0.9, 1.0, 0.95), random)


def _tiles(size: int, random: np.random.Generator) -> Drawn:
    rows, columns = _grid(size, random, shift=32.0)
    joint = np.minimum(np.minimum(rows % 32, 32 - rows % 32), np.minimum(columns % 32, 32 - columns % 32))
    return _tinted(0.35 + 0.3 / (1 + np.exp(-(joint - 1.5) * 2)), (1.0, 0.97, 0.94), random)


def _washer(size: int, random: np.random.Generator) -> Drawn:
    rows, columns = np.mgrid[:size, :size].astype(np.float64)
    middle = size / 2 + random.uniform(-0.02, 0.02, 2) * size
    distance = np.hypot(rows - middle[0], columns - middle[1])
    angle = np.arctan2(rows - middle[0], columns - middle[1])
    outer, inner = 0.4 * size, 0.17 * size
    ring = 1 / (1 + np.exp(distance - outer)) * 1 / (1 + np.exp(inner - distance))
    shine = 0.65 + 0.08 * np.cos(2 * angle) + 0.03 * np.cos(distance)
    field, _ = _tinted(0.15 * (1 - ring) + shine * ring, (0.97, 0.98, 1.0), random)
    return field, (distance < outer - 1) & (distance > inner + 1)


def _grid(size: int, random: np.random.Generator, *, shift: float) -> tuple[Field, Field]:
    """Row and column coordinates, shifted by up to one period and slightly bent."""
    rows, columns = np.mgrid[:size, :size].astype(np.float64)
    bend = ndimage.gaussian_filter(random.normal(size=(2, size, size)), (0, size / 8, size / 8), mode="wrap")
    bend *= 0.6 / (bend.std() + 1e-9)
    return rows + random.uniform(0, shift) + bend[0], columns + random.uniform(0, shift) + bend[1]


def _tinted(field: Field, tint: tuple[float, float, float], random: np.random.Generator) -> Drawn:
    """A colour picture with sensor noise and slightly varying light."""
    lit = field * random.uniform(0.96, 1.04) + random.normal(0, 0.012, field.shape)
    return np.clip(lit[..., None] * np.array(tint), 0.0, 1.0), np.ones(field.shape, np.bool_)


DEFECTS: dict[str, Callable[[tuple[int, ...], float, float, float, np.random.Generator], Mask]] = {
    "scratch": _scratch,
    "spot": _spot,
    "blob": _blob,
    "missing": _missing,
    "colour": _blob,
}
"""Kinds of defects: a line, a small disc, an irregular patch, a part that is not there, a patch of another hue."""

TEXTURES: dict[str, Callable[[int, np.random.Generator], Drawn]] = {
    "weave": _weave,
    "brushed": _brushed,
    "grain": _grain,
    "dots": _dots,
    "tiles": _tiles,
    "washer": _washer,
}
