"""What a scoring of new pictures found: table, gallery on the run's colour scale, problems by file, downloads."""

from __future__ import annotations

import functools
import io
import math
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from app.cae.image_files import PictureError
from app.cae.images import read_image
from app.cae.rows import DAMAGED, Rows, load_npz
from app.core.errors import AppError
from app.core.words import counted
from app.runs.folder import RunFolder
from app.runs.score_folder import Scoring, remove_scoring
from app.ui import cae_full_view, cae_gallery, pictures, verdicts
from app.ui import format as fmt
from app.ui.cae_full_view import Subject, layers
from app.ui.cae_maps import stamp_of
from app.ui.cae_text import StateColour
from app.ui.format import escaped, shortened
from app.ui.pictures import Rgb, Scale

OPACITY = "score_opacity"
PAGE = "score_page"
ENLARGE = "score_enlarge"
REMOVE = "score_remove"
PER_PAGE = 4
PROBLEMS_SHOWN = 5
NAME_LENGTH = 30
TABLE_ROWS = 8
SIDE_PX = 400
COLUMNS = (1.1, 1.2, 1.2, 1.2)
LOOKS: dict[str, tuple[StateColour, str]] = {
    verdicts.DEFECTIVE: ("orange", ":material/report:"),
    verdicts.GOOD: ("green", ":material/check:"),
}
_SAID = "_score_remove_said"


def render(scoring: Scoring, run: RunFolder, threshold: float) -> None:
    """Draw an ended scoring.

    Args:
        scoring: of new pictures.
        run: whose model scored them.
        threshold: in force on the page.
    """
    status = scoring.status
    match status.state:
        case "failed" | "unreadable":
            st.error(escaped(status.error or "It failed without a reason; its log may tell."), icon=":material/error:")
        case "interrupted":
            st.warning(escaped(status.error or "Its process is gone."), icon=":material/power_off:")
        case "cancelled":
            st.info("Cancelled before everything was written.", icon=":material/cancel:")
    result = scoring.result
    if result is not None:
        frame = judged(result, threshold)
        _summary(result, frame)
        _problems(result)
        _table(frame, with_path=not scoring.uploaded)
        if len(frame):
            _gallery(scoring, result, frame, threshold)
    _files(scoring, run)


def judged(result: dict[str, Any], threshold: float) -> pd.DataFrame:
    """One row a picture, the most anomalous first: place (in maps.npz), path, name, score, verdict at `threshold`, size, preview."""
    frame = pd.DataFrame(result["pictures"]).assign(place=range(len(result["pictures"])))
    frame["name"] = short_names([str(path) for path in frame["path"]])
    frame["verdict"] = np.where(frame["score"].astype(float) > threshold, verdicts.DEFECTIVE, verdicts.GOOD)
    frame["size"] = [f"{width} × {height}" for width, height in zip(frame["width"], frame["height"], strict=True)]
    return frame.sort_values(["score", "place"], ascending=[False, True], kind="stable").reset_index(drop=True)


def short_names(paths: list[str]) -> list[str]:
    """Names that fit a table: paths from the folder that holds all of them, since pictures of several folders often share names."""
    if not paths or not all(Path(path).is_absolute() for path in paths):
        return [Path(path).name for path in paths]
    common = Path(os.path.commonpath([Path(path).parent for path in paths]))
    return [Path(path).relative_to(common).as_posix() for path in paths]


def _summary(result: dict[str, Any], frame: pd.DataFrame) -> None:
    called = int((frame["verdict"] == verdicts.DEFECTIVE).sum())
    speed = result.get("images_per_s")
    rate = f", {fmt.images_per_s(speed)}" if speed is not None else ""
    st.markdown(f"{counted(len(frame), 'picture')}: **{called} called defective**, {len(frame) - called} good, at the threshold above.")
    st.caption(escaped(f"{result.get('path')}{rate}. {result.get('reason')}"))


def _problems(result: dict[str, Any]) -> None:
    left_out, notes = [str(line) for line in result.get("problems") or ()], [str(line) for line in result.get("notes") or ()]
    if left_out:
        head = f"{counted(len(left_out), 'file')} left out."
        st.warning(head + "".join(f"\n- {escaped(line)}" for line in left_out[:PROBLEMS_SHOWN]), icon=":material/report:")
    more = [*left_out[PROBLEMS_SHOWN:], *notes]
    if more:
        with st.expander(f"{counted(len(more), 'more remark')} on single files" if left_out else counted(len(more), "remark")):
            st.markdown("\n".join(f"- {escaped(line)}" for line in more[:500]))


def _table(frame: pd.DataFrame, *, with_path: bool) -> None:
    st.dataframe(
        frame[["name", "score", "verdict", "size", *(["path"] if with_path else [])]],
        hide_index=True,
        key="score_table",
        height="content" if len(frame) <= TABLE_ROWS else 35 * (TABLE_ROWS + 1) + 3,
        column_config={
            "name": st.column_config.TextColumn("picture", width="medium"),
            "score": st.column_config.NumberColumn("score", format="%.4g", width="small"),
            "verdict": st.column_config.TextColumn("verdict", width="small"),
            "size": st.column_config.TextColumn("size, px", width="small"),
            "path": st.column_config.TextColumn("file"),
        },
        alt="Scored pictures with score and verdict at the threshold in force, the most anomalous first",
    )


def _gallery(scoring: Scoring, result: dict[str, Any], frame: pd.DataFrame, threshold: float) -> None:
    maps = maps_of(str(scoring.folder.path), stamp_of(scoring.folder.path / "maps.npz"))
    if maps is None or len(maps["maps"]) != len(frame):
        st.caption("The maps of these pictures cannot be read (maps.npz is missing or damaged), so only scores can be shown.")
        return
    scale = _scale(result)
    legend, slider = st.columns([5, 3], vertical_alignment="bottom", gap="medium")
    st.session_state.setdefault(OPACITY, 60)
    slider.slider("Heat map opacity", 0, 100, step=5, format="%d %%", key=OPACITY, persist_state="session")
    opacity = st.session_state[OPACITY] / 100
    with legend:
        st.caption(
            f"Colours: anomaly {fmt.significant(scale.low, 2)} to {fmt.significant(scale.high, 2)}, the run's one scale; "
            f"pink outlines {cae_full_view.pixels_above(threshold, scale)}."
        )
        st.image(pictures.colour_bar(), width="stretch", alt=f"Colour scale from {scale.low:.3g} to {scale.high:.3g}")
    pages = math.ceil(len(frame) / PER_PAGE)
    page_key = f"{PAGE}_{scoring.name}"
    page = min(pages, int(st.session_state.get(page_key, 1)))
    for row in frame.iloc[(page - 1) * PER_PAGE : page * PER_PAGE].to_dict("records"):
        if _row(scoring, row, maps, scale, opacity, threshold):
            cae_full_view.show(_subject(scoring, row, maps, result.get("full_scale")), scale, threshold, opacity)
    if pages > 1:
        st.pagination(pages, key=page_key)


def _scale(result: dict[str, Any]) -> Scale:
    try:
        return Scale(float(result["heat_low"]), float(result["heat_high"]), float(result.get("background_sigma", 0.0)))
    except (KeyError, TypeError, ValueError):
        return Scale(0.0, 1.0)


def _row(scoring: Scoring, row: dict[Any, Any], maps: dict[str, Rows], scale: Scale, opacity: float, threshold: float) -> bool:
    """Draw one picture; True when somebody wants to see it large."""
    words, *cells = st.columns(COLUMNS, vertical_alignment="center")
    colour, icon = LOOKS[row["verdict"]]
    with words:
        st.badge(row["verdict"], color=colour, icon=icon)
        st.markdown(f"score **{fmt.significant(row['score'])}**")
        st.caption(f"{escaped(shortened(row['name'], NAME_LENGTH))}, {row['size']} px", help=escaped(str(row["path"])))
        large = cae_gallery.enlarge_button(f"{ENLARGE}_{row['place']}")
    size = pictures.fitted((row["width"], row["height"]), SIDE_PX)
    small = preview(scoring, row)
    picture = pictures.picture_at(small if small is not None else maps["inputs"][row["place"]], size)
    values = maps["maps"][row["place"]]
    shown = (
        ("picture", picture),
        ("heat map", layers(picture, values, scale, opacity=opacity)),
        ("outline of the prediction", layers(picture, values, scale, threshold=threshold, thickness=3)),
    )
    for cell, (title, drawn) in zip(cells, shown, strict=True):
        cell.image(drawn, width=cae_gallery.width_of(drawn), alt=f"{title} of {row['name']}")
    return large


def _subject(scoring: Scoring, row: dict[Any, Any], maps: dict[str, Rows], full_scale: Any) -> Subject:
    kept = [] if scoring.uploaded else [str(row["path"])]
    if row.get("preview"):
        kept.append(str(scoring.folder.path / str(row["preview"])))
    place, size = row["place"], (int(row["width"]), int(row["height"]))
    white = float(full_scale) if isinstance(full_scale, (int, float)) else None
    return Subject(row["name"], tuple(kept), maps["inputs"][place], size, maps["maps"][place], None, row["score"], row["verdict"], white)


def preview(scoring: Scoring, row: dict[Any, Any]) -> Rgb | None:
    """The small copy of a scored picture; `None` when there is none."""
    name = row.get("preview")
    if not isinstance(name, str):
        return None
    file = scoring.folder.path / name
    return _preview(str(file), stamp_of(file)) if file.parent.parent == scoring.folder.path else None


@st.cache_resource(max_entries=64, ttl=300, show_spinner=False)
def _preview(file: str, stamp: int) -> Rgb | None:
    del stamp  # only there so that a new file is read
    try:
        return read_image(file, channels=3, size=None).pixels
    except PictureError:
        return None


@st.cache_resource(max_entries=2, ttl=900, show_spinner=False)
def maps_of(folder: str, stamp: int) -> dict[str, Rows] | None:
    """`maps` (N, S, S) and `inputs` (N, S, S, C) of a scoring; `None` when they cannot be read."""
    del stamp
    try:
        arrays = load_npz(Path(folder) / "maps.npz")
        return {name: arrays[name] for name in ("maps", "inputs")}
    except DAMAGED:
        return None


def _files(scoring: Scoring, run: RunFolder) -> None:
    place = scoring.folder.path
    with st.container(horizontal=True, gap="small"):
        if scoring.result is not None:
            st.download_button(
                "Scores and heat maps",
                data=functools.partial(zipped, place),
                file_name=f"{run.run_id}-scored-{scoring.name}.zip",
                mime="application/zip",
                icon=":material/folder_zip:",
                key="score_get_zip",
                on_click="ignore",
                help="scores.csv with verdicts at the run's own threshold, result.json, and each heat map at the size of its picture.",
            )
        if (place / "maps.npz").is_file():
            st.download_button(
                "Raw maps",
                data=(place / "maps.npz").read_bytes,
                file_name=f"{run.run_id}-scored-{scoring.name}-maps.npz",
                mime="application/octet-stream",
                icon=":material/grid_on:",
                key="score_get_maps",
                on_click="ignore",
                help="Anomaly maps as numbers, with what the network saw and made of it.",
            )
        with st.popover("Remove", icon=":material/delete:", key="score_remove_ask"):
            st.markdown("Removes scores, heat maps and previews of this scoring for everybody. The run stays.")
            st.button("Remove for good", key=REMOVE, type="primary", on_click=_remove, args=(scoring,))
    if said := st.session_state.pop(_SAID, None):
        st.error(escaped(said), icon=":material/error:")


def zipped(place: Path) -> bytes:
    """scores.csv, result.json and all heat maps of a scoring as a zip, not packed again."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for file in (place / "scores.csv", place / "result.json", *sorted((place / "heatmaps").glob("*.png"))):
            if file.is_file():
                archive.write(file, file.relative_to(place))
    return buffer.getvalue()


def _remove(scoring: Scoring) -> None:
    try:
        remove_scoring(scoring)
    except AppError as error:
        st.session_state[_SAID] = str(error)
