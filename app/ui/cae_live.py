"""A run that is queued or running. Everything that moves stands in one fragment, at fixed heights, so that nothing jumps."""

from __future__ import annotations

import time

import pandas as pd
import streamlit as st

from app.core.errors import AppError
from app.core.words import counted
from app.runs.folder import RunFolder, RunStatus, load_history, read_log_tail
from app.runs.launch import cancel_run
from app.ui import cae_head
from app.ui import charts_run as charts
from app.ui import format as fmt
from app.ui.format import escaped
from app.ui.fragments import fragment

CANCEL = "cae_cancel"
LOG = "cae_log"
_ANSWER = "_cae_cancel_answer"

REFRESH_S = 1.0
BEFORE_FIGURES = "Loss and images/s are drawn once the first epoch is over."
LOG_LINES = 200
LOG_HEIGHT = 240

PHASES = {"reading": "reading pictures", "training": "training", "scoring": "scoring", "writing": "writing results"}


def render(folder: RunFolder, colour: str) -> None:
    """Draw the run and keep it fresh; when it has ended the page is drawn once more, as a whole."""
    fragment(_live, run_every=REFRESH_S)(folder, colour)


def _live(folder: RunFolder, colour: str) -> None:
    status = folder.status()
    if not status.live:
        st.rerun()
    cae_head.render(folder, status)
    if status.state == "queued":
        st.info(escaped(progress_words(status)), icon=":material/hourglass_empty:")
    else:
        _progress(status)
        history = load_history(folder.path)
        _tiles(status, history)
        if len(history):
            _curves(status, history, colour)
        else:
            # As high as the charts that take its place.
            with st.container(height=charts.CURVES_HEIGHT, border=False, vertical_alignment="center", horizontal_alignment="center"):
                going_on = "The first epoch is going on. " if status.phase == "training" else ""
                st.caption(going_on + BEFORE_FIGURES, text_alignment="center")
    _cancel(folder, status)
    log = st.expander("Log", key=LOG, icon=":material/notes:", on_change="rerun")
    if log.open:
        log.code(read_log_tail(folder.path, LOG_LINES) or "Nothing yet.", language=None, height=LOG_HEIGHT, wrap_lines=True)


def progress_words(status: RunStatus) -> str:
    """`training · epoch 3 of 29 · 48 s left`, or what a queued run waits for."""
    if status.state == "queued":
        return status.message or "Waiting for its turn."
    words = [PHASES.get(status.phase or "", status.phase or "starting TensorFlow")]
    if status.phase == "training" and status.epochs:
        words.append(f"epoch {min((status.epoch or 0) + 1, status.epochs)} of {status.epochs}")
    if status.eta_s is not None:
        words.append(f"{fmt.duration(status.eta_s)} left in this phase")
    elif status.phase == "training":
        words.append("the first step compiles")
    return " · ".join(words)


def _progress(status: RunStatus) -> None:
    st.progress(status.progress or 0.0, text=escaped(progress_words(status)))
    if status.message:
        st.caption(escaped(status.message))


def _tiles(status: RunStatus, history: pd.DataFrame) -> None:
    last = history.iloc[-1] if len(history) else None
    later = None if last is not None else "known after the first epoch"
    speed_help = later or "training pictures a second in the last epoch; warm-up and validation left out"
    loss_help = later or f"on held-out good pictures; training loss {fmt.significant(_of(last, 'loss'))}"
    on_gpu = pd.notna(_of(last, "gpu_memory_mib"))
    held_mib = _of(last, "gpu_memory_mib") if on_gpu else status.memory_mib
    memory_help = "known once the process has started" if held_mib is None else "held by the run's process"
    epoch, speed, loss, memory = st.columns(4)
    epoch.metric("Epoch", f"{status.epoch} of {status.epochs or fmt.UNKNOWN}" if status.epoch else fmt.UNKNOWN, help=later)
    speed.metric("Throughput", fmt.images_per_s(_of(last, "images_per_s")), help=speed_help)
    loss.metric("Validation loss", _loss(last), help=loss_help)
    memory.metric("GPU memory" if on_gpu else "Memory", fmt.mib(held_mib), help=memory_help)


def _of(row: pd.Series | None, name: str) -> float:
    return float("nan") if row is None else float(row[name])


def _loss(last: pd.Series | None) -> str:
    value = _of(last, "val_loss")
    return fmt.significant(value if pd.notna(value) else _of(last, "loss"))


def _curves(status: RunStatus, history: pd.DataFrame, colour: str) -> None:
    left, right = st.columns([3, 2])
    left.plotly_chart(
        charts.loss_curves(history, colour=colour, epochs=status.epochs, best_epoch=status.best_epoch),
        key="cae_live_loss",
        alt=f"Training and validation loss over {counted(len(history), 'epoch')} so far",
    )
    right.plotly_chart(
        charts.throughput_curve(history, colour=colour, epochs=status.epochs),
        key="cae_live_throughput",
        alt="Training images per second over the epochs so far",
    )


def _cancel(folder: RunFolder, status: RunStatus) -> None:
    asked = status.cancel_requested or folder.cancel_asked()
    with st.container(horizontal=True, vertical_alignment="center"):
        st.button(
            "Kill now" if asked else "Cancel",
            key=CANCEL,
            icon=":material/dangerous:" if asked else ":material/stop:",
            on_click=_ask_cancel,
            args=(folder,),
            help="Ends the process at once; the last whole epoch stays."
            if asked
            else "Stops after this step; what was computed stays usable.",
        )
        if asked:
            answer = st.session_state.get(_ANSWER, {}).get(folder.run_id)
            st.caption(escaped(answer or "Stopping … a second press kills the process."))
        st.caption(f"as of {time.strftime('%H:%M:%S')}", width="content")


def _ask_cancel(folder: RunFolder) -> None:
    try:
        answer = cancel_run(folder)
    except AppError as error:
        answer = str(error)
    st.session_state[_ANSWER] = {folder.run_id: answer}
