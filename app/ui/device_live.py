"""The live panel: what each GPU and the CPU are doing now and did in the last five minutes. Drawn inside a fragment."""

from __future__ import annotations

import time

import pandas as pd
import streamlit as st

from app.core.facts import Gpu, GpuFacts
from app.core.live import Sample
from app.ui import charts_device as charts
from app.ui import format as fmt
from app.ui import state
from app.ui.format import escaped

NAME_WIDTH_PX = 190
"""Of a GPU's name in the table: a longer one is cut, so that the figures beside it can be seen. The table of answers has it whole."""
SLOW_AFTER_S = 2.0
"""A probe that takes longer is told of: NVML and a well nvidia-smi answer in less."""


def render() -> None:
    """Draw the newest sample; says so when it is old, and shows the last good figures when the driver stopped answering."""
    newest = state.sample()
    if newest is None:
        _still_looking()
        return
    _freshness(newest)
    shown = newest.gpu
    if not shown.gpus and (last := state.sampler().last_with_gpus()) is not None:
        st.warning(
            f"GPU status unavailable since {_clock(last.at)}. The GPU figures below are those of that moment, the last good ones.",
            icon=":material/history:",
        )
        shown = last.gpu
    if shown.gpus:
        _gpu_panel(shown, stale=shown is not newest.gpu)
    _cpu_panel(newest)
    frame = charts.history_frame(state.sampler().history())
    spec = charts.history_spec(sorted(set(frame["series"]) - {"CPU", "RAM"}))
    st.vega_lite_chart(frame, spec, width="stretch", key="history", alt="CPU, RAM and VRAM in use over the last five minutes, percent")
    st.caption("Last five minutes. Mark a span in the strip to zoom into it, drag it to move, double click the strip for all of it.")
    if not shown.gpus:
        st.caption(f"**GPU** – {_why_none(shown)}")


def _still_looking() -> None:
    since = state.sampler().looking_since
    waited = f" for {fmt.duration(time.time() - since)}" if since else ""
    st.info(
        f"Looking at the machine{waited}. A driver that does not answer is given up after a few seconds.", icon=":material/hourglass_empty:"
    )


def _freshness(newest: Sample) -> None:
    """Age of the figures, what a refresh costs, and how often it happens."""
    since = state.sampler().looking_since
    waiting = time.time() - since if since is not None else 0.0
    source = {"nvml": "NVML", None: "no GPU source"}.get(newest.gpu.source, newest.gpu.source)
    driver = f"; driver {newest.gpu.driver_version}" if newest.gpu.driver_version else ""
    cost = f"{source}, {newest.gpu.probe_ms:.1f} ms; whole refresh {newest.refresh_ms:.1f} ms{escaped(driver)}"
    if waiting > SLOW_AFTER_S:
        age = fmt.duration(time.time() - newest.at)
        st.caption(
            f":orange[figures of {_clock(newest.at)}, {age} old: the next probe has not answered for {fmt.duration(waiting)}] · {cost}"
        )
    else:
        st.caption(f"as of {_clock(newest.at)} · {cost}")


def _gpu_panel(facts: GpuFacts, *, stale: bool) -> None:
    st.plotly_chart(
        charts.memory_bars(facts.gpus, state.min_vram_mib(), faded=stale),
        key="memory_bars",
        alt="; ".join(f"GPU {gpu.index}: {fmt.mib(gpu.free_mib)} free of {fmt.mib(gpu.total_mib)}" for gpu in facts.gpus),
    )
    st.dataframe(
        pd.DataFrame([_gpu_row(gpu) for gpu in facts.gpus]),
        hide_index=True,
        width="stretch",
        key="gpu_table",
        column_config={"GPU": st.column_config.TextColumn(width=NAME_WIDTH_PX)},
        alt="Memory, use, temperature and power of each GPU",
    )
    holders = [(gpu, process) for gpu in facts.gpus for process in gpu.processes or ()]
    if holders:
        rows = [
            {"GPU": gpu.index, "PID": process.pid, "process": process.name or fmt.UNKNOWN, "holds": fmt.mib(process.used_mib)}
            for gpu, process in holders
        ]
        st.caption("Who holds the memory")
        st.dataframe(pd.DataFrame(rows), hide_index=True, width="stretch", key="gpu_holders", alt="Processes that hold GPU memory")
    elif facts.processes_note:
        st.caption(f"Who holds the memory: {escaped(facts.processes_note)}")


def _gpu_row(gpu: Gpu) -> dict[str, str]:
    shared = "shared with system RAM"
    return {
        "GPU": charts.gpu_label(gpu),
        "used": fmt.mib(gpu.used_mib),
        "free": shared if gpu.unified_memory else fmt.mib(gpu.free_mib),
        "total": shared if gpu.unified_memory else fmt.mib(gpu.total_mib),
        "busy": fmt.percent(gpu.utilisation_percent),
        "temperature": fmt.UNKNOWN if gpu.temperature_c is None else f"{gpu.temperature_c} °C",
        "power": fmt.UNKNOWN if gpu.power_w is None else f"{gpu.power_w:.0f} W",
    }


def _cpu_panel(newest: Sample) -> None:
    mean, ram, load = st.columns(3)
    mean.metric("CPU in use", fmt.percent(newest.cpu_mean_percent), help="mean over the logical CPUs since the refresh before")
    ram.metric("RAM in use", f"{newest.ram_used_mib / 1024:.1f} of {newest.ram_total_mib / 1024:.1f} GiB")
    load.metric(
        "Load, 1 min",
        fmt.UNKNOWN if newest.load_1min is None else f"{newest.load_1min:.2f}",
        help="processes that want to compute, on average",
    )
    st.vega_lite_chart(
        charts.core_frame(newest.cpu_percent), charts.CORE_SPEC, width="stretch", key="core_bars", alt="Use of each logical CPU, percent"
    )


def _why_none(facts: GpuFacts) -> str:
    if facts.problems or facts.device_node:
        return "not available; cause and cure stand on top of this page."
    because = escaped(facts.no_gpu_because or "No NVIDIA GPU found.")
    return f"{because} With an NVIDIA GPU and its driver, its memory would be drawn here against the threshold."


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))
