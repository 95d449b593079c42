"""The figures of a run: the one place that sees test labels and masks, after everything that is chosen has been chosen. NumPy only."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from app.cae import metrics
from app.cae.drawing import DEFECTS, add_defect
from app.cae.large_sets import pixel_metrics
from app.cae.rows import Rows, chosen
from app.cae.scoring import SCORE_BATCH
from app.cae.training import in_batches

NO_TEST = "There is no test picture, so nothing can be compared with a label."
NO_MASKS = "No defective test picture has a mask, so there is nothing to compare the maps with."
_OPTIONAL = ("fpr_bounds", "num_thresholds", "force=")
ARGUMENTS = "(fpr_bounds, num_thresholds and force are arguments of aupimo() in app/cae/metrics.py, no options of a run.)"
NO_MEMORY = "Counting the pixels needs more memory than is free; everything else was computed."
NO_DEFECTIVE = "There is no defective test picture, so there is nothing to find."
FEW_HELD_OUT = "Only {held_out} good pictures are held out, expected at least {needed}: fewer say little."

FEWEST_FOR_SYNTHETIC = 20
"""Held-out good pictures below which the synthetic-defect figure says little."""

SYNTHETIC_CONTRAST = 0.5
SYNTHETIC_EXTENT = 0.15
"""Contrast and size (share of the side) of the defects drawn: those of the data set `synthetic`."""


@dataclass(frozen=True)
class Figures:
    """Test pictures, scored. T pictures of S px."""

    rows: pd.DataFrame
    """(T rows) with columns label and defect."""
    scores: NDArray[np.float64]
    """(T,)."""
    maps: Rows
    """(T, S, S) float32."""
    masks: Rows
    """(T, S, S) uint8, 0/1."""
    has_mask: NDArray[np.bool_]
    """(T,)."""
    threshold: float
    map_scores: NDArray[np.float64] | None = None
    """(T,) pooled maps, where the whole picture adds something to them in `scores`."""
    memory_mib: float = math.inf
    """Memory that pixel figures may take; they are computed part by part where they would need more."""


def run_figures(found: Figures) -> dict[str, Any]:
    """Everything `metrics.json` holds, as JSON types.

    Keys: image_auroc, image_auroc_maps (from maps alone; only where whole pictures count too), image_ap,
    image_f1, precision, recall, confusion {tp, fp, fn, tn}, threshold, pixel_auroc, aupro, aupimo,
    aupimo_detail, per_defect, not_available {figure: why}. A figure that cannot be computed is None, and `not_available` says why.
    """
    figures: dict[str, Any] = {"threshold": found.threshold, "not_available": {}}
    labels = found.rows["label"].to_numpy()
    _image_figures(figures, labels, found.scores, found.threshold)
    if found.map_scores is not None and figures["image_auroc"] is not None:
        figures["image_auroc_maps"] = metrics.image_auroc(labels, found.map_scores)
    _pixel_figures(figures, found)
    figures["per_defect"] = _per_defect(found, labels)
    return figures


def _image_figures(figures: dict[str, Any], labels: NDArray[Any], scores: NDArray[np.float64], threshold: float) -> None:
    _try(figures, "image_auroc", lambda: metrics.image_auroc(labels, scores), NO_TEST if not len(labels) else None)
    _try(figures, "image_ap", lambda: metrics.image_average_precision(labels, scores), NO_TEST if not len(labels) else None)
    confusion = metrics.confusion_at(labels, scores, threshold)
    why = NO_TEST if not len(labels) else NO_DEFECTIVE if not labels.any() else None
    _try(figures, "image_f1", lambda: confusion.f1, why)
    figures |= {"precision": confusion.precision, "recall": confusion.recall, "confusion": asdict(confusion) if len(labels) else None}


def _pixel_figures(figures: dict[str, Any], found: Figures) -> None:
    known = np.flatnonzero(found.has_mask)
    of = pixel_metrics(chosen(found.maps, known), chosen(found.masks, known), found.memory_mib)
    why = None if of.any_marked else NO_MASKS
    _try(figures, "pixel_auroc", of.pixel_auroc, why)
    _try(figures, "aupro", of.aupro, why)
    figures["aupimo"] = figures["aupimo_detail"] = None
    if why:
        figures["not_available"]["aupimo"] = why
        return
    try:
        result = of.aupimo()
    except (ValueError, RuntimeError) as error:
        said = str(error)
        figures["not_available"]["aupimo"] = f"{said} {ARGUMENTS}" if any(name in said for name in _OPTIONAL) else said
        return
    except MemoryError:
        figures["not_available"]["aupimo"] = NO_MEMORY
        return
    figures["aupimo"] = result.mean
    figures["aupimo_detail"] = {
        "num_points": result.num_points,
        "fpr_lower": result.fpr_lower,
        "fpr_upper": result.fpr_upper,
        "fpr_bounds": list(result.fpr_bounds),
        "warnings": list(result.warnings),
    }


def _per_defect(found: Figures, labels: NDArray[Any]) -> dict[str, dict[str, Any]]:
    """For each kind of defect: pictures, how many are found at the threshold, image AUROC against all good test pictures (or None)."""
    defects = found.rows["defect"].to_numpy()
    good = labels == 0
    table = {}
    for name in sorted(set(defects[labels == 1].tolist())):
        kind = (labels == 1) & (defects == name)
        both = kind | good
        table[str(name)] = {
            "pictures": int(kind.sum()),
            "found": int((found.scores[kind] > found.threshold).sum()),
            "image_auroc": metrics.image_auroc(labels[both], found.scores[both]) if good.any() else None,
        }
    return table


def _try(figures: dict[str, Any], name: str, compute: Callable[[], float | None], why_not: str | None) -> None:
    figures[name] = None
    if why_not is None:
        try:
            figures[name] = compute()
            return
        except ValueError as error:
            why_not = str(error)
        except MemoryError:
            why_not = NO_MEMORY
    figures["not_available"][name] = why_not


def synthetic_auroc(
    figures: dict[str, Any],
    held_out: Rows,
    good_scores: NDArray[np.float64],
    score: Callable[[NDArray[np.uint8]], NDArray[np.float64]],
    seed: int,
) -> None:
    """Adds `synthetic_auroc`: held-out good pictures (M, H, W, C) against the same with a defect drawn in: what is known without labels.

    It tells which of two trained models is better, not which map or pooling suits the real defects.
    """
    if len(held_out) < FEWEST_FOR_SYNTHETIC:
        figures["synthetic_auroc"] = None
        figures["not_available"]["synthetic_auroc"] = FEW_HELD_OUT.format(held_out=len(held_out), needed=FEWEST_FOR_SYNTHETIC)
        return
    random = np.random.default_rng(seed)
    everywhere = np.ones(held_out.shape[1:3], np.bool_)
    kinds = sorted(DEFECTS)

    def broken(place: int) -> NDArray[np.uint8]:
        kind = kinds[place % len(kinds)]
        drawn, _ = add_defect(held_out[place] / 255.0, everywhere, kind, SYNTHETIC_CONTRAST, SYNTHETIC_EXTENT, random)
        return np.rint(drawn * 255.0).astype(np.uint8)

    batches = in_batches(len(held_out), SCORE_BATCH)
    scores = np.concatenate([score(np.stack([broken(place) for place in range(part.start, part.stop)])) for part in batches])
    labels = np.repeat([0, 1], [len(good_scores), len(scores)])
    figures["synthetic_auroc"] = metrics.image_auroc(labels, np.r_[good_scores, scores])
