"""What is always on top: the machine in one line, the path a run started now would take, the progress of the run going on."""

from __future__ import annotations

import streamlit as st

from app.core.device_policy import Decision
from app.core.facts import CpuFacts, GpuFacts
from app.core.words import counted
from app.runs.table import active_runs
from app.ui import format as fmt
from app.ui import state
from app.ui.fragments import fragment
from app.ui.palette import path_badge

ACTIVE_REFRESH_S = 2.0


def render() -> None:
    """Title, machine and path on one line; a thin progress line under it while a run is going on. All of it follows the machine."""
    state.remember_link()
    state.keep_drawn_run(None)  # until this page has drawn one
    fragment(_render, run_every=ACTIVE_REFRESH_S)()


def _render() -> None:
    if state.drawn_run_changed():
        st.rerun()
    title, path = st.columns([3, 2], vertical_alignment="bottom")
    with title:
        st.title("Twopath", anchor=False)
        st.caption(machine_line(state.cpu(), state.gpu()))
    with path, st.container(horizontal=True, horizontal_alignment="right", vertical_alignment="center"):
        _path_badge(state.run_decision())
    _progress()


def machine_line(cpu: CpuFacts, gpu: GpuFacts) -> str:
    """`AMD EPYC, 2 usable cores, no NVIDIA GPU`; *no* only where that is known."""
    name = " ".join((cpu.name or f"{cpu.architecture} processor").replace("(R)", "").replace("(TM)", "").replace("(tm)", "").split())
    cores = counted(cpu.usable_cores, "usable core")
    boards = [found for found in gpu.gpus if found.mig is None or found.mig == "parent"]
    if not boards:
        if gpu is state.STILL_LOOKING:
            return f"{name}, {cores}, looking for GPUs …"
        return f"{name}, {cores}, {'GPU status unknown' if state.gpu_status_unknown(gpu) else 'no NVIDIA GPU'}"
    kinds = list(dict.fromkeys(board.name for board in boards))
    return f"{name}, {cores}, {' and '.join(f'{sum(board.name == kind for board in boards)} × {kind}' for kind in kinds)}"


def _path_badge(decision: Decision) -> None:
    with st.container(key="path_now", width="content", horizontal=True, vertical_alignment="center"):
        st.markdown(":gray[a run started now takes]", width="content")
        st.badge(
            state.path_label(decision),
            color=path_badge(decision.selected_device),
            icon=":material/memory:" if decision.selected_device == "gpu" else ":material/developer_board:",
            help=decision.reason,
        )


def _progress() -> None:
    runs = active_runs(state.runs_dir())
    if not runs:
        return
    first, waiting = runs[0], len(runs) - 1
    words = [first.run_id, first.state if first.state == "queued" else first.phase or first.state]
    if first.epoch and first.epochs:
        words.append(f"epoch {first.epoch} of {first.epochs}")
    if first.eta_s is not None:
        words.append(f"{fmt.duration(first.eta_s)} left")
    if waiting:
        words.append(f"{waiting} more waiting")
    st.progress(min(1.0, max(0.0, first.progress or 0.0)), text=" · ".join(str(word) for word in words))
