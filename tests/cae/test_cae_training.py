"""What a batch is made of, the clock, the record of epochs and the backup: all without TensorFlow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from app.cae.backup import FILE_NAME, Backup, read_backup, remove_backup, write_backup
from app.cae.cae_fit import Session, _restore
from app.cae.config import CaeConfig, make_config
from app.cae.reporting import HISTORY_COLUMNS, STEP_COLUMNS, Row, SilentReporter, mean_images_per_s
from app.cae.training import (
    CANCELLED,
    LEAST_VARIANCE,
    NOT_FINITE,
    Monitor,
    StopTraining,
    Throughput,
    TrainingBatches,
    augmented,
    mean_picture,
    mixtures,
    patch_mask,
    standardise,
    usual_picture,
    warmup_steps,
)

RANDOM = np.random.default_rng(0)


def pictures(count: int, size: int = 64, channels: int = 1) -> NDArray[np.uint8]:
    return np.random.default_rng(count).integers(0, 256, (count, size, size, channels), dtype=np.uint8)


def options(**values: Any) -> CaeConfig:
    """What batches are made of as it is; mixtures, which few pictures are by themselves, have tests of their own."""
    return make_config({"image_size": 64, "mixtures": "no", **values})


class TestStandardise:
    def test_none_is_the_raw_picture_in_0_to_1(self) -> None:
        assert standardise(np.array([[[[0], [51], [255]]]], np.uint8), "none").ravel().tolist() == pytest.approx([0.0, 0.2, 1.0])

    def test_picture_follows_the_formula(self) -> None:
        images = pictures(3, channels=3)
        for image, found in zip(images / 255.0, standardise(images, "picture"), strict=True):
            wanted = np.clip(0.5 + (image - image.mean()) / (8 * (image.std() + 0.01)), 0, 1)
            np.testing.assert_allclose(found, wanted, atol=1e-5)

    def test_brightness_and_contrast_of_a_picture_hardly_matter(self) -> None:
        image = pictures(1).astype(np.float64)
        dimmer = np.round(image * 0.5 + 40).astype(np.uint8)
        np.testing.assert_allclose(standardise(dimmer, "picture"), standardise(pictures(1), "picture"), atol=0.02)

    @pytest.mark.parametrize("level", [0, 128, 255])
    @pytest.mark.parametrize("mode", ["picture", "none"])
    def test_d20_constant_pictures_stay_finite(self, level: int, mode: str) -> None:
        found = standardise(np.full((2, 64, 64, 3), level, np.uint8), mode)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, 0.5 if mode == "picture" else level / 255.0, atol=1e-6)


class TestUsualPicture:
    def test_mean_of_each_pixel_and_one_variance(self) -> None:
        images = pictures(70, size=8, channels=3)
        found, values = usual_picture(images, "none"), images / 255.0
        np.testing.assert_allclose(found.mean, values.mean(axis=0), atol=1e-6)
        assert found.variance == pytest.approx(values.var(axis=0).mean(), rel=1e-5)

    def test_copies_of_one_picture_leave_a_variance_to_divide_by(self) -> None:
        found = usual_picture(np.repeat(pictures(1, size=8), 5, axis=0), "picture")
        assert found.variance == LEAST_VARIANCE
        assert 5 * 0.5 / math.sqrt(found.variance) < np.finfo(np.float16).max / 100, (
            "a masked patch stays far from what half precision holds"
        )


class TestMasks:
    @pytest.mark.parametrize(("ratio", "patch", "hidden"), [(0.25, 16, 4), (0.25, 8, 16), (0.3, 16, 5), (0.0, 16, 0), (0.9, 4, 230)])
    def test_exactly_that_many_whole_patches_are_hidden(self, ratio: float, patch: int, hidden: int) -> None:
        mask = patch_mask(5, 64, patch, ratio, RANDOM)
        assert mask.shape == (5, 64, 64, 1)
        patches = mask.reshape(5, 64 // patch, patch, 64 // patch, patch).transpose(0, 1, 3, 2, 4).reshape(5, -1, patch * patch)
        assert (patches.all(axis=2) == patches.any(axis=2)).all()
        assert (patches.all(axis=2).sum(axis=1) == hidden).all()

    def test_they_are_drawn_anew_for_each_picture(self) -> None:
        mask = patch_mask(2, 64, 16, 0.25, RANDOM)
        assert (mask[0] != mask[1]).any()


class TestTrainingBatches:
    def test_each_epoch_shows_every_picture_once_in_another_order(self) -> None:
        batches = TrainingBatches(pictures(17), options(batch_size=8, mask_ratio=0.0, standardise="none"))
        assert len(batches) == 3
        epochs = [np.concatenate([batches.batch(epoch, index)[1] for index in range(3)]) for epoch in (0, 1)]
        assert [len(batches.batch(0, index)[0]) for index in range(3)] == [8, 8, 1]
        keys = [sorted(picture.tobytes() for picture in epoch) for epoch in epochs]
        assert keys[0] == keys[1] == sorted(picture.tobytes() for picture in standardise(pictures(17), "none"))
        assert (epochs[0] != epochs[1]).any()

    def test_a_batch_is_a_function_of_seed_epoch_and_place(self) -> None:
        """So a resumed run sees what an uninterrupted one would have seen, in whatever order batches are asked for."""
        one, other = (TrainingBatches(pictures(9), options(batch_size=4, augment="texture", seed=5)) for _ in range(2))
        forward = [one.batch(epoch, index) for epoch in (0, 1) for index in range(3)]
        backward = [other.batch(epoch, index) for epoch in (1, 0) for index in (2, 1, 0)][::-1]
        for (input_a, target_a), (input_b, target_b) in zip(forward, backward, strict=True):
            np.testing.assert_array_equal(input_a, input_b)
            np.testing.assert_array_equal(target_a, target_b)
        reseeded = TrainingBatches(pictures(9), options(batch_size=4, augment="texture", seed=6))
        assert (reseeded.batch(0, 0)[0] != forward[0][0]).any()

    @pytest.mark.parametrize(("share", "masked"), [(0.5, 10), (1.0, 20), (0.0, 0)])
    def test_that_share_of_pictures_is_masked_and_the_target_is_clean(self, share: float, masked: int) -> None:
        batches = TrainingBatches(pictures(20), options(batch_size=6, masked_pictures=share))
        clean = {picture.tobytes() for picture in standardise(pictures(20), "picture")}
        hidden = []
        for index in range(len(batches)):
            for seen, target in zip(*batches.batch(0, index), strict=True):
                assert target.tobytes() in clean
                hidden.append(bool((seen != target).any()))
        assert sum(hidden) == masked

    @pytest.mark.parametrize("fill", ["mean", "zero"])
    def test_masked_patches_hold_the_fill(self, fill: str) -> None:
        batches = TrainingBatches(pictures(8), options(batch_size=8, masked_pictures=1.0, mask_fill=fill))
        seen, target = batches.batch(0, 0)
        changed = seen != target
        wanted = np.broadcast_to(mean_picture(pictures(8), "picture") if fill == "mean" else np.zeros((64, 64, 1)), seen.shape)
        np.testing.assert_array_equal(seen[changed], wanted[changed].astype(np.float32))
        assert changed.mean() == pytest.approx(4 / 16, abs=0.02)

    def test_the_mean_picture_is_the_mean_of_standardised_pictures(self) -> None:
        images = pictures(70)
        np.testing.assert_allclose(mean_picture(images, "picture"), standardise(images, "picture").mean(axis=0), atol=1e-6)


class TestAugmentation:
    batch = standardise(pictures(12, size=65, channels=3), "none")

    def test_none_is_the_same_array(self) -> None:
        assert augmented(self.batch, "none", RANDOM) is self.batch

    def test_texture_moves_pixels_and_changes_none(self) -> None:
        found = augmented(self.batch, "texture", RANDOM)
        assert (found != self.batch).any()
        np.testing.assert_array_equal(np.sort(found.reshape(12, -1)), np.sort(self.batch.reshape(12, -1)))

    def test_object_shifts_by_three_percent_at_most_and_stays_in_range(self) -> None:
        ramp = np.tile(np.linspace(0, 1, 64, dtype=np.float32)[:, None], (1, 64))[None, ..., None]
        found = augmented(np.repeat(ramp, 30, axis=0), "object", RANDOM)
        assert found.dtype == np.float32
        assert 0.0 <= found.min() <= found.max() <= 1.0
        assert np.abs(found - ramp).max() <= 2 / 63 + 0.05 + 1e-6
        assert len({picture.tobytes() for picture in found}) > 20


class TestMixtures:
    def test_each_is_on_the_line_through_two_pictures_at_the_level_of_the_first(self) -> None:
        batch = np.random.default_rng(3).uniform(0.4, 0.6, (6, 16, 16, 1)).astype(np.float32)
        found = mixtures(batch, np.random.default_rng(4))
        assert (found.dtype, found.shape) == (np.float32, batch.shape)
        np.testing.assert_allclose(found.mean(axis=(1, 2, 3)), batch.mean(axis=(1, 2, 3)), atol=1e-5)
        np.testing.assert_allclose(found.std(axis=(1, 2, 3)), batch.std(axis=(1, 2, 3)), rtol=1e-4)
        flat = (batch - batch.mean(axis=(1, 2, 3), keepdims=True)).reshape(6, -1)
        shares = []
        for mine, mixed in zip(flat, (found - found.mean(axis=(1, 2, 3), keepdims=True)).reshape(6, -1), strict=True):
            coefficients, residual, *_ = np.linalg.lstsq(flat.T, mixed, rcond=None)
            assert residual.size == 0 or residual[0] < 1e-6, "in the span of the batch"
            used = np.flatnonzero(np.abs(coefficients) > 1e-3)
            assert len(used) <= 2
            own = int(np.argmax([np.array_equal(mine, other) for other in flat]))
            if len(used) == 2:
                shares.append(coefficients[own] / coefficients[used].sum())
        assert len(shares) >= 4
        assert all(-0.5 <= share <= 1.5 for share in shares)
        assert any(not 0 <= share <= 1 for share in shares), "beyond the two pictures, too"

    def test_one_picture_alone_a_constant_one_and_the_ends_of_the_range(self) -> None:
        one = standardise(pictures(1), "picture")
        np.testing.assert_allclose(mixtures(one, RANDOM), one, atol=1e-6)
        constant = np.full((3, 8, 8, 1), 0.5, np.float32)
        np.testing.assert_allclose(mixtures(constant, RANDOM), constant, atol=1e-6)
        extremes = np.zeros((4, 8, 8, 1), np.float32)
        extremes[:, ::2] = 1.0
        extremes[2:] = 1.0 - extremes[2:]
        found = mixtures(extremes, RANDOM)
        assert np.isfinite(found).all()
        assert found.min() >= 0.0
        assert found.max() <= 1.0

    def test_a_partner_of_little_contrast_leaves_a_picture_as_it_is_and_never_inverts_it(self) -> None:
        batch = np.random.default_rng(5).uniform(0.3, 0.7, (4, 16, 16, 1)).astype(np.float32)
        batch[1:] = 0.5 + 0.1 * (batch[1:] - 0.5)
        batch[3] = 0.5
        for seed in range(50):
            mixed = mixtures(batch, np.random.default_rng(seed))
            np.testing.assert_allclose(mixed[0], batch[0], atol=1e-5)

    def test_few_pictures_are_mixed_before_they_are_masked_and_many_are_not(self) -> None:
        images = pictures(8)
        clean = standardise(images, "picture")
        for chosen, mixed in (("auto", True), ("no", False), ("yes", True)):
            batches = TrainingBatches(images, options(mask_ratio=0.25, masked_pictures=1.0, batch_size=8, mixtures=chosen))
            given, target = batches.batch(1, 0)
            as_they_are = all(any(np.array_equal(one, other) for other in clean) for one in target)
            assert as_they_are is not mixed
            shown = (given != batches.fill).all(axis=-1)
            assert 0.5 < shown.mean() < 0.9
            np.testing.assert_array_equal(given[shown], target[shown])
            np.testing.assert_array_equal(batches.batch(1, 0)[1], target, "a function of seed, epoch and batch")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class TestThroughput:
    def test_warm_up_steps_do_not_count(self) -> None:
        clock = Clock()
        throughput = Throughput(warmup=2, clock=clock)
        throughput.start()
        for seconds in (10.0, 10.0, 1.0, 3.0):
            clock.now += seconds
            throughput.step(16)
        assert throughput.images_per_s == 32 / 4.0

    def test_pauses_do_not_count(self) -> None:
        clock = Clock()
        throughput = Throughput(warmup=0, clock=clock)
        throughput.start()
        clock.now += 2.0
        throughput.step(10)
        clock.now += 100.0  # validation
        throughput.start()
        clock.now += 2.0
        throughput.step(10)
        assert throughput.images_per_s == 5.0

    def test_nothing_but_warm_up_is_unknown_and_not_zero(self) -> None:
        throughput = Throughput(warmup=1)
        throughput.start()
        throughput.step(16)
        assert throughput.images_per_s is None

    def test_the_mean_over_epochs_is_all_their_pictures_over_all_their_time(self) -> None:
        pictures, seconds = 60, (1.0, 1.0, 10.0)
        rows = [{"epoch": 1, "loss": 0.1}, *({"images_per_s": pictures / took} for took in seconds)]
        assert mean_images_per_s(rows) == pytest.approx(3 * pictures / sum(seconds))
        assert mean_images_per_s(rows[:1]) is None
        assert mean_images_per_s([{"images_per_s": math.inf}, {"images_per_s": math.nan}, {"images_per_s": 0}]) is None

    def test_the_parts_before_a_resume_count_beside_the_one_after(self) -> None:
        rows: list[Row] = [{"epoch": epoch, "step": 4 * epoch, "seconds": 1.0 * epoch, "images_per_s": 60.0} for epoch in (1, 2)]
        clock = Clock()
        watched = monitor(throughput=Throughput(warmup=1, clock=clock))
        trainer = SimpleNamespace(set_weights=lambda _: None, optimizer=SimpleNamespace(variables=[]))
        _restore(Backup("", 2, 16, rows, None, math.inf, [], [], [], []), trainer, watched, pictures=60)
        assert watched.throughput.images_per_s == pytest.approx(60.0)
        watched.epoch_begin()
        for _ in range(4):  # one to warm up, then 45 pictures in 7.5 s
            clock.now += 2.5
            watched.batch_end(1.0, 15)
        watched.epoch_end(3, {"loss": 1.0}, list)
        assert watched.throughput.images_per_s == pytest.approx((2 * 60 + 45) / (2 * 1.0 + 7.5))
        assert watched.rows[-1]["images_per_s"] == pytest.approx(45 / 7.5), "an epoch's row is its own"

    @pytest.mark.parametrize(("total", "left_out"), [(1, 1), (19, 1), (20, 5), (1150, 5)])
    def test_short_trainings_leave_out_one_step(self, total: int, left_out: int) -> None:
        assert warmup_steps(total) == left_out


class Stopper(SilentReporter):
    stop = False

    def cancelled(self) -> bool:
        return self.stop


class Stepwise(SilentReporter):
    def __init__(self) -> None:
        self.rows: list[Row] = []

    def epoch_step_rows(self, rows: Sequence[Row]) -> None:
        self.rows.extend(rows)


def monitor(**values: Any) -> Monitor:
    return Monitor(**{"reporter": SilentReporter(), "patience": 0, "total_steps": 10, "throughput": Throughput(0), **values})


def weights(value: float) -> list[NDArray[np.generic]]:
    return [np.array([value])]


class TestMonitor:
    def test_the_lowest_validation_loss_is_kept(self) -> None:
        watched = monitor()
        for epoch, loss in enumerate((0.5, 0.2, 0.3), start=1):
            watched.epoch_end(epoch, {"loss": 1.0 / epoch, "val_loss": loss}, lambda value=loss: weights(value))
        assert (watched.best_epoch, watched.best_loss) == (2, 0.2)
        assert watched.best_weights == weights(0.2)
        assert [row["epoch"] for row in watched.rows] == [1, 2, 3]

    def test_without_validation_the_training_loss_decides(self) -> None:
        watched = monitor()
        for epoch, loss in enumerate((0.5, 0.2, 0.3), start=1):
            watched.epoch_end(epoch, {"loss": loss}, lambda: weights(0.0))
        assert watched.best_epoch == 2

    def test_patience_counts_epochs_since_the_best(self) -> None:
        watched, out = monitor(patience=2), []
        for epoch, loss in enumerate((0.5, 0.2, 0.3, 0.25, 0.1), start=1):
            watched.epoch_end(epoch, {"loss": loss, "val_loss": loss}, lambda: weights(0.0))
            out.append(watched.patience_is_out())
        assert out == [False, False, False, True, False]
        assert not monitor(patience=0).patience_is_out()

    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    def test_a_loss_that_is_not_finite_stops_at_once(self, bad: float) -> None:
        with pytest.raises(StopTraining) as stop:
            monitor().batch_end(bad, 16)
        assert stop.value.reason == NOT_FINITE
        watched = monitor()
        watched.epoch_end(1, {"loss": 1.0, "val_loss": 1.0}, lambda: weights(1.0))
        for figures in ({"loss": 1.0, "val_loss": bad}, {"loss": bad, "val_loss": 0.1}):
            with pytest.raises(StopTraining):
                watched.epoch_end(2, figures, lambda: weights(2.0))
        assert watched.best_weights == weights(1.0)
        assert len(watched.rows) == 1

    def test_cancel_is_asked_for_at_every_batch(self) -> None:
        reporter = Stopper()
        watched = monitor(reporter=reporter)
        watched.batch_end(1.0, 16)
        reporter.stop = True
        with pytest.raises(StopTraining) as stop:
            watched.batch_end(1.0, 16)
        assert stop.value.reason == CANCELLED

    def test_each_step_is_told_with_the_loss_of_its_own_batch(self) -> None:
        """Keras tells the mean over the epoch so far, weighed by pictures: 16 of loss 4, 16 of loss 2, 8 of loss 1."""
        reporter = Stepwise()
        watched = monitor(reporter=reporter)
        watched.epoch_begin()
        for loss, pictures in ((4.0, 16), (3.0, 16), (2.6, 8)):
            watched.batch_end(loss, pictures)
        watched.epoch_end(1, {"loss": 2.6}, lambda: weights(0.0))
        watched.epoch_begin()
        watched.batch_end(0.5, 16)
        watched.epoch_end(2, {"loss": 0.5}, lambda: weights(0.0))
        assert [(row["step"], row["epoch"]) for row in reporter.rows] == [(1, 1), (2, 1), (3, 1), (4, 2)]
        assert [row["loss"] for row in reporter.rows] == pytest.approx([4.0, 2.0, 1.0, 0.5])
        assert set(reporter.rows[0]) == set(STEP_COLUMNS)

    def test_rows_have_the_columns_of_history_csv_and_leave_out_what_is_not_known(self) -> None:
        watched = monitor(throughput=Throughput(warmup=99))
        watched.epoch_begin()
        watched.batch_end(1.0, 16)
        watched.epoch_end(1, {"loss": 1.0}, lambda: weights(0.0))
        assert set(watched.rows[0]) == {"epoch", "step", "seconds", "loss"}
        assert set(watched.rows[0]) <= set(HISTORY_COLUMNS)


def backup(epoch: int = 3) -> Backup:
    rows = [{"epoch": number + 1, "loss": 1.0 / (number + 1), "step": number} for number in range(epoch)]
    some = [np.arange(6, dtype=np.float32).reshape(2, 3), np.array(epoch, np.int64)]
    return Backup("abc", epoch, 16, rows, 2, 0.25, ["a warning"], some, [*some, *some], some)


class TestBackup:
    def test_one_from_before_centring_mixtures_and_muon_still_belongs_to_its_training(self) -> None:
        def fingerprint(**values: Any) -> str:
            found: str = Session(None, None, None, options(data="x", **values), pictures(2), pictures(1), SilentReporter()).fingerprint  # type: ignore[arg-type]
            return found

        then = "a038b30b28657ed4fed05136d22134b7f4701ade3de5e1ccb58add99d7671a8c"  # as commit b0ae625 gave it for these options
        before = {"centre": "no", "mixtures": "no", "optimizer": "adamw"}
        others = [{"centre": "yes"}, {"mixtures": "yes"}, {"optimizer": "muon"}, {"centre": "yes", "optimizer": "muon"}]
        assert fingerprint(**before) == then
        assert len({then, *(fingerprint(**before | other) for other in others)}) == 5

    def test_what_was_written_is_read(self, tmp_path: Path) -> None:
        write_backup(tmp_path / "new" / "folder", backup())
        found = read_backup(tmp_path / "new" / "folder")
        assert found is not None
        for name, wanted in vars(backup()).items():
            if name in ("weights", "optimizer", "best_weights"):
                for ours, theirs in zip(getattr(found, name), wanted, strict=True):
                    np.testing.assert_array_equal(ours, theirs)
            else:
                assert getattr(found, name) == wanted

    def test_a_later_one_replaces_an_earlier_one_whole(self, tmp_path: Path) -> None:
        write_backup(tmp_path, backup(3))
        (tmp_path / f".{FILE_NAME}.part").write_bytes(b"killed while writing")
        found = read_backup(tmp_path)
        assert found is not None
        assert found.epoch == 3
        write_backup(tmp_path, backup(4))
        found = read_backup(tmp_path)
        assert found is not None
        assert found.epoch == 4
        assert [file.name for file in tmp_path.iterdir()] == [FILE_NAME]

    @pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not really a zip", b"\x93NUMPY"])
    def test_a_damaged_one_is_no_backup(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / FILE_NAME).write_bytes(content)
        assert read_backup(tmp_path) is None

    def test_a_truncated_one_is_no_backup(self, tmp_path: Path) -> None:
        write_backup(tmp_path, backup())
        whole = (tmp_path / FILE_NAME).read_bytes()
        for length in range(0, len(whole) - 1, 97):
            (tmp_path / FILE_NAME).write_bytes(whole[:length])
            assert read_backup(tmp_path) is None

    def test_nothing_is_unpickled(self, tmp_path: Path) -> None:
        np.savez(tmp_path / FILE_NAME, state=np.array([{"a": 1}], dtype=object))
        assert read_backup(tmp_path) is None

    def test_removing_leaves_nothing(self, tmp_path: Path) -> None:
        remove_backup(tmp_path)
        write_backup(tmp_path, backup())
        remove_backup(tmp_path)
        assert not list(tmp_path.iterdir())
        assert read_backup(tmp_path / "never") is None
