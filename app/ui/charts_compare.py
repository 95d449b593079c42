"""Curves of several runs over one another. Data in, Plotly figure out."""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import plotly.graph_objects as go

from app.ui.charts_run import FEW_EPOCHS
from app.ui.palette import FAINT, RunStyle

CLEAR = "rgba(0,0,0,0)"
MAX_POINTS = 1000
"""Points of a trace: more than a screen has columns for, few enough for fifty traces."""
LABEL_LENGTH = 34
LEGEND_ABOVE = 4
"""Up to so many runs the legend stands above the curves; more would push them down, so it stands beside them and scrolls."""

FEWEST_TICKS = 3
MOST_TICKS = 8
_LOG_STEPS = (
    (1.0,),
    (1.0, 2.0, 5.0),
    (1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0),
    tuple(tenths / 10 for tenths in range(10, 100)),
)
"""Of each power of ten, the coarsest first."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Quantity:
    """What can be drawn over the epochs. `companion` is drawn thin beside `column`."""

    label: str
    axis: str
    column: str
    unit: str = ""
    companion: str | None = None
    legend: str = ""
    """What the thin curve is."""


QUANTITIES = {
    "loss": Quantity("Loss", "loss", "val_loss", companion="loss", legend="strong: validation, thin: training"),
    "val_loss": Quantity("Validation loss", "validation loss", "val_loss"),
    "images_per_s": Quantity("Images/s", "training, images/s", "images_per_s", " images/s"),
    "learning_rate": Quantity("Learning rate", "learning rate", "learning_rate"),
    "memory": Quantity("Memory", "memory, MiB", "memory_mib", " MiB", "gpu_memory_mib", "strong: RAM of the process, thin: VRAM"),
}
X_AXES = {"epoch": "Epoch", "step": "Step", "seconds": "Wall time"}
_TIME_UNITS = ((3 * 3600.0, 3600.0, "h"), (180.0, 60.0, "min"), (0.0, 1.0, "s"))


@dataclass(frozen=True)
class Curve:
    """One run to draw. `history` is its `history.csv`; `best_epoch` the epoch whose weights it kept."""

    run_id: str
    label: str
    style: RunStyle
    history: pd.DataFrame
    best_epoch: float | None = None


@dataclass(frozen=True)
class Zoom:
    """The part of the curves that is looked at. It is kept here and not in the browser: `st.plotly_chart` (Streamlit 1.67) takes a chart
    whose data have changed for a new one and forgets what was zoomed, `uirevision` or not."""

    x_axis: str
    x: tuple[float, float]
    """In epochs, steps or seconds."""
    quantity: str
    y: tuple[float, float]

    def to_text(self) -> str:
        """For the URL."""
        return ",".join((self.x_axis, *(f"{value:.6g}" for value in self.x), self.quantity, *(f"{value:.6g}" for value in self.y)))

    @classmethod
    def from_text(cls, text: str | None) -> Zoom | None:
        """`None` for what is not a zoom."""
        parts = (text or "").split(",")
        try:
            x_axis, x0, x1, quantity, y0, y1 = parts
            numbers = [float(part) for part in (x0, x1, y0, y1)]
        except ValueError:
            return None
        if x_axis not in X_AXES or quantity not in QUANTITIES or not all(map(math.isfinite, numbers)):
            return None
        return cls(x_axis, (numbers[0], numbers[1]), quantity, (numbers[2], numbers[3]))

    @classmethod
    def from_box(cls, box: Mapping[str, Sequence[float]], x_axis: str, quantity: str, divisor: float) -> Zoom | None:
        """From a box drawn on the chart, whose x values are in units of `divisor`; `None` for a box without an area."""
        x, y = sorted(float(value) * divisor for value in box["x"]), sorted(float(value) for value in box["y"])
        if len(x) < 2 or len(y) < 2 or x[0] == x[-1] or y[0] == y[-1]:
            return None
        return cls(x_axis, (x[0], x[-1]), quantity, (y[0], y[-1]))


def curves(
    runs: Sequence[Curve],
    quantity: str = "loss",
    x_axis: str = "epoch",
    *,
    log: bool = False,
    smoothing: float = 0.0,
    zoom: Zoom | None = None,
    height: int = 430,
) -> go.Figure:
    """Curves of `quantity` over `x_axis` ("epoch", "step" or "seconds").

    Args:
        smoothing: weight of what came before in the exponential moving average, 0 (off) to below 1; the raw curve stays, pale.
        zoom: what to show; on the axes that it was not made for it has no say.
    """
    what = QUANTITIES[quantity]
    divisor, unit = time_unit(runs) if x_axis == "seconds" else (1.0, "")
    window = (zoom.x[0] / divisor, zoom.x[1] / divisor) if zoom and zoom.x_axis == x_axis else None
    view = _View(x_axis, divisor, unit, smoothing, window)
    figure = go.Figure()
    stars = False
    for run in runs:
        if what.companion:
            _add(figure, run, what, what.companion, view, thin=True)
        _add(figure, run, what, what.column, view)
        if what.column == "val_loss":
            stars = _mark_best(figure, run, what, view) or stars
    if stars:
        figure.add_scatter(x=[None], y=[None], mode="markers", name="best epoch", marker={**_STAR, "color": FAINT})
    longest = max((len(run.history) for run in runs), default=0)
    from_zero = quantity in ("images_per_s", "memory") and not log
    figure.update_layout(
        height=height,
        **_toolbar(len(runs)),
        uirevision="constant",
        # A box drawn on the chart is the zoom, see `Zoom`; what the browser would do by itself were lost at the next refresh.
        dragmode="select",
        xaxis={"title": _x_title(x_axis, unit), "zeroline": False, "rangemode": "tozero", "fixedrange": True, "range": window}
        | ({"dtick": 1} if x_axis == "epoch" and longest <= FEW_EPOCHS else {}),
        yaxis={
            "title": what.axis,
            "type": "log" if log else "linear",
            "zeroline": False,
            "rangemode": "tozero" if from_zero else "normal",
            "fixedrange": True,
            "range": _y_range(zoom, quantity, log),
            **(_log_ticks(figure, _y_range(zoom, quantity, log)) if log else {}),
        },
        legend=_legend(len(runs)),
        hovermode="closest",
        paper_bgcolor=CLEAR,
        plot_bgcolor=CLEAR,
    )
    return figure


def _x_title(x_axis: str, unit: str) -> str:
    return f"wall time, {unit}" if unit else {"epoch": "epoch", "step": "optimizer step"}[x_axis]


def _y_range(zoom: Zoom | None, quantity: str, log: bool) -> list[float] | None:
    """What Plotly takes as range: logarithms on a logarithmic axis."""
    if zoom is None or zoom.quantity != quantity:
        return None
    if not log:
        return list(zoom.y)
    return [math.log10(value) for value in zoom.y] if min(zoom.y) > 0 else None


def _log_ticks(figure: go.Figure, window: Sequence[float] | None) -> dict[str, Any]:
    """Ticks of a logarithmic axis, each with its whole number: Plotly writes `2` and `5` between powers of ten, whatever the power.

    Args:
        window: the axis' range in powers of ten; not given: that of the values.
    """
    if window is None:
        drawn = np.concatenate([np.asarray(trace.y, np.float64) for trace in figure.data if trace.x[0] is not None])
        drawn = drawn[np.isfinite(drawn) & (drawn > 0)]
        window = (math.log10(drawn.min()), math.log10(drawn.max())) if len(drawn) else (0.0, 1.0)
    low, high = (10.0**end for end in window)
    decades = range(math.floor(window[0]), math.floor(window[1]) + 1)
    for steps in _LOG_STEPS:
        ticks = [step * 10.0**decade for decade in decades for step in steps]
        ticks = [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]
        if len(ticks) >= FEWEST_TICKS:
            ticks = ticks[:: math.ceil(len(ticks) / MOST_TICKS)]
            return {"tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]}
    return {"nticks": 2 * FEWEST_TICKS}


def has_values(runs: Sequence[Curve], quantity: str) -> bool:
    """Whether there is anything to draw."""
    what = QUANTITIES[quantity]
    return any(
        column in run.history and run.history[column].notna().any() for run in runs for column in (what.column, what.companion) if column
    )


def time_unit(runs: Sequence[Curve]) -> tuple[float, str]:
    """(seconds in the unit, its name) for the longest of the runs, so that one axis fits all."""
    longest = max((run.history["seconds"].max() for run in runs if len(run.history)), default=0.0)
    return next(((divisor, unit) for least, divisor, unit in _TIME_UNITS if longest >= least), (1.0, "s"))


def smoothed(values: Floats, weight: float) -> Floats:
    """Exponential moving average without the pull of its start: Σ w^(t-i) v_i / Σ w^(t-i) over the known values (as TensorBoard does)."""
    total, norm = 0.0, 0.0
    result = np.full(len(values), np.nan)
    for place, value in enumerate(values):
        if math.isfinite(value):
            total, norm = weight * total + value, weight * norm + 1.0
            result[place] = total / norm
    return result


def thinned(values: Floats, limit: int = MAX_POINTS) -> npt.NDArray[np.int64]:
    """Places of at most `limit` values that keep the picture: the lowest and highest of each stretch, the first and the last."""
    count = len(values)
    if count <= limit:
        return np.arange(count)
    edges = np.linspace(0, count, max(1, (limit - 2) // 2) + 1).astype(np.int64)
    kept = {0, count - 1}
    for start, end in itertools.pairwise(edges.tolist()):
        part = values[start:end]
        if np.isfinite(part).any():
            kept |= {int(start + np.nanargmin(part)), int(start + np.nanargmax(part))}
    return np.array(sorted(kept), dtype=np.int64)


def shortened(label: str, length: int = LABEL_LENGTH) -> str:
    """A name that fits into a legend: its beginning and its end, which tell runs apart."""
    if len(label) <= length:
        return label
    ending = length // 3
    return f"{label[: length - ending - 1].rstrip()}…{label[-ending:].lstrip()}"


def short(label: str, length: int = LABEL_LENGTH) -> str:
    """The same for Plotly, which would read a name as markup."""
    return html.escape(shortened(label, length), quote=False)


_STAR = {"symbol": "star", "size": 12, "line": {"width": 1, "color": "rgba(255,255,255,0.8)"}}


@dataclass(frozen=True)
class _View:
    """How the curves of a chart are drawn, whatever the run."""

    x_axis: str
    divisor: float
    unit: str
    smoothing: float
    window: tuple[float, float] | None

    def drawn(self, x: Floats, y: Floats) -> tuple[Floats, Floats]:
        """Points in the window, with one on each side so that lines go on to the edge, and no more than fit."""
        if self.window is not None:
            inside = np.flatnonzero((x >= min(self.window)) & (x <= max(self.window)))
            if len(inside):
                part = slice(max(0, inside[0] - 1), inside[-1] + 2)
                x, y = x[part], y[part]
        kept = thinned(y)
        return x[kept], y[kept]

    def smooth(self, y: Floats) -> Floats:
        return smoothed(y, self.smoothing) if self.smooths(y) else y

    def smooths(self, y: Floats) -> bool:
        return self.smoothing > 0 and len(y) > 2


def _add(figure: go.Figure, run: Curve, what: Quantity, column: str, view: _View, *, thin: bool = False) -> None:
    x, y = _xy(run.history, view, column)
    if not len(x):
        if not thin:
            figure.add_scatter(x=[None], y=[None], mode="lines", name=short(run.label), line=_line(run, 2.2), legendgroup=run.run_id)
        return
    common: dict[str, Any] = {
        "name": short(run.label),
        "mode": "lines" if len(x) > 1 else "markers",
        "legendgroup": run.run_id,
        "hovertemplate": "<b>%{meta[0]}</b><br>%{meta[1]} %{y:.4g}%{meta[2]}<br>%{meta[3]} %{x:.4g}%{meta[4]}<extra></extra>",
    }
    meta = [short(run.label, 60), _named(column), what.unit, X_AXES[view.x_axis].lower(), f" {view.unit}" if view.unit else ""]
    if view.smooths(y):
        raw_x, raw_y = view.drawn(x, y)
        figure.add_scatter(x=raw_x, y=raw_y, opacity=0.18 if thin else 0.32, showlegend=False, line=_line(run, 1.0), meta=meta, **common)
        meta = [meta[0], f"{meta[1]}, smoothed", *meta[2:]]
    x, y = view.drawn(x, view.smooth(y))
    figure.add_scatter(
        x=x,
        y=y,
        line=_line(run, 1.1 if thin else 2.2),
        marker={"color": run.style.colour, "size": 6 if thin else 8},
        opacity=0.55 if thin else 1.0,
        showlegend=not thin,
        meta=meta,
        **common,
    )


def _mark_best(figure: go.Figure, run: Curve, what: Quantity, view: _View) -> bool:
    """A star on the strong curve at the epoch whose weights were kept; False where it cannot be placed."""
    x, y = _xy(run.history, view, what.column)
    epochs = run.history["epoch"].to_numpy(dtype=np.float64)[_known(run.history, view.x_axis, what.column)]
    place = np.flatnonzero(epochs == run.best_epoch) if run.best_epoch is not None else np.empty(0, dtype=np.int64)
    if not len(place):
        return False
    figure.add_scatter(
        x=x[place[-1:]],
        y=view.smooth(y)[place[-1:]],
        mode="markers",
        marker={**_STAR, "color": run.style.colour},
        unselected={"marker": {"opacity": 1}},
        legendgroup=run.run_id,
        showlegend=False,
        name=short(run.label),
        meta=[short(run.label, 60), int(epochs[place[-1]]), _named(what.column), f"{y[place[-1]]:.4g}{what.unit}"],
        hovertemplate="<b>%{meta[0]}</b><br>best epoch %{meta[1]}, its weights were kept<br>%{meta[2]} %{meta[3]}<extra></extra>",
    )
    return True


def _known(history: pd.DataFrame, x_axis: str, column: str) -> npt.NDArray[np.bool_]:
    known: npt.NDArray[np.bool_] = (history[x_axis].notna() & history[column].notna()).to_numpy()
    return known


def _xy(history: pd.DataFrame, view: _View, column: str) -> tuple[Floats, Floats]:
    if column not in history or view.x_axis not in history:
        return np.empty(0), np.empty(0)
    rows = history[_known(history, view.x_axis, column)]
    return rows[view.x_axis].to_numpy(dtype=np.float64) / view.divisor, rows[column].to_numpy(dtype=np.float64)


def _line(run: Curve, width: float) -> dict[str, Any]:
    return {"color": run.style.colour, "dash": run.style.dash, "width": width}


def _named(column: str) -> str:
    names = {
        "val_loss": "validation loss",
        "loss": "training loss",
        "images_per_s": "training",
        "memory_mib": "RAM",
        "gpu_memory_mib": "VRAM",
    }
    return names.get(column, column.replace("_", " "))


def _toolbar(count: int) -> dict[str, Any]:
    """Margins that leave Plotly's toolbar a strip of its own: it covers neither the legend, above or beside the curves, nor the curves."""
    if count <= LEGEND_ABOVE:
        return {"margin": {"l": 0, "r": 34, "t": 30, "b": 0}, "modebar": {"orientation": "v", "bgcolor": CLEAR}}
    return {"margin": {"l": 0, "r": 8, "t": 34, "b": 0}, "modebar": {"orientation": "h", "bgcolor": CLEAR}}


def _legend(count: int) -> dict[str, Any]:
    if count <= LEGEND_ABOVE:
        return {"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom", "bgcolor": CLEAR}
    return {"orientation": "v", "x": 1.01, "y": 1.0, "bgcolor": CLEAR}
