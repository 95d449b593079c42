"""A result as rows: for the chart, the CSV file and the terminal (pure)."""

from __future__ import annotations

import csv
import io
import textwrap
from typing import Any

from app.runs.bench_points import GROUPS, BenchPlan, BenchPoint
from app.runs.bench_result import BenchResult, PointResult, Spread

UNKNOWN = "–"
_WIDTH = 120

POINT_COLUMNS = (
    *("name", "label", "group", "device", "chosen", "available", "measured", "same_as", "rounds"),
    *("train_median", "train_min", "train_max", "train_speed_up", "score_median", "score_min", "score_max", "score_speed_up"),
    *("instruction_set", "kernels", "onednn_threads", "inter_op_threads", "path", "reason", "notes"),
)
MACHINE_COLUMNS = (
    *("bench_id", "created", "cpu", "usable_cores", "gpus", "system", "tensorflow", "keras", "onednn"),
    *("image_size", "batch_size", "channels", "steps"),
)


def rows(result: BenchResult) -> list[dict[str, Any]]:
    """One row a point, in the plan's order, with `POINT_COLUMNS`; images/s, speed-up over the slowest median. Unknown is None."""
    return [_row(result, found) for found in result.points]


def _row(result: BenchResult, found: PointResult) -> dict[str, Any]:
    point, shown = found.point, result.of(found.point.name)
    seen = shown.evidence or {}
    return {
        "name": point.name,
        "label": point.label,
        "group": GROUPS.get(point.group, point.group),
        "device": "cpu" if point.device == "cpu" else "gpu",
        "chosen": point.chosen,
        "available": point.available,
        "measured": bool(shown.rounds),
        "same_as": point.same_as,
        "rounds": len(shown.rounds),
        **_figures("train", shown.train, result.speed_up(point.name, "train")),
        **_figures("score", shown.score, result.speed_up(point.name, "score")),
        "instruction_set": seen.get("instruction_set"),
        "kernels": ", ".join(shown.kernels) or None,
        "onednn_threads": seen.get("onednn_threads"),
        "inter_op_threads": seen.get("compute_threads"),
        "path": seen.get("path"),
        "reason": point.why_not or shown.problem,
        "notes": " ".join(shown.notes) or None,
    }


def _figures(kind: str, spread: Spread | None, speed_up: float | None) -> dict[str, float | None]:
    values = (None, None, None) if spread is None else (spread.median, spread.low, spread.high)
    return dict(zip((f"{kind}_median", f"{kind}_min", f"{kind}_max", f"{kind}_speed_up"), (*values, speed_up), strict=True))


def to_csv(result: BenchResult) -> str:
    """One line a point, each with the machine's description, so that files of several machines can be put together."""
    machine = result.machine
    about = {name: machine.get(name, result.options.get(name)) for name in MACHINE_COLUMNS}
    about |= {"bench_id": result.bench_id, "created": result.created, "gpus": "; ".join(machine.get("gpus") or ()) or None}
    about["onednn"] = next((version for found in result.points if (version := (found.evidence or {}).get("onednn_version"))), None)
    text = io.StringIO()
    writer = csv.DictWriter(text, [*POINT_COLUMNS, *MACHINE_COLUMNS], lineterminator="\n")
    writer.writeheader()
    writer.writerows({**row, **about} for row in rows(result))
    return text.getvalue()


def to_text(result: BenchResult) -> str:
    """The result for a terminal."""
    cells: list[tuple[str, ...]] = [("", "training images/s", "×", "scoring images/s", "×", "kernels", "threads")]
    for row in rows(result):
        if row["available"]:
            cells.append(_cells(row))
    lines = [*machine_lines(result), "", *_table(cells)]
    trouble = [(row["label"], row["reason"]) for row in rows(result) if row["reason"]]
    lines += ["", *(_bullet(label, reason) for label, reason in trouble)] if trouble else []
    notes = [*result.notes, *(f"{row['label']}: {row['notes']}" for row in rows(result) if row["notes"])]
    lines += ["", *(_bullet("note", note) for note in notes)] if notes else []
    return "\n".join([*lines, "", *_how(result)])


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    kernels = UNKNOWN if row["instruction_set"] is None else row["instruction_set"]
    if row["kernels"]:
        names = row["kernels"].split(", ")
        kernels = f"{kernels}: {', '.join(names[:2])}" + (f" +{len(names) - 2}" if len(names) > 2 else "")
    elif row["instruction_set"]:
        kernels = f"{kernels}: matrix multiplication only"
    if row["same_as"]:
        kernels = f"the same as {row['same_as']}"
    threads = f"{row['onednn_threads'] or UNKNOWN} × {row['inter_op_threads'] or UNKNOWN}"
    label = f"{row['label']}{' *' if row['chosen'] else ''}"
    return (label, _spread(row, "train"), _times(row, "train"), _spread(row, "score"), _times(row, "score"), kernels, threads)


def _spread(row: dict[str, Any], kind: str) -> str:
    if row[f"{kind}_median"] is None:
        return UNKNOWN
    return f"{figure(row[f'{kind}_median'])} ({figure(row[f'{kind}_min'])}–{figure(row[f'{kind}_max'])})"


def _times(row: dict[str, Any], kind: str) -> str:
    value = row[f"{kind}_speed_up"]
    return UNKNOWN if value is None else f"{value:.2f}" if value < 10 else f"{value:.0f}"


def figure(value: float) -> str:
    """Images/s with three significant digits: `7.25`, `98.8`, `441`, `12300`."""
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f}" if value < 1000 else f"{float(f'{value:.3g}'):.0f}"


def machine_lines(result: BenchResult) -> list[str]:
    """What this was measured on and with, as lines of text."""
    machine, options = result.machine, result.options
    cores = machine.get("limited_by") or machine.get("usable_cores")
    first = f"{machine.get('cpu') or 'unknown processor'}, {cores} usable cores; {'; '.join(machine.get('gpus') or ()) or 'no NVIDIA GPU'}"
    when = result.created[:16].replace("T", " ")
    second = f"TensorFlow {machine.get('tensorflow') or UNKNOWN}, {machine.get('system') or UNKNOWN}, {when} UTC"
    third = (
        f"autoencoder at {options.get('image_size')} px, {options.get('channels')}, batch {options.get('batch_size')}, float32; "
        f"{options.get('steps')} training steps a round, {result.rounds} round{'s' if result.rounds != 1 else ''}"
        + ("" if result.state == "finished" else f"; {result.state}")
    )
    return [first, second, third]


def _how(result: BenchResult) -> list[str]:
    lines = [
        "median (minimum–maximum) over the rounds; × is the speed-up over the slowest; threads are those read back, oneDNN's × inter-op;",
        "left out of every round: the first 5 training steps and the first batch of scoring, which trace and fill caches.",
    ]
    return [*lines, "* the path a run started now would take."] if any(found.point.chosen for found in result.points) else lines


def plan_text(plan: BenchPlan) -> str:
    """The points for a terminal, without measuring."""
    cells: list[tuple[str, ...]] = [("point", "group", "what", "")]
    cells += [(point.name, point.group, point.label, _standing(point)) for point in plan.points]
    return "\n".join([*_table(cells), *plan.notes])


def _standing(point: BenchPoint) -> str:
    if not point.available:
        return f"not available: {point.why_not}"
    standing = "available" if point.same_as is None else f"the same as {point.same_as}"
    return f"{standing}: {' '.join(point.notes)}" if point.notes else standing


def _table(cells: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def _bullet(label: str, text: str) -> str:
    return textwrap.fill(f"{label}: {text}", _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
