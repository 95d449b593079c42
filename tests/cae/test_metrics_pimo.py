"""AUPIMO: the reference's values to 1e-5 (they agree to 1e-12), the same refusals, and its meaning on paper."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from refvectors import CONFIGS, SETS, arrays, expected

from app.cae.metrics import aupimo, pimo_curves
from app.cae.pimo import thresholds_at_fpr


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("name", SETS)
def test_aupimo_equals_the_reference(name: str, config: str) -> None:
    vectors, reference = arrays(name), expected()["sets"][name]["aupimo"][config]["anomalib"]
    call = {"maps": vectors["scores"], "masks": vectors["masks"], **CONFIGS[config]}
    if "error" in reference:
        with pytest.raises({"ValueError": ValueError, "RuntimeError": RuntimeError}[reference["error"]]):
            aupimo(**call)
        return
    found = aupimo(**call)
    per_image = np.array([math.nan if value is None else value for value in reference["aupimo"]])
    np.testing.assert_allclose(found.per_image, per_image, atol=1e-5, rtol=0, equal_nan=True)
    assert found.mean == pytest.approx(reference["mean"], abs=1e-5)
    assert found.num_points == reference["num_points"]
    assert found.fpr_lower == pytest.approx(reference["at_lower_fpr"]["fpr_defacto"], abs=1e-15)
    assert found.fpr_upper == pytest.approx(reference["at_upper_fpr"]["fpr_defacto"], abs=1e-15)
    assert found.threshold_at_lower == reference["at_lower_fpr"]["threshold"]
    assert found.threshold_at_upper == reference["at_upper_fpr"]["threshold"]


@pytest.mark.parametrize("name", [name for name in SETS if "curve_thresholds" in arrays(name)])
def test_curves_equal_the_reference(name: str) -> None:
    vectors = arrays(name)
    found = pimo_curves(vectors["scores"], vectors["masks"], num_thresholds=1001)
    np.testing.assert_array_equal(found.thresholds, vectors["curve_thresholds"])
    np.testing.assert_allclose(found.shared_fpr, vectors["curve_shared_fpr"], atol=1e-12)
    np.testing.assert_allclose(found.per_image_tprs, vectors["curve_per_image_tprs"], atol=1e-12, equal_nan=True)


def graded() -> dict[str, Any]:
    vectors = arrays("graded")
    return {"maps": vectors["scores"].copy(), "masks": vectors["masks"].copy(), "fpr_bounds": (1e-3, 1e-1)}


def with_pixel(value: float, image: int) -> dict[str, Any]:
    call = graded()
    call["maps"][image, 0, 0] = value
    return call


NORMAL = int(np.flatnonzero(arrays("graded")["image_labels"] == 0)[0])
ANOMALOUS = int(np.flatnonzero(arrays("graded")["image_labels"] == 1)[0])


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"fpr_bounds": [1e-3, 1e-1]}, TypeError, "as a tuple"),
        ({"fpr_bounds": (1e-3, "a")}, TypeError, "as numbers"),
        ({"fpr_bounds": (1e-3,)}, ValueError, "two numbers"),
        ({"fpr_bounds": (0.0, 1e-1)}, ValueError, "0 < lower"),
        ({"fpr_bounds": (1e-1, 1e-3)}, ValueError, "0 < lower"),
        ({"fpr_bounds": (0.5, 1.5)}, ValueError, "0 < lower"),
        ({"num_thresholds": 10.0}, TypeError, "as an integer"),
        ({"num_thresholds": 1}, ValueError, "at least 2"),
        ({"maps": arrays("graded")["scores"][0]}, ValueError, r"\(N, H, W\)"),
        ({"maps": (arrays("graded")["scores"] * 255).astype(np.uint8)}, TypeError, "raw floats"),
        ({"maps": arrays("graded")["scores"].tolist()}, TypeError, "NumPy array"),
        ({"masks": arrays("graded")["masks"].astype(np.float32)}, TypeError, "integers or bool"),
        ({"masks": arrays("graded")["masks"] * 255}, ValueError, "0 and 1"),
        ({"masks": arrays("graded")["masks"][:, :-1]}, ValueError, "same shape"),
        ({"masks": np.zeros_like(arrays("graded")["masks"])}, ValueError, "at least one anomalous"),
        ({"masks": np.ones_like(arrays("graded")["masks"])}, ValueError, "at least one normal"),
        ({"maps": np.full_like(arrays("graded")["scores"], 0.25)}, ValueError, "same score"),
        ({"fpr_bounds": (1e-5, 1e-4)}, ValueError, "at least 100000 normal pixels"),
        ({"maps": arrays("graded")["scores"] + np.float32(1e4)}, ValueError, "strictly increasing"),
        ({"num_thresholds": 20}, RuntimeError, "Only"),
        ({"num_thresholds": 2, "fpr_bounds": (0.6, 0.7), "force": True}, RuntimeError, "same threshold"),
    ],
)
def test_refusals_are_those_of_the_reference(change: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        aupimo(**{**graded(), **change})


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_normal_map_that_is_not_finite_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="strictly increasing"):
        aupimo(**with_pixel(bad, NORMAL))


def test_nan_inside_an_anomalous_map_counts_as_detected() -> None:
    call = graded()
    marked = np.argwhere(call["masks"][ANOMALOUS])[0]
    call["maps"][ANOMALOUS, marked[0], marked[1]] = math.nan
    as_nan = aupimo(**call).per_image[ANOMALOUS]
    call["maps"][ANOMALOUS, marked[0], marked[1]] = 1e9
    assert as_nan == aupimo(**call).per_image[ANOMALOUS]


def test_few_thresholds_are_accepted_when_forced_and_said_to_be_few() -> None:
    found = aupimo(**graded(), num_thresholds=20, force=True)
    assert found.num_points <= 30
    assert any("fewer than 300" in warning for warning in found.warnings)


def test_float64_maps_keep_a_large_offset() -> None:
    call = graded()
    plain = aupimo(**call).mean
    call["maps"] = call["maps"].astype(np.float64) + 1e4
    assert aupimo(**call).mean == pytest.approx(plain, abs=1e-4)


def test_bool_and_integer_masks_give_the_same() -> None:
    call = graded()
    assert (
        aupimo(**call).mean
        == aupimo(**{**call, "masks": call["masks"].astype(bool)}).mean
        == aupimo(**{**call, "masks": call["masks"].astype(np.int64)}).mean
    )


def on_paper() -> tuple[np.ndarray, np.ndarray]:
    """One normal image with scores 0, 1/N, … and one anomalous image with two marked pixels."""
    maps = np.zeros((2, 100, 100), np.float64)
    maps[0] = np.arange(10_000).reshape(100, 100) / 10_000
    masks = np.zeros((2, 100, 100), np.uint8)
    masks[1, 0, :2] = 1
    return maps, masks


def test_a_detector_that_finds_half_of_the_mask_everywhere_scores_half() -> None:
    maps, masks = on_paper()
    maps[1, 0, 0] = 2.0
    found = aupimo(maps, masks, fpr_bounds=(1e-3, 1e-1), num_thresholds=10_000)
    assert found.per_image[1] == pytest.approx(0.5, abs=1e-9)
    assert math.isnan(found.per_image[0])
    assert (found.fpr_lower, found.fpr_upper) == (pytest.approx(1e-3), pytest.approx(1e-1))


def test_a_pixel_found_from_the_middle_of_the_range_on_counts_half_of_the_logarithm() -> None:
    maps, masks = on_paper()
    masks[1, 0, 1] = 0
    maps[1, 0, 0] = 0.99  # reached once F ≥ 1e-2: half of the way from 1e-3 to 1e-1 in ln F
    found = aupimo(maps, masks, fpr_bounds=(1e-3, 1e-1), num_thresholds=10_000)
    assert found.per_image[1] == pytest.approx(0.5, abs=0.01)


def test_the_value_does_not_change_with_scale() -> None:
    call = graded()
    assert aupimo(**{**call, "maps": call["maps"] * 8}).mean == pytest.approx(aupimo(**call).mean, abs=1e-12)


def test_tied_normal_scores_are_said_to_be_coarse() -> None:
    vectors = arrays("ties")
    found = aupimo(vectors["scores"], vectors["masks"], fpr_bounds=(1e-3, 1e-1))
    assert any(warning.startswith("Coarse: 2 distinct") for warning in found.warnings)
    assert any("upper bound 0.1 is met only at 0.065" in warning for warning in found.warnings)


def test_curves_can_be_drawn_at_chosen_false_positive_rates() -> None:
    vectors = arrays("graded")
    levels = np.geomspace(1e-3, 1.0, 50)
    chosen = thresholds_at_fpr(vectors["scores"], vectors["masks"], levels)
    curves = pimo_curves(vectors["scores"], vectors["masks"], thresholds=chosen)
    assert np.abs(curves.shared_fpr[::-1][:, None] - levels).min(axis=0).max() < 1e-4
    assert np.isnan(curves.per_image_tprs[NORMAL]).all()
