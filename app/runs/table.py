"""All runs as one table, for pages and the command line. Only the small files are read, and only again when they changed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pandas as pd

from app.runs.files import read_json
from app.runs.folder import RunFolder
from app.runs.keeping import read_notes, run_folders
from app.runs.slurm_state import slurm_facts
from app.runs.status import RunStatus, iso, status_from_json, utc_now

METRIC_COLUMNS = ("image_auroc", "image_ap", "image_f1", "pixel_auroc", "aupro", "aupimo")
TEXT_COLUMNS = (
    "run_id",
    "name",
    "state",
    "phase",
    "data",
    "preset",
    "selected_device",
    "path",
    "reason",
    "message",
    "error",
    "note",
)
NUMBER_COLUMNS = (
    "duration_s",
    "epoch",
    "epochs",
    "best_epoch",
    "best_val_loss",
    "train_images_per_s",
    "score_images_per_s",
    *METRIC_COLUMNS,
    "seed",
    "image_size",
    "batch_size",
    "progress",
    "eta_s",
)
TIME_COLUMNS = ("created", "started", "ended")
COLUMNS = (
    *("run_id", "name", "state", "phase", "data", "preset", "selected_device", "path", "started", "duration_s", "epochs"),
    *("train_images_per_s", "score_images_per_s", *METRIC_COLUMNS, "best_val_loss", "best_epoch", "note", "tags", "error"),
    *("message", "reason", "epoch", "progress", "eta_s", "seed", "image_size", "batch_size", "created", "ended", "run_folder"),
)

_CACHE_LIMIT = 20_000
_cache: dict[Path, tuple[tuple[int, int, int], dict[str, Any]]] = {}


def runs_table(runs_dir: Path) -> pd.DataFrame:
    """One row a run, newest first, with `COLUMNS`, also when there are none. Numbers are float64 with NaN for not known, times are
    UTC, texts are objects with None for not known, `tags` are lists.

    `epochs` are those run so far, `duration_s` counts from leaving the queue (and goes on while the run lives),
    over all parts of a resumed run.
    """
    rows = [_row(folder) for folder in reversed(run_folders(runs_dir))]
    frame = pd.DataFrame.from_records(rows, columns=list(COLUMNS)).astype(object)
    for name in NUMBER_COLUMNS:
        frame[name] = pd.to_numeric(frame[name], errors="coerce").astype("float64")
    for name in TIME_COLUMNS:
        frame[name] = pd.to_datetime(frame[name], utc=True)
    for name in TEXT_COLUMNS:
        frame[name] = frame[name].where(frame[name].notna(), None)
    return frame


def list_json(runs_dir: Path) -> list[dict[str, Any]]:
    """One object a run, newest first, ready for JSON. What is not known is null."""
    return [run_json(folder) for folder in reversed(run_folders(runs_dir))]


def run_json(folder: RunFolder) -> dict[str, Any]:
    """One run as an object for JSON: the table's columns, who carries it out, and the metrics in an object of their own."""
    row = _row(folder)
    metrics = {name: row.pop(name) for name in METRIC_COLUMNS}
    times = {name: iso(row[name]) if row[name] is not None else None for name in TIME_COLUMNS}
    return {
        **row,
        **times,
        **slurm_facts(folder.path, folder.launch_record()),
        "metrics": {**metrics, "not_available": _read(folder.path / "metrics.json").get("not_available") or {}},
    }


def active_runs(runs_dir: Path) -> list[RunStatus]:
    """Runs that are queued or running now: the running ones first, then by creation."""
    live = [status for folder in run_folders(runs_dir) if _may_live(folder) and (status := folder.status()).live]
    return sorted(live, key=lambda status: (status.state != "running", status.created or utc_now()))


def _may_live(folder: RunFolder) -> bool:
    return _read(folder.path / "status.json").get("state") in ("queued", "running")


def _row(folder: RunFolder) -> dict[str, Any]:
    status = _status(folder)
    config, metrics, notes = _read(folder.path / "config.json"), _read(folder.path / "metrics.json"), _notes(folder.path)
    return {
        "run_id": folder.run_id,
        "run_folder": str(folder.path),
        **notes,
        # A folder somebody edited by hand must not take the whole table down.
        **{name: value if isinstance(value := config.get(name), str) else None for name in ("data", "preset")},
        **{name: config.get(name) for name in ("seed", "image_size")},
        **{name: metrics.get(name) for name in METRIC_COLUMNS},
        **{name: getattr(status, name) for name in _STATUS_COLUMNS},
        "batch_size": status.batch_size or config.get("batch_size"),
        "epochs": status.epoch,
        "duration_s": status.duration_s(),
    }


_STATUS_COLUMNS = (
    *("state", "phase", "selected_device", "path", "reason", "message", "error", "epoch", "best_epoch", "best_val_loss"),
    *("train_images_per_s", "score_images_per_s", "progress", "eta_s", "created", "started", "ended"),
)


def _status(folder: RunFolder) -> RunStatus:
    path = folder.path / "status.json"
    return _ended_status(folder, _read(path)) or folder.status()


def _ended_status(folder: RunFolder, values: dict[str, Any]) -> RunStatus | None:
    """The status of a run that has said its last word, without looking for its process."""
    if values.get("state") not in ("finished", "failed", "cancelled"):
        return None
    return status_from_json(folder.run_id, values)


def _notes(folder: Path) -> dict[str, Any]:
    return read_notes(folder) if _read(folder / "notes.json") else {"name": None, "note": "", "tags": []}


def _read(path: Path) -> dict[str, Any]:
    """The object in `path`, from memory when the file is the one read last time; empty when it cannot be read."""
    try:
        stat = os.stat(path)  # noqa: PTH116 - a thousand times a refresh
    except OSError:
        return {}
    stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
    known = _cache.get(path)
    if known is not None and known[0] == stamp:
        return known[1]
    try:
        values = read_json(path) or {}
    except ValueError:
        return {}
    if len(_cache) >= _CACHE_LIMIT:
        _cache.clear()
    _cache[path] = (stamp, values)
    return values
