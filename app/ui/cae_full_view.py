"""One picture of a result, large: at the proportions and, where its file can still be read, the resolution of the original."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import streamlit as st
from numpy.typing import NDArray
from PIL import Image

from app.cae.error_maps import standing_out
from app.ui import format as fmt
from app.ui import pictures
from app.ui.format import escaped, shortened
from app.ui.originals import read_original
from app.ui.pictures import PREDICTION, TRUTH, Map, Rgb, Scale

VIEW = "full_view"
OPACITY = "full_view_opacity"
OUTLINES = "full_view_outlines"
DOWNLOAD = "full_view_heat_map"

BOTH, PICTURE, HEAT = "Side by side", "Picture", "Heat map"
MASK, CALLED = "mask", "prediction"
SMALLEST_PX = 640
"""Smaller pictures are enlarged to this longer side, so that contours are thin."""
OUTLINE_SHARE = 1 / 320
"""Of the longer side: how wide a contour is drawn."""
PNG_PIXELS = 1_000_000
"""Above it pages get JPEG, which takes a tenth of the time to send."""
TITLE_LENGTH = 60


@dataclass(frozen=True)
class Subject:
    """What is looked at."""

    name: str
    files: tuple[str, ...]
    """Where the picture may be read from, the best first."""
    seen: NDArray[np.uint8]
    """(S, S, C) as the network saw it: shown where no file can be read."""
    size: tuple[int, int] | None
    """(width, height) of the original, where that is known without its file."""
    values: Map
    """(S, S)."""
    mask: NDArray[np.uint8] | None
    """(S, S); `None` where it is not known."""
    score: float
    verdict: str
    full_scale: float | None = None


def show(subject: Subject, scale: Scale, threshold: float, opacity: float) -> None:
    """Open the view over the page.

    Args:
        subject: the picture.
        scale: of the run.
        threshold: in force on the page; pixels whose anomaly is above it are outlined.
        opacity: of the heat map on the page, 0-1, to begin with.
    """
    st.session_state[OPACITY] = round(100 * opacity)
    title = escaped(shortened(subject.name, TITLE_LENGTH))
    st.dialog(title, width="large")(_content)(subject, scale, threshold)


def pixels_above(threshold: float, scale: Scale) -> str:
    """What the pink outline holds: a pixel's anomaly against the number that images are judged by."""
    what = "stands out of its surroundings by more than" if scale.background_sigma > 0 else "is above"
    return f"pixels whose anomaly {what} {fmt.significant(threshold)} (the image threshold)"


def _content(subject: Subject, scale: Scale, threshold: float) -> None:
    picture, size, about = shown_picture(subject)
    st.markdown(
        f"Score **{fmt.significant(subject.score)}**, threshold {fmt.significant(threshold)}: called {escaped(subject.verdict)}. {about}"
    )
    view, outlines, opacity = _controls(subject)
    places = st.columns(2) if view == BOTH else [st.container()]
    mask = subject.mask if MASK in outlines else None
    called = threshold if CALLED in outlines else None
    for place, title in zip(places, (PICTURE, HEAT) if view == BOTH else (view,), strict=True):
        share = opacity if title == HEAT else None
        layer = layers(picture, subject.values, scale, opacity=share, threshold=called, mask=mask)
        large = layer.shape[0] * layer.shape[1] > PNG_PIXELS
        place.image(layer, width="stretch", output_format="JPEG" if large else "PNG", alt=f"{title} of {subject.name}, large")
    words, button = st.columns([3, 1], vertical_alignment="center")
    cyan = "Cyan: the mask. " if subject.mask is not None else ""
    words.caption(f"{cyan}Pink: {pixels_above(threshold, scale)}. The corner of a picture opens it on the whole screen.")
    button.download_button(
        "Heat map",
        data=_png(subject.values, scale, size),
        file_name=f"heat-map-{subject.name.rpartition('/')[2].rpartition('.')[0] or 'picture'}.png",
        mime="image/png",
        icon=":material/download:",
        key=DOWNLOAD,
        on_click="ignore",
        help=f"The heat map alone, {size[0]} × {size[1]} px as the original, on the run's scale.",
        width="stretch",
    )


def _controls(subject: Subject) -> tuple[str, list[str], float]:
    """The view, the outlines to draw, and the opacity of the heat map, 0-1."""
    left, middle, right = st.columns([3, 3, 3], vertical_alignment="bottom", gap="medium")
    st.session_state.setdefault(VIEW, BOTH)
    view = left.segmented_control("View", [BOTH, PICTURE, HEAT], key=VIEW, required=True, persist_state="session")
    drawable = [MASK, CALLED] if subject.mask is not None else [CALLED]
    key = f"{OUTLINES}_{len(drawable)}"  # so that a picture without mask does not switch the masks of others off
    st.session_state.setdefault(key, drawable)
    outlines = middle.segmented_control("Outlines", drawable, selection_mode="multi", key=key, persist_state="session")
    right.slider("Heat map opacity", 0, 100, step=5, format="%d %%", key=OPACITY)
    return str(view), list(outlines), st.session_state[OPACITY] / 100


def shown_picture(subject: Subject) -> tuple[Rgb, tuple[int, int], str]:
    """The picture to draw on, the (width, height) of its original, and a sentence on both."""
    reason = ""
    for file in subject.files:
        found = read_original(file, subject.full_scale)
        if isinstance(found, str):
            reason = reason or found
            continue
        size = subject.size or found.size
        drawn = found.pixels.shape[1::-1]
        smaller = f", shown at {drawn[0]} × {drawn[1]} px" if drawn[0] < size[0] else ""
        return _drawable(found.pixels, size), size, f"{size[0]} × {size[1]} px{smaller}."
    side = subject.seen.shape[0]
    size = subject.size or (side, side)
    why = f"Its file {escaped(reason)}" if reason else "Its file is not kept"
    return _drawable(subject.seen, size), size, f"{why}, so here is what the network saw, {side} × {side} px."


def _drawable(pixels: NDArray[np.uint8], size: tuple[int, int]) -> Rgb:
    longer = max(SMALLEST_PX, *pixels.shape[:2])
    return pictures.picture_at(pixels, pictures.fitted(size, longer))


def layers(
    picture: Rgb,
    values: Map,
    scale: Scale,
    *,
    opacity: float | None = None,
    threshold: float | None = None,
    mask: NDArray[np.uint8] | None = None,
    thickness: int | None = None,
) -> Rgb:
    """A picture with its heat map over it, and contours over both.

    Args:
        picture: (H, W, 3).
        values: anomaly map of any size, brought to that of the picture.
        scale: of the run.
        opacity: of the heat map, 0-1; `None` leaves it out.
        threshold: what lies above it, less the background that `scale` names, is outlined; `None` leaves that out.
        mask: outlined; `None` leaves it out.
        thickness: of contours, px.
    """
    size = (picture.shape[1], picture.shape[0])
    wide = thickness or max(2, round(max(size) * OUTLINE_SHARE))
    stretched = pictures.map_at(values, size)
    drawn = picture if opacity is None else pictures.blended(picture, stretched, scale, opacity)
    if threshold is not None:
        judged = standing_out(np.nan_to_num(np.asarray(values, np.float32))[None], scale.background_sigma)[0]
        drawn = pictures.with_outline(drawn, pictures.map_at(judged, size) > threshold, PREDICTION, wide)
    if mask is not None:
        drawn = pictures.with_outline(drawn, pictures.mask_at(mask, size), TRUTH, wide)
    return drawn


def _png(values: Map, scale: Scale, size: tuple[int, int]) -> Callable[[], bytes]:
    """Made when it is asked for: a heat map of a large picture takes a while."""

    def made(values: Map, scale: Scale, size: tuple[int, int]) -> bytes:
        buffer = io.BytesIO()
        Image.fromarray(pictures.heat_map(values, scale, size)).save(buffer, "PNG")
        return buffer.getvalue()

    return functools.partial(made, values, scale, size)
