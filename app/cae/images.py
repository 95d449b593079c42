"""Any picture file to a uint8 array by one set of rules, which docs/data.md repeats.

* Opening and orientation: `app.cae.image_files`. Of several frames the first counts.
* More than 8 bits a sample (16-bit PNG and TIFF, 32-bit integers, floats): scaled by the depth the values really use, never clipped to
  white. Depth is a property of the data set (`common_white`), so that training and test pictures share one scale.
* An alpha channel is composited on white. One transparent palette or key colour is a colour like any other.
* Palettes, 1-bit, CMYK, YCbCr, LAB and HSV become real colours; grey is ITU-R 601-2 luma of them.
* Size: one square, bilinear with antialiasing (Pillow's `BILINEAR`, whose filter grows with the reduction); aspect is not kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageCms

from app.cae.image_files import (
    DEEP_MODES,
    FORMATS,
    MAX_PIXELS,
    SUFFIXES,
    Header,
    PictureError,
    decode,
    deep_values,
    frames_of,
    has_alpha,
    is_transparent,
    open_image,
    read_header,
    turned,
    white_of,
)
from app.cae.masks import read_mask

BACKGROUND = 255
"""Grey value behind transparent pixels."""

FRAMES_NOTE = "has several frames, the first was used"
ALPHA_NOTE = "is transparent in places, shown on white"
LOW_BYTES_NOTE = "has 16 bits a channel in colour, of which the upper 8 were used"

_EXTRA_DEPTH = 4
"""A picture that uses this many bits fewer than its set is of another depth (12-bit data among 16-bit pictures), not just dark."""


@dataclass(frozen=True)
class ReadImage:
    """A decoded picture."""

    pixels: NDArray[np.uint8]
    """(H, W, C)."""
    original_size: tuple[int, int]
    """(width, height) in viewing order, px."""
    notes: tuple[str, ...] = ()
    """Some of `FRAMES_NOTE`, `ALPHA_NOTE`, `LOW_BYTES_NOTE`: to be put after the file's name."""


def read_image(path: str | Path, *, channels: int, size: int | None, full_scale: float | None = None) -> ReadImage:
    """A picture as uint8.

    Args:
        path: file in one of `FORMATS`.
        channels: 1 for grey, 3 for RGB.
        size: side of the square wanted, px; None keeps the picture's own size.
        full_scale: value that becomes 255 in pictures of more than 8 bits; None takes it from this picture alone.

    Returns:
        Pixels of shape (size, size, channels), or (height, width, channels) without `size`.

    Raises:
        PictureError: the file cannot be read or holds unusable values.
    """
    file = Path(path)
    with open_image(file) as image:
        notes = [FRAMES_NOTE] if frames_of(image) > 1 else []
        orientation = decode(image, file)
        if image.mode in DEEP_MODES:
            shown: Image.Image = Image.fromarray(_scaled(deep_values(image, file), full_scale, is_float=image.mode == "F"))
        else:
            shown = image
            notes += _low_bytes(image, file)
            notes += [ALPHA_NOTE] if has_alpha(image) and is_transparent(image) else []
        upright = turned(_in_channels(shown, channels), orientation)
        original = upright.size
        if size is not None and upright.size != (size, size):
            upright = upright.resize((size, size), Image.Resampling.BILINEAR)
        pixels = np.array(upright, dtype=np.uint8)
    return ReadImage(pixels.reshape(*pixels.shape[:2], channels), original, tuple(notes))


def common_white(whites: Iterable[float]) -> float | None:
    """White of a whole data set: the largest of its pictures' own (`Header.white`); None without any."""
    return max(whites, default=None)


def white_for(own: float, common: float | None) -> float:
    """`common`, unless the picture's own depth is at least 4 bits less: then it was written at another depth, not just dark."""
    if common is None or own * 2 ** (_EXTRA_DEPTH - 0.5) <= common:
        return own
    return common


def _scaled(values: NDArray[np.float64], full_scale: float | None, *, is_float: bool) -> NDArray[np.uint8]:
    white = white_for(white_of(float(values.max()), is_float=is_float), full_scale)
    return np.minimum(np.rint(values * (255.0 / white)), 255.0).astype(np.uint8)


def _in_channels(image: Image.Image, channels: int) -> Image.Image:
    mode = "L" if channels == 1 else "RGB"
    if has_alpha(image):
        rgba = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", rgba.size, (BACKGROUND, BACKGROUND, BACKGROUND, 255)), rgba)
    if image.mode == "LAB":
        lab, srgb = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
        image = ImageCms.profileToProfile(image, lab, srgb, outputMode="RGB") or image
    if image.mode not in ("L", "RGB", "1"):
        image = image.convert("RGB")
    return image if image.mode == mode else image.convert(mode)


def _low_bytes(image: Image.Image, path: Path) -> list[str]:
    """A note on PNGs of 16 bits a channel with colour or alpha, of which Pillow keeps the upper bytes.

    Raises:
        PictureError: too little is left, because the values use 12 bits or fewer.
    """
    with path.open("rb") as file:
        start = file.read(26)
    if not (start.startswith(b"\x89PNG") and len(start) == 26 and start[24] == 16 and start[25] != 0):
        return []
    colours = np.asarray(image)[..., : 3 if image.mode.startswith("RGB") else 1]
    if 0 < int(colours.max()) < 2 ** (8 - _EXTRA_DEPTH):
        raise PictureError(path, "has 12 bits or fewer in 16-bit colour channels, too few of which are read; save it with 8 bits a channel")
    return [LOW_BYTES_NOTE]


__all__ = [
    "BACKGROUND",
    "FORMATS",
    "MAX_PIXELS",
    "SUFFIXES",
    "Header",
    "PictureError",
    "ReadImage",
    "common_white",
    "read_header",
    "read_image",
    "read_mask",
    "white_for",
]
