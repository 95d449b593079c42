"""What metrics.json holds, from hand-made scores and maps."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from app.cae.figures import Figures, run_figures, synthetic_auroc

KINDS = ["good", "good", "good", "spot", "spot", "dent"]
SCORES = np.array([0.1, 0.2, 0.6, 0.5, 0.9, 0.05])


def found(kinds: list[str] = KINDS, masked: tuple[int, ...] = (0, 1, 2, 3, 4), size: int = 16) -> Figures:
    """Maps that mark the defect of every picture but leave `dent` out."""
    random = np.random.default_rng(0)
    count = len(kinds)
    maps = random.normal(size=(count, size, size)).astype(np.float32)  # of uniform noise the reference refuses AUPIMO
    masks = np.zeros((count, size, size), np.uint8)
    for place, kind in enumerate(kinds):
        if kind == "spot":
            masks[place, 2:6, 2:6] = 1
            maps[place, 2:6, 2:6] += 20
    has_mask = np.isin(np.arange(count), masked)
    rows = pd.DataFrame({"label": [int(kind != "good") for kind in kinds], "defect": kinds})
    return Figures(rows, SCORES[:count], maps, masks, has_mask, 0.4)


def test_all_figures_are_plain_json() -> None:
    figures = run_figures(found())
    assert json.loads(json.dumps(figures)) == figures


def test_figures_on_paper() -> None:
    figures = run_figures(found())
    assert figures["confusion"] == {"tp": 2, "fp": 1, "fn": 1, "tn": 2}
    assert (figures["precision"], figures["recall"], figures["image_f1"]) == (2 / 3, 2 / 3, 2 / 3)
    # Pairs ranked rightly: 0.5 beats two good ones, 0.9 three, 0.05 none.
    assert figures["image_auroc"] == 5 / 9
    assert figures["pixel_auroc"] == 1.0
    assert figures["aupro"] == pytest.approx(1.0)
    assert figures["threshold"] == 0.4


def test_each_kind_of_defect_has_a_row() -> None:
    assert run_figures(found())["per_defect"] == {
        "dent": {"pictures": 1, "found": 0, "image_auroc": 0.0},
        "spot": {"pictures": 2, "found": 2, "image_auroc": 5 / 6},
    }


def test_aupimo_is_computed_where_there_are_enough_normal_pixels() -> None:
    figures = run_figures(found(size=256))
    assert figures["aupimo"] == pytest.approx(1.0, abs=0.05)
    assert figures["aupimo_detail"]["fpr_bounds"] == [1e-5, 1e-4]
    assert "aupimo" not in figures["not_available"]


def test_aupimo_refused_is_a_sentence_and_not_zero() -> None:
    figures = run_figures(found())
    assert figures["aupimo"] is figures["aupimo_detail"] is None
    why = figures["not_available"]["aupimo"]
    assert "normal pixels" in why
    assert "raise fpr_bounds. (fpr_bounds, num_thresholds and force are arguments of aupimo() in app/cae/metrics.py" in why


@pytest.mark.parametrize(
    ("kinds", "masked", "missing"),
    [
        (["good", "good"], (0, 1), {"image_auroc", "image_ap", "image_f1", "pixel_auroc", "aupro", "aupimo"}),
        (["spot", "spot"], (0, 1), {"image_auroc", "image_ap", "aupimo"}),
        (KINDS, (), {"pixel_auroc", "aupro", "aupimo"}),
        ([], (), {"image_auroc", "image_ap", "image_f1", "pixel_auroc", "aupro", "aupimo"}),
    ],
)
def test_d14_what_is_missing_is_none_with_a_reason(kinds: list[str], masked: tuple[int, ...], missing: set[str]) -> None:
    figures = run_figures(found(kinds, masked))
    assert set(figures["not_available"]) == missing
    for name in missing:
        assert figures[name] is None
        assert figures["not_available"][name].endswith(".")


def spread(images: NDArray[np.uint8]) -> NDArray[Any]:
    """A detector that finds anything that sticks out of a flat picture."""
    return images.reshape(len(images), -1).std(axis=1)


def test_the_synthetic_figure_is_the_auroc_of_defects_drawn_on_good_pictures() -> None:
    flat = np.full((24, 64, 64, 3), 120, np.uint8)
    flat += np.random.default_rng(0).integers(0, 3, flat.shape, dtype=np.uint8)
    figures: dict[str, Any] = {"not_available": {}}
    synthetic_auroc(figures, flat, spread(flat), spread, seed=0)
    assert figures["synthetic_auroc"] == 1.0
    blind: dict[str, Any] = {"not_available": {}}
    synthetic_auroc(blind, flat, np.zeros(24), lambda images: np.zeros(len(images)), seed=0)
    assert blind["synthetic_auroc"] == 0.5


def test_the_synthetic_figure_needs_enough_good_pictures() -> None:
    figures: dict[str, Any] = {"not_available": {}}
    synthetic_auroc(figures, np.zeros((19, 64, 64, 1), np.uint8), np.zeros(19), spread, seed=0)
    assert figures["synthetic_auroc"] is None
    assert figures["not_available"]["synthetic_auroc"].startswith("Only 19 good pictures are held out")
