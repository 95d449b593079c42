"""Whole pictures against good ones: distances, what they add to a score, and that it is kept in scoring.npz."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from app.cae import scoring
from app.cae.calibration import Calibration, calibrate, with_whole_picture
from app.cae.config import make_config
from app.cae.scoring import ScoringRule, score_pictures, unexplained_share
from app.cae.training import Throughput, standardise
from app.cae.whole_picture import ENCODER_SHARE, Gaussian, WholePicture, photometry
from app.core.errors import DataError

CONFIG = make_config({})


def good_pictures(count: int, seed: int = 0) -> NDArray[np.uint8]:
    """Noise around grey, each picture a little brighter or darker."""
    random = np.random.default_rng(seed)
    level = random.normal(120, 6, (count, 1, 1, 1))
    return np.clip(random.normal(level, 20, (count, 64, 64, 1)), 0, 255).astype(np.uint8)


class Halved:
    """A network that gives half of what it sees and whose encoder knows each picture's corners."""

    def __call__(self, pictures: NDArray[np.float32]) -> NDArray[np.float32]:
        return pictures / 2

    def with_features(self, pictures: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        corners = [pictures[:, :32, :32], pictures[:, 32:, :32], pictures[:, :32, 32:], pictures[:, 32:, 32:]]
        return pictures / 2, np.stack([corner.mean(axis=(1, 2, 3)) for corner in corners], axis=1)


def fitted(weight: float = 1.0) -> tuple[Calibration, NDArray[np.float64], NDArray[np.uint8]]:
    images = good_pictures(60)
    rule = ScoringRule.of(CONFIG)
    seen = scoring.observed(images, Halved(), rule, Throughput(), lambda _: None, keep_errors=True)
    assert seen.errors is not None
    calibration, scores = calibrate(rule, CONFIG, None, seen.errors, channels=1)
    whole, added = WholePicture.fit(photometry(images), seen.features, weight * float(scores.std()))
    calibration, together = with_whole_picture(calibration, scores, whole, added, CONFIG)
    return calibration, together, images


def test_photometry_is_the_logarithm_of_mean_and_standard_deviation() -> None:
    picture = np.zeros((1, 4, 4, 1), np.uint8)
    picture[0, :2] = 255
    np.testing.assert_allclose(photometry(picture), np.log([[0.51, 0.51]]), rtol=1e-6)
    assert np.isfinite(photometry(np.zeros((2, 8, 8, 3), np.uint8))).all()
    assert photometry(np.zeros((0, 8, 8, 3), np.uint8)).shape == (0, 2)


class TestGaussian:
    def test_many_pictures_give_the_mahalanobis_distance(self) -> None:
        """Shrinkage vanishes with many pictures: distances to the true mean and covariance."""
        random = np.random.default_rng(1)
        mixing = np.array([[2.0, 0.0, 0.0], [1.0, 0.5, 0.0], [-1.0, 1.0, 3.0]])
        features = random.normal(size=(20_000, 3)) @ mixing.T + [5.0, -2.0, 100.0]
        found, _ = Gaussian.fit(features)
        new = random.normal(size=(7, 3)) @ mixing.T * 3 + [5.0, -2.0, 100.0]
        away = np.linalg.solve(mixing, (new - [5.0, -2.0, 100.0]).T).T
        np.testing.assert_allclose(found.z(new) * found.spread + found.usual, np.linalg.norm(away, axis=1), rtol=0.05)

    def test_good_pictures_that_the_fit_has_seen_do_not_look_closer_than_new_ones(self) -> None:
        """30 features of 60 pictures: to the fit they were made from they would seem much closer than new ones are."""
        random = np.random.default_rng(2)
        seen, new = random.normal(size=(60, 30)), random.normal(size=(4000, 30))
        found, z = Gaussian.fit(seen)
        assert z.mean() == pytest.approx(0.0, abs=1e-9)
        assert z.std() == pytest.approx(1.0)
        assert abs(found.z(new).mean()) < 0.25
        assert found.z(seen).mean() < -0.3

    def test_pictures_that_are_all_alike_give_finite_values(self) -> None:
        found, z = Gaussian.fit(np.full((25, 4), 3.0))
        assert np.isfinite(z).all()
        assert np.isfinite(found.z(np.full((3, 4), 3.0))).all()
        assert (found.z(np.full((1, 4), 4.0)) > found.z(np.full((1, 4), 3.0))).all()

    def test_a_picture_far_away_is_far_away(self) -> None:
        found, _ = Gaussian.fit(np.random.default_rng(3).normal(size=(50, 5)))
        near, far = found.z(np.zeros((1, 5))), found.z(np.full((1, 5), 10.0))
        assert near[0] < 2 < 10 < far[0]


class TestScores:
    def test_the_score_is_the_pooled_map_and_what_the_whole_picture_adds(self) -> None:
        calibration, _, _ = fitted()
        new = good_pictures(40, seed=5)
        scored = score_pictures(new, Halved(), calibration)
        assert calibration.whole is not None
        _, features = Halved().with_features(standardise(new, "picture"))
        z = calibration.whole.photometry.z(photometry(new)), calibration.whole.encoder.z(features.astype(np.float64))
        expected = scoring.pooled(scored.maps, calibration.rule) + calibration.whole.unit * (z[0] + ENCODER_SHARE * z[1])
        np.testing.assert_allclose(scored.scores, expected, rtol=1e-6)

    def test_a_dark_picture_whose_structure_is_good_scores_above_the_threshold(self) -> None:
        """Standardising takes brightness away: its error map is that of a good picture."""
        calibration, _, images = fitted()
        dark = (images[:10] * 0.4).astype(np.uint8)
        scored = score_pictures(dark, Halved(), calibration)
        assert (scored.scores > calibration.threshold).all()
        alone, _ = calibrate(
            calibration.rule,
            CONFIG,
            None,
            scoring.collected_errors(images, Halved(), calibration.rule, Throughput(), lambda _: None),
            channels=1,
        )
        assert (score_pictures(dark, Halved(), alone).scores < alone.threshold * 1.5).all()

    def test_new_good_pictures_rarely_exceed_the_threshold(self) -> None:
        """The 0.95 quantile of good pictures, each left out of what it is compared with."""
        calibration, held_out_scores, _ = fitted()
        assert calibration.threshold == pytest.approx(np.quantile(held_out_scores, 0.95))
        assert (score_pictures(good_pictures(300, seed=7), Halved(), calibration).scores > calibration.threshold).mean() < 0.15

    def test_scores_do_not_depend_on_the_company_of_other_pictures(self) -> None:
        calibration, _, _ = fitted()
        new = good_pictures(40, seed=8)
        together = score_pictures(new, Halved(), calibration).scores
        for place in (0, 31, 32, 39):
            assert score_pictures(new[place : place + 1], Halved(), calibration).scores[0] == pytest.approx(together[place], rel=1e-6)

    def test_it_is_kept_in_scoring_npz(self, tmp_path: Path) -> None:
        calibration, _, _ = fitted()
        calibration.save(tmp_path / "scoring.npz")
        loaded, new = Calibration.load(tmp_path / "scoring.npz"), good_pictures(9, seed=9)
        np.testing.assert_allclose(
            score_pictures(new, Halved(), loaded).scores, score_pictures(new, Halved(), calibration).scores, rtol=1e-6
        )

    @pytest.mark.parametrize("damage", ["missing", "shape"])
    def test_a_damaged_part_is_one_sentence(self, tmp_path: Path, damage: str) -> None:
        calibration, _, _ = fitted()
        arrays: dict[str, Any] = calibration.arrays()
        if damage == "missing":
            del arrays["whole_encoder_precision"]
        else:
            arrays["whole_encoder_precision"] = arrays["whole_encoder_precision"][:2]
        np.savez(tmp_path / "scoring.npz", **arrays)
        with pytest.raises(DataError, match=r"scoring\.npz: expected the scoring\.npz of a run"):
            Calibration.load(tmp_path / "scoring.npz")


class TestUnexplainedShare:
    def test_it_is_the_mean_squared_error_over_the_variance_about_the_mean_picture(self) -> None:
        train, held_out = good_pictures(30, seed=10), good_pictures(40, seed=11)
        pictures, mean = standardise(held_out, "none"), standardise(train, "none").mean(axis=0)
        variance = np.square(pictures - mean).mean(dtype=np.float64)
        assert unexplained_share(held_out, variance / 4, train, "none") == pytest.approx(0.25, rel=1e-4)

    def test_it_stays_within_0_and_1(self) -> None:
        images = good_pictures(5)
        assert unexplained_share(images, 99.0, images, "picture") == 1.0
        flat = np.full((5, 64, 64, 1), 80, np.uint8)
        assert unexplained_share(flat, 0.0, flat, "picture") == 0.0
