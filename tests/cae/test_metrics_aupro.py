"""AUPRO against the exact float64 reference, and connected regions against SciPy's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from refvectors import SETS, arrays, expected
from scipy import ndimage

from app.cae.aupro import label_regions
from app.cae.metrics import aupro

EIGHT = np.ones((3, 3), int)


@pytest.mark.parametrize("name", SETS)
def test_aupro_equals_the_exact_definition(name: str) -> None:
    vectors, reference = arrays(name), expected()["sets"][name]["aupro_0.3_exact_f64"]
    if reference is None:
        with pytest.raises(ValueError, match="no region to overlap with"):
            aupro(vectors["scores"], vectors["masks"])
    else:
        assert aupro(vectors["scores"], vectors["masks"]) == pytest.approx(reference, abs=1e-6)


# anomalib drops a region that fills its image (`full_mask`): not to be copied, the exact value of the test above is right.
@pytest.mark.parametrize("name", [name for name in SETS if name not in ("full_mask", "normals_only")])
@pytest.mark.parametrize("limit", [0.05, 0.3, 1.0])
def test_aupro_equals_anomalib_at_several_limits(name: str, limit: float) -> None:
    vectors, reference = arrays(name), expected()["sets"][name][f"aupro_{limit}_anomalib"]
    assert aupro(vectors["scores"], vectors["masks"], fpr_limit=limit) == pytest.approx(reference, abs=1e-5)


def test_each_region_counts_the_same_whatever_its_size() -> None:
    """One region of 1 px found first, one of 8 px never: recall ½ from the start, 1 only at the end."""
    maps = np.zeros((1, 4, 8), np.float32)
    masks = np.zeros((1, 4, 8), np.uint8)
    masks[0, 0, 0], maps[0, 0, 0] = 1, 9.0
    masks[0, 3, :], maps[0, 3, :] = 1, -1.0
    maps[0, 1:3] = 1.0 + np.arange(16).reshape(2, 8)
    maps[0, 0, 1:] = 0.5
    # 23 unmarked pixels: eight of 9.0 and more before or with the hit. Worked out by hand: overlap 0 below FPR 8/23, then ½.
    fpr = np.array([0.0, 7 / 23, 8 / 23, 0.5])
    overlap = np.array([0.0, 0.0, 0.5, 0.5])
    assert aupro(maps, masks, fpr_limit=0.5) == pytest.approx(np.trapezoid(overlap, fpr) / 0.5, abs=1e-12)


def test_squares_that_touch_at_a_corner_are_one_region() -> None:
    masks = np.zeros((2, 6, 6), np.uint8)
    masks[0, 1:3, 1:3] = masks[0, 3:5, 3:5] = 1
    masks[1, 0, 0] = masks[1, 0, 5] = 1
    regions, count = label_regions(masks)
    assert count == 3
    assert len(np.unique(regions[0])) == 2


def test_the_last_row_of_an_image_does_not_touch_the_first_of_the_next() -> None:
    masks = np.zeros((2, 3, 3), np.uint8)
    masks[0, 2], masks[1, 0] = 1, 1
    assert label_regions(masks)[1] == 2


@settings(max_examples=200, deadline=None)
@given(hnp.arrays(np.uint8, st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 9)), elements=st.integers(0, 1)))
def test_regions_equal_scipys(masks: np.ndarray) -> None:
    regions, count = label_regions(masks)
    seen = 0
    for image, mine in zip(masks, regions, strict=True):
        theirs, number = ndimage.label(image, structure=EIGHT)
        assert ((mine > 0) == (theirs > 0)).all()
        pairs = set(zip(mine[mine > 0].tolist(), theirs[theirs > 0].tolist(), strict=True))
        assert len(pairs) == number  # one to one
        seen += number
    assert count == seen


def test_a_spiral_is_one_region() -> None:
    """The worst case for joining runs: a long chain."""
    size = 41
    spiral = np.zeros((size, size), np.uint8)
    row, column, step, length = 0, 0, (0, 1), size - 1
    spiral[row, column] = 1
    while length > 0:
        for _ in range(2):
            for _ in range(length):
                row, column = row + step[0], column + step[1]
                spiral[row, column] = 1
            step = (step[1], -step[0])
        length -= 2
    assert label_regions(spiral[None])[1] == ndimage.label(spiral, structure=EIGHT)[1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"fpr_limit": 0.0}, "fpr_limit in"),
        ({"fpr_limit": 1.5}, "fpr_limit in"),
    ],
)
def test_limits_out_of_range_are_refused(change: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        aupro(arrays("graded")["scores"], arrays("graded")["masks"], **change)


def test_masks_that_cover_everything_are_refused() -> None:
    with pytest.raises(ValueError, match="no false-positive rate"):
        aupro(np.ones((1, 4, 4), np.float32), np.ones((1, 4, 4), np.uint8))


def test_scores_that_cannot_be_ranked_are_refused() -> None:
    maps = arrays("graded")["scores"].copy()
    maps[0, 0, 0] = np.nan
    with pytest.raises(ValueError, match="NaN or infinite"):
        aupro(maps, arrays("graded")["masks"])
