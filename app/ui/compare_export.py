"""The ticked runs as files to take away: one row a run and one row an epoch as CSV, and a report in one HTML file that needs no network."""

from __future__ import annotations

import datetime as dt
import html
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from app.runs.pairs import Pair, RunFacts, config_differences
from app.ui import charts_compare as charts
from app.ui import format as fmt
from app.ui.charts_results import METRIC_LABELS, bars

TABLE_COLUMNS = {
    "run": "Run",
    "state": "State",
    "data": "Data",
    "path": "Path",
    "train_images_per_s": "Training, images/s",
    "score_images_per_s": "Scoring, images/s",
    "epochs": "Epochs",
    "duration_s": "Duration",
    **METRIC_LABELS,
    "best_val_loss": "Best validation loss",
    "best_epoch": "at epoch",
    "note": "Note",
    "tags": "Tags",
}
_FIRST = ("run_id", "name", "state", "data", "selected_device", "path", "reason")
# A report is opened from a disk, by people who may be offline: the browser itself is told to load nothing from anywhere.
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #17212b; background: #fff; max-width: 1180px; margin: 2rem auto; padding: 0 1.5rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.15rem; margin: 2rem 0 .4rem; }
.wide { overflow-x: auto; } .quiet { color: #5a6773; }
table { border-collapse: collapse; font-size: 13px; width: max-content; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid #d7dee5; text-align: left; vertical-align: top; max-width: 26rem; }
th { font-weight: 600; overflow-wrap: anywhere; } td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
"""


def runs_csv(frame: pd.DataFrame, facts: Mapping[str, RunFacts]) -> bytes:
    """One row a run: the table's columns, the machine, and every option as `option.<name>`. UTF-8, numbers unrounded, unknown empty."""
    rows = frame.drop(columns=["run", "run_folder", "message", "phase", "progress", "eta_s", "epoch"], errors="ignore").copy()
    rows["tags"] = rows["tags"].map(lambda tags: " ".join(tags) if isinstance(tags, list) else "")
    found = [facts.get(run_id) for run_id in rows["run_id"]]
    rows["machine"] = [run.machine if run else None for run in found]
    rows["tensorflow"] = [run.tensorflow if run else None for run in found]
    rows["final_loss"] = [run.final_loss if run else None for run in found]
    for option in dict.fromkeys(name for run in found if run for name in run.config):
        rows[f"option.{option}"] = [run.config.get(option) if run else None for run in found]
    rows = rows[[*_FIRST, *(name for name in rows.columns if name not in _FIRST)]]
    # Whole numbers stay whole where a run without one (queued, failed) would make the column floating-point.
    whole = rows.convert_dtypes()
    return whole.to_csv(index=False, lineterminator="\n").encode()


def curves_csv(runs: Sequence[charts.Curve]) -> bytes:
    """One row an epoch of each run: `run_id`, then the columns of `history.csv`."""
    parts = [run.history.assign(run_id=run.run_id) for run in runs if len(run.history)]
    if not parts:
        return b"run_id,epoch\n"
    whole = pd.concat([part.dropna(axis="columns", how="all") for part in parts], ignore_index=True)
    return whole[["run_id", *(name for name in whole.columns if name != "run_id")]].to_csv(index=False, lineterminator="\n").encode()


def html_report(
    frame: pd.DataFrame,
    runs: Sequence[charts.Curve],
    facts: Sequence[RunFacts],
    pairs: Sequence[Pair],
    *,
    x_axis: str = "epoch",
    log: bool = False,
    smoothing: float = 0.0,
    now: dt.datetime | None = None,
) -> bytes:
    """Table, curves of every quantity, results, pairs and differences of configuration in one file; Plotly's code is inside it."""
    labels = {run.run_id: run.label for run in runs}
    figures = [
        (what.label + (f" ({what.legend})" if what.legend else ""), _free(charts.curves(runs, name, x_axis, log=log, smoothing=smoothing)))
        for name, what in charts.QUANTITIES.items()
        if name != "val_loss" and charts.has_values(runs, name)
    ]
    when = f"{now or dt.datetime.now().astimezone():%Y-%m-%d %H:%M %Z}".strip()
    parts = [
        f"<h1>Runs compared</h1><p class='quiet'>{len(frame)} run{'s' if len(frame) != 1 else ''}, {html.escape(when)}, Twopath</p>",
        _runs_table(frame, labels),
        "<h2>Results</h2>",
        _figure(bars(facts, labels), with_code=True),
        *(_pair_table(pair, labels) for pair in pairs),
        _differences_table(facts, labels),
        *(f"<h2>{html.escape(title)}</h2>{_figure(figure)}" for title, figure in figures),
        _reasons(facts, labels),
    ]
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'<meta name="viewport" content="width=device-width"><title>Runs compared</title><style>{_STYLE}</style>'
    )
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>'.encode()


def pair_rows(pair: Pair) -> list[tuple[str, str, str, str]]:
    """(what, in the base, in the other, how they differ), as text with units."""
    base, other = pair.base, pair.other
    rows = [
        _speed_row("Training", base.train_images_per_s, other.train_images_per_s, pair.train_speedup),
        _speed_row("Scoring", base.score_images_per_s, other.score_images_per_s, pair.score_speedup),
        (
            "Duration",
            fmt.duration(base.duration_s),
            fmt.duration(other.duration_s),
            times(_over(base.duration_s, other.duration_s), "shorter"),
        ),
    ]
    for label, name in (("Final training loss", "final_loss"), ("Best validation loss", "best_val_loss")):
        rows.append((label, fmt.significant(getattr(base, name)), fmt.significant(getattr(other, name)), signed(pair.difference(name), 4)))
    for name, label in METRIC_LABELS.items():
        values = base.metrics.get(name), other.metrics.get(name)
        if values != (None, None):
            rows.append((label, fmt.score(values[0]), fmt.score(values[1]), signed(pair.difference(name))))
    return rows


def times(factor: float | None, word: str = "faster") -> str:
    """A speed-up as people say it: `6.30 × faster`; below 1 it is the inverse, slower."""
    if factor is None:
        return fmt.UNKNOWN
    opposite = {"faster": "slower", "shorter": "longer"}[word]
    return f"{fmt.significant(factor)} × {word}" if factor >= 1 else f"{fmt.significant(1 / factor)} × {opposite}"


def signed(value: float | None, decimals: int = 3) -> str:
    """A difference with its sign; `±0.000` where it is smaller than that, not where there is none."""
    if value is None:
        return fmt.UNKNOWN
    if value == 0:
        return "no difference"
    text = f"{abs(value):.{decimals}f}"
    return ("±" if not text.strip("0.") else "+" if value > 0 else "−") + text


def _speed_row(label: str, base: float | None, other: float | None, factor: float | None) -> tuple[str, str, str, str]:
    return (label, fmt.images_per_s(base), fmt.images_per_s(other), times(factor))


def _over(numerator: float | None, denominator: float | None) -> float | None:
    return numerator / denominator if numerator and denominator else None


def _runs_table(frame: pd.DataFrame, labels: Mapping[str, str]) -> str:
    shown = [name for name in TABLE_COLUMNS if name == "run" or frame[name].map(_known).any()]
    rows = [
        [_cell(name, labels.get(row["run_id"], row["run_id"]) if name == "run" else row[name]) for name in shown]
        for _, row in frame.iterrows()
    ]
    return _html_table([TABLE_COLUMNS[name] for name in shown], rows, numbers=[name in _FORMS for name in shown])


_FORMS: dict[str, Callable[[float], str]] = {
    "train_images_per_s": fmt.significant,
    "score_images_per_s": fmt.significant,
    "epochs": lambda value: f"{value:.0f}",
    "duration_s": fmt.duration,
    **dict.fromkeys(METRIC_LABELS, fmt.score),
    "best_val_loss": fmt.significant,
    "best_epoch": lambda value: f"{value:.0f}",
}


def _cell(name: str, value: Any) -> str:
    if not _known(value):
        return fmt.UNKNOWN
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return _FORMS[name](value) if name in _FORMS else str(value)


def _known(value: object) -> bool:
    return value is not None and value == value and value not in ("", [])


def _pair_table(pair: Pair, labels: Mapping[str, str]) -> str:
    title = "GPU against CPU" if pair.across_devices else "Two paths of one device"
    head = [
        "",
        *(f"{run.path or run.selected_device or ''}: {labels.get(run.run_id, run.run_id)}" for run in (pair.base, pair.other)),
        "difference",
    ]
    rows = [list(row) for row in pair_rows(pair)] + [[what, first, second, ""] for what, first, second in pair.different_settings()]
    return f"<h2>{title}</h2>" + _html_table(head, rows)


def _differences_table(facts: Sequence[RunFacts], labels: Mapping[str, str]) -> str:
    rows = config_differences(facts)
    if not rows or len(facts) < 2:
        return ""
    head = ["Option", *(labels.get(run.run_id, run.run_id) for run in facts)]
    return "<h2>What differs in the configurations</h2>" + _html_table(
        head, [[f"{group}: {label}", *values] for group, label, values in rows]
    )


def _reasons(facts: Sequence[RunFacts], labels: Mapping[str, str]) -> str:
    rows = [
        [labels.get(run.run_id, run.run_id), run.path or fmt.UNKNOWN, run.reason or fmt.UNKNOWN, run.machine or fmt.UNKNOWN]
        for run in facts
    ]
    return "<h2>Which path, and why</h2>" + _html_table(["Run", "Path", "Reason", "Machine"], rows)


def _html_table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[bool] | None = None) -> str:
    kinds = [" class='number'" if numbers and numbers[place] else "" for place in range(len(head))]
    first = "".join(f"<th>{html.escape(text)}</th>" for text in head)
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{html.escape(text)}</td>" for kind, text in zip(kinds, row, strict=True)) + "</tr>" for row in rows
    )
    return f"<div class='wide'><table><thead><tr>{first}</tr></thead><tbody>{body}</tbody></table></div>"


def _free(figure: go.Figure) -> go.Figure:
    """In a file nothing refreshes, so zoom and pan are the browser's."""
    return figure.update_layout(dragmode="zoom").update_xaxes(fixedrange=False).update_yaxes(fixedrange=False)


def _figure(figure: go.Figure, *, with_code: bool = False) -> str:
    figure.update_layout(template="plotly_white", font={"family": "system-ui, sans-serif", "color": "#17212b"})
    text: str = figure.to_html(full_html=False, include_plotlyjs=with_code, config={"displaylogo": False, "responsive": True})
    return text
