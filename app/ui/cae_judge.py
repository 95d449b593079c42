"""The threshold of a run, to move: histogram, confusion and every picture's verdict follow at once; the model is not run again."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st
from numpy.typing import NDArray

from app.cae.metrics import Confusion, confusion_at
from app.runs.folder import RunFolder, load_scores
from app.ui import cae_curves, cae_gallery, score_section, state, verdicts
from app.ui import charts_run as charts
from app.ui import format as fmt
from app.ui.fragments import fragment

RESET = "cae_threshold_reset"
CURVES = "cae_curves"
STEPS = 200
"""Positions of the slider, at least; at most ten times as many."""


@dataclass(frozen=True)
class Range:
    """A slider's bounds and step, round numbers that depend on the run alone."""

    low: float
    high: float
    step: float
    format: str

    def clamped(self, value: float) -> float:
        """`value`, or the end that it lies beyond: after a resumed run the scores are others, and so are the ends."""
        return min(self.high, max(self.low, value))

    def nearest(self, value: float) -> float:
        """The position of the slider that is nearest to `value`."""
        return self.clamped(round(self.low + round((value - self.low) / self.step) * self.step, 12))


def slider_range(scores: NDArray[np.float64], own: float) -> Range:
    """A range with room on both sides of all `scores` and the run's `own` threshold."""
    everything = np.append(scores[np.isfinite(scores)], own)
    low, high = float(everything.min()), float(everything.max())
    span = (high - low) or max(1e-6, abs(high), 1.0)
    step = 10.0 ** math.floor(math.log10(span / STEPS))
    places = max(0, -round(math.log10(step)))
    return Range(
        round(math.floor((low - 0.03 * span) / step) * step, places),
        round(math.ceil((high + 0.03 * span) / step) * step, places),
        step,
        f"%.{places}f",
    )


def key(run_id: str) -> str:
    """Session key of a run's slider: every run keeps its own."""
    return f"cae_threshold_{run_id}"


def render(folder: RunFolder, metrics: dict[str, Any], colour: str) -> None:
    """Draw what follows from the scores, in a fragment: moving the threshold redraws this part only."""
    fragment(_judge)(folder, metrics, colour)


def _judge(folder: RunFolder, metrics: dict[str, Any], colour: str) -> None:
    if not folder.path.is_dir():
        st.rerun()  # deleted since the page was drawn, which then says so
    scores = load_scores(folder.path)
    tested, held_out = verdicts.test_rows(scores), verdicts.held_out_scores(scores)
    own = metrics.get("threshold")
    if not len(tested):
        st.info("This run scored no test pictures, so there is nothing to judge.", icon=":material/info:")
        if isinstance(own, (int, float)) and math.isfinite(own):
            score_section.render(folder, float(own))
        return
    threshold = _threshold(folder.run_id, tested, held_out, own)
    frame = verdicts.judged(tested, threshold)
    labels, values = tested["label"].to_numpy(np.int64), tested["score"].to_numpy(np.float64)
    with st.container(border=True):
        st.markdown("**Scores and threshold**")
        left, right = st.columns([4, 3], gap="medium")
        with left:
            _histogram(frame, threshold, held_out)
        with right:
            _confusion(confusion_at(labels, values, threshold))
        exact = _own(own, tested)
        _slider(folder.run_id, slider_range(np.concatenate([values, held_out]), exact), exact)
    with st.container(border=True):
        cae_gallery.render(folder, frame, threshold)
    more = st.expander("Curves and classes", key=CURVES, icon=":material/show_chart:", on_change="rerun")
    if more.open:
        with more:
            cae_curves.render(folder, frame, metrics, threshold, colour)
    score_section.render(folder, threshold)


def _own(own: Any, tested: pd.DataFrame) -> float:
    """The run's threshold; where it has none, the median score, from which one can start."""
    return float(own) if isinstance(own, (int, float)) and math.isfinite(own) else float(tested["score"].median())


def _threshold(run_id: str, tested: pd.DataFrame, held_out: NDArray[np.float64], own: Any) -> float:
    """The threshold in force. Where the slider was not moved, the run's own to its last digit, not the slider's nearest position."""
    exact = _own(own, tested)
    bounds = slider_range(np.concatenate([tested["score"].to_numpy(np.float64), held_out]), exact)
    moved = _position(run_id, bounds, bounds.nearest(exact))
    return exact if abs(moved - bounds.nearest(exact)) < bounds.step / 2 else moved


def _position(run_id: str, bounds: Range, start: float) -> float:
    """Where the slider stands: where it was moved to, as far as there is; at the run's own threshold, also a new one, if it was not."""
    before = st.session_state.get(key(run_id))
    if before is None or before == st.session_state.get(_start_key(run_id)):
        return start
    return bounds.clamped(float(before))


def _start_key(run_id: str) -> str:
    return f"_{key(run_id)}_start"


def _slider(run_id: str, bounds: Range, own: float) -> None:
    start = bounds.nearest(own)
    position = _position(run_id, bounds, start)
    state.hold(key(run_id), position, bounds)
    st.session_state[_start_key(run_id)] = start
    slider, reset = st.columns([6, 1], vertical_alignment="bottom", gap="medium")
    slider.slider(
        "Threshold of the image score",
        min_value=bounds.low,
        max_value=bounds.high,
        step=bounds.step,
        format=bounds.format,
        key=key(run_id),
        persist_state="session",
        help="Pictures that score above it are called defective. The run's own comes from good pictures of the training folder, held out "
        "where possible, never from the test set.",
    )
    moved = abs(position - start) >= bounds.step / 2
    reset.button(
        "Reset",
        key=RESET,
        icon=":material/undo:",
        disabled=not moved,
        on_click=_set,
        args=(key(run_id), start),
        width="stretch",
        help=f"Back to the run's own threshold, {fmt.significant(start)}.",
    )


def _set(name: str, value: float) -> None:
    st.session_state[name] = value


def _histogram(frame: pd.DataFrame, threshold: float, held_out: NDArray[np.float64]) -> None:
    good, defective = int((frame["label"] == 0).sum()), int((frame["label"] == 1).sum())
    st.plotly_chart(
        charts.score_histogram(frame, threshold, held_out=held_out),
        key="cae_histogram",
        alt=f"Histogram of the scores of {good} good and {defective} defective test pictures; threshold {fmt.significant(threshold)}",
    )


def _confusion(here: Confusion) -> None:
    st.markdown(
        "| | called good | called defective |\n|:--|--:|--:|\n"
        f"| **good** | :green[{here.tn}\u00a0passed] | :red[{here.fp}\u00a0alarms] |\n"
        f"| **defective** | :red[{here.fn}\u00a0missed] | :green[{here.tp}\u00a0found] |"
    )
    none_called, none_there = "Nothing is called defective at this threshold.", "There is no defective test picture."
    precision, recall, f1 = st.columns(3)
    precision.metric(
        "Precision", fmt.score(here.precision), help="Truly defective among those called so." if here.precision is not None else none_called
    )
    recall.metric("Recall", fmt.score(here.recall), help="Found among the defective ones." if here.recall is not None else none_there)
    f1.metric("F1", fmt.score(here.f1), help="Harmonic mean of both." if here.f1 is not None else none_there)
    alarms = here.fp / (here.fp + here.tn) if here.fp + here.tn else None
    if alarms is not None:
        st.caption(f"{fmt.percent(100 * alarms)} of the good test pictures raise a false alarm.")
