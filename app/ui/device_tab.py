"""The Device tab: the verdict and its threshold, live figures, how it was decided, what the CPU can do, and three rooms below."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app.ui import device_choice, device_cpu, device_decided, device_live, measure, memory_need, proof, state, what_if
from app.ui.format import escaped
from app.ui.fragments import fragment

SECTION = "section"
SLIDER_STEP_MIB = 64


def render() -> None:
    """Draw the tab. Values that change by themselves stand in fragments; the slider and the choices around them do not move."""
    refresh_s = state.REFRESH_CHOICES[state.refresh_choice()]
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
    _build_warning()
    for problem in (*state.gpu().problems, *state.cpu().problems):
        if problem not in run.reason:
            st.warning(escaped(problem), icon=":material/build:")


def _decided() -> None:
    device_decided.how(state.run_decision(), state.gpu(), state.decision())


def _refresh_choice(place: DeltaGenerator) -> None:
    """Stands outside the fragments: a new rhythm concerns all of them, so the whole page runs again."""
    st.session_state.setdefault(state.REFRESH_S, state.refresh_choice())
    with place.container(horizontal=True, horizontal_alignment="right"):
        st.segmented_control(
            "Refresh every",
            list(state.REFRESH_CHOICES),
            key=state.REFRESH_S,
            required=True,
            label_visibility="collapsed",
            persist_state="session",
        )


def _threshold_and_choice() -> None:
    slider, choice = st.columns([3, 1], gap="large", vertical_alignment="center")
    highest = state.largest_total_mib(state.gpu())
    threshold = min(state.min_vram_mib(), highest)
    state.hold(state.MIN_VRAM_MIB, threshold, highest)
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
    device = device_choice.render(choice)
    # A container that is always there: what comes and goes must not move what stands below it.
    with st.container(key="said_of_link"):
        for said in (state.said_of_link(state.MIN_VRAM_MIB, threshold), state.said_of_link(state.FORCED_DEVICE, device)):
            if said:
                st.info(escaped(said), icon=":material/link_off:")


def _build_warning() -> None:
    """Without TensorFlow no run starts. A build without GPU support is told of by the reason and by the second line."""
    if not state.build().installed:
        st.warning(
            "No TensorFlow is installed here, so no run can start. Install it with the extra cpu or gpu.", icon=":material/download:"
        )
