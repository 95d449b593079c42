"""Reading a run's results back. Readers never raise on a folder that is being written, incomplete or damaged: what cannot be
read is empty or `None`. Nothing is ever unpickled. pandas and NumPy are imported where needed: commands that only look at the state of
runs start three times as fast without them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.cae.reporting import HISTORY_COLUMNS
from app.runs.files import read_json

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd

    from app.cae.rows import Rows
    from app.cae.scoring import Calibration

SCORE_COLUMNS = ("path", "split", "label", "defect", "score", "verdict")
_TAIL_BYTES_PER_LINE = 400


@dataclass(frozen=True)
class Maps:
    """`maps.npz`: what the network made of each test picture. N pictures of H×W pixels and C channels."""

    maps: Rows
    """(N, H, W) anomaly maps, raw."""
    inputs: Rows
    """(N, H, W, C)."""
    reconstructions: Rows
    """(N, H, W, C)."""
    masks: Rows
    """(N, H, W), 0 or 1; zero where `has_mask` is false."""
    has_mask: npt.NDArray[np.bool_]
    """(N,)."""
    indices: npt.NDArray[np.int64]
    """(N,) row of each picture in `scores.csv`."""


def load_history(folder: Path) -> pd.DataFrame:
    """One row an epoch; columns of `HISTORY_COLUMNS` always, more where the run wrote more. Empty when there is none yet."""
    import pandas as pd

    frame = _read_csv(Path(folder) / "history.csv")
    frame = frame.reindex(columns=[*HISTORY_COLUMNS, *(name for name in frame.columns if name not in HISTORY_COLUMNS)])
    for name in frame.columns:
        frame[name] = pd.to_numeric(frame[name], errors="coerce")
    return frame


def load_scores(folder: Path) -> pd.DataFrame:
    """One row a picture: path, split, label (0 good, 1 defective), defect, score, verdict. Empty when there is none."""
    import pandas as pd

    frame = _read_csv(Path(folder) / "scores.csv", text=("path", "split", "defect", "verdict"))
    return frame if len(frame.columns) else pd.DataFrame(columns=list(SCORE_COLUMNS))


def load_metrics(folder: Path) -> dict[str, Any] | None:
    return _json_or_none(Path(folder) / "metrics.json")


def load_profile(folder: Path) -> dict[str, Any] | None:
    """The HardwareProfile as JSON: which path, why, what was applied and read back."""
    return _json_or_none(Path(folder) / "profile.json")


def load_dataset_summary(folder: Path) -> dict[str, Any] | None:
    """What the pipeline said about the pictures it read."""
    return _json_or_none(Path(folder) / "dataset.json")


def load_maps(folder: Path) -> Maps | None:
    """Every test picture's map, input, reconstruction and mask; `None` when there are none or the file is damaged. Large arrays come
    into memory picture by picture."""
    import numpy as np

    arrays = _read_npz(Path(folder) / "maps.npz")
    try:
        has_mask, indices = np.asarray(arrays["has_mask"]), np.asarray(arrays["indices"])
        return Maps(arrays["maps"], arrays["inputs"], arrays["reconstructions"], arrays["masks"], has_mask, indices)
    except KeyError:
        return None


def load_calibration(folder: Path) -> Calibration | None:
    """`scoring.npz`: rule, calibration, threshold and heat map scale; `None` when there is none or it is damaged."""
    import numpy as np

    from app.cae.scoring import Calibration

    try:
        return Calibration.from_arrays({name: np.asarray(array) for name, array in _read_npz(Path(folder) / "scoring.npz").items()})
    except (KeyError, TypeError, ValueError):
        return None


def read_log_tail(folder: Path, lines: int = 200) -> str:
    """The last lines of `log.txt`; empty when there is none. Only the end of the file is read, however long it is."""
    try:
        with (Path(folder) / "log.txt").open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - max(1, lines) * _TAIL_BYTES_PER_LINE))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def _json_or_none(path: Path) -> dict[str, Any] | None:
    try:
        return read_json(path)
    except ValueError:
        return None


def _read_csv(path: Path, text: tuple[str, ...] = ()) -> pd.DataFrame:
    import pandas as pd

    try:
        # keep_default_na off for text: a defect type may well be called "NA" or "null".
        frame = pd.read_csv(path, dtype=dict.fromkeys(text, str), keep_default_na=not text, na_values=[""] if text else None)
    except (OSError, ValueError, pd.errors.ParserError):
        return pd.DataFrame()
    for name in text:
        if name in frame.columns:
            frame[name] = frame[name].fillna("")
    return frame


def _read_npz(path: Path) -> dict[str, Rows]:
    from app.cae.rows import DAMAGED, load_npz

    try:
        return load_npz(path)
    except DAMAGED:
        return {}
