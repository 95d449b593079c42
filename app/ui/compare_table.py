"""The table of all runs with its tick boxes and filters. What is ticked stands in the URL, by run id and never by row."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

import pandas as pd
import streamlit as st

from app.runs.folder import BUILT_IN_DATA
from app.ui import state
from app.ui.cae_text import STATE_PILLS
from app.ui.charts_results import METRIC_LABELS
from app.ui.palette import RunStyle, path_colour

TABLE = "compare_table"
FIND, STATES, DATA, PATHS = "find", "states", "datasets", "paths"
"""Filters; their keys are their names in the URL."""
_SHOWN = "_compare_shown"
_ROWS = "_compare_rows"
NOTHING = "none"
"""In the URL for: nothing is ticked. An absent parameter means that nobody has chosen yet."""
DEFAULT_TICKED = 2

ROW_PX = 35
MOST_ROWS = 9
DAY_S = 86_400
_DASHES = {"solid": "", "dash": "16 8", "dot": "6 6", "dashdot": "16 6 5 6"}
_METRIC_HELP = {
    "image_ap": "average precision of the image scores",
    "image_f1": "F1 at the threshold, which comes from held-out good pictures",
    "aupro": "area under the per-region overlap, false positive rate up to 0.3",
    "aupimo": "area under the per-image overlap, false positive rate 1e-5 to 1e-4",
}
_TEXT_SEARCHED = ("run_id", "name", "data", "preset", "path", "state", "note", "error")


def ticked_ids(frame: pd.DataFrame) -> list[str]:
    """Ids of the ticked runs as the URL says, vanished ones included; the newest finished two when it says nothing."""
    value = st.query_params.get(state.COMPARED_RUNS)
    return default_ticked(frame) if value is None else ids_of(value)


def ids_of(text: str) -> list[str]:
    """The ids in the URL's parameter, each once. What cannot be the name of a run folder is dropped."""
    ids = (part.strip() for part in text.split(",") if part != NOTHING)
    return list(dict.fromkeys(part for part in ids if part and part == PurePath(part).name and part not in (".", "..")))


def default_ticked(frame: pd.DataFrame) -> list[str]:
    """The two newest finished runs; where none has finished, the newest one."""
    finished = list(frame.loc[frame["state"] == "finished", "run_id"])[:DEFAULT_TICKED]
    return finished or list(frame["run_id"])[:1]


def settle(frame: pd.DataFrame) -> None:
    """Put what is ticked at first into the URL. Chosen anew at each draw, it would change under an open question when a run ends."""
    if state.COMPARED_RUNS not in st.query_params:
        tick(default_ticked(frame))


def tick(ids: Sequence[str]) -> None:
    """Make these the ticked runs."""
    st.query_params[state.COMPARED_RUNS] = ",".join(ids) or NOTHING


def data_label(data: str | None) -> str | None:
    """A built-in data set by its name, a folder by its last two parts."""
    if not data or data in BUILT_IN_DATA:
        return data
    parts = PurePath(data).parts
    # An upload lies in a folder named by its content's digest, which tells a reader nothing.
    return "/".join(parts[-1:] if state.UPLOADS_FOLDER in parts else parts[-2:]).lstrip("/")


def run_labels(frame: pd.DataFrame) -> dict[str, str]:
    """What each run is called: its name, with the end of its id where two have the same; else its id."""
    names = frame["name"].value_counts()
    return {
        run_id: run_id if not name else f"{name} ({run_id[-4:]})" if names[name] > 1 else name
        for run_id, name in zip(frame["run_id"], frame["name"], strict=True)
    }


def filtered(
    frame: pd.DataFrame, *, text: str = "", states: Collection[str] = (), data: Collection[str] = (), paths: Collection[str] = ()
) -> pd.DataFrame:
    """Rows that fit everything given. Each word of `text` must occur somewhere in the names, notes, tags and settings."""
    kept = pd.Series(True, index=frame.index)
    if states:
        kept &= frame["state"].isin(list(states))
    if data:
        kept &= frame["data"].map(data_label).isin(list(data))
    if paths:
        kept &= frame["selected_device"].isin([path.lower() for path in paths])
    words = text.lower().split()
    if words:
        columns = [frame[name].fillna("").astype(str) for name in _TEXT_SEARCHED]
        columns.append(frame["tags"].map(lambda tags: " ".join(tags) if isinstance(tags, list) else ""))
        whole = functools.reduce(lambda left, right: left + " " + right, columns).str.lower()
        for word in words:
            kept &= whole.str.contains(word, regex=False)
    return frame[kept]


def after_clicks(ticked: Sequence[str], shown: Sequence[str], rows: Collection[int]) -> list[str]:
    """What is ticked once the boxes of `rows` are, among the runs `shown`; those the filter hides stay as they are."""
    chosen = {shown[row] for row in rows if 0 <= row < len(shown)}
    kept = [run_id for run_id in ticked if run_id in chosen or run_id not in shown]
    return [*kept, *(run_id for run_id in shown if run_id in chosen and run_id not in kept)]


def table(frame: pd.DataFrame, styles: Mapping[str, RunStyle]) -> bool:
    """Draw filters and table; True when the visitor has just changed what is ticked."""
    changed = _take_clicks(frame)
    shown = filtered(frame, **_filters(frame))
    ticked = ticked_ids(frame)
    _count(frame, shown, ticked)
    ids = list(shown["run_id"])
    rows = [place for place, run_id in enumerate(ids) if run_id in set(ticked)]
    if _selected_rows() != rows:
        st.session_state[TABLE] = {"selection": {"rows": rows}}
    st.session_state[_SHOWN], st.session_state[_ROWS] = ids, rows
    labels = run_labels(frame)
    st.dataframe(
        display_frame(shown, styles, labels),
        key=TABLE,
        on_select="rerun",
        selection_mode="multi-row",
        # What is set through the session state reaches the browser once; a browser that draws the table later than that needs the default.
        selection_default={"selection": {"rows": rows}},
        hide_index=True,
        width="stretch",
        height=ROW_PX * (min(max(len(frame), 1), MOST_ROWS) + 1) + 3,
        row_height=ROW_PX,
        column_config=column_config(frame),
        placeholder="–",
        alt="All runs with their states, paths, speeds and metrics; ticked ones are drawn below",
    )
    return changed


def _selected_rows() -> list[int] | None:
    value = st.session_state.get(TABLE)
    return None if value is None else sorted(value["selection"].get("rows", []))


def _take_clicks(frame: pd.DataFrame) -> bool:
    """Turn the boxes that changed since the table was last drawn into ids. Rows may have moved since: new runs come on top."""
    rows, before = _selected_rows(), st.session_state.get(_ROWS)
    if rows is None or before is None or rows == before:
        return False
    tick(after_clicks(ticked_ids(frame), st.session_state.get(_SHOWN, []), rows))
    st.session_state[_ROWS] = rows
    return True


def _filters(frame: pd.DataFrame) -> dict[str, Any]:
    find, states, data, paths = st.columns([3, 2, 2, 1.2], vertical_alignment="bottom")
    return {
        "text": find.text_input(
            "Find",
            key=FIND,
            type="search",
            placeholder="words in names, notes, tags, data …",
            live=True,
            icon=":material/search:",
            bind="query-params",
        ),
        "states": states.multiselect("State", _options(frame["state"], STATES), key=STATES, placeholder="any", bind="query-params"),
        "data": data.multiselect("Data", _options(frame["data"].map(data_label), DATA), key=DATA, placeholder="any", bind="query-params"),
        "paths": paths.pills("Path", ["CPU", "GPU"], selection_mode="multi", key=PATHS, bind="query-params"),
    }


def _options(values: pd.Series[Any], key: str) -> list[str]:
    """What there is, and what is chosen though there is none any more: a filter for running runs outlives the last of them, and a link
    names it."""
    chosen = st.session_state[key] if key in st.session_state else st.query_params.get_all(key)
    return sorted({str(value) for value in values if value} | set(chosen or ()))


def _count(frame: pd.DataFrame, shown: pd.DataFrame, ticked: Sequence[str]) -> None:
    there = set(frame["run_id"])
    hidden = len([run_id for run_id in ticked if run_id in there and run_id not in set(shown["run_id"])])
    words = [f"{len(frame)} run{'s' if len(frame) != 1 else ''}"]
    if len(shown) < len(frame):
        words.append(f"{len(shown)} fit the filter")
    words.append(f"{len([run_id for run_id in ticked if run_id in there])} ticked")
    if hidden:
        words.append(f"{hidden} of the ticked hidden by the filter")
    st.caption(" · ".join(words) + (" – tick the boxes on the left to draw runs below." if not ticked else ""))


def display_frame(frame: pd.DataFrame, styles: Mapping[str, RunStyle], labels: Mapping[str, str]) -> pd.DataFrame:
    """The columns of the table in their order; values keep their types, so that a click on a header sorts them."""
    columns: dict[str, Any] = {
        "drawn": [swatch(styles[run_id]) for run_id in frame["run_id"]],
        "run": [labels[run_id] for run_id in frame["run_id"]],
        "state": [[_state_words(row)] for row in frame[["state", "phase", "progress"]].itertuples(index=False)],
        "data": frame["data"].map(data_label),
        "path": [[path or device.upper()] if device else [] for path, device in zip(frame["path"], frame["selected_device"], strict=True)],
        "train_images_per_s": frame["train_images_per_s"],
        "score_images_per_s": frame["score_images_per_s"],
        **{name: frame[name] for name in METRIC_LABELS if name not in ("aupro", "aupimo") or frame[name].notna().any()},
        "best_val_loss": frame["best_val_loss"],
        "best_epoch": frame["best_epoch"],
        "epochs": frame["epochs"],
        "duration_s": pd.to_timedelta(frame["duration_s"].round(), unit="s"),
        "note": frame["note"].map(lambda note: note or None),
        "tags": frame["tags"],
        "started": frame["started"],
        "run_id": frame["run_id"],
        "error": frame["error"],
    }
    return pd.DataFrame(columns, index=frame.index).reset_index(drop=True)


def _state_words(row: Any) -> str:
    if row.state != "running":
        return str(row.state)
    share = f" {100 * row.progress:.0f} %" if row.progress == row.progress else ""
    return f"running: {row.phase or 'starting'}{share}"


def column_config(frame: pd.DataFrame) -> dict[str, Any]:
    """Headers with units, formats, and the colours of states and paths."""
    number, text = st.column_config.NumberColumn, st.column_config.TextColumn
    states = sorted({_state_words(row) for row in frame[["state", "phase", "progress"]].itertuples(index=False)})
    paths = {path or device.upper(): device for path, device in zip(frame["path"], frame["selected_device"], strict=True) if device}
    return {
        "drawn": st.column_config.ImageColumn("", width=48, pinned=True, help="how this run is drawn below"),
        "run": text("Run", width=215, pinned=True, help="name, or id where nobody gave one"),
        "state": st.column_config.MultiselectColumn(
            "State",
            width=100 if not any(":" in words for words in states) else 150,
            options=states,
            color=[STATE_PILLS[words.split(":")[0]] for words in states],
        ),
        "data": text("Data", width=95),
        "path": st.column_config.MultiselectColumn(
            "Path", width=205, options=list(paths), color=[path_colour(device) for device in paths.values()]
        ),
        "train_images_per_s": number("Train, img/s", format="%.3g", help="training throughput in images/s, without the warm-up steps"),
        "score_images_per_s": number("Score, img/s", format="%.3g", help="scoring throughput in images/s, without the warm-up steps"),
        "epochs": number("Epochs", format="%d", help="run so far"),
        "duration_s": st.column_config.NumberColumn(
            "Duration",
            format="localized",
            width=145 if not frame["duration_s"].max() >= DAY_S else 195,
            help="from leaving the queue to the end",
        ),
        **{name: number(label, format="%.3f", help=_METRIC_HELP.get(name)) for name, label in METRIC_LABELS.items()},
        "best_val_loss": number("Best val. loss", format="%.4f", help="lowest validation loss, not the last: its weights were kept"),
        "best_epoch": number("at epoch", format="%d", help="the epoch of the best validation loss"),
        "note": text("Note", width="medium"),
        "tags": st.column_config.ListColumn("Tags", width="small"),
        "started": st.column_config.DatetimeColumn("Started", format="YYYY-MM-DD HH:mm", timezone=st.context.timezone),
        "run_id": text("Id", width="medium"),
        "error": text("Error", width="large"),
    }


@functools.lru_cache(maxsize=64)
def swatch(style: RunStyle) -> str:
    """The run's line as a small picture, for the table's first column."""
    svg = (
        '<svg xmlns="http://www.w3.org/2000/svg" width="64" height="52"><line x1="2" y1="26" x2="62" y2="26" '
        f'stroke="{style.colour}" stroke-width="7" stroke-dasharray="{_DASHES[style.dash]}"/></svg>'
    )
    return "data:image/svg+xml;utf8," + quote(svg)
