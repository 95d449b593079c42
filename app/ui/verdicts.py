"""What a threshold makes of the scores of a run: verdict, mistake and rank of each test picture, and the figures of each class. Pure."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

GOOD, DEFECTIVE = "good", "defective"


def test_rows(scores: pd.DataFrame) -> pd.DataFrame:
    """The test pictures of `scores.csv` that have a score, with their place in the file as column `row`."""
    return _split(scores, "test")


def held_out_scores(scores: pd.DataFrame) -> NDArray[np.float64]:
    """Scores of the good pictures that were held out of training: the run's own threshold comes from them."""
    return _split(scores, "validation")["score"].to_numpy(np.float64)


def _split(scores: pd.DataFrame, split: str) -> pd.DataFrame:
    numbers = pd.to_numeric(scores["score"], errors="coerce").astype("float64")
    frame = scores.assign(row=np.arange(len(scores)), score=numbers)
    return frame[(frame["split"] == split) & np.isfinite(numbers)].reset_index(drop=True)


def judged(tested: pd.DataFrame, threshold: float) -> pd.DataFrame:
    """`test_rows` with `verdict` (a score above the threshold is defective), `mistake` (bool) and `rank` (1 is the most anomalous)."""
    called = tested["score"].to_numpy(np.float64) > threshold
    return tested.assign(
        verdict=np.where(called, DEFECTIVE, GOOD),
        mistake=called != (tested["label"].to_numpy() == 1),
        rank=tested["score"].rank(method="first", ascending=False).astype(int),
    )


def outcome(label: int, verdict: str) -> str:
    """What a verdict means: `found`, `missed`, `false alarm` or `passed`."""
    if label == 1:
        return "found" if verdict == DEFECTIVE else "missed"
    return "false alarm" if verdict == DEFECTIVE else "passed"


def most_anomalous(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.sort_values("rank")


def least_anomalous(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.sort_values("rank", ascending=False)


def mistakes(frame: pd.DataFrame) -> pd.DataFrame:
    """Only pictures judged wrongly: defects missed by most and false alarms raised by most, taking turns."""
    wrong = frame[frame["mistake"]]
    missed = wrong[wrong["label"] == 1].sort_values("rank", ascending=False)
    alarms = wrong[wrong["label"] != 1].sort_values("rank")
    turn = np.concatenate([np.arange(len(missed)) * 2, np.arange(len(alarms)) * 2 + 1])
    return pd.concat([missed, alarms]).iloc[np.argsort(turn, kind="stable")]


def by_class(frame: pd.DataFrame) -> pd.DataFrame:
    """One row a class of `judged`, good first: defect, pictures, called defective (count and share), median score."""
    grouped = frame.assign(said=frame["verdict"] == DEFECTIVE).groupby(["label", "defect"], as_index=False)
    table = grouped.agg(pictures=("score", "size"), called=("said", "sum"), share=("said", "mean"), median=("score", "median"))
    return table.sort_values(["label", "defect"]).drop(columns="label").reset_index(drop=True)
