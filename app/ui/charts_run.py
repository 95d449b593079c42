"""Charts of one run. Pure: data in, plotly figure out."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray

from app.cae.metrics import confusion_at, image_auroc, image_average_precision, precision_recall_curve, roc_curve
from app.ui import format as fmt
from app.ui.palette import DEFECTIVE, FAINT, GOOD, THRESHOLD

CURVES_HEIGHT = 280
HISTOGRAM_HEIGHT = 300
SQUARE_HEIGHT = 320
BINS = 40
TOOLBAR_PX = 34
"""A strip on the right for Plotly's toolbar, which else covers the legend or the curves."""
PIMO_LINES = 60
FEW_EPOCHS = 10
"""Up to here every epoch has its tick, so that none stands at half an epoch."""


def loss_curves(history: pd.DataFrame, *, colour: str, epochs: int | None = None, best_epoch: int | None = None) -> go.Figure:
    """Training and validation loss over epochs.

    Args:
        history: columns epoch, loss, val_loss.
        colour: of the run, as on every other chart.
        epochs: how many there will be; the axis is that long from the start, so that nothing jumps while the curve grows.
        best_epoch: marked, where the weights were kept.
    """
    figure = _figure(CURVES_HEIGHT, "epoch", "loss")
    epoch = history["epoch"]
    figure.add_scatter(
        x=epoch, y=history["loss"], name="training", mode=_mode(history), line={"color": colour, "width": 1.5, "dash": "dot"}
    )
    if history["val_loss"].notna().any():
        figure.add_scatter(x=epoch, y=history["val_loss"], name="validation", mode=_mode(history), line={"color": colour, "width": 2.5})
    best = history[history["epoch"] == best_epoch]
    if len(best) and best["val_loss"].notna().all():
        value = float(best["val_loss"].iloc[0])
        figure.add_scatter(
            x=[best_epoch],
            y=[value],
            name=f"best, epoch {best_epoch}",
            mode="markers",
            marker={"symbol": "circle-open", "size": 11, "color": colour, "line": {"width": 2}},
        )
    figure.update_traces(hovertemplate="epoch %{x}: %{y:.4f}<extra>%{fullData.name}</extra>")
    return _over_epochs(figure, history, epochs)


def throughput_curve(history: pd.DataFrame, *, colour: str, epochs: int | None = None) -> go.Figure:
    """Training images per second over epochs; columns epoch and images_per_s. The axis begins at 0, so that noise looks like noise."""
    figure = _figure(CURVES_HEIGHT, "epoch", "images/s")
    line = {"color": colour, "width": 2}
    figure.add_scatter(x=history["epoch"], y=history["images_per_s"], name="training", mode=_mode(history), line=line)
    figure.update_traces(hovertemplate="epoch %{x}: %{y:.3g} images/s<extra></extra>")
    highest = history["images_per_s"].max()
    figure.update_yaxes(range=[0, 1.15 * highest if np.isfinite(highest) else 1])
    return _over_epochs(figure, history, epochs)


def score_histogram(frame: pd.DataFrame, threshold: float, *, held_out: NDArray[np.float64] | None = None) -> go.Figure:
    """Scores of good and defective test pictures in the same bins, with the threshold.

    Args:
        frame: columns label (0 good, 1 defective) and score.
        threshold: drawn as a line.
        held_out: scores of held-out good pictures, from which a run's own threshold comes; drawn as an outline.
    """
    figure = _figure(HISTOGRAM_HEIGHT, "image score", "pictures")
    everything = np.concatenate([frame["score"].to_numpy(np.float64), np.empty(0) if held_out is None else held_out])
    edges = bin_edges(everything)
    for label, name, colour in ((0, "good", GOOD), (1, "defective", DEFECTIVE)):
        values = frame.loc[frame["label"] == label, "score"].to_numpy(np.float64)
        if len(values):
            _add_bars(figure, values, edges, f"{name} ({len(values)})", colour)
    if held_out is not None and len(held_out):
        counts, _ = np.histogram(held_out[np.isfinite(held_out)], edges)
        figure.add_scatter(
            x=np.repeat(edges, 2),
            y=np.concatenate([[0], np.repeat(counts, 2), [0]]),
            name=f"held-out good ({len(held_out)})",
            mode="lines",
            line={"color": FAINT, "width": 1.5},
            hoverinfo="skip",
        )
    figure.add_vline(x=threshold, line={"color": THRESHOLD, "width": 2.5})
    figure.add_annotation(
        x=threshold,
        y=1,
        yref="paper",
        text=f"threshold {fmt.significant(threshold)}",
        font={"color": THRESHOLD},
        showarrow=False,
        xanchor="left" if threshold < float(edges.mean()) else "right",
        xshift=6 if threshold < float(edges.mean()) else -6,
        yanchor="top",
    )
    figure.update_layout(barmode="overlay", bargap=0.05)
    return figure


def bin_edges(values: NDArray[np.float64], bins: int = BINS) -> NDArray[np.float64]:
    """`bins` equal bins over the finite `values`; they depend on nothing else, so bars stand still while a threshold moves."""
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    if high <= low:
        low, high = low - 0.5, high + 0.5
    return np.linspace(low, high, bins + 1)


def roc(labels: NDArray[np.int64], scores: NDArray[np.float64], *, colour: str, threshold: float) -> go.Figure:
    """Recall against false alarms at every threshold, and where `threshold` stands. Raises ValueError unless both classes are there."""
    alarms, recall, _ = roc_curve(labels, scores)
    figure = _figure(SQUARE_HEIGHT, "false alarms, share of good", "recall, share of defective found")
    figure.add_scatter(x=[0, 1], y=[0, 1], mode="lines", line={"color": FAINT, "width": 1, "dash": "dot"}, name="chance", hoverinfo="skip")
    figure.add_scatter(
        x=alarms,
        y=recall,
        mode="lines",
        line={"color": colour, "width": 2.5},
        name=f"AUROC {fmt.score(image_auroc(labels, scores))}",
        hovertemplate="false alarms %{x:.3f}, recall %{y:.3f}<extra></extra>",
    )
    here = confusion_at(labels, scores, threshold)
    _add_operating_point(figure, here.fp / (here.fp + here.tn), here.recall)
    return _unit_square(figure)


def precision_recall(labels: NDArray[np.int64], scores: NDArray[np.float64], *, colour: str, threshold: float) -> go.Figure:
    """Precision against recall at every threshold, and where `threshold` stands. Raises ValueError unless both classes are there."""
    precision, recall, _ = precision_recall_curve(labels, scores)
    share = float(np.mean(np.asarray(labels) == 1))
    figure = _figure(SQUARE_HEIGHT, "recall, share of defective found", "precision")
    chance = {"color": FAINT, "width": 1, "dash": "dot"}
    figure.add_scatter(x=[0, 1], y=[share, share], mode="lines", line=chance, name="chance", hoverinfo="skip")
    figure.add_scatter(
        x=recall,
        y=precision,
        mode="lines",
        # Average precision takes P at each step of R, without interpolation: the curve is drawn as these steps.
        line={"color": colour, "width": 2.5, "shape": "vh"},
        name=f"average precision {fmt.score(image_average_precision(labels, scores))}",
        hovertemplate="recall %{x:.3f}, precision %{y:.3f}<extra></extra>",
    )
    here = confusion_at(labels, scores, threshold)
    _add_operating_point(figure, here.recall, here.precision)
    return _unit_square(figure)


def pimo(fpr: NDArray[np.float64], recalls: NDArray[np.float64], *, bounds: tuple[float, float], colour: str) -> go.Figure:
    """Recall inside each mask over the false-positive rate on good pictures: a thin line a picture, their mean, the range AUPIMO covers.

    Args:
        fpr: (K,) shared false-positive rates, above 0.
        recalls: (N, K), a row for each defective picture.
        bounds: of AUPIMO.
        colour: of the run.
    """
    figure = _figure(SQUARE_HEIGHT, "false-positive rate of pixels on good pictures", "recall inside the mask")
    figure.add_vrect(x0=bounds[0], x1=bounds[1], fillcolor=FAINT, opacity=0.18, line_width=0)
    shown = recalls[np.unique(np.linspace(0, len(recalls) - 1, min(PIMO_LINES, len(recalls))).round().astype(int))]
    # One trace for all thin lines, with gaps: dozens of traces would be slow.
    gap = np.full((len(shown), 1), np.nan)
    figure.add_scatter(
        x=np.tile(np.append(fpr, np.nan), len(shown)),
        y=np.concatenate([shown, gap], axis=1).ravel(),
        mode="lines",
        line={"color": FAINT, "width": 0.8},
        opacity=0.6,
        name=f"each picture ({len(shown)} of {len(recalls)})" if len(shown) < len(recalls) else "each picture",
        hoverinfo="skip",
    )
    figure.add_scatter(
        x=fpr,
        y=recalls.mean(axis=0),
        mode="lines",
        line={"color": colour, "width": 2.5},
        name="mean",
        hovertemplate="false-positive rate %{x:.2g}, mean recall %{y:.3f}<extra></extra>",
    )
    figure.update_xaxes(type="log", exponentformat="power")
    figure.update_yaxes(range=[-0.02, 1.04])
    return figure


def _add_operating_point(figure: go.Figure, x: float | None, y: float | None) -> None:
    figure.add_scatter(
        x=[x],
        y=[y],
        mode="markers",
        marker={"color": THRESHOLD, "size": 11},
        name="at the threshold",
        hovertemplate="at the threshold: %{x:.3f}, %{y:.3f}<extra></extra>",
    )


def _add_bars(figure: go.Figure, values: NDArray[np.float64], edges: NDArray[np.float64], name: str, colour: str) -> None:
    counts, _ = np.histogram(values[np.isfinite(values)], edges)
    ranges = np.array([f"{fmt.significant(low)} to {fmt.significant(high)}" for low, high in itertools.pairwise(edges)])
    figure.add_bar(
        x=(edges[:-1] + edges[1:]) / 2,
        y=counts,
        width=np.diff(edges) * 0.96,
        name=name,
        marker={"color": colour, "line": {"width": 0}},
        opacity=0.7,
        customdata=ranges,
        hovertemplate="score %{customdata}<br>pictures: %{y}<extra>" + name + "</extra>",
    )


def _mode(history: pd.DataFrame) -> str:
    """A line through one point is invisible."""
    return "lines+markers" if len(history) < 3 else "lines"


def _over_epochs(figure: go.Figure, history: pd.DataFrame, epochs: int | None) -> go.Figure:
    last = max([float(epochs or 1), float(history["epoch"].max() if len(history) else 1)])
    if not len(history):
        figure.update_yaxes(range=[0, 1], showticklabels=False)
    figure.update_xaxes(range=[1 - 0.02 * last, max(last, 2) * 1.02], dtick=1 if last <= FEW_EPOCHS else None)
    return figure


def _unit_square(figure: go.Figure) -> go.Figure:
    figure.update_xaxes(range=[-0.02, 1.02])
    figure.update_yaxes(range=[-0.02, 1.04])
    return figure


def _figure(height: int, x_title: str, y_title: str) -> go.Figure:
    figure = go.Figure()
    figure.update_layout(
        height=height,
        margin={"l": 8, "r": TOOLBAR_PX, "t": 28, "b": 8},
        modebar={"orientation": "v", "bgcolor": "rgba(0,0,0,0)"},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        uirevision="constant",
        xaxis_title=x_title,
        yaxis_title=y_title,
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.0, "x": 0},
        hovermode="closest",
        showlegend=True,
    )
    return figure
