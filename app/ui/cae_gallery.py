"""Test pictures of a run, row by row: input, reconstruction, heat map, outlines. One colour scale for the whole run, and the proportions
of the original pictures where their files can still be read."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import streamlit as st

from app.cae.scoring import Calibration
from app.core.errors import AppError
from app.core.words import counted
from app.runs.folder import Maps, RunFolder
from app.ui import cae_full_view, pictures, verdicts
from app.ui import format as fmt
from app.ui.cae_full_view import Subject, layers
from app.ui.cae_maps import maps_of, stamp_of
from app.ui.cae_text import StateColour
from app.ui.format import escaped, shortened
from app.ui.originals import size_of
from app.ui.pictures import Rgb, Scale

ORDER = "cae_gallery_order"
CLASS = "cae_gallery_class"
PAGE = "cae_gallery_page"
OPACITY = "cae_gallery_opacity"
ENLARGE = "cae_gallery_enlarge"

PER_PAGE = 6
SIDE_PX = 288
"""Pictures are enlarged to this longer side, so that contours are thin."""
TALLEST = 1.25
"""Height over width up to which a picture fills its column; taller ones are drawn narrower."""
COLUMN_PX = 170
"""Width of a picture's column at the usual width of a window."""
OUTLINE_PX = 4
ALL = "all classes"
ORDERS = {"most": "Highest", "least": "Lowest", "mistakes": "Mistakes"}
SORT = {"most": verdicts.most_anomalous, "least": verdicts.least_anomalous, "mistakes": verdicts.mistakes}
OUTCOMES: dict[str, tuple[StateColour, str]] = {
    "found": ("green", ":material/check:"),
    "passed": ("gray", ":material/check:"),
    "missed": ("red", ":material/visibility_off:"),
    "false alarm": ("orange", ":material/notifications_active:"),
}
COLUMNS = (1.15, 1, 1, 1, 1)


def render(folder: RunFolder, frame: pd.DataFrame, threshold: float) -> None:
    """Draw the gallery. Call inside the fragment of the threshold.

    Args:
        folder: of the run.
        frame: `verdicts.judged` at `threshold`.
        threshold: outlines the prediction, too: pixels above it.
    """
    st.markdown("**Test pictures**")
    maps = maps_of(str(folder.path), stamp_of(folder.path / "maps.npz"))
    if maps is None:
        st.caption("The pictures of this run were not kept (maps.npz is missing or damaged), so only scores can be shown.")
        return
    scale, about = scale_of(folder, maps)
    chosen, opacity = _controls(frame)
    if not len(chosen):
        st.info("No picture is judged wrongly at this threshold." if len(frame) else "No test pictures.", icon=":material/task_alt:")
        return
    pages = math.ceil(len(chosen) / PER_PAGE)
    page_key = f"{PAGE}_{folder.run_id}_{st.session_state[ORDER]}_{st.session_state[CLASS]}"
    page = int(st.session_state.get(page_key, 1))
    # As the widget does it: a page that is no longer there, because the threshold left fewer mistakes, becomes the first.
    first = (page - 1 if page <= pages else 0) * PER_PAGE
    _legend(scale, about, threshold)
    places = {int(row): place for place, row in enumerate(maps.indices)}
    for _, row in chosen.iloc[first : first + PER_PAGE].iterrows():
        if _row(row, maps, places.get(int(row["row"])), scale, opacity, threshold):
            subject = _subject(folder, row, maps, places[int(row["row"])])
            cae_full_view.show(subject, scale, threshold, opacity)
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
        st.caption(f"{first + 1} to {min(len(chosen), first + PER_PAGE)} of {counted(len(chosen), 'picture')}")
        st.pagination(pages, key=page_key)


def scale_of(folder: RunFolder, maps: Maps) -> tuple[Scale, str]:
    """The run's colour scale and where it comes from: held-out good maps, or good test pictures where the run does not tell."""
    try:
        found = Calibration.load(folder.path / "scoring.npz")
        return Scale(found.heat_low, found.heat_high, found.rule.outlined_sigma), f"one scale for the run, from {found.fitted_on}"
    except (AppError, ValueError):
        unmarked = np.flatnonzero(~np.asarray(maps.masks).any(axis=(1, 2)))
        good = maps.maps[unmarked]
        return pictures.robust_scale(good if len(good) else np.asarray(maps.maps)), "one scale for the run, from its test pictures"


def _controls(frame: pd.DataFrame) -> tuple[pd.DataFrame, float]:
    """The pictures in the order and of the class chosen, and the opacity of the heat map."""
    order, kind, opacity = st.columns([5, 3, 3], vertical_alignment="bottom", gap="medium")
    st.session_state.setdefault(ORDER, "most")
    wrong = int(frame["mistake"].sum())
    order.segmented_control(
        "Order by score",
        list(ORDERS),
        format_func=lambda name: f"{ORDERS[name]} ({wrong})" if name == "mistakes" else ORDERS[name],
        key=ORDER,
        required=True,
        persist_state="session",
    )
    classes = [ALL, *sorted(frame["defect"].unique(), key=lambda name: (name != "good", name))]
    if st.session_state.get(CLASS) not in classes:
        st.session_state[CLASS] = ALL
    kind.selectbox("Class", classes, key=CLASS, persist_state="session")
    st.session_state.setdefault(OPACITY, 60)
    opacity.slider("Heat map opacity", 0, 100, step=5, format="%d %%", key=OPACITY, persist_state="session")
    picked = frame if st.session_state[CLASS] == ALL else frame[frame["defect"] == st.session_state[CLASS]]
    return SORT[st.session_state[ORDER]](picked), st.session_state[OPACITY] / 100


def _legend(scale: Scale, about: str, threshold: float) -> None:
    """What the colours mean, and the heads of the columns."""
    ends = f"{fmt.significant(scale.low, 2)} to {fmt.significant(scale.high, 2)}"
    st.caption(
        f"Colours: anomaly {ends}, {about}; what is higher takes the last colour. "
        f"Outlines: the mask in cyan, where there is one, and in pink {cae_full_view.pixels_above(threshold, scale)}."
    )
    _, picture, rebuilt, heat, outlines = st.columns(COLUMNS, vertical_alignment="bottom")
    picture.caption("input", help="As the network saw it: standardised where the options say so.")
    rebuilt.caption("reconstruction")
    with heat:
        st.caption("heat map")
        st.image(pictures.colour_bar(), width="stretch", alt=f"Colour scale from {scale.low:.3g} to {scale.high:.3g}")
    outlines.caption("outlines")


def _row(row: pd.Series, maps: Maps, place: int | None, scale: Scale, opacity: float, threshold: float) -> bool:
    """Draw one picture; True when somebody wants to see it large."""
    words, *cells = st.columns(COLUMNS, vertical_alignment="center")
    name = Path(str(row["path"])).name
    said = verdicts.outcome(int(row["label"]), str(row["verdict"]))
    colour, icon = OUTCOMES[said]
    with words:
        st.badge(said, color=colour, icon=icon)
        st.markdown(f"{escaped(shortened(str(row['defect']), 24))}, score **{fmt.significant(float(str(row['score'])))}**")
        st.caption(f"#{row['rank']} · {escaped(shortened(name, 26))}", help=escaped(str(row["path"])))
        large = place is not None and enlarge_button(f"{ENLARGE}_{row['row']}")
    if place is None:
        cells[0].caption("not kept")
        return False
    titles = ("input", "reconstruction", "heat map", "outlines of mask and prediction")
    drawn = panels(maps, place, scale, opacity, threshold, size_of(str(row["path"])))
    for cell, title, picture in zip(cells, titles, drawn, strict=True):
        cell.image(picture, width=width_of(picture), alt=f"{title} of {name}")
    return large


def enlarge_button(key: str) -> bool:
    """The button that opens the full-size view."""
    return st.button("Enlarge", key=key, type="tertiary", icon=":material/open_in_full:", help="Opens the picture large.")


def width_of(picture: Rgb) -> int | Literal["stretch"]:
    """How wide a picture is drawn in its column: high and narrow ones must not make their row endless."""
    height, width = picture.shape[:2]
    return "stretch" if height <= TALLEST * width else max(16, round(COLUMN_PX * TALLEST * width / height))


def _subject(folder: RunFolder, row: pd.Series, maps: Maps, place: int) -> Subject:
    try:
        full_scale = Calibration.load(folder.path / "scoring.npz").full_scale
    except AppError:
        full_scale = None
    path = str(row["path"])
    mask = maps.masks[place] if maps.has_mask[place] else None
    score, verdict = float(str(row["score"])), f"{row['verdict']}, truly {row['defect']}"
    return Subject(Path(path).name, (path,), maps.inputs[place], None, maps.maps[place], mask, score, verdict, full_scale)


def panels(
    maps: Maps, place: int, scale: Scale, opacity: float, threshold: float, size: tuple[int, int] | None = None, side: int = SIDE_PX
) -> tuple[Rgb, Rgb, Rgb, Rgb]:
    """Input, reconstruction, heat map over the input, and the input with the outlines of mask and prediction.

    Args:
        maps: of the run.
        place: of the picture in `maps`.
        scale: of the run.
        opacity: of the heat map, 0-1.
        threshold: pixels above it are the prediction.
        size: (width, height) of the original, whose proportions are kept; `None` keeps those of the network's square.
        side: longer side, px.
    """
    height, width = maps.inputs.shape[1:3]
    wanted = pictures.fitted(size or (width, height), side)
    picture = pictures.picture_at(maps.inputs[place], wanted)
    rebuilt = pictures.picture_at(maps.reconstructions[place], wanted)
    values, mask = maps.maps[place], maps.masks[place] if maps.has_mask[place] else None
    heat = layers(picture, values, scale, opacity=opacity)
    return picture, rebuilt, heat, layers(picture, values, scale, threshold=threshold, mask=mask, thickness=OUTLINE_PX)
