"""The mean residual of training pictures: its formula, that it is added once and kept, and that few pictures are left alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from app.cae.calibration import Calibration
from app.cae.correction import Corrected, mean_residual
from app.cae.error_maps import ScoringRule
from app.cae.scoring import score_pictures
from app.cae.training import Floats
from app.core.errors import DataError

RULE = ScoringRule("none", "absolute", 0.5, 0.0, "none", "mean", 0.01)


class Darker:
    """A forward pass that rebuilds everything too dark, by an amount that depends on the pixel."""

    lack = np.linspace(0.0, 0.2, 16, dtype=np.float32).reshape(4, 4, 1)

    def __call__(self, pictures: Floats, /) -> Floats:
        darker: Floats = pictures - self.lack
        return darker

    def with_features(self, pictures: Floats) -> tuple[Floats, Floats]:
        return self(pictures), np.ones((len(pictures), 2), np.float32)


def images(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(100, 200, (count, 4, 4, 1), dtype=np.uint8)


def calibration(offset: Floats | None) -> Calibration:
    return Calibration(RULE, np.zeros((4, 4), np.float32), np.ones((4, 4), np.float32), 1, 0.0, 0.0, 1.0, "a test", offset=offset)


@pytest.mark.parametrize("count", [1, 40, 70])
def test_it_is_the_mean_residual_shrunk_as_by_ten_pictures_without_any(count: int) -> None:
    done: list[int] = []
    found = mean_residual(images(count), Darker(), "none", done.append)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, Darker.lack * count / (count + 10), atol=1e-6)
    assert sum(done) == count


def test_reconstructions_have_it_added_once(tmp_path: Path) -> None:
    offset = mean_residual(images(30), Darker(), "none", lambda _: None)
    left = np.abs(Darker.lack - offset).mean()
    given = calibration(offset)
    scored = score_pictures(images(5), Darker(), given)
    np.testing.assert_allclose(scored.scores, left, atol=1e-6)
    rebuilt, features = Corrected(Darker(), offset).with_features(images(5).astype(np.float32) / 255)
    np.testing.assert_allclose(rebuilt, images(5) / 255 - Darker.lack + offset, atol=1e-6)
    assert features.shape == (5, 2)

    given.save(tmp_path / "scoring.npz")
    again = Calibration.load(tmp_path / "scoring.npz")
    np.testing.assert_array_equal(again.offset, offset)
    np.testing.assert_array_equal(score_pictures(images(5), Darker(), again).maps, scored.maps)


def test_without_one_nothing_is_added(tmp_path: Path) -> None:
    calibration(None).save(tmp_path / "scoring.npz")
    again = Calibration.load(tmp_path / "scoring.npz")
    assert again.offset is None
    np.testing.assert_allclose(score_pictures(images(5), Darker(), again).scores, Darker.lack.mean(), atol=1e-6)


def test_an_offset_of_another_size_is_refused(tmp_path: Path) -> None:
    given = dataclasses.replace(calibration(None), offset=np.zeros((4, 4, 3), np.float32))
    given.save(tmp_path / "scoring.npz")
    with pytest.raises(DataError, match=r"scoring\.npz: expected the scoring\.npz of a run, got the offset has shape"):
        Calibration.load(tmp_path / "scoring.npz")
