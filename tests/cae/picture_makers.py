"""Small pictures and masks for tests."""

from __future__ import annotations

import numpy as np
from PIL import Image


def picture(seed: int = 0, size: tuple[int, int] = (80, 70), mode: str = "RGB") -> Image.Image:
    """A random picture of (width, height)."""
    shape = (size[1], size[0]) if mode == "L" else (size[1], size[0], len(mode))
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))


def mask(size: tuple[int, int] = (80, 70), box: tuple[int, int, int, int] = (10, 20, 30, 40), value: int = 255) -> Image.Image:
    """`value` inside `box` (left, upper, right, lower), else 0."""
    image = Image.new("L", size, 0)
    image.paste(value, box)
    return image
