"""Figures of the Device tab: values in, Plotly figure or Vega-Lite specification out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from app.core.facts import Gpu
from app.core.live import Sample
from app.ui import format as fmt
from app.ui.format import shortened
from app.ui.palette import CPU_BLUE, FAINT, GPU_GREEN, OKABE_ITO, THRESHOLD

CLEAR = "rgba(0,0,0,0)"
MAX_CORES_SHOWN = 64
LONGEST_LABEL = 30
"""Characters of a GPU's name beside its bar, so that the bar keeps room; hovering tells the whole name."""
LEGEND_COLUMNS = 3
"""Names of slices are long: more of them in a row would be cut off."""
SHORTEST_GAP_S = 6.0
"""Samples at least this far apart, and three times as far as is usual, are not joined: nobody looked in between."""


def memory_bars(gpus: Sequence[Gpu], min_vram_mib: int, *, faded: bool = False) -> go.Figure:
    """One bar a GPU: used from the left, free to its total; a line where the free part would just meet the threshold.

    `faded`: the figures are old.
    """
    known = [gpu for gpu in gpus if gpu.total_mib]
    labels = [shortened(gpu_label(gpu), LONGEST_LABEL) for gpu in known]
    rows = list(range(len(known)))  # and not the labels: two slices of one profile have the same, and would share a bar
    used = [gpu.total_mib - (gpu.free_mib or 0) for gpu in known if gpu.total_mib]
    free = [gpu.free_mib or 0 for gpu in known]
    figure = go.Figure()
    look = {"orientation": "h", "opacity": 0.4 if faded else 1.0}
    for name, values, colour in (("used", used, FAINT), ("free", free, GPU_GREEN)):
        hover = f"%{{customdata}}: %{{x:.0f}} MiB {name}<extra></extra>"
        names = [gpu_label(gpu) for gpu in known]
        figure.add_bar(y=rows, x=values, customdata=names, name=name, marker_color=colour, hovertemplate=hover, **look)
    for row, gpu in enumerate(known):
        mark = (gpu.total_mib or 0) - min_vram_mib
        if mark >= 0:
            figure.add_shape(type="line", x0=mark, x1=mark, y0=row - 0.48, y1=row + 0.48, line={"color": THRESHOLD, "width": 3})
    figure.update_layout(
        barmode="stack",
        showlegend=False,
        title=_key(min_vram_mib),
        height=96 + 38 * len(known),
        margin={"l": 0, "r": 8, "t": 28, "b": 0},
        xaxis={"title": "VRAM, MiB", "rangemode": "tozero", "tickformat": "d"},
        separators=".\N{NARROW NO-BREAK SPACE}",
        yaxis={"autorange": "reversed", "automargin": True, "tickmode": "array", "tickvals": rows, "ticktext": labels, "zeroline": False},
        bargap=0.35,
        **common_layout(),
    )
    return figure


def _key(min_vram_mib: int) -> dict[str, object]:
    """What the colours mean, as a line of text: Plotly stacks a legend, or takes its width off the bars, where names are long."""
    parts = (("\u25a0", FAINT, "used"), ("\u25a0", GPU_GREEN, "free"), ("\u2503", THRESHOLD, f"threshold {fmt.mib(min_vram_mib)}"))
    text = "\u2003".join(f'<span style="color:{colour}">{sign}</span> {words}' for sign, colour, words in parts)
    return {
        "text": text,
        "font": {"size": 13, "weight": "normal"},
        "x": 0,
        "xref": "container",
        "y": 1,
        "yanchor": "top",
        "yref": "container",
    }


def history_frame(samples: Sequence[Sample]) -> pd.DataFrame:
    """CPU, RAM and the VRAM of each GPU over the samples, long form: columns `time`, `series`, `percent`.

    Where nobody looked for a while (paused, no page open, a probe that hung), each series has a row without a value, which ends its line.
    """
    spacing = np.diff([sample.at for sample in samples])
    gap_s = max(SHORTEST_GAP_S, 3.0 * float(np.median(spacing))) if len(spacing) else math.inf
    rows: list[tuple[datetime, str, float | None]] = []
    last_at = math.inf
    for sample in samples:
        if sample.at - last_at > gap_s:
            between = datetime.fromtimestamp((sample.at + last_at) / 2)
            rows += [(between, name, None) for name in dict.fromkeys(name for _, name, _ in rows)]
        last_at = sample.at
        at = datetime.fromtimestamp(sample.at)
        rows += [(at, "CPU", sample.cpu_mean_percent), (at, "RAM", 100.0 * sample.ram_used_mib / sample.ram_total_mib)]
        rows += [(at, f"VRAM of {vram_series(gpu)}", _vram_percent(gpu)) for gpu in sample.gpu.gpus if gpu.total_mib]
    return pd.DataFrame(rows, columns=["time", "series", "percent"])


def history_spec(series: Sequence[str]) -> dict[str, Any]:
    """Vega-Lite for `history_frame`: the lines, and below them a strip of all five minutes in which a span can be marked to zoom into it.

    The same for every refresh, so that the browser only takes in new data and keeps the marked span. `st.plotly_chart` (Streamlit 1.67)
    would take each refresh for a new chart, and it forgets a zoom bound to the scales whenever data come in.
    """
    names = list(dict.fromkeys(["CPU", "RAM", *series]))
    greens = itertools.chain([GPU_GREEN], itertools.cycle(OKABE_ITO[3:] + OKABE_ITO[:3]))
    colours = [{"CPU": CPU_BLUE, "RAM": FAINT}.get(name) or next(greens) for name in names]
    clock = {"format": "%H:%M:%S", "tickCount": 6, "grid": False}
    percent = {"field": "percent", "type": "quantitative", "scale": {"domain": [0, 100]}}
    lines = {
        "mark": {"type": "line", "strokeWidth": 2, "clip": True, "tooltip": True},
        "height": 200,
        "encoding": {
            "x": {
                "field": "time",
                "type": "temporal",
                "title": None,
                "axis": clock,
                "scale": {"domain": {"param": "span", "encoding": "x"}},
            },
            "y": {**percent, "title": "in use, %"},
            "color": {
                "field": "series",
                "type": "nominal",
                "title": None,
                "scale": {"domain": names, "range": colours},
                "legend": {"orient": "top", "columns": LEGEND_COLUMNS, "labelLimit": 0, "symbolLimit": 0},
            },
        },
    }
    strip = {
        "mark": {"type": "area", "color": CPU_BLUE, "opacity": 0.35},
        "height": 34,
        "transform": [{"filter": "datum.series === 'CPU'"}],
        "params": [{"name": "span", "select": {"type": "interval", "encodings": ["x"]}}],
        "encoding": {
            "x": {"field": "time", "type": "temporal", "title": None, "axis": {"labels": False, "ticks": False, "grid": False}},
            "y": {**percent, "title": None, "axis": None},
        },
    }
    return {"vconcat": [lines, strip], "spacing": 8}


def core_frame(percents: Sequence[float]) -> pd.DataFrame:
    """Use of each logical CPU: columns `core`, `percent`; the first `MAX_CORES_SHOWN` of them."""
    shown = list(percents)[:MAX_CORES_SHOWN]
    return pd.DataFrame({"core": range(len(shown)), "percent": shown})


CORE_SPEC: dict[str, Any] = {
    "mark": {"type": "bar", "color": CPU_BLUE, "tooltip": True},
    "height": 170,
    "encoding": {
        "x": {"field": "core", "type": "ordinal", "title": "logical CPU", "axis": {"labelAngle": 0, "labelOverlap": True}},
        "y": {"field": "percent", "type": "quantitative", "title": "in use, %", "scale": {"domain": [0, 100]}, "axis": {"tickCount": 3}},
    },
}
"""Vega-Lite for `core_frame`."""


def gpu_label(gpu: Gpu) -> str:
    """`GPU 0 · RTX A4000`, with the slice's profile where it is one."""
    name = gpu.name.removeprefix("NVIDIA ")
    return f"GPU {gpu.index} · {name}" + (f" · {gpu.mig}" if gpu.mig and gpu.mig != "parent" and gpu.mig not in name else "")


def vram_series(gpu: Gpu) -> str:
    """`GPU 0`, or for a slice `GPU 0 1g.5gb`."""
    return f"GPU {gpu.index}" + (f" {gpu.mig}" if gpu.mig and gpu.mig != "parent" else "")


def _vram_percent(gpu: Gpu) -> float | None:
    if not gpu.total_mib or gpu.free_mib is None:
        return None
    return 100.0 * (gpu.total_mib - gpu.free_mib) / gpu.total_mib


def common_layout() -> dict[str, object]:
    """What every chart of these pages shares: no background of its own, zoom kept, a legend above."""
    return {
        "paper_bgcolor": CLEAR,
        "plot_bgcolor": CLEAR,
        "uirevision": "constant",
        "legend": {"orientation": "h", "traceorder": "normal", "x": 0, "y": 1.0, "yanchor": "bottom", "bgcolor": CLEAR},
        "hovermode": "closest",
    }
