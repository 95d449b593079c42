"""Original pictures beside results, where their files can still be read: sizes for proportions, pixels for the full-size view."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import streamlit as st
from PIL import Image

from app.cae.image_files import PictureError, read_header
from app.cae.images import read_image
from app.ui.cae_maps import stamp_of
from app.ui.pictures import Rgb

LONGEST_PX = 2048
"""Longer side of what a page shows; a browser has little use for more, and a server much work with it."""


@dataclass(frozen=True)
class Original:
    """A picture as it lies on disk."""

    pixels: Rgb
    """At most `LONGEST_PX` on the longer side, in viewing order."""
    size: tuple[int, int]
    """(width, height) of the file, px."""


def size_of(path: str) -> tuple[int, int] | None:
    """(width, height) of a picture file in viewing order, px; `None` when it cannot be read any more."""
    return _size(path, stamp_of(Path(path)))


def read_original(path: str, full_scale: float | None) -> Original | str:
    """The picture at `path`, or the reason why it cannot be read.

    Args:
        full_scale: white of pictures of more than 8 bits a sample in its data set.
    """
    return _read(path, full_scale, stamp_of(Path(path)))


@st.cache_data(max_entries=2000, ttl=900, show_spinner=False)
def _size(path: str, stamp: int) -> tuple[int, int] | None:
    del stamp  # only there so that a new file is read
    try:
        return read_header(Path(path)).size
    except PictureError:
        return None


# A resource and not data: data is copied by pickling at every draw.
@st.cache_resource(max_entries=4, ttl=300, show_spinner=False)
def _read(path: str, full_scale: float | None, stamp: int) -> Original | str:
    del stamp
    try:
        read = read_image(path, channels=3, size=None, full_scale=full_scale)
    except PictureError as error:
        return error.reason
    shown = Image.fromarray(read.pixels)
    shown.thumbnail((LONGEST_PX, LONGEST_PX))
    pixels = np.array(shown)
    pixels.flags.writeable = False
    return Original(pixels, read.original_size)
