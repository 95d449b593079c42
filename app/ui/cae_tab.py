"""The Keras CAE tab: on the left pictures, options and the button; on the right one run, while it goes on and afterwards."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from app.runs.folder import RunFolder
from app.runs.status import LIVE_STATES
from app.runs.table import runs_table
from app.ui import cae_data, cae_form, cae_live, cae_results, cae_start, cae_sweep, state
from app.ui.cae_text import run_label
from app.ui.format import escaped
from app.ui.palette import run_styles

LABEL_COLUMNS = ["run_id", "name", "data", "preset", "created", "state"]
NEWEST = "newest"
"""Choice of the active run, running or queued, else of the last one made."""


def render() -> None:
    """Draw the tab."""
    runs = runs_table(state.runs_dir())
    left, right = st.columns([1, 2], gap="medium")
    with left:
        with st.container(border=True, key="cae_card_data"):
            chosen = cae_data.render(seed=cae_form.seed())
        with st.container(border=True, key="cae_card_options"):
            cae_form.render()
        with st.container(border=True, key="cae_card_start"):
            source, look = chosen or (None, None)
            with st.container():  # which has more or fewer sentences: what is typed below must not move
                cae_start.render(source, look, runs)
            cae_sweep.render(source)
    with right:
        run_id = _choice_of_run(runs)
        if run_id is None:
            _nothing_yet()
        else:
            _one_run(run_id, runs)


def newest(runs: pd.DataFrame) -> str | None:
    """The run that is going on (running before queued), else the last one made; `runs` come newest first."""
    for state_ in ("running", "queued"):
        live = runs.loc[runs["state"] == state_, "run_id"]
        if len(live):
            return str(live.iloc[0])
    return str(runs["run_id"].iloc[0]) if len(runs) else None


def _choice_of_run(runs: pd.DataFrame) -> str | None:
    """Draw the list of runs and return the run to show; the URL names it, so that a link or a reload shows the same."""
    latest = newest(runs)
    asked = str(st.session_state.get(state.SELECTED_RUN) or st.query_params.get(state.SELECTED_RUN) or NEWEST)
    labels = {str(row["run_id"]): run_label(row) for row in runs[LABEL_COLUMNS].to_dict("records")}
    known = asked if asked in labels else NEWEST
    first = "Active" if latest in set(runs.loc[runs["state"].isin(LIVE_STATES), "run_id"]) else "Newest"
    if asked not in (NEWEST, known):
        st.warning(
            f"There is no run {escaped(asked)} in {escaped(str(state.runs_dir()))}; here is the {first.lower()} one.",
            icon=":material/search_off:",
        )
    if latest is None:
        return None
    # Set at every draw: the labels change with the states, and the widget knows its value by the label.
    st.session_state[state.SELECTED_RUN] = known
    st.selectbox(
        "Run",
        [NEWEST, *labels],
        format_func=lambda run_id: f"{first}: {labels[latest]}" if run_id == NEWEST else labels[run_id],
        key=state.SELECTED_RUN,
        persist_state="session",
        label_visibility="collapsed",
    )
    _into_url(known)
    return latest if known == NEWEST else known


def _into_url(known: str) -> None:
    if known == NEWEST:
        st.query_params.pop(state.SELECTED_RUN, None)
    elif st.query_params.get(state.SELECTED_RUN) != known:
        st.query_params[state.SELECTED_RUN] = known


def _one_run(run_id: str, runs: pd.DataFrame) -> None:
    folder = RunFolder(state.runs_dir() / run_id)
    colour = run_styles(str(name) for name in runs["run_id"])[run_id].colour
    status = folder.status()
    if status.live:
        cae_live.render(folder, colour)
    else:
        state.keep_drawn_run(folder, status.state)
        cae_results.render(folder, status, colour)


def _nothing_yet() -> None:
    with st.container(border=True, key="cae_nothing_yet"):
        st.subheader("No runs yet", anchor=False)
        st.markdown(
            "Choose pictures on the left and press **Train and score**. The run gets a process of its own; it goes on when this page is "
            "closed.\n\nThen you will see here\n"
            "- while it trains: the path it took and why, progress with the time left, loss and images/s as they come;\n"
            "- afterwards: how well defects are found, the scores with a threshold to move, and where the network was surprised."
        )
        st.caption("The preset Quick shows all of this within a minute or two on most machines.")
