"""Heat maps are pictures of the size of their original, on one scale (case D19)."""

from __future__ import annotations

import numpy as np
import pytest

from app.cae.heat_maps import Scale, heat, heat_map, map_at

SCALE = Scale(0.0, 10.0)


@pytest.mark.parametrize("size", [(64, 64), (640, 480), (5, 7), (1, 1), (300, 20)])
def test_a_heat_map_has_the_width_and_height_of_its_picture(size: tuple[int, int]) -> None:
    values = np.zeros((32, 32), np.float32)
    assert heat_map(values, SCALE, size).shape == (size[1], size[0], 3)


def test_a_place_stays_where_it_is_in_both_directions() -> None:
    values = np.zeros((16, 16), np.float32)
    values[2:4, 12:14] = 10.0  # above, on the right
    wide = map_at(values, (320, 80))
    row, column = np.unravel_index(int(wide.argmax()), wide.shape)
    assert 10 <= row <= 20
    assert 240 <= column <= 280
    assert wide.max() == pytest.approx(10.0)


def test_the_colour_is_that_of_the_value_at_any_size() -> None:
    values = np.full((16, 16), 5.0, np.float32)
    assert (heat_map(values, SCALE, (40, 30)) == heat(values, SCALE)[0, 0]).all()
    values[0, 0] = np.nan
    assert np.isfinite(map_at(values, (8, 8))).all()
