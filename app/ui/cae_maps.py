"""The anomaly maps of runs in memory: few, and shared by all visitors, since one run's maps can take hundreds of megabytes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import streamlit as st

from app.runs.folder import Maps, load_maps


@st.cache_resource(max_entries=2, ttl=900, show_spinner=False)
def maps_of(folder: str, stamp: int) -> Maps | None:
    """`maps.npz` of a run's folder, arrays read-only; `None` when there is none or it is damaged. `stamp` is `stamp_of` the file."""
    del stamp  # only there so that a new file is read
    maps = load_maps(Path(folder))
    if maps is not None:
        for field in dataclasses.fields(maps):
            array = getattr(maps, field.name)
            if isinstance(array, np.ndarray):
                array.flags.writeable = False
    return maps


def stamp_of(file: Path) -> int:
    """Changes when the file does; 0 when there is none."""
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0
