"""Heat maps, overlays and outlines as arrays."""

from __future__ import annotations

import numpy as np
import pytest

from app.ui import pictures
from app.ui.pictures import Scale

SCALE = Scale(1.0, 3.0)
GREY = np.full((4, 6, 1), 100, np.uint8)


def test_a_scale_spans_the_colours_and_clips_beyond() -> None:
    shares = SCALE.of(np.array([[0.0, 1.0, 2.0, 3.0, 99.0, np.nan]], np.float32))
    np.testing.assert_allclose(shares, [[0, 0, 0.5, 1, 1, 0]])


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.0), (2.0, 1.0), (0.0, float("inf")), (float("nan"), 1.0)])
def test_a_scale_without_width_is_refused(low: float, high: float) -> None:
    with pytest.raises(ValueError, match="expected finite low < high"):
        Scale(low, high)


def test_the_same_anomaly_has_the_same_colour_in_every_picture() -> None:
    """One scale for the run: not the per-picture stretch that makes every good picture glow."""
    calm, loud = np.array([[1.2, 1.5]], np.float32), np.array([[1.5, 2.9]], np.float32)
    np.testing.assert_array_equal(pictures.heat(calm, SCALE)[0, 1], pictures.heat(loud, SCALE)[0, 0])


def test_heat_grows_brighter_with_the_anomaly() -> None:
    line = pictures.heat(np.linspace(1, 3, 64, dtype=np.float32)[None], SCALE)[0].astype(float)
    brightness = line @ [0.2126, 0.7152, 0.0722]
    assert (np.diff(brightness) > -1e-9).all()
    assert brightness[-1] - brightness[0] > 150


def test_opacity_goes_from_the_picture_to_the_map() -> None:
    values = np.linspace(1, 3, 24, dtype=np.float32).reshape(4, 6)
    np.testing.assert_array_equal(pictures.blended(GREY, values, SCALE, 0.0), pictures.to_rgb(GREY))
    np.testing.assert_array_equal(pictures.blended(GREY, values, SCALE, 1.0), pictures.heat(values, SCALE))
    between = pictures.blended(GREY, values, SCALE, 0.5)
    np.testing.assert_array_equal(between[0, 0], [100, 100, 100])
    assert (between[-1, -1] != 100).any()


def test_a_robust_scale_does_not_follow_single_pixels() -> None:
    maps = np.random.default_rng(0).normal(size=(4, 64, 64)).astype(np.float32)
    before = pictures.robust_scale(maps)
    maps[0, 0, 0] = 1e6
    assert pictures.robust_scale(maps).high == pytest.approx(before.high, rel=0.05)


@pytest.mark.parametrize(
    "maps", [np.zeros((0, 4, 4), np.float32), np.full((2, 4, 4), 7.0, np.float32), np.full((1, 2, 2), np.nan, np.float32)]
)
def test_a_robust_scale_of_nothing_or_of_a_constant_still_has_width(maps: np.ndarray) -> None:
    scale = pictures.robust_scale(maps)
    assert scale.high > scale.low


def test_the_outline_is_the_inner_border() -> None:
    mask = np.zeros((7, 7), bool)
    mask[1:6, 1:6] = True
    expected = mask.copy()
    expected[2:5, 2:5] = False
    np.testing.assert_array_equal(pictures.outline(mask), expected)
    assert pictures.outline(mask, 2).sum() == 24
    assert pictures.outline(np.ones((3, 3), bool)).sum() == 8
    assert not pictures.outline(np.zeros((3, 3), bool)).any()


def test_an_outline_is_drawn_on_a_copy() -> None:
    mask = np.zeros((4, 6), bool)
    mask[1, 2] = True
    drawn = pictures.with_outline(GREY, mask, "#102030")
    np.testing.assert_array_equal(drawn[1, 2], [16, 32, 48])
    assert (drawn.reshape(-1, 3) == [100, 100, 100]).all(axis=1).sum() == 23
    assert (GREY == 100).all()


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 1), (5, 7, 3)])
def test_grey_and_colour_become_rgb(shape: tuple[int, ...]) -> None:
    assert pictures.to_rgb(np.zeros(shape, np.uint8)).shape == (5, 7, 3)


def test_enlarging_keeps_proportions_and_never_shrinks() -> None:
    assert pictures.enlarged(GREY, 60).shape == (40, 60, 3)
    assert pictures.enlarged(GREY, 2).shape == (4, 6, 3)
    mask = np.zeros((4, 6), np.uint8)
    mask[1:3, 1:3] = 7
    large = pictures.enlarged_mask(mask, 60)
    assert large.shape == (40, 60)
    np.testing.assert_array_equal(large, np.kron(mask > 0, np.ones((10, 10), bool)))


def test_an_enlarged_map_keeps_its_values() -> None:
    values = pictures.enlarged_map(np.full((4, 4), 12.5, np.float32), 40)
    np.testing.assert_allclose(values, 12.5)


def test_a_grid_is_transparent_where_it_is_empty() -> None:
    white = np.full((10, 10, 3), 255, np.uint8)
    canvas = pictures.grid([[white, white], [white]], gap=2)
    assert canvas.shape == (22, 22, 4)
    assert canvas[5, 5, 3] == 255
    assert canvas[5, 11, 3] == 0
    assert canvas[15, 15, 3] == 0
