"""Error maps, calibration R, pooling and threshold, on figures one can work out on paper."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from app.cae import calibration as calibration_module
from app.cae import scoring
from app.cae.calibration import HEAT_QUANTILES
from app.cae.config import CaeConfig, make_config
from app.cae.error_maps import background
from app.cae.scoring import Calibration, ErrorSums, ScoringRule, calibrate, error_maps, pooled, score_pictures
from app.cae.training import Throughput
from app.core.errors import DataError

RANDOM = np.random.default_rng(0)
X = RANDOM.random((3, 64, 64, 3), dtype=np.float32)
Y = np.clip(X + RANDOM.normal(0, 0.1, X.shape).astype(np.float32), 0, 1)


def options(**values: Any) -> CaeConfig:
    return make_config({"image_size": 64, "smoothing_sigma": 0.0, **values})


def rule(**values: Any) -> ScoringRule:
    return ScoringRule.of(options(**values))


class TestErrorMaps:
    def test_absolute_is_the_channel_mean_of_the_difference(self) -> None:
        np.testing.assert_allclose(error_maps(X, Y, rule(error_map="absolute")), np.abs(X - Y).mean(axis=-1), atol=1e-6)

    def test_squared(self) -> None:
        np.testing.assert_allclose(error_maps(X, Y, rule(error_map="squared")), ((X - Y) ** 2).mean(axis=-1), atol=1e-6)

    def test_ssim_is_0_for_equal_pictures_and_grows_with_difference(self) -> None:
        np.testing.assert_allclose(error_maps(X, X, rule(error_map="ssim")), 0.0, atol=1e-5)
        assert error_maps(X, 1 - X, rule(error_map="ssim")).mean() > error_maps(X, Y, rule(error_map="ssim")).mean() > 0.01

    def test_ssim_inside_is_the_windowed_definition(self) -> None:
        """One pixel by hand, with the full two-dimensional window."""
        window = np.outer(*[np.exp(-(np.arange(-5, 6) ** 2) / (2 * 1.5**2))] * 2)
        window /= window.sum()
        values = []
        for x, y in zip(np.moveaxis(X[0], -1, 0), np.moveaxis(Y[0], -1, 0), strict=True):
            a, b = (picture[20:31, 30:41].astype(np.float64) for picture in (x, y))
            mean_a, mean_b = (window * a).sum(), (window * b).sum()
            var_a, var_b = (window * a**2).sum() - mean_a**2, (window * b**2).sum() - mean_b**2
            covariance = (window * a * b).sum() - mean_a * mean_b
            values.append(
                (2 * mean_a * mean_b + 0.01**2)
                * (2 * covariance + 0.03**2)
                / ((mean_a**2 + mean_b**2 + 0.01**2) * (var_a + var_b + 0.03**2))
            )
        assert error_maps(X, Y, rule(error_map="ssim"))[0, 25, 35] == pytest.approx(1 - np.mean(values), abs=1e-5)

    def test_mixed_is_the_weighted_sum(self) -> None:
        mixed = error_maps(X, Y, rule(error_map="mixed", error_mix=0.3))
        both = [error_maps(X, Y, rule(error_map=name)) for name in ("ssim", "absolute")]
        np.testing.assert_allclose(mixed, 0.3 * both[0] + 0.7 * both[1], atol=1e-6)

    @pytest.mark.parametrize(("size", "sigma"), [(64, 1.0), (128, 2.0), (256, 4.0)])
    def test_smoothing_scales_with_the_size(self, size: int, sigma: float) -> None:
        spot = np.zeros((1, size, size, 1), np.float32)
        spot[0, size // 2, size // 2] = 1
        found = error_maps(spot, np.zeros_like(spot), rule(smoothing_sigma=2.0))
        np.testing.assert_allclose(found[0], gaussian_filter(spot[0, ..., 0], sigma), atol=1e-7)
        assert found.dtype == np.float32

    @pytest.mark.parametrize("kind", ["absolute", "squared", "ssim", "mixed"])
    def test_d20_constant_pictures_give_finite_errors(self, kind: str) -> None:
        black, white = np.zeros((1, 64, 64, 1), np.float32), np.ones((1, 64, 64, 1), np.float32)
        assert np.isfinite(error_maps(black, white, rule(error_map=kind))).all()
        np.testing.assert_allclose(error_maps(black, black, rule(error_map=kind)), 0.0, atol=1e-6)


class TestPooling:
    maps = np.arange(2 * 100, dtype=np.float32).reshape(2, 10, 10)

    def test_top_is_the_mean_of_the_largest(self) -> None:
        assert pooled(self.maps, rule(top_fraction=0.03, background_sigma=0)).tolist() == [98.0, 198.0]

    def test_top_takes_at_least_one_pixel(self) -> None:
        assert pooled(self.maps, rule(top_fraction=1e-6, background_sigma=0)).tolist() == [99.0, 199.0]

    @pytest.mark.parametrize("background_sigma", [0, 32])
    def test_all_pixels_are_the_mean(self, background_sigma: int) -> None:
        """Less its background, a map's mean would be 0 for any picture."""
        for chosen in ({"top_fraction": 1.0}, {"pooling": "mean"}):
            assert pooled(self.maps, rule(background_sigma=background_sigma, **chosen)).tolist() == [49.5, 149.5]

    def test_a_background_is_left_where_more_than_half_the_pixels_are_pooled(self) -> None:
        flat = np.full((1, 64, 64), 3.0, np.float32)
        assert pooled(flat, rule(top_fraction=0.51)).tolist() == [3.0]
        assert pooled(flat, rule(top_fraction=0.5)).tolist() == pytest.approx([0.0], abs=1e-5)

    def test_max(self) -> None:
        assert pooled(self.maps, rule(pooling="max", background_sigma=0)).tolist() == [99.0, 199.0]

    def test_no_picture_no_score(self) -> None:
        for pooling in ("top", "max", "mean"):
            assert pooled(self.maps[:0], rule(pooling=pooling)).shape == (0,)

    @pytest.mark.parametrize(("shape", "sigma"), [((128, 128), 8.0), ((96, 64), 5.0)])
    def test_background_is_the_gaussian_of_scipy(self, shape: tuple[int, int], sigma: float) -> None:
        maps = RANDOM.normal(size=(2, *shape)).astype(np.float32)
        wanted = np.stack([gaussian_filter(each, sigma, mode="reflect", truncate=8) for each in maps])
        found = background(maps, sigma)
        np.testing.assert_allclose(found, wanted, atol=1e-5)
        assert found.dtype == np.float32

    @pytest.mark.parametrize("pooling", ["top", "max"])
    @pytest.mark.parametrize("size", [64, 128])
    def test_less_its_background_a_spot_counts_and_the_level_of_the_whole_map_does_not(self, pooling: str, size: int) -> None:
        maps = np.zeros((3, size, size), np.float32)
        maps[1] += 5
        maps[2, size // 2, size // 2] = 5
        found = pooled(maps, rule(pooling=pooling, top_fraction=1e-6, background_sigma=32.0))
        spread = 32.0 * size / 128
        assert found[:2] == pytest.approx([0.0, 0.0], abs=1e-5)
        assert found[2] == pytest.approx(5 - background(maps[2:], spread)[0, size // 2, size // 2], abs=1e-5)
        assert 4.9 < found[2] < 5
        assert pooled(maps, rule(pooling="mean", background_sigma=32.0)).tolist() == pooled(maps, rule(pooling="mean")).tolist()


class TestMoments:
    maps = RANDOM.random((30, 5, 4)).astype(np.float32)

    def test_score_r_follows_the_formula(self) -> None:
        """FACTS: μ = (n μ_pixel + 10 μ_global)/(n + 10), the same for the variance; z = (e - μ)/√(var + 0.05 var_global)."""
        wide = self.maps.astype(np.float64)
        mean, spread = ErrorSums.of(self.maps).moments("pixel")
        global_variance = wide.var()
        np.testing.assert_allclose(mean, (30 * wide.mean(axis=0) + 10 * wide.mean()) / 40)
        variance = (30 * wide.var(axis=0) + 10 * global_variance) / 40
        np.testing.assert_allclose(spread, np.sqrt(variance + 0.05 * global_variance))

    def test_global_and_none(self) -> None:
        mean, spread = ErrorSums.of(self.maps).moments("global")
        np.testing.assert_allclose(mean, self.maps.mean(), rtol=1e-6)
        np.testing.assert_allclose(spread, self.maps.std(), rtol=1e-6)
        mean, spread = ErrorSums.of(self.maps).moments("none")
        assert (mean == 0).all()
        assert (spread == 1).all()

    def test_a_picture_can_be_taken_out(self) -> None:
        for kind in ("pixel", "global"):
            without = ErrorSums.of(self.maps).without(self.maps[7]).moments(kind)
            np.testing.assert_allclose(without, ErrorSums.of(np.delete(self.maps, 7, axis=0)).moments(kind), rtol=1e-9)

    def test_sums_add_up(self) -> None:
        parts = ErrorSums.of(self.maps[:11]) + ErrorSums.of(self.maps[11:])
        np.testing.assert_allclose(parts.moments("pixel"), ErrorSums.of(self.maps).moments("pixel"), rtol=1e-9)

    @pytest.mark.parametrize("kind", ["pixel", "global"])
    def test_d20_equal_errors_give_zero_and_not_nan(self, kind: Any) -> None:
        """Constant pictures: every error is the same, the variance 0."""
        same = np.full((4, 8, 8), 0.25, np.float32)
        found, scores = calibrate(rule(calibration=kind), options(), None, same, channels=1)
        assert np.isfinite(found.applied(same)).all()
        np.testing.assert_allclose(scores, 0.0, atol=1e-3)
        assert np.isfinite([found.threshold, found.heat_low, found.heat_high]).all()
        assert found.heat_high > found.heat_low


class TestCalibrate:
    train = RANDOM.gamma(2.0, 1.0, (60, 16, 16)).astype(np.float32)
    held_out = RANDOM.gamma(2.0, 1.0, (20, 16, 16)).astype(np.float32)

    def fitted(self, **values: Any) -> tuple[Calibration, NDArray[np.float64]]:
        return calibrate(rule(**values), options(**values), ErrorSums.of(self.train), self.held_out, channels=1)

    def test_a_held_out_picture_is_scored_as_a_new_one(self) -> None:
        """Its own error is not in the statistics it is compared with."""
        _, scores = self.fitted()
        as_new = self.train.astype(np.float64) * (self.held_out.mean(dtype=np.float64) / self.train.mean(dtype=np.float64))
        others = ErrorSums.of(as_new) + ErrorSums.of(np.delete(self.held_out, 3, axis=0))
        mean, spread = others.moments("pixel")
        z = ((self.held_out[3] - mean) / spread).astype(np.float32)
        assert scores[3] == pytest.approx(pooled(z[None], rule())[0], rel=1e-5)

    def test_training_errors_count_as_large_as_new_ones(self) -> None:
        """A network that has learnt its training pictures: their errors are a third, and calibrate all the same."""
        learnt, _ = calibrate(rule(), options(), ErrorSums.of(self.train / 3), self.held_out, channels=1)
        found, _ = self.fitted()
        np.testing.assert_allclose(learnt.mean, found.mean, rtol=1e-5)
        np.testing.assert_allclose(learnt.spread, found.spread, rtol=1e-5)

    def test_training_pictures_without_any_error_count_as_they_are(self) -> None:
        found, scores = calibrate(rule(), options(), ErrorSums.of(self.train * 0), self.held_out, channels=1)
        assert np.isfinite(scores).all()
        assert np.isfinite(found.applied(self.held_out)).all()

    def test_threshold_is_the_quantile_of_held_out_scores(self) -> None:
        found, scores = self.fitted(threshold_quantile=0.9)
        assert found.threshold == pytest.approx(np.quantile(scores, 0.9))
        found, scores = self.fitted(threshold_rule="sigma", threshold_sigma=2.0)
        assert found.threshold == pytest.approx(scores.mean() + 2 * scores.std())

    def test_the_highest_quantile_calls_no_held_out_picture_defective(self) -> None:
        found, scores = self.fitted(threshold_quantile=1.0)
        assert not (scores > found.threshold).any()

    def test_a_single_picture_can_be_calibrated_with(self) -> None:
        found, scores = calibrate(rule(), options(), None, self.train[:1], channels=1)
        assert np.isfinite(scores).all()
        assert np.isfinite(found.applied(self.held_out)).all()

    def test_the_heat_scale_is_one_robust_range_of_good_maps(self) -> None:
        found, _ = self.fitted(calibration="none")
        assert (found.heat_low, found.heat_high) == pytest.approx(tuple(np.quantile(self.held_out, HEAT_QUANTILES)))

    @pytest.mark.parametrize(
        ("trained", "held_out", "taken_in"), [(400, 70, True), (43, 7, True), (42, 7, False), (26, 5, False), (26, 4, True)]
    )
    def test_small_sets_are_calibrated_with_held_out_pictures_alone(self, trained: int, held_out: int, taken_in: bool) -> None:
        assert scoring.uses_training_pictures(trained, held_out) is taken_in

    def test_it_says_what_it_was_fitted_on(self) -> None:
        assert self.fitted()[0].fitted_on == "80 good pictures, 20 of them held out of training"


class TestSaving:
    calibration = calibrate(
        rule(error_map="mixed", background_sigma=8.0),
        options(),
        None,
        RANDOM.random((8, 64, 64)).astype(np.float32),
        channels=3,
        full_scale=4095.0,
    )[0]

    def test_what_was_saved_is_loaded(self, tmp_path: Path) -> None:
        self.calibration.save(tmp_path / "scoring.npz")
        found = Calibration.load(tmp_path / "scoring.npz")
        for name, wanted in vars(self.calibration).items():
            if isinstance(wanted, np.ndarray):
                np.testing.assert_array_equal(getattr(found, name), wanted)
            else:
                assert getattr(found, name) == wanted
        assert [file.name for file in tmp_path.iterdir()] == ["scoring.npz"]

    def test_one_from_before_backgrounds_pools_the_map_itself(self, tmp_path: Path) -> None:
        self.calibration.save(tmp_path / "scoring.npz")
        with np.load(tmp_path / "scoring.npz") as file:
            arrays = dict(file)
        about = json.loads(str(arrays["about"]))
        assert about["rule"].pop("background_sigma") == 8.0
        np.savez(tmp_path / "scoring.npz", **{**arrays, "about": np.array(json.dumps(about))})
        found = Calibration.load(tmp_path / "scoring.npz").rule
        maps = RANDOM.random((3, 64, 64)).astype(np.float32)
        assert (
            pooled(maps, found).tolist()
            == pooled(maps, rule(background_sigma=0)).tolist()
            != pooled(maps, rule(background_sigma=8.0)).tolist()
        )

    @pytest.mark.parametrize("content", [None, b"", b"PK\x03\x04", b"hello"])
    def test_anything_else_is_refused_by_name(self, tmp_path: Path, content: bytes | None) -> None:
        if content is not None:
            (tmp_path / "scoring.npz").write_bytes(content)
        with pytest.raises(DataError, match=r"scoring\.npz: expected the scoring\.npz of a run"):
            Calibration.load(tmp_path / "scoring.npz")

    def test_nothing_is_unpickled(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "scoring.npz", about=np.array([{"rule": 1}], dtype=object), mean=np.zeros(3), spread=np.ones(3))
        with pytest.raises(DataError):
            Calibration.load(tmp_path / "scoring.npz")


class TestScorePictures:
    pictures = RANDOM.integers(0, 256, (70, 64, 64, 3), dtype=np.uint8)
    config = options(standardise="none")

    @staticmethod
    def half(batch: NDArray[np.float32]) -> NDArray[np.float32]:
        """A network that gives half of what it sees."""
        return batch / 2

    def calibration(self) -> Calibration:
        errors = scoring.collected_errors(self.pictures[:8], self.half, ScoringRule.of(self.config), Throughput(), lambda _: None)
        return calibrate(ScoringRule.of(self.config), self.config, None, errors, channels=3)[0]

    def test_scores_do_not_depend_on_the_company_of_other_pictures(self) -> None:
        """Batches of 32: 70 pictures are two whole ones and a part."""
        calibration, ticks = self.calibration(), []
        together = score_pictures(self.pictures, self.half, calibration, tick=ticks.append)
        assert ticks == [32, 32, 6]
        assert together.maps.shape == (70, 64, 64)
        for place in (0, 31, 32, 69):
            alone = score_pictures(self.pictures[place : place + 1], self.half, calibration)
            assert alone.scores[0] == pytest.approx(together.scores[place], rel=1e-6)
            np.testing.assert_allclose(alone.maps[0], together.maps[place], rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(together.inputs, self.pictures)
        np.testing.assert_allclose(together.reconstructions, self.pictures / 2, atol=0.51)

    def test_pictures_of_another_shape_are_refused(self) -> None:
        with pytest.raises(DataError, match=r"expected shape \(N, 64, 64, 3\) as in training, got \(70, 64, 64, 1\)"):
            score_pictures(self.pictures[..., :1], self.half, self.calibration())

    def test_no_picture_is_fine(self) -> None:
        assert score_pictures(self.pictures[:0], self.half, self.calibration()).scores.shape == (0,)

    def test_summed_errors_are_the_sums_of_collected_ones(self) -> None:
        arguments = (self.pictures, self.half, ScoringRule.of(self.config), Throughput(), lambda _: None)
        sums, collected = scoring.summed_errors(*arguments), ErrorSums.of(scoring.collected_errors(*arguments))
        assert sums.count == collected.count == 70
        np.testing.assert_allclose(sums.total, collected.total)
        np.testing.assert_allclose(sums.squares, collected.squares)


def test_nothing_that_is_fitted_can_see_labels() -> None:
    """No parameter of these modules takes labels, masks or a split: what is chosen here cannot know the test set."""
    for module in (calibration_module, scoring):
        for name, function in inspect.getmembers(module, inspect.isfunction):
            assert not {"labels", "label", "masks", "rows", "test"} & set(inspect.signature(function).parameters), name
