"""Words about runs: presets and data sets by name, states with their colour and icon, a run in one line."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Literal

import pandas as pd

from app.cae.config import CaeConfig
from app.core.words import counted
from app.runs.status import LIVE_STATES, RunStatus
from app.ui import format as fmt
from app.ui.format import shortened

PRESETS = {"quick": "Quick", "recommended": "Recommended", "thorough": "Thorough", "documented": "As documented"}
"""Names of the presets, in the order shown."""

SOURCES = {
    "elpv-mono": "Solar cells, monocrystalline",
    "elpv-poly": "Solar cells, polycrystalline",
    "synthetic": "Synthetic textures",
}
"""Names of the data sets that come along."""

StateColour = Literal["gray", "blue", "green", "red", "orange", "violet"]

STATES: dict[str, tuple[StateColour, str]] = {
    "queued": ("violet", ":material/hourglass_empty:"),
    "running": ("blue", ":material/play_circle:"),
    "finished": ("green", ":material/check_circle:"),
    "failed": ("red", ":material/error:"),
    "cancelled": ("gray", ":material/cancel:"),
    "interrupted": ("orange", ":material/power_off:"),
    "unreadable": ("red", ":material/broken_image:"),
}
"""Colour and icon of each state's badge."""

STATE_PILLS = {
    "queued": "#8a63c9",
    "running": "#2b7fd4",
    "finished": "#1f9d55",
    "failed": "#c9302c",
    "cancelled": "#6b7784",
    "interrupted": "#c26a00",
    "unreadable": "#c9302c",
}
"""The same colours in a table, where the theme's own come out so pale that red and orange look alike."""


def data_name(source: object) -> str:
    """The data set of a run, short: a sample's name, or the last part of a folder."""
    text = str(source or "")
    return text if text in SOURCES or text.startswith("synthetic") else text.rstrip("/").rpartition("/")[2] or fmt.UNKNOWN


def run_label(row: Mapping[Hashable, Any]) -> str:
    """A run in the list of runs: its name if it has one, else data and preset; then when it was made, its state, and the end of its id."""
    named = row["name"] if isinstance(row["name"], str) else ""
    made = row["created"]
    when = made.tz_convert(None).strftime("%d %b %H:%M") if isinstance(made, pd.Timestamp) else fmt.UNKNOWN
    # Queued or running: the list is not drawn again when one becomes the other.
    state = "going on" if row["state"] in LIVE_STATES else row["state"]
    what = shortened(named or f"{data_name(row['data'])}, {PRESETS.get(str(row['preset']), str(row['preset']))}", 34)
    return f"{what} · {when} · {state} · {str(row['run_id'])[-4:]}"


def config_line(config: CaeConfig, status: RunStatus) -> str:
    """What a run was asked to do, in one line: data, preset, size, batch, seed, epochs."""
    words = [
        shortened(data_name(config.data), 40),
        PRESETS.get(config.preset, config.preset),
        f"{config.image_size} px",
        f"batch {config.batch_size}",
        f"seed {config.seed}",
    ]
    if status.epoch:
        best = f", best {status.best_epoch}" if status.best_epoch else ""
        words.append(f"{counted(status.epoch, 'epoch')}{best}")
    return " · ".join(words)
