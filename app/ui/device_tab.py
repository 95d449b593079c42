"""The Device tab: the verdict and its threshold, live figures, how it was decided, what the CPU can do, and three rooms below."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app.core.device_policy import Decision
from app.ui import device_cpu, device_decided, device_live, measure, memory_need, proof, state, what_if
from app.ui.format import escaped
from app.ui.fragments import fragment

SECTION = "section"
SLIDER_STEP_MIB = 64
REFRESH_CHOICES: dict[str, float | None] = {"1 s": 1.0, "2 s": 2.0, "5 s": 5.0, "paused": None}


def render() -> None:
    """Draw the tab. Values that change by themselves stand in fragments; the slider and the choices around them do not move."""
    refresh_s = _refresh_s()
    with st.container(border=True, key="verdict"):
        fragment(_verdict, run_every=refresh_s)()
        _threshold_and_choice()
    live, decided = st.columns([3, 2], gap="medium")
    with live, st.container(border=True, key="live"):
        title, choice = st.columns([1, 1], vertical_alignment="center")
        title.subheader("Live", anchor=False)
        _refresh_choice(choice)
        fragment(device_live.render, run_every=refresh_s)()
    with decided, st.container(border=True, key="decided"):
        st.subheader("How it was decided", anchor=False)
        fragment(_decided, run_every=refresh_s)()
    with st.container(border=True, key="cpu"):
        device_cpu.render(state.cpu())
    _below()


def _below() -> None:
    """Sections of which one is open at a time; which one is in the URL."""
    rooms: dict[str, Callable[[], None]] = {
        "What if this were …": what_if.render,
        "Memory needed": lambda: memory_need.render(state.gpu().gpus),
        "Prove it": proof.render,
        "Measure": measure.render,
    }
    chosen = st.segmented_control("More", list(rooms), key=SECTION, label_visibility="collapsed", bind="query-params")
    if chosen:
        with st.container(border=True, key="section_card"):
            rooms[chosen]()


def _verdict() -> None:
    run, machine = state.run_decision(), state.decision()
    device_decided.verdict(run, state.path_label(run))
    if run.selected_device != machine.selected_device:
        device_decided.by_memory_alone(machine, state.path_label(machine))
    _build_warning(run, machine)
    for problem in (*state.gpu().problems, *state.cpu().problems):
        if problem not in run.reason:
            st.warning(escaped(problem), icon=":material/build:")


def _decided() -> None:
    device_decided.how(state.run_decision(), state.gpu(), state.decision())


def _refresh_s() -> float | None:
    """Seconds between refreshes; `None` while paused."""
    return REFRESH_CHOICES.get(str(st.session_state.get(state.REFRESH_S)), 1.0)


def _refresh_choice(place: DeltaGenerator) -> None:
    """Stands outside the fragments: a new rhythm concerns all of them, so the whole page runs again."""
    with place.container(horizontal=True, horizontal_alignment="right"):
        st.segmented_control(
            "Refresh every",
            list(REFRESH_CHOICES),
            default="1 s",
            key=state.REFRESH_S,
            required=True,
            label_visibility="collapsed",
            persist_state="session",
        )


def _threshold_and_choice() -> None:
    slider, choice = st.columns([4, 1], gap="large", vertical_alignment="center")
    highest = state.largest_total_mib(state.gpu())
    state.hold(state.MIN_VRAM_MIB, min(state.min_vram_mib(), highest), highest)
    st.session_state.setdefault(state.FORCED_DEVICE, state.forced_device())
    slider.slider(
        "Free VRAM needed, MiB",
        min_value=0,
        max_value=highest,
        step=SLIDER_STEP_MIB,
        key=state.MIN_VRAM_MIB,
        persist_state="session",
        help="A GPU is used when at least this much of its memory is free. Runs started from this page decide by it.",
    )
    with slider:
        memory_need.beside_the_slider()
    choice.segmented_control(
        "Path",
        options=state.FORCED_CHOICES,
        key=state.FORCED_DEVICE,
        format_func={"auto": "auto", "cpu": "CPU", "gpu": "GPU"}.__getitem__,
        required=True,
        persist_state="session",
        help="auto decides by the threshold; CPU and GPU force a path for runs started from this page.",
    )


def _build_warning(run: Decision, machine: Decision) -> None:
    """Where the installed TensorFlow cannot follow the verdict, that is said here and not found out by a slow run."""
    build = state.build()
    if not build.installed:
        st.warning(
            "No TensorFlow is installed here, so no run can start. Install it with the extra cpu or gpu.", icon=":material/download:"
        )
    elif machine.selected_device == "gpu" and run.selected_device == "cpu":
        st.warning(
            f"The TensorFlow installed here ({build.distribution} {build.version}) has no GPU support; "
            "`make app TF=gpu` installs the build that can use this GPU.",
            icon=":material/info:",
        )
