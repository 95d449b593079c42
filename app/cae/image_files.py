"""Opening picture files safely: what a file is, whether it is whole, how large and how turned, before anything is done with its pixels.

* The content says what a file is, not its name. Only the decoders of `FORMATS` may run; PostScript and the like are never opened.
* Empty, foreign, truncated and oversized files are refused with a sentence.
* Orientation: EXIF and TIFF orientation tags are followed everywhere ("viewing order"), for pictures and masks alike.
"""

from __future__ import annotations

import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError

from app.core.errors import DataError

# fmt: off
SUFFIXES = frozenset({
    ".png", ".apng", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".dib", ".tif", ".tiff", ".webp", ".gif",
    ".ppm", ".pgm", ".pbm", ".pnm", ".jp2", ".j2k",
})
# fmt: on
"""Names that are taken for pictures, in any case."""

FORMATS = ("PNG", "JPEG", "BMP", "DIB", "TIFF", "WEBP", "GIF", "PPM", "JPEG2000")
"""Pillow's decoders that may run, whatever a file's name says (JPEG brings MPO with it)."""

MAX_PIXELS = 89_478_485
"""Pillow's own limit (a quarter of a GiB of 24-bit pixels): more is refused as a decompression bomb."""

DEPTHS = (8, 10, 12, 14, 16, 20, 24, 32)
"""Bit depths of cameras and files; the depth of a picture is the smallest that holds its largest value."""

DEEP_MODES = frozenset({"I;16", "I;16L", "I;16B", "I;16N", "I", "F"})
"""Pillow's modes of more than 8 bits a sample."""

ALPHA_MODES = frozenset({"RGBA", "LA", "PA", "RGBa", "La"})

_CHEAP = frozenset({"PNG", "JPEG", "MPO", "BMP", "DIB"})
"""Formats whose files show without decoding whether they are whole; the others are decoded for that."""

_UNREADABLE = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    struct.error,
    zlib.error,
    IndexError,
    KeyError,
    TypeError,
    AttributeError,
    OverflowError,
    AssertionError,
    RuntimeError,
    MemoryError,
)
"""What Pillow's decoders raise on broken files: whichever it is, this file cannot be read."""


class PictureError(DataError):
    """One picture or mask cannot be used. `reason` is the sentence without the file's name."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path.name}: {reason}")
        self.path = path
        self.reason = reason


@dataclass(frozen=True)
class Header:
    """What a file says of itself. Sizes are (width, height) in px."""

    format: str
    mode: str
    size: tuple[int, int]
    """In viewing order."""
    orientation: int = 1
    """EXIF orientation, 1 to 8; 1 when the file has none."""
    frames: int = 1
    white: float | None = None
    """Of a picture of more than 8 bits a sample: the value that means white (`white_of`); else None."""
    transparent: bool = False
    """It has an alpha channel that is not opaque everywhere."""


def read_header(path: Path, *, thorough: bool = False) -> Header:
    """Format, size and orientation; pixels are decoded only where that alone shows what the file holds, or if `thorough`.

    Raises:
        PictureError: the file cannot be a usable picture.
    """
    with open_image(path) as image:
        width, height = image.size
        frames = frames_of(image)
        kind, mode = str(image.format), image.mode
        whole, has_exif = _looks_whole(path, kind)
        orientation = _orientation(image) if has_exif else 1
        # Pillow's TIFF reader already reports the viewing size, the others the stored one.
        if orientation >= 5 and kind != "TIFF":
            width, height = height, width
        alpha = has_alpha(image)
        if thorough or not whole or alpha or mode in DEEP_MODES:
            decode(image, path)
        white = white_of(float(deep_values(image, path).max()), is_float=mode == "F") if mode in DEEP_MODES else None
        return Header(kind, mode, (width, height), orientation, frames, white, alpha and is_transparent(image))


@contextmanager
def open_image(path: Path) -> Iterator[Image.Image]:
    """Pillow's image, opened but not decoded, from one of `FORMATS`.

    Raises:
        PictureError: not there, empty, text, not a picture, or more than `MAX_PIXELS`.
    """
    with ExitStack() as stack:
        try:
            if path.stat().st_size == 0:
                raise PictureError(path, "is empty (0 bytes)")
            # Not by name: Pillow maps uncompressed files into memory then, and scrambles TIFF files that are turned by a quarter (13.0).
            file = stack.enter_context(path.open("rb"))
            with _quiet():
                image = stack.enter_context(Image.open(file, formats=FORMATS))
        except UnidentifiedImageError:
            raise PictureError(path, _what_it_is_instead(path)) from None
        except Image.DecompressionBombError:
            raise PictureError(path, f"is refused as a decompression bomb: it unpacks to more than {MAX_PIXELS} px") from None
        except PictureError:
            raise
        except FileNotFoundError:
            raise PictureError(path, "is a broken link" if path.is_symlink() else "is not there") from None
        except _UNREADABLE as error:
            raise PictureError(path, f"cannot be read ({_short(error)})") from None
        width, height = image.size
        if width * height > MAX_PIXELS:
            raise PictureError(path, f"is refused as a decompression bomb: {width} × {height} px, at most {MAX_PIXELS} px are read")
        if width * height == 0:
            raise PictureError(path, f"has no pixels ({width} × {height} px)")
        yield image


def frames_of(image: Image.Image) -> int:
    """Frames or pages; 1 where damage behind the first hides the others."""
    try:
        with _quiet():
            return int(getattr(image, "n_frames", 1))
    except _UNREADABLE:
        return 1


def decode(image: Image.Image, path: Path) -> int:
    """Decodes `image` in place.

    Returns:
        The EXIF orientation that is still to be followed; TIFF files turn themselves while they are decoded.

    Raises:
        PictureError: its data are truncated or broken.
    """
    try:
        with _quiet():
            image.load()
    except _UNREADABLE as error:
        raise PictureError(path, f"cannot be decoded ({_short(error)})") from None
    return 1 if image.format == "TIFF" else _orientation(image)


def turned(image: Image.Image, orientation: int) -> Image.Image:
    """`image` brought from stored into viewing order."""
    method = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_270,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_90,
    }.get(orientation)
    return image if method is None else image.transpose(method)


def deep_values(image: Image.Image, path: Path) -> NDArray[np.float64]:
    """(height, width) values of a decoded picture of more than 8 bits a sample, in stored order.

    Raises:
        PictureError: it holds NaN, infinite or negative values (1 % of the largest is let pass as noise and set to 0).
    """
    values = np.asarray(image).astype(np.float64)
    bad = values.size - int(np.count_nonzero(np.isfinite(values)))
    if bad:
        raise PictureError(path, f"has {bad} values that are NaN or infinite; expected finite values")
    least, largest = float(values.min()), float(values.max())
    if least < -0.01 * max(largest, 0.0) and least < 0:
        raise PictureError(path, f"has negative values (least {least:g}); expected values from 0")
    return np.maximum(values, 0.0)


def white_of(largest: float, *, is_float: bool) -> float:
    """The value that means white in a picture whose largest value is `largest`.

    Integers: 2**depth - 1 for the smallest of `DEPTHS` that holds it. Floats: 1 for values in 0..1, the largest value itself up to 16
    (values in 0..1 that a filter made overshoot), else as integers.
    """
    if is_float and largest <= 16.0:
        return max(1.0, largest)
    return next((float(2**depth - 1) for depth in DEPTHS if largest <= 2**depth - 1), largest)


def has_alpha(image: Image.Image) -> bool:
    """An alpha channel, or a palette with one; a single transparent colour is not one."""
    return image.mode in ALPHA_MODES or (image.mode == "P" and isinstance(image.info.get("transparency"), bytes))


def is_transparent(image: Image.Image) -> bool:
    """Whether the alpha channel of a decoded picture is less than opaque anywhere."""
    return bool((np.asarray(image.convert("RGBA"))[..., 3] < 255).any())


@contextmanager
def _quiet() -> Iterator[None]:
    """Pillow warns of metadata it cannot parse; only a picture that cannot be shown matters here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _orientation(image: Image.Image) -> int:
    try:
        with _quiet():
            value = image.getexif().get(ExifTags.Base.Orientation, 1)
    except _UNREADABLE:
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _looks_whole(path: Path, kind: str) -> tuple[bool, bool]:
    """Whether the file shows its own end, and whether it may hold EXIF data; (False, …) means: decode it to know."""
    if kind not in _CHEAP:
        return False, True
    with path.open("rb") as file:
        if kind == "PNG":
            return _png_chunks(file)
        if kind in ("JPEG", "MPO"):
            file.seek(0, 2)
            file.seek(max(0, file.tell() - 4096))
            return b"\xff\xd9" in file.read(), True
        start = file.read(6)
        declared = struct.unpack("<I", start[2:6])[0] if len(start) == 6 and start[:2] == b"BM" else 0
        return 0 < declared <= path.stat().st_size, True


def _png_chunks(file: BinaryIO) -> tuple[bool, bool]:
    """Walks a PNG from chunk to chunk: is IEND reached, and may EXIF data be on the way?

    Pillow decodes all pixels before it looks for EXIF data in a PNG; for the many that have none this walk spares that.
    """
    end = file.seek(0, 2)
    place, has_exif = 8, False
    while place + 12 <= end:
        file.seek(place)
        length, name = struct.unpack(">I4s", file.read(8))
        if name == b"IEND":
            return True, has_exif
        has_exif = has_exif or name == b"eXIf" or (name in (b"iTXt", b"zTXt", b"tEXt") and file.read(4) in (b"XML:", b"Raw "))
        place += 12 + length
    return False, True


def _what_it_is_instead(path: Path) -> str:
    with path.open("rb") as file:
        start = file.read(256)
    if start.startswith(b"version https://git-lfs"):
        return "is a Git LFS pointer, not a picture; fetch it with `git lfs pull`"
    if all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in start):
        return "is text, not a picture (a link unpacked as a text file?)"
    return f"is not a picture in a format read here ({', '.join(FORMATS)}), or its beginning is damaged"


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__
