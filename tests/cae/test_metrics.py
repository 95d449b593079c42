"""Image and pixel metrics against scikit-learn's values, against figures one can work out on paper, and their refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refvectors import SETS, arrays, expected
from sklearn.metrics import average_precision_score, confusion_matrix, f1_score, roc_auc_score

from app.cae.metrics import (
    confusion_at,
    image_auroc,
    image_average_precision,
    pixel_auroc,
    precision_recall_curve,
    roc_curve,
)

TOLERANCE = 1e-9


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("pooling", ["max", "top1pct_mean"])
def test_image_auroc_equals_the_reference(name: str, pooling: str) -> None:
    vectors, reference = arrays(name), expected()["sets"][name][f"image_auroc_{pooling}"]
    labels, scores = vectors["image_labels"], vectors[f"image_scores_{pooling}"]
    if reference is None:
        with pytest.raises(ValueError, match="Only one class in the test set"):
            image_auroc(labels, scores)
    else:
        assert image_auroc(labels, scores) == pytest.approx(reference, abs=TOLERANCE)


@pytest.mark.parametrize("name", SETS)
def test_pixel_auroc_equals_the_reference(name: str) -> None:
    vectors, reference = arrays(name), expected()["sets"][name]["pixel_auroc"]
    if reference is None:
        with pytest.raises(ValueError, match="Only one class"):
            pixel_auroc(vectors["scores"], vectors["masks"])
    else:
        assert pixel_auroc(vectors["scores"], vectors["masks"]) == pytest.approx(reference, abs=TOLERANCE)


def test_pixel_auroc_does_not_change_with_an_offset() -> None:
    """torchmetrics puts scores outside 0..1 through a sigmoid, which ties them: ranks do not care."""
    vectors = arrays("graded")
    shifted = vectors["scores"].astype(np.float64) + 1000.0
    assert pixel_auroc(shifted, vectors["masks"]) == pytest.approx(expected()["sets"]["graded"]["pixel_auroc"], abs=TOLERANCE)


def test_image_auroc_on_paper() -> None:
    # Pairs (good, defective): (1,3) right, (1,2) right, (2,3) right, (2,2) tie: 3.5 of 4.
    assert image_auroc([0, 0, 1, 1], [1.0, 2.0, 3.0, 2.0]) == 3.5 / 4
    # The other way round, and with more defective than good pictures.
    assert image_auroc([1, 1, 0], [0.0, 1.0, 2.0]) == 0.0


pairs = st.lists(st.tuples(st.integers(0, 1), st.integers(-5, 5)), min_size=2, max_size=60)
ranked = pairs.filter(lambda drawn: len({label for label, _ in drawn}) == 2)


@settings(deadline=None)
@given(ranked)
def test_ranking_metrics_equal_scikit_learn_on_anything_with_ties(pairs: list[tuple[int, int]]) -> None:
    labels, scores = (np.array(column) for column in zip(*pairs, strict=True))
    assert image_auroc(labels, scores) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    assert image_average_precision(labels, scores) == pytest.approx(average_precision_score(labels, scores), abs=1e-12)
    # A monotone change of the scores changes nothing.
    assert image_auroc(labels, np.exp(scores / 3)) == image_auroc(labels, scores)


@settings(deadline=None)
@given(ranked, st.integers(-6, 6))
def test_confusion_equals_scikit_learn(pairs: list[tuple[int, int]], threshold: int) -> None:
    labels, scores = (np.array(column) for column in zip(*pairs, strict=True))
    found = confusion_at(labels, scores, threshold)
    (tn, fp), (fn, tp) = confusion_matrix(labels, scores > threshold, labels=[0, 1]).tolist()
    assert (found.tn, found.fp, found.fn, found.tp) == (tn, fp, fn, tp)
    assert found.f1 == pytest.approx(f1_score(labels, scores > threshold), abs=1e-12)


def test_confusion_calls_defective_what_lies_above_the_threshold() -> None:
    found = confusion_at([0, 0, 1, 1], [0.1, 0.5, 0.5, 0.9], threshold=0.5)
    assert (found.tp, found.fp, found.fn, found.tn) == (1, 0, 1, 2)
    assert (found.precision, found.recall, found.f1) == (1.0, 0.5, 2 / 3)


def test_figures_without_a_denominator_are_none_and_not_zero() -> None:
    nothing_called = confusion_at([0, 1], [0.0, 0.0], threshold=1.0)
    assert nothing_called.precision is None
    assert nothing_called.recall == 0.0
    nothing_defective = confusion_at([0, 0], [0.0, 2.0], threshold=1.0)
    assert nothing_defective.recall is None
    assert nothing_defective.f1 is None


def test_curves_begin_and_end_where_they_must() -> None:
    labels, scores = [0, 1, 0, 1], [0.1, 0.4, 0.35, 0.8]
    fpr, tpr, thresholds = roc_curve(labels, scores)
    assert fpr.tolist() == [0.0, 0.0, 0.0, 0.5, 1.0]
    assert tpr.tolist() == [0.0, 0.5, 1.0, 1.0, 1.0]
    assert thresholds.tolist() == [np.inf, 0.8, 0.4, 0.35, 0.1]
    assert np.trapezoid(tpr, fpr) == image_auroc(labels, scores)
    precision, recall, _ = precision_recall_curve(labels, scores)
    assert precision.tolist() == [1.0, 1.0, 1.0, 2 / 3, 0.5]
    assert recall.tolist() == [0.0, 0.5, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_scores_that_cannot_be_ranked_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="NaN or infinite"):
        image_auroc([0, 1], [0.0, bad])
    maps, masks = np.zeros((2, 4, 4), np.float32), np.zeros((2, 4, 4), np.uint8)
    masks[0, 0, 0] = 1
    maps[1, 2, 2] = bad
    with pytest.raises(ValueError, match="NaN or infinite"):
        pixel_auroc(maps, masks)


@pytest.mark.parametrize(
    ("labels", "scores", "said"),
    [
        ([0, 1], [0.0, 1.0, 2.0], "one equal length"),
        ([0, 2], [0.0, 1.0], r"labels 0 \(good\) and 1"),
        ([], [], "Only one class"),
        ([1, 1], [0.0, 1.0], "0 good and 2 defective pictures"),
    ],
)
def test_labels_that_do_not_fit_are_refused(labels: list[int], scores: list[float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        image_auroc(labels, scores)
