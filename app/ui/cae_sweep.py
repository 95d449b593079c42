"""Several runs at once: a small table of options and their values, every combination one run."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from app.cae.config import CaeConfig
from app.core.errors import AppError, OptionError
from app.core.words import counted
from app.runs.sweep import Cell, expand, new_tag, start_sweep
from app.ui import cae_form, cae_launch, cae_start, state
from app.ui.format import escaped

FOLD = "cae_sweep"
TABLE = "cae_sweep_table"
PATHS = "cae_sweep_paths"
START = "cae_sweep_start"

_ROWS = [("latent_dim", "64, 128"), ("seed", "0, 1")]
PREVIEW_ROWS = 6


def render(source: str | None) -> None:
    """Draw the section.

    Args:
        source: of the pictures; `None` when there are none to train on.
    """
    fold = st.expander("Sweep", key=FOLD, icon=":material/grid_on:", on_change="rerun")
    if not fold.open:
        return
    with fold:
        st.caption("Every combination of the values below becomes a run of its own; all other options are as shown above.")
        edited = _table()
        paths = st.multiselect(
            "Paths", list(state.FORCED_CHOICES), default=[], key=PATHS, placeholder="as chosen above", persist_state="session"
        )
        try:
            cells = cells_of(source or "synthetic", edited, paths)
        except AppError as error:
            st.error(escaped(str(error)), icon=":material/tune:")
            return
        _preview(cells)
        st.button(
            f"Start {counted(len(cells), 'run')}",
            key=START,
            icon=":material/playlist_play:",
            width="stretch",
            disabled=source is None or not state.build().installed,
            on_click=_start,
            args=(cells,),
        )


def cells_of(source: str, table: pd.DataFrame, paths: list[str]) -> list[Cell]:
    """The runs that the table means, with everything it does not name as the page shows it.

    Args:
        table: columns `option` and `values` (separated by commas); empty rows are left out.
        paths: none means the path chosen on the page.

    Raises:
        OptionError: an option is named twice, or a value does not fit.
    """
    axes: dict[str, list[Any]] = {name: [value] for name, value in cae_start.asked(source).items()}
    named: set[str] = set()
    for row in table.to_dict("records"):
        name, values = row["option"], row["values"]
        if not isinstance(name, str) or not isinstance(values, str) or not values.strip():
            continue
        if name in named:
            raise OptionError(f"{name}: expected every option in one row, got it in two.")
        if name not in _names():  # the table offers no others; typed data folders in particular are checked elsewhere
            raise OptionError(f"{name}: expected an option that the table offers.")
        named.add(name)
        axes.pop(name, None)  # at the end: the rows of the table in their order, the last one fastest
        axes[name] = [value.strip() for value in values.split(",")]
    if "steps" in named and "epochs" not in named:
        axes.pop("epochs", None)
    if paths:
        axes.pop("device")
        axes["device"] = paths
    return expand(axes)


def _table() -> pd.DataFrame:
    columns: dict[str, Any] = {
        "option": st.column_config.SelectboxColumn("Option", options=_names(), format_func=_label),
        "values": st.column_config.TextColumn("Values", help="separated by commas"),
    }
    edited = st.data_editor(
        pd.DataFrame(_ROWS, columns=["option", "values"]),
        key=TABLE,
        num_rows="dynamic",
        hide_index=True,
        width="stretch",
        column_config=columns,
    )
    return pd.DataFrame(edited)


def _names() -> list[str]:
    return [option.name for option in cae_form.options()]


def _label(name: Any) -> str:
    extra: Any = CaeConfig.model_fields[name].json_schema_extra
    return str(extra["label"])


def _preview(cells: list[Cell]) -> None:
    shown = ", ".join(f"({cell.name})" for cell in cells[:PREVIEW_ROWS] if cell.name)
    more = f" and {len(cells) - PREVIEW_ROWS} more" if len(cells) > PREVIEW_ROWS else ""
    where = "one SLURM job each" if cae_launch.on_slurm() else "they take turns on their device"
    st.markdown(f"**{counted(len(cells), 'run')}**, {where}.")
    if shown:
        st.caption(escaped(shown + more))


def _start(cells: list[Cell]) -> None:
    try:
        tag = new_tag()
        started = list(start_sweep(cells, state.runs_dir(), tag=tag, slurm=cae_launch.settings()))
    except AppError as error:
        st.session_state[cae_start.SAID] = str(error)
        return
    good = [one for one in started if one.run is not None]
    trouble = next((one.error for one in started if one.error), None)
    if trouble:
        st.session_state[cae_start.SAID] = f"{len(good)} of {counted(len(cells), 'run')} started. {trouble}"
    if good:
        st.toast(
            f"{counted(len(good), 'run')} started, tagged {tag}: filter by this tag on the Compare tab.", icon=":material/playlist_play:"
        )
