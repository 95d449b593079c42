"""Results of several runs side by side, as bars in the colours of their paths. Data in, Plotly figure out."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from app.runs.pairs import RunFacts
from app.ui import format as fmt
from app.ui.charts_compare import CLEAR, short
from app.ui.palette import path_colour

METRIC_LABELS = {
    "image_auroc": "Image AUROC",
    "image_ap": "Image AP",
    "image_f1": "Image F1",
    "pixel_auroc": "Pixel AUROC",
    "aupro": "AUPRO",
    "aupimo": "AUPIMO",
}


def bars(runs: Sequence[RunFacts], labels: Mapping[str, str]) -> go.Figure:
    """One row a run, one column a result, in the colour of the run's path. A result that does not exist is `–` and says why on hover."""
    columns = _bar_columns(runs)
    figure = make_subplots(
        rows=1, cols=max(1, len(columns)), shared_yaxes=True, horizontal_spacing=0.015, subplot_titles=[title for _, title in columns]
    )
    names = [short(labels[run.run_id], 26) for run in runs]
    places = list(range(len(runs)))
    for column, (key, title) in enumerate(columns, start=1):
        values = [_result(run, key) for run in runs]
        speed = key.endswith("per_s")
        top = max((value for value in values if value is not None), default=1.0) if speed else 1.0
        figure.add_bar(
            x=[value or 0.0 for value in values],
            y=places,
            orientation="h",
            marker_color=[path_colour(run.selected_device) for run in runs],
            text=[fmt.significant(value) if speed else fmt.score(value) for value in values],
            textposition="outside",
            cliponaxis=False,
            showlegend=False,
            customdata=[[html.escape(labels[run.run_id]), html.escape(_why(run, key))] for run in runs],
            hovertemplate="%{customdata[0]}<br>" + title + " %{text}%{customdata[1]}<extra></extra>",
            row=1,
            col=column,
        )
        figure.update_xaxes(range=[0, 1.45 * top], showgrid=False, zeroline=False, showticklabels=False, fixedrange=True, row=1, col=column)
    figure.update_yaxes(tickvals=places, ticktext=names, autorange="reversed", showgrid=False, fixedrange=True, automargin=True)
    figure.update_annotations(font_size=13)
    figure.update_layout(
        height=44 + 34 * len(runs),
        margin={"l": 0, "r": 0, "t": 28, "b": 4},
        bargap=0.35,
        uirevision="constant",
        paper_bgcolor=CLEAR,
        plot_bgcolor=CLEAR,
    )
    return figure


def _bar_columns(runs: Sequence[RunFacts]) -> list[tuple[str, str]]:
    """Image AUROC always, other metrics where a run has them, both speeds."""
    metrics = [
        (name, label)
        for name, label in METRIC_LABELS.items()
        if name == "image_auroc" or any(run.metrics.get(name) is not None for run in runs)
    ]
    return [*metrics, ("train_images_per_s", "Training images/s"), ("score_images_per_s", "Scoring images/s")]


def _result(run: RunFacts, key: str) -> float | None:
    value = getattr(run, key) if key.endswith("per_s") else run.metrics.get(key)
    return float(value) if value is not None and math.isfinite(value) else None


def _why(run: RunFacts, key: str) -> str:
    if _result(run, key) is not None:
        return " images/s" if key.endswith("per_s") else ""
    return f": {run.not_available.get(key, f'not known, the run is {run.state}')}"
