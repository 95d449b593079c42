"""*Measure*: the same training steps and scoring on each path of this machine, side by side."""

from __future__ import annotations

import json
import time
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from app.core.errors import AppError
from app.core.words import counted
from app.runs.bench_folder import Bench, BenchFolder, cancel_bench, list_benches, read_bench, start_bench
from app.runs.bench_options import make_options
from app.runs.bench_result import BenchResult
from app.runs.bench_sentences import BUSY_MACHINE, CANCEL_ASKED, CANCEL_ELSEWHERE
from app.runs.bench_table import rows, to_csv
from app.runs.processes import is_alive
from app.runs.proofs import newest_proof
from app.ui import charts_device as charts
from app.ui import format as fmt
from app.ui import state
from app.ui.cae_text import STATES
from app.ui.format import escaped
from app.ui.fragments import fragment
from app.ui.palette import FAINT, path_colour

START, CANCEL, CHOICE, ROUNDS = "bench_start", "bench_cancel", "bench_choice", "bench_rounds"
SAID = "_bench_said"
POLL_S = 1.0
LIVE = ("queued", "running")
FEW_ROUNDS, MANY_ROUNDS = 3, 10
NOISY_PERCENT = 15
PROVING = "*Prove it* is at work; measured beside it, every figure would be too low. This can be started once it has ended."


def render() -> None:
    """Draw the section: start, progress and cancel, and the benchmarks there are."""
    benches = list_benches(state.runs_dir())
    live = next((bench for bench in benches if bench.state in LIVE), None)
    proving = live is None and _proof_running()
    busy = live is not None or proving
    words, rounds, button = st.columns([5, 1, 1], vertical_alignment="bottom")
    words.markdown(
        "Measures the same training steps and scoring on each path that this machine has, every point in a process of its own, in "
        "interleaved rounds, warm-up left out. Takes some minutes; runs wait meanwhile, so that nothing else computes beside it."
    )
    # A list and not a number to type: one out of bounds would stay in the browser, and the number before it would be measured.
    st.session_state.setdefault(ROUNDS, FEW_ROUNDS)
    rounds.selectbox("Rounds", range(1, MANY_ROUNDS + 1), key=ROUNDS, persist_state="session", disabled=busy)
    button.button("Measure", key=START, type="primary", icon=":material/speed:", width="stretch", disabled=busy, on_click=_start)
    _say_what_failed()
    if proving:
        fragment(_while_proving, run_every=POLL_S)()
    if live is not None:
        fragment(_progress, run_every=POLL_S)(live.folder)
        return
    if not benches:
        st.caption("Nothing has been measured here yet.")
        return
    chosen = st.selectbox("Measurement", benches, format_func=_label, key=CHOICE, label_visibility="collapsed", index=0)
    _ended(chosen or benches[0])


def _say_what_failed() -> None:
    if said := st.session_state.pop(SAID, None):
        st.error(escaped(said), icon=":material/error:")


def _proof_running() -> bool:
    proof = newest_proof(state.runs_dir())
    return proof is not None and proof.state == "running"


def _while_proving() -> None:
    if not _proof_running():
        st.rerun()
    st.info(PROVING, icon=":material/hourglass_top:")


def _start() -> None:
    try:
        if _proof_running():  # started by another visitor since this page was drawn
            return
        options = make_options({"rounds": int(st.session_state.get(ROUNDS, FEW_ROUNDS)), "min_vram_mib": state.min_vram_mib()})
        start_bench(options, state.runs_dir())
        st.session_state.pop(CHOICE, None)
    except AppError as error:
        st.session_state[SAID] = str(error)


def _label(bench: Bench) -> str:
    created = bench.status.created
    when = created.astimezone().strftime("%d %b %H:%M") if created else bench.folder.bench_id
    cpu = bench.result.machine.get("cpu") if bench.result else None
    return " · ".join(str(part) for part in (when, cpu, bench.state) if part)


def _progress(folder: BenchFolder) -> None:
    bench = read_bench(folder)
    if bench.state not in LIVE:
        st.rerun()
    status = bench.status
    words = [bench.state]
    if bench.point:
        words.append(escaped(bench.point) + (f", round {bench.round} of {bench.rounds}" if bench.round else ", looking which kernels run"))
    if status.eta_s is not None:
        words.append(f"{fmt.duration(status.eta_s)} left")
    bar, button = st.columns([6, 1], vertical_alignment="center")
    bar.progress(min(1.0, max(0.0, status.progress or 0.0)), text=" · ".join(words))
    if status.message:
        st.caption(escaped(status.message))
    _say_what_failed()
    if folder.cancel_asked():
        st.info(escaped(_asked_to_stop(bench)), icon=":material/hourglass_bottom:")
    button.button("Cancel", key=CANCEL, icon=":material/stop:", width="stretch", on_click=_cancel, args=(folder,))
    if bench.result is not None and any(point.rounds for point in bench.result.points):
        _result(bench.result, "live")


def _asked_to_stop(bench: Bench) -> str:
    mark = bench.status.mark
    if mark is not None and is_alive(mark) is None:
        return CANCEL_ELSEWHERE.format(bench_id=bench.folder.bench_id, host=mark.host)
    return CANCEL_ASKED.format(bench_id=bench.folder.bench_id)


def _cancel(folder: BenchFolder) -> None:
    try:
        said = cancel_bench(folder)
        if said != _asked_to_stop(read_bench(folder)):  # that one stands there as long as the benchmark goes on
            st.toast(escaped(said), icon=":material/stop:")
    except AppError as error:
        st.session_state[SAID] = str(error)


def _ended(bench: Bench) -> None:
    colour, icon = STATES.get(bench.state, ("gray", ":material/help:"))
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.badge(bench.state, color=colour, icon=icon)
        if bench.status.error:
            st.markdown(escaped(bench.status.error), width="stretch")
    if bench.result is None:
        return
    _result(bench.result, bench.folder.bench_id)
    with st.container(horizontal=True):
        name = f"twopath-bench-{bench.folder.bench_id}"
        st.download_button("CSV", to_csv(bench.result), f"{name}.csv", "text/csv", icon=":material/download:", on_click="ignore")
        st.download_button(
            "JSON",
            json.dumps(bench.result.to_json(), indent=2),
            f"{name}.json",
            "application/json",
            icon=":material/download:",
            on_click="ignore",
        )


def _result(result: BenchResult, key: str) -> None:
    table = rows(result)
    measured = [row for row in table if row["measured"]]
    others = result.others_percent
    noisy = others is not None and others >= NOISY_PERCENT
    if noisy:
        st.warning(
            f"Other processes kept {others:.0f} % of the CPU busy while this was measured, so the order of the points may be chance. "
            "Measure again on a quiet machine.",
            icon=":material/warning:",
        )
    if not any(row[f"{kind}_median"] is not None for row in measured for kind in ("train", "score")):
        st.markdown("No round of any point has ended, so there are no speeds to compare.")
    else:
        left, right = st.columns(2, gap="large")
        for place, kind, title in ((left, "train", "Training"), (right, "score", "Scoring")):
            place.plotly_chart(speed_bars(measured, kind, title), key=f"bench_{kind}_{key}", alt=_in_words(measured, kind, title))
    # A static table wraps its cells; a data frame would cut remarks and kernels off.
    st.table(pd.DataFrame([_row(row) for row in table]).set_index("path"))
    noise = BUSY_MACHINE.partition("{")[0]
    notes = [note for note in result.notes if not (noisy and note.startswith(noise))]
    st.caption(f"{_machine(result)} {escaped(' '.join(notes))}".strip())


def speed_bars(measured: list[dict[str, Any]], kind: str, title: str) -> go.Figure:
    """One bar a point: median images/s with minimum and maximum as whiskers, and the speed-up over the slowest behind it."""
    shown = [row for row in measured if row[f"{kind}_median"] is not None]
    medians = [row[f"{kind}_median"] for row in shown]
    figure = go.Figure(
        go.Bar(
            y=[row["label"] for row in shown],
            x=medians,
            orientation="h",
            marker_color=[path_colour(row["device"]) for row in shown],
            error_x={
                "type": "data",
                "symmetric": False,
                "array": [row[f"{kind}_max"] - row[f"{kind}_median"] for row in shown],
                "arrayminus": [row[f"{kind}_median"] - row[f"{kind}_min"] for row in shown],
                "thickness": 1.4,
                "color": FAINT,
            },
            text=[f"× {row[f'{kind}_speed_up']:.2f}" if row[f"{kind}_speed_up"] else "" for row in shown],
            textposition="inside",
            insidetextanchor="start",
            hovertemplate="%{y}: %{x:.3g} images/s<extra></extra>",
        )
    )
    figure.update_layout(
        title={"text": title, "font": {"size": 15}},
        height=90 + 34 * len(shown),
        margin={"l": 0, "r": 8, "t": 36, "b": 0},
        xaxis={"title": "images/s, median with minimum and maximum", "rangemode": "tozero"},
        yaxis={"autorange": "reversed", "automargin": True},
        bargap=0.3,
        **charts.common_layout(),
    )
    return figure


def _row(row: dict[str, Any]) -> dict[str, str]:
    shared = f"measured as {row['same_as']}" if row["same_as"] and row["measured"] else None
    return {
        "path": escaped(row["label"]) + (" (a run now)" if row["chosen"] else ""),
        "training, images/s": _spread(row, "train"),
        "× slowest": _times(row["train_speed_up"]),
        "scoring, images/s": _spread(row, "score"),
        "× slowest ": _times(row["score_speed_up"]),
        "instruction set": row["instruction_set"] or fmt.UNKNOWN,
        "threads": _number(row["onednn_threads"]),
        "remark": escaped(row["reason"] or shared or row["notes"] or ""),
        "kernels": escaped(row["kernels"] or fmt.UNKNOWN),
    }


def _spread(row: dict[str, Any], kind: str) -> str:
    median, low, high = (row[f"{kind}_{name}"] for name in ("median", "min", "max"))
    if median is None:
        return "not available" if not row["available"] else fmt.UNKNOWN
    return f"{fmt.significant(median)} ({fmt.significant(low)}–{fmt.significant(high)})"


def _times(value: float | None) -> str:
    return fmt.UNKNOWN if value is None else f"{value:.2f}"


def _number(value: object) -> str:
    return fmt.UNKNOWN if value is None else str(value)


def _in_words(measured: list[dict[str, Any]], kind: str, title: str) -> str:
    return f"{title}: " + "; ".join(f"{row['label']} {fmt.images_per_s(row[f'{kind}_median'])}" for row in measured)


def _machine(result: BenchResult) -> str:
    machine, options = result.machine, result.options
    gpus = ", ".join(machine.get("gpus") or ()) or "no NVIDIA GPU"
    cores = counted(machine.get("usable_cores"), "usable core")
    when = time.strftime("%d %b %Y", time.strptime(result.created[:10], "%Y-%m-%d"))
    return escaped(
        f"{machine.get('cpu')}, {cores}, {gpus}; TensorFlow {machine.get('tensorflow')}, {when}. "
        f"{options.get('image_size')} px, {options.get('channels')}, batch {options.get('batch_size')}, float32; "
        f"{counted(result.rounds, 'round')}."
    )
