"""What one can do with the ticked runs: name and annotate them, bin and restore them, start the missing half of a pair."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import pandas as pd
import streamlit as st

from app.core.device_policy import cpu_path
from app.core.errors import AppError
from app.core.words import counted
from app.runs.folder import RunFolder
from app.runs.keeping import annotate_run, delete_run, deleted_runs, find_run, read_notes, restore_run
from app.runs.launch import start_run
from app.runs.pairs import RunFacts, on_the_way, other_device
from app.runs.status import LIVE_STATES
from app.ui import compare_table as tables
from app.ui import state
from app.ui.charts_compare import shortened
from app.ui.palette import path_badge

SAVE = "compare_save"
EDITOR = "compare_editor"
_SAID = "_compare_said"
_ANNOTATING = "_compare_annotating"
_DELETE, _BIN = "compare_delete", "compare_bin"
_DONE = "_compare_done"
_OF_OTHER_TABS = ("data", "preset", "options", "run_on", "run", "scored")
"""Parameters of the URL that say nothing about this view."""
NAMED_AT_MOST = 5


def say(sentence: str, *, failed: bool = False) -> None:
    """Keep a sentence for the next drawing of the page: what was done is shown where the page has changed by it."""
    st.session_state.setdefault(_SAID, []).append((sentence, failed))


def show_what_was_said() -> None:
    for sentence, failed in st.session_state.pop(_SAID, []):
        if failed:
            st.error(plain(sentence), icon=":material/error:")
        else:
            st.toast(plain(sentence), icon=":material/check:")


def bar(frame: pd.DataFrame, ticked: Sequence[str], labels: Mapping[str, str], downloads: Callable[[], None]) -> None:
    """One row of buttons under the table."""
    _annotated()  # a draw of the whole page has closed the dialog, whoever asked for it
    if st.session_state.pop(_DONE, False):
        st.session_state[_DELETE] = st.session_state[_BIN] = False
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        none = not ticked
        if st.button("Name, note, tags", icon=":material/edit:", key="compare_annotate", disabled=none):
            st.session_state[_ANNOTATING] = True
            _annotate(list(ticked))
        with st.popover("Delete", icon=":material/delete:", disabled=none, key=_DELETE, on_change="rerun"):
            _delete(ticked, set(frame.loc[frame["state"].isin(LIVE_STATES), "run_id"]), labels)
        binned = deleted_runs(state.runs_dir())
        label, icon = f"Bin ({len(binned)})", ":material/restore_from_trash:"
        with st.popover(label, icon=icon, disabled=not binned, key=_BIN, on_change="rerun"):
            _restore(binned)
        # Filters and switches draw their own parts of the page only: without a draw at its opening the link would be older than they are.
        with st.popover("Link", icon=":material/link:", key="compare_link", on_change="rerun") as opened:
            if opened.open:
                st.caption("Opens this page with these runs ticked and these settings, for everybody who sees this dashboard and its runs.")
                st.code(link(ticked), language=None, wrap_lines=True)
        with st.popover("Export", icon=":material/download:", disabled=none, key="compare_export"):
            downloads()
        if st.button("Untick all", icon=":material/remove_done:", key="compare_untick", disabled=none, type="tertiary"):
            tables.tick([])
            st.rerun()
    _say_shortage(frame)


def _say_shortage(frame: pd.DataFrame) -> None:
    unreadable = frame.loc[frame["state"] == "unreadable", "error"].dropna()
    for sentence in list(unreadable)[:NAMED_AT_MOST]:
        st.caption(f":orange[:material/warning:] {plain(sentence)}")


def link(ticked: Sequence[str]) -> str:
    """The address of this view. The ids stand in it even where nobody has ticked anything yet: the newest runs change."""
    here = {name: value for name, value in st.query_params.to_dict().items() if name not in _OF_OTHER_TABS}
    values = {**here, state.TAB: state.TABS[2], state.COMPARED_RUNS: ",".join(ticked) or tables.NOTHING}
    return f"{(st.context.url or '').split('?')[0].rstrip('/')}/?{urlencode(values, safe=',')}"


def annotating() -> bool:
    """Whether somebody is typing into the dialog: a draw of the whole page would close it and lose what was typed."""
    return _ANNOTATING in st.session_state


def _annotated() -> None:
    st.session_state.pop(_ANNOTATING, None)


@st.dialog("Name, note, tags", width="large", icon=":material/edit:", on_dismiss=_annotated)
def _annotate(run_ids: list[str]) -> None:
    folders = [RunFolder(state.runs_dir() / run_id) for run_id in run_ids]
    before = pd.DataFrame([{"run_id": folder.run_id, **read_notes(folder.path)} for folder in folders])
    before["name"] = before["name"].fillna("")
    known = sorted({tag for tags in before["tags"] for tag in tags})
    with st.form("compare_annotate_form", border=False):
        edited = st.data_editor(
            before,
            key=EDITOR,
            hide_index=True,
            width="stretch",
            disabled=["run_id"],
            column_config={
                "run_id": st.column_config.TextColumn("Id", width="medium"),
                "name": st.column_config.TextColumn("Name", max_chars=200, help="empty shows the id"),
                "note": st.column_config.TextColumn("Note", width="large", max_chars=2000),
                "tags": st.column_config.MultiselectColumn("Tags", options=known, accept_new_options=True),
            },
            alt="Names, notes and tags of the ticked runs, to be edited",
        )
        if st.form_submit_button("Save", type="primary", key=SAVE):
            save_notes(folders, before, edited)
            _annotated()
            st.rerun()


def save_notes(folders: Sequence[RunFolder], before: pd.DataFrame, after: pd.DataFrame) -> None:
    """Write the rows that were edited."""
    for folder, (_, old), (_, new) in zip(folders, before.iterrows(), after.iterrows(), strict=True):
        values = {"name": str(new["name"] or "").strip(), "note": str(new["note"] or ""), "tags": [str(tag) for tag in new["tags"]]}
        if values != {"name": old["name"], "note": old["note"], "tags": list(old["tags"])}:
            try:
                annotate_run(folder, name=values["name"], note=values["note"], tags=values["tags"])  # type: ignore[arg-type]
            except AppError as error:
                say(str(error), failed=True)


def _delete(ticked: Sequence[str], live: Collection[str], labels: Mapping[str, str]) -> None:
    ended = [run_id for run_id in ticked if run_id not in live]
    count = f"{len(ended)} run{'s' if len(ended) != 1 else ''}"
    named = [f"- {plain(shortened(labels.get(run_id, run_id), 48))}" for run_id in ended[:NAMED_AT_MOST]]
    rest = [f"- and {len(ended) - NAMED_AT_MOST} more"] if len(ended) > NAMED_AT_MOST else []
    st.markdown("\n".join([f"Move **{count}** to the bin? Nothing is erased, *Bin* brings them back.", "", *named, *rest]))
    if len(ended) < len(ticked):
        st.caption("Runs that are queued or running stay; cancel them first.")
    if st.button("Move to the bin", type="primary", key="compare_delete_confirmed", disabled=not ended):
        moved = {run_id for run_id in ended if _try(delete_run, RunFolder(state.runs_dir() / run_id))}
        if moved:
            say(f"Moved {counted(len(moved), 'run')} to the bin.")
            st.session_state[_DONE] = True
        tables.tick([run_id for run_id in ticked if run_id not in moved])
        st.rerun()


def _restore(binned: Sequence[RunFolder]) -> None:
    names = {folder.run_id: read_notes(folder.path)["name"] for folder in binned}
    chosen = st.multiselect(
        "Deleted runs",
        [folder.run_id for folder in reversed(binned)],
        format_func=lambda run_id: f"{names.get(run_id)} ({run_id})" if names.get(run_id) else run_id,
        key="compare_restore_choice",
        placeholder="choose what to bring back",
    )
    if st.button("Restore", type="primary", key="compare_restore", disabled=not chosen):
        restore(chosen)


def restore(run_ids: Sequence[str]) -> None:
    """Bring runs back from the bin and draw the page again."""
    back = [run_id for run_id in run_ids if _try(_restore_one, run_id)]
    if back:
        say(f"Brought {counted(len(back), 'run')} back.")
        st.session_state[_DONE] = True
    st.rerun()


def _restore_one(run_id: str) -> None:
    restore_run(find_run(state.runs_dir(), run_id, deleted=True))


def _try(action: Callable[[Any], object], thing: object) -> bool:
    try:
        action(thing)
    except AppError as error:
        say(str(error), failed=True)
        return False
    return True


def vanished(run_ids: Sequence[str], there: Sequence[str]) -> None:
    """Ticked runs that are no longer there: said once, with the way back where there is one."""
    if not run_ids:
        return
    binned = {folder.run_id for folder in deleted_runs(state.runs_dir())}
    in_bin = [run_id for run_id in run_ids if run_id in binned]
    named = ", ".join(run_ids[:NAMED_AT_MOST]) + (" …" if len(run_ids) > NAMED_AT_MOST else "")
    where = "in the bin" if len(in_bin) == len(run_ids) else f"not in {state.runs_dir()}: deleted, or the link is from another machine"
    with st.container(border=True, horizontal=True, vertical_alignment="center", key="compare_vanished"):
        st.markdown(f":material/help: {plain(f'No longer here: {named} ({where}).')}", width="stretch")
        if in_bin and st.button("Restore", key="compare_vanished_restore"):
            restore(in_bin)
        if st.button("Forget", key="compare_vanished_forget", help="take it out of the selection"):
            tables.tick(there)
            st.rerun()


def missing_halves(runs: Sequence[RunFacts], labels: Mapping[str, str], known: Sequence[RunFacts], ticked: Sequence[str]) -> None:
    """One line for each run without a partner: *Run the same on the other path*, or why that cannot be done here."""
    barred: dict[str, str] = {}
    for run in runs:
        device = other_device(run.selected_device or "cpu")
        why_not = path_missing(device)
        if why_not:
            barred[device] = why_not
        words, button = st.columns([3, 1], vertical_alignment="center")
        with words, st.container(horizontal=True, vertical_alignment="center", gap="small"):
            st.badge(run.path or (run.selected_device or "").upper(), color=path_badge(run.selected_device))
            st.markdown(f"{plain(shortened(labels.get(run.run_id, run.run_id)))} :gray[has no finished {device.upper()} run of the same]")
        with button:
            _other_path_button(run, device, why_not, on_the_way(known, run.task_key, device), ticked)
    for device, why_not in barred.items():
        st.caption(f":material/info: The {device.upper()} path does not exist on this machine: {plain(why_not)}")


def _other_path_button(run: RunFacts, device: str, why_not: str | None, going_on: RunFacts | None, ticked: Sequence[str]) -> None:
    if going_on is not None:
        st.markdown(f":gray[{plain(going_on.run_id)} is {going_on.state}]")
    elif st.button(
        f"Run the same on the {device.upper()} path",
        key=f"run_other_{run.run_id}",
        icon=":material/swap_horiz:",
        disabled=why_not is not None,
        help=why_not or "Starts a run with the same options and seed and this path forced.",
        width="stretch",
    ):
        _start_other(run, device, ticked)


def path_missing(device: str) -> str | None:
    """Why a run started here cannot take this path, as one sentence; `None` when it can."""
    build = state.build()
    if not build.installed:
        return "No TensorFlow is installed here; install it with the extra cpu or gpu."
    if device == "cpu":
        return None
    if build.has_gpu is False and state.gpu().gpus:
        return f"The TensorFlow installed here ({build.distribution} {build.version}) has no GPU support; install the extra gpu."
    decision = state.run_decision("gpu")
    if decision.selected_device != "gpu":
        # What auto says is why there is no GPU path, and then where a run would go instead, which is beside the point here.
        return (decision.auto_would_say or decision.reason).removesuffix(cpu_path(state.cpu())).strip()
    return None


def _start_other(run: RunFacts, device: str, ticked: Sequence[str]) -> None:
    folder = RunFolder(state.runs_dir() / run.run_id)
    try:
        started = start_run(folder.config().model_copy(update={"device": device}), state.runs_dir(), name=_other_name(folder, device))
    except AppError as error:
        st.error(plain(str(error)), icon=":material/error:")
        return
    say(f"Started {started.run_id} on the {device.upper()} path.")
    tables.tick([*ticked, started.run_id])
    st.rerun()


def _other_name(folder: RunFolder, device: str) -> str | None:
    name = read_notes(folder.path)["name"]
    return f"{name}, {device.upper()}" if name else None


def file_name(kind: str, suffix: str) -> str:
    """`twopath-runs-20261129-1930.csv`, `twopath-curves-20261129-1930.csv`."""
    return f"twopath-{kind}-{dt.datetime.now():%Y%m%d-%H%M}.{suffix}"


def plain(text: str) -> str:
    """Names and sentences are text, not Markdown."""
    for character in ("\\", "*", "_", "`", "$", "[", "]", "<", "~", ":", "#", "|"):
        text = text.replace(character, "\\" + character)
    return text.replace("\n", " ")
