"""3 Train and score: where the run would go, how long it takes, what it needs, and the button."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import pandas as pd
import streamlit as st

from app.cae.config import CaeConfig, make_config
from app.cae.memory import free_mib
from app.core.device_policy import Decision
from app.core.errors import AppError
from app.core.words import counted
from app.runs.folder import RunFolder
from app.runs.launch import resume_run, start_run
from app.ui import cae_form, cae_launch, estimate, state
from app.ui import format as fmt
from app.ui.cae_look import Look
from app.ui.estimate import Work
from app.ui.format import escaped
from app.ui.palette import path_badge

PATH = "cae_path"
PATH_LINK = "run_on"
"""Its name in the URL, where a reload finds it."""
START = "cae_start"
SAID = "_cae_said"
_LAST_START = "_cae_last_start"
"""What was started last: its configuration, its run, and when the page was first drawn after it (`None`: not yet)."""

PATHS = {"device_tab": "as on the Device tab ({chosen})", "auto": "auto", "cpu": "CPU", "gpu": "GPU"}
DOUBLE_CLICK_S = 1.5
TWICE = "The second press started nothing: run {run_id} was started a moment ago with the same options. Press once more to start it again."


def render(source: str | None, look: Look | None, runs: pd.DataFrame) -> None:
    """Draw the section.

    Args:
        source: of the pictures; `None` when there are none to train on.
        look: at these pictures.
        runs: all runs so far, newest first.
    """
    st.subheader("3 Train and score", anchor=False)
    linked = st.query_params.get(PATH_LINK)
    st.session_state.setdefault(PATH, linked if linked in PATHS else "device_tab")
    st.selectbox(
        "Path of this run",
        list(PATHS),
        format_func=lambda name: f"Path: {PATHS[name].format(chosen=state.device_in_words(state.forced_device()))}",
        key=PATH,
        persist_state="session",
        label_visibility="collapsed",
        help="The choice here holds for runs started from this tab only; the Device tab explains how auto decides.",
    )
    state.keep_in_url(PATH_LINK, str(st.session_state[PATH]), "device_tab")
    cae_launch.render()
    decision = state.run_decision(chosen_device())
    blocked = cae_launch.problem()
    config, wrong = _checked(source or "synthetic")
    if source is not None and look is not None and config is not None:
        _sentence(config, look, decision, runs)
    # Not with options that do not fit: they may have been put right since the page was drawn. `start` looks at them as they are then.
    ready = source is not None and look is not None and state.build().installed and blocked is None
    st.button(
        "Train and score",
        key=START,
        type="primary",
        icon=":material/play_arrow:",
        width="stretch",
        disabled=not ready,
        on_click=_start,
        args=(source,),
    )
    st.caption(f"Decides at ≥ {fmt.mib(state.min_vram_mib())} free VRAM, set on the Device tab.{_queue_note(runs)}")
    for problem in filter(None, (blocked, wrong)):
        st.error(escaped(problem), icon=":material/tune:")
    _say_what_happened(source is None, wrong)
    _note_drawn()


def _checked(source: str) -> tuple[CaeConfig | None, str | None]:
    """What the page asks for, or what is wrong with it."""
    try:
        return make_config(asked(source)), None
    except AppError as error:
        return None, str(error)


def chosen_device() -> str:
    """`auto`, `cpu`, `gpu` or one GPU by index or UUID, for a run started now."""
    chosen = st.session_state.get(PATH, "device_tab")
    return state.forced_device() if chosen not in state.FORCED_CHOICES else str(chosen)


def asked(source: str) -> dict[str, Any]:
    """The values of a run's configuration as the page shows them now."""
    return {**cae_form.values(), "data": source, "device": chosen_device(), "min_vram_mib": state.min_vram_mib()}


def start(values: Mapping[str, Any]) -> None:
    """Start a run and show it; what went wrong is said under the button. Call from a callback, before the page is drawn."""
    try:
        config = make_config(values)
        if (before := _started_a_moment_ago(config)) is not None:
            st.toast(escaped(TWICE.format(run_id=before)), icon=":material/block:")
            return
        folder = start_run(config, state.runs_dir(), slurm=cae_launch.settings())
    except AppError as error:
        st.session_state[SAID] = str(error)
        return
    st.session_state[_LAST_START] = (config, folder.run_id, None)
    st.session_state[state.SELECTED_RUN] = folder.run_id
    st.toast(f"Run {folder.run_id} is set up; it is shown on the right.", icon=":material/play_circle:")


def _started_a_moment_ago(config: CaeConfig) -> str | None:
    """The run that a press just before has started with the same options, so that this press is the second of a double one."""
    last, run_id, drawn = st.session_state.get(_LAST_START, (None, "", 0.0))
    # On a slow page the visitor sees what the first press did only when the page is drawn; from then on it may be meant.
    return run_id if config == last and (drawn is None or time.monotonic() - drawn < DOUBLE_CLICK_S) else None


def _note_drawn() -> None:
    last, run_id, drawn = st.session_state.get(_LAST_START, (None, "", 0.0))
    if drawn is None:
        st.session_state[_LAST_START] = (last, run_id, time.monotonic())


def resume(folder: RunFolder) -> None:
    """Let an ended run go on. Call from a callback, before the page is drawn."""
    # Somebody may have been faster since this page was drawn: then the page, drawn anew, shows the run as it goes on.
    if not folder.status().live:
        try:
            resume_run(folder)
        except AppError as error:
            st.session_state[SAID] = str(error)
            return
    st.session_state[state.SELECTED_RUN] = folder.run_id


def _start(source: str) -> None:
    start(asked(source))


def _sentence(config: CaeConfig, look: Look, decision: Decision, runs: pd.DataFrame) -> None:
    device, cores = decision.selected_device, state.cpu().usable_cores
    work = look.work(config.val_fraction, config.seed, config.channels)
    found = estimate.rates(config, runs, device=device, cores=cores, channels=work.channels)
    expected = estimate.duration(config, work, found)
    if cae_launch.on_slurm():
        memory = _gib(estimate.memory_mib(config, work))
        st.markdown(f"will be a **SLURM** job; its path is decided on the node; needs about {memory} of memory.")
        st.caption(_counts(config, work))
        return
    words = [f"will run on **{_where(decision)}**"]
    words.append(
        f"{'at most' if config.patience else 'about'} {fmt.duration(expected.seconds)}" if expected.seconds else "duration unknown"
    )
    words.append(_needs(estimate.room(config, work, _free_mib())))
    st.markdown("; ".join(words) + ".")
    st.caption(f"Estimate {escaped(expected.basis)}: {_counts(config, work)}")
    for warning in decision.warnings:
        st.warning(escaped(warning), icon=":material/warning:")


def _counts(config: CaeConfig, work: Work) -> str:
    epochs = counted(config.epochs_for(work.train), "epoch")
    return f"{epochs} of {counted(work.train, 'picture')}, {work.held_out} held out, {work.test} to test."


def _needs(room: estimate.Room) -> str:
    words = f"needs about {_gib(room.memory_mib)} of memory"
    return f"{words} and {fmt.mib(room.disk_mib)} of disk, since the pictures do not fit into memory" if room.disk_mib else words


def _free_mib() -> float:
    """Of memory, MiB; without end where a bad TWOPATH_MEMORY_MIB keeps it from being told: the run will say so."""
    try:
        return free_mib()
    except AppError:
        return math.inf


def _where(decision: Decision) -> str:
    if decision.selected_device == "gpu":
        return f":{path_badge('gpu')}[GPU {escaped(decision.gpu.name) if decision.gpu else ''}]"
    return f":{path_badge('cpu')}[CPU, {counted(state.cpu().usable_cores, 'core')}]"


def _gib(mib: float) -> str:
    return f"{mib / 1024:.1f} GiB"


def _queue_note(runs: pd.DataFrame) -> str:
    live = int(runs["state"].isin(["queued", "running"]).sum())
    if not live or cae_launch.on_slurm():
        return ""
    return f" {counted(live, 'run')} going on or waiting: a run started now on the same device waits its turn."


def _say_what_happened(nothing_to_train_on: bool, said_before: str | None) -> None:
    said = st.session_state.pop(SAID, None)
    if said and said != said_before:
        st.error(escaped(said), icon=":material/error:")
    if not state.build().installed:
        st.warning(
            "No TensorFlow is installed here, so no run can start. Install it with the extra cpu or gpu.", icon=":material/download:"
        )
    elif nothing_to_train_on:
        st.caption("Choose pictures first.")
