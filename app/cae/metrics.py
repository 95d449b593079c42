"""The field's metrics as their reference implementations compute them. NumPy only.

Anomaly maps are raw floats (N, H, W), larger is worse; masks 0/1 or bool of the same shape, 1 marking the defect. A metric that is not
defined for what it is given raises ValueError with a sentence that says what is missing; it never returns 0 in its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from app.cae.aupro import aupro
from app.cae.metric_inputs import check_maps_and_masks
from app.cae.pimo import Aupimo, PimoCurves, aupimo, pimo_curves

Doubles = NDArray[np.float64]

__all__ = [
    "Aupimo",
    "Confusion",
    "PimoCurves",
    "aupimo",
    "aupro",
    "confusion_at",
    "image_auroc",
    "image_average_precision",
    "pimo_curves",
    "pixel_auroc",
    "precision_recall_curve",
    "roc_curve",
]

ONE_CLASS = "Only one class in the test set ({good} good and {defective} defective {things}): the metric compares the two, add the other."
NOT_FINITE = "Some scores are NaN or infinite, so {things} cannot be ranked; expected finite numbers."


def image_auroc(labels: ArrayLike, scores: ArrayLike) -> float:
    """Area under the ROC curve over images: the share of (good, defective) pairs ranked rightly, ties counting half.

    Args:
        labels: (N,) 0 good, 1 defective.
        scores: (N,) larger is worse.

    Raises:
        ValueError: one class is missing, a score is not finite, or the shapes differ.
    """
    return _auroc(*_by_class(labels, scores, "pictures"))


def pixel_auroc(maps: NDArray[Any], masks: NDArray[Any]) -> float:
    """Area under the ROC curve over all pixels of all images, exact (on ranks, no thresholds).

    Raises:
        TypeError: maps are not floats, masks neither integers nor bool.
        ValueError: shapes differ, a mask has other values than 0 and 1, one class is missing, or a score is not finite.
    """
    check_maps_and_masks(maps, masks)
    if not np.isfinite(maps).all():
        raise ValueError(NOT_FINITE.format(things="pixels"))
    marked = masks.astype(bool, copy=False)
    return _auroc(*_both_present(maps[~marked], maps[marked], "pixels"))


def _auroc(good: NDArray[Any], defective: NDArray[Any]) -> float:
    """Mann-Whitney's U / (n m), in integers up to the last division."""
    ranked = np.sort(good)
    # The smaller set is looked up in the sorted larger one or the other way round, whichever there are fewer look-ups of.
    if len(defective) <= len(good):
        looked_up = np.sort(defective)  # neighbours in memory are looked up one after the other: several times faster
        below = np.searchsorted(ranked, looked_up, side="left").sum(dtype=np.int64)
        not_above = np.searchsorted(ranked, looked_up, side="right").sum(dtype=np.int64)
        return float(below + not_above) / (2.0 * len(good) * len(defective))
    return 1.0 - _auroc(defective, good)


def image_average_precision(labels: ArrayLike, scores: ArrayLike) -> float:
    """Average precision, Σ (R_k - R_{k-1}) P_k over distinct scores, as scikit-learn defines it (no interpolation).

    Raises:
        ValueError: see `image_auroc`.
    """
    precision, recall, _ = precision_recall_curve(labels, scores)
    return float(np.sum(np.diff(recall) * precision[1:]))


def roc_curve(labels: ArrayLike, scores: ArrayLike) -> tuple[Doubles, Doubles, Doubles]:
    """(false-positive rate, true-positive rate, threshold), one point for each distinct score in descending order, after (0, 0, inf).

    A picture is called defective where score ≥ threshold.
    """
    tp, fp, thresholds, defective, good = _counts(labels, scores)
    return np.r_[0.0, fp / good], np.r_[0.0, tp / defective], np.r_[np.inf, thresholds]


def precision_recall_curve(labels: ArrayLike, scores: ArrayLike) -> tuple[Doubles, Doubles, Doubles]:
    """(precision, recall, threshold), one point for each distinct score in descending order, after (1, 0, inf)."""
    tp, fp, thresholds, defective, _ = _counts(labels, scores)
    return np.r_[1.0, tp / (tp + fp)], np.r_[0.0, tp / defective], np.r_[np.inf, thresholds]


def _counts(labels: ArrayLike, scores: ArrayLike) -> tuple[Doubles, Doubles, Doubles, int, int]:
    """True and false positives at each distinct score, the scores, and the class sizes."""
    good, defective = _by_class(labels, scores, "pictures")
    thresholds = np.unique(np.r_[good, defective])[::-1]
    tp = len(defective) - np.searchsorted(np.sort(defective), thresholds, side="left")
    fp = len(good) - np.searchsorted(np.sort(good), thresholds, side="left")
    return tp.astype(np.float64), fp.astype(np.float64), thresholds, len(defective), len(good)


@dataclass(frozen=True)
class Confusion:
    """Verdicts against labels at one threshold; defective is the positive class."""

    tp: int
    fp: int
    fn: int
    tn: int

    @property
    def precision(self) -> float | None:
        """None where nothing was called defective."""
        return self.tp / (self.tp + self.fp) if self.tp + self.fp else None

    @property
    def recall(self) -> float | None:
        """None where nothing is defective."""
        return self.tp / (self.tp + self.fn) if self.tp + self.fn else None

    @property
    def f1(self) -> float | None:
        """2 TP / (2 TP + FP + FN); None where nothing is defective."""
        return 2 * self.tp / (2 * self.tp + self.fp + self.fn) if self.tp + self.fn else None


def confusion_at(labels: ArrayLike, scores: ArrayLike, threshold: float) -> Confusion:
    """Verdicts at `threshold`: defective where score > threshold, so that a threshold at the largest good score flags no good picture."""
    truth = np.asarray(labels).astype(bool)
    called = np.asarray(scores, dtype=np.float64) > threshold
    hit = int(np.sum(truth & called))
    return Confusion(hit, int(called.sum()) - hit, int(truth.sum()) - hit, int(np.sum(~truth & ~called)))


def _by_class(labels: ArrayLike, scores: ArrayLike, things: str) -> tuple[Doubles, Doubles]:
    """(scores of good, scores of defective)."""
    truth, values = np.asarray(labels), np.asarray(scores, dtype=np.float64)
    if truth.ndim != 1 or truth.shape != values.shape:
        raise ValueError(f"Expected labels and scores of one equal length, got shapes {truth.shape} and {values.shape}.")
    if not np.isin(truth, (0, 1)).all():
        raise ValueError(f"Expected labels 0 (good) and 1 (defective), got {np.unique(truth)[:5].tolist()}.")
    if not np.isfinite(values).all():
        raise ValueError(NOT_FINITE.format(things=things))
    return _both_present(values[truth == 0], values[truth == 1], things)


def _both_present(good: NDArray[Any], defective: NDArray[Any], things: str) -> tuple[NDArray[Any], NDArray[Any]]:
    if not len(good) or not len(defective):
        raise ValueError(ONE_CLASS.format(good=len(good), defective=len(defective), things=things))
    return good, defective
