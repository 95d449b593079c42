"""The network, its loss and its training, in Keras itself on tiny pictures; and the saved model in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from app.cae import cae_fit, cae_keras, optimizers, training
from app.cae.backup import read_backup
from app.cae.cae_keras import build_cae, load_model, reconstructor, save_model, ssim, train_cae
from app.cae.config import CaeConfig, make_config
from app.cae.optimizers import make_optimizer
from app.cae.reporting import HISTORY_COLUMNS, Row, SilentReporter, mean_images_per_s
from app.cae.training import standardise
from app.core.errors import DataError, DeviceError, OptionError, TrainingError

tf: Any = None
keras: Any = None

pytestmark = [pytest.mark.tensorflow, pytest.mark.tensorflow_in_this_process]


@pytest.fixture(scope="module", autouse=True)
def _tensorflow() -> None:
    """TensorFlow comes when the first of these tests runs, not when they are collected: others check that it is not there."""
    global tf, keras
    tf, keras = pytest.importorskip("tensorflow"), pytest.importorskip("keras")


saves_a_model = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
"""Keras 3.15 under NumPy 2.4, not ours: tf.Variable.__array__ takes no `copy`."""

TINY = {"image_size": 64, "base_filters": 4, "latent_dim": 8, "batch_size": 8, "epochs": 2}


def options(**values: Any) -> CaeConfig:
    return make_config({**TINY, **values})


def stripes(count: int, seed: int = 0, channels: int = 1) -> NDArray[np.uint8]:
    """Pictures with something to learn: sine stripes of random phase."""
    random = np.random.default_rng(seed)
    phase = random.uniform(0, 2 * np.pi, (count, 1, 1, channels))
    place = np.arange(64)[None, :, None, None] / 4
    return np.round(127.5 + 100 * np.sin(place + phase + np.zeros((1, 1, 64, 1)))).astype(np.uint8)


class Recorder(SilentReporter):
    def __init__(self, stop_when: Callable[[Recorder], bool] = lambda _: False) -> None:
        self.rows: list[Row] = []
        self.warnings: list[str] = []
        self.steps: list[tuple[int, int]] = []
        self.asked = 0
        self._stop_when = stop_when

    def phase(self, name: str, done: int, total: int) -> None:
        assert name == "training"
        self.steps.append((done, total))

    def epoch(self, row: Row) -> None:
        self.rows.append(row)

    def warning(self, sentence: str) -> None:
        self.warnings.append(sentence)

    def cancelled(self) -> bool:
        self.asked += 1
        return self._stop_when(self)


@pytest.fixture(scope="module")
def trained() -> tuple[cae_keras.Trained, Recorder]:
    """One ordinary training that several tests look at: 17 pictures and 9 held out, batch 8, so that each ends in a part of a batch."""
    recorder = Recorder()
    return train_cae(options(epochs=3), stripes(17), stripes(9, seed=1), reporter=recorder), recorder


class TestNetwork:
    @pytest.mark.parametrize(("size", "channels"), [(64, 1), (128, 3), (192, 1)])
    def test_layers_are_those_described(self, size: int, channels: int) -> None:
        model = build_cae(make_config({"image_size": size}), channels=channels)
        assert model.layers[-1].activation is keras.activations.sigmoid
        side = size // 16
        filters = [32, 64, 128, 256]
        encoder = [(model.get_layer(f"encoder_{n}_conv"), width) for n, width in enumerate(filters, 1)]
        decoder = [(model.get_layer(f"decoder_{n}_conv"), width) for n, width in enumerate([128, 64, 32], 1)]
        for layer, width in encoder + decoder:
            assert (layer.filters, layer.kernel_size, layer.strides, layer.use_bias) == (width, (4, 4), (2, 2), False)
        assert model.get_layer("latent").units == 128
        assert model.output_shape == (None, size, size, channels)
        # By hand: 4×4 kernels both ways, four numbers a channel for each BatchNorm, two dense layers with bias, one bias at the end.
        pairs = [(channels, 32), (32, 64), (64, 128), (128, 256)]
        convolutions = 2 * 16 * sum(a * b for a, b in pairs)
        norms = 4 * (sum(filters) + 128 + 64 + 32)
        features = side * side * 256
        normalizations = 2 * (2 * size * size * channels + 1)
        dense = (features * 128 + 128) + (128 * features + features)
        assert model.count_params() == convolutions + norms + dense + channels
        centred = build_cae(make_config({"image_size": size, "centre": "yes"}), channels=channels)
        assert centred.count_params() == model.count_params() + normalizations

    @saves_a_model
    def test_centred_it_gives_the_mean_picture_where_the_decoder_finds_no_difference(self, tmp_path: Path) -> None:
        random = np.random.default_rng(0)
        usual = training.Usual(random.random((64, 64, 3), np.float32), 0.04)
        model = build_cae(options(centre="yes"), channels=3, usual=usual)
        last = model.get_layer("decoder_4_conv")
        last.set_weights([np.zeros_like(weight) for weight in last.get_weights()])
        pictures = random.random((2, 64, 64, 3), np.float32)
        save_model(model, tmp_path / "model.keras")
        for each in (model, load_model(tmp_path / "model.keras")):
            np.testing.assert_allclose(each(pictures).numpy(), np.broadcast_to(usual.mean, pictures.shape), atol=1e-6)
            seen = keras.Model(each.inputs[0], each.get_layer("centre").output)(pictures).numpy()
            np.testing.assert_allclose(seen, (pictures - usual.mean) / 0.2, atol=1e-5)

    @pytest.mark.parametrize("optimizer", ["adamw", "muon"])
    def test_training_centres_on_the_mean_training_picture(self, optimizer: str) -> None:
        result = train_cae(options(centre="yes", mixtures="no", optimizer=optimizer, epochs=4), stripes(17), stripes(9, seed=1))
        usual = training.usual_picture(stripes(17), "picture")
        for name in ("centre", "reconstruction"):
            layer = result.model.get_layer(name)
            np.testing.assert_array_equal(layer.adapt_mean.numpy(), usual.mean)
            np.testing.assert_allclose(layer.adapt_variance.numpy(), usual.variance, rtol=1e-6)
        assert result.rows[-1]["loss"] < result.rows[0]["loss"]

    @pytest.mark.parametrize("size", [50, 100])
    def test_f11_a_size_that_four_halvings_do_not_divide_is_refused_when_built(self, size: int) -> None:
        config = options().model_copy(update={"image_size": size})
        with pytest.raises(OptionError, match=rf"image_size: expected a multiple of 16 .* got {size}\. Choose \d+ or \d+\."):
            build_cae(config, channels=1)

    @pytest.mark.parametrize("size", [8, 10])
    def test_f02_a_picture_smaller_than_the_ssim_window_is_refused_when_built(self, size: int) -> None:
        config = options().model_copy(update={"image_size": size})
        with pytest.raises(OptionError, match=f"at least 11 px, the window of SSIM, got {size}"):
            build_cae(config, channels=1)

    @pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16", "mixed_float16"])
    def test_f05_output_is_float32_whatever_the_policies(self, precision: str) -> None:
        before = keras.config.dtype_policy()
        keras.config.set_dtype_policy("mixed_float16")
        try:
            model = build_cae(options(precision=precision), channels=1)
        finally:
            keras.config.set_dtype_policy(before)
        wanted = {"float32": "float32", "mixed_bfloat16": "bfloat16", "mixed_float16": "float16"}[precision]
        assert model.get_layer("encoder_1_conv").compute_dtype == wanted
        output = model(np.full((2, 64, 64, 1), 0.5, np.float32))
        assert output.dtype == tf.float32
        assert np.isfinite(output.numpy()).all()

    def test_another_backend_of_keras_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
        with pytest.raises(DeviceError, match="KERAS_BACKEND is set to 'torch', expected tensorflow"):
            build_cae(options(), channels=1)


def value_and_gradient(function: Callable[[Any, Any], Any], target: Any, output: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    with tf.GradientTape() as tape:
        tape.watch(output)
        value = function(target, output)
    return value.numpy(), tape.gradient(value, output).numpy()


class TestSsim:
    @pytest.mark.parametrize("channels", [1, 3])
    @pytest.mark.parametrize("noise", [0.0, 0.05, 1.0])
    def test_it_equals_tensorflows_forward_and_backward(self, channels: int, noise: float) -> None:
        random = np.random.default_rng(0)
        target = tf.constant(standardise(stripes(3, channels=channels), "none"))
        output = tf.constant(np.clip(target.numpy() + noise * random.normal(size=target.shape), 0, 1).astype(np.float32))
        ours = value_and_gradient(ssim, target, output)
        theirs = value_and_gradient(lambda x, y: tf.image.ssim(x, y, max_val=1.0), target, output)
        np.testing.assert_allclose(ours[0], theirs[0], atol=1e-5)
        np.testing.assert_allclose(ours[1], theirs[1], atol=1e-5 * max(1.0, np.abs(theirs[1]).max()))

    @pytest.mark.parametrize(("target", "output"), [(0.0, 0.0), (0.0, 1.0), (1.0, 1.0), (0.5, 0.5)])
    def test_f01_d20_constant_pictures_have_a_finite_gradient(self, target: float, output: float) -> None:
        pair = (tf.fill((2, 64, 64, 1), tf.constant(value)) for value in (target, output))
        value, gradient = value_and_gradient(ssim, *pair)
        assert np.isfinite(value).all()
        assert np.isfinite(gradient).all()

    def test_f01_opposite_pictures_have_a_finite_gradient(self) -> None:
        target = tf.constant(np.random.default_rng(0).random((1, 256, 256, 1), dtype=np.float32))
        value, gradient = value_and_gradient(ssim, target, 1 - target)
        assert value < 0
        assert np.isfinite(gradient).all()


class TestOptimizer:
    def steps(self, optimizer: Any, gradients: list[list[NDArray[np.float32]]]) -> list[NDArray[np.float32]]:
        """Where the weights stand after these steps; all begin between -1 and 1."""
        variables = [keras.Variable(np.linspace(-1, 1, each.size, dtype=np.float32).reshape(each.shape)) for each in gradients[0]]
        optimizer.build(variables)
        for step in gradients:
            optimizer.apply([tf.constant(each) for each in step])
        return [variable.numpy() for variable in variables]

    @pytest.mark.parametrize("name", ["adamw", "muon"])
    def test_the_fused_update_equals_keras_own(self, name: str) -> None:
        random = np.random.default_rng(0)
        shapes = [(6,), (40, 8), (8, 40), (9, 9), (4, 4, 3, 5)]
        gradients = [[random.normal(size=shape).astype(np.float32) for shape in shapes] for _ in range(20)]
        for step in gradients:  # as a batch of pictures gives it: of low rank, most of it along one direction
            step[1] = (random.normal(size=(40, 2)) * [1.0, 0.01] @ random.normal(size=(2, 8))).astype(np.float32)
        config = options(optimizer=name, schedule="constant", learning_rate=0.01, weight_decay=0.1)
        plain = {
            "adamw": lambda clip: keras.optimizers.AdamW(0.01, weight_decay=0.1, global_clipnorm=clip),
            "muon": lambda clip: keras.optimizers.Muon(0.01, weight_decay=0.1, adam_weight_decay=0.1, global_clipnorm=clip),
        }[name](optimizers.GLOBAL_CLIPNORM)
        for ours, theirs in zip(self.steps(make_optimizer(tf, keras, config, 20), gradients), self.steps(plain, gradients), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-3 * 0.2)

    def test_muon_steps_as_far_in_the_direction_of_least_variance_as_in_that_of_most(self) -> None:
        random = np.random.default_rng(1)
        left, right = np.linalg.qr(random.normal(size=(30, 4)))[0], np.linalg.qr(random.normal(size=(4, 4)))[0]
        gradient = (left * [1.0, 0.3, 0.1, 0.03] @ right).astype(np.float32)
        lengths = {}
        for name in ("adamw", "muon"):
            config = options(optimizer=name, schedule="constant", learning_rate=0.01, weight_decay=0.0)
            [after] = self.steps(make_optimizer(tf, keras, config, 1), [[gradient]])
            moved = np.linspace(-1, 1, gradient.size).reshape(gradient.shape) - after
            lengths[name] = np.linalg.svd(moved, compute_uv=False)
        assert lengths["muon"][-1] > 0.5 * lengths["muon"][0]
        assert lengths["adamw"][-1] < 0.5 * lengths["adamw"][0]

    def test_a_keras_without_the_scaled_muon_trains_with_adamw_and_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        by_adamw = train_cae(options(optimizer="adamw", epochs=1), stripes(8), stripes(2))
        monkeypatch.setattr(keras, "__version__", "3.12.0")
        monkeypatch.delattr(keras.optimizers, "Muon")  # as before 3.10: AdamW must not ask for it
        recorder = Recorder()
        result = train_cae(options(optimizer="muon", epochs=1), stripes(8), stripes(2), reporter=recorder)
        assert recorder.warnings == ["optimizer: muon needs Keras 3.13 or later, got 3.12.0; this run trains with adamw."]
        assert result.rows[-1]["val_loss"] == by_adamw.rows[-1]["val_loss"]

    def test_muon_under_a_scaled_loss_steps_as_without(self) -> None:
        random = np.random.default_rng(2)
        gradients = [[random.normal(size=shape).astype(np.float32) for shape in [(6,), (40, 8)]] for _ in range(3)]
        config = options(optimizer="muon", schedule="constant")
        scaled = make_optimizer(tf, keras, config.model_copy(update={"precision": "mixed_float16"}), 3)
        assert type(scaled) is keras.optimizers.LossScaleOptimizer
        times = scaled.initial_scale
        got = self.steps(scaled, [[gradient * times for gradient in step] for step in gradients])
        for ours, plain in zip(got, self.steps(make_optimizer(tf, keras, config, 3), gradients), strict=True):
            np.testing.assert_allclose(ours, plain, rtol=1e-4, atol=1e-6)

    @pytest.mark.parametrize("chosen", ["adamw", "muon"])
    def test_f07_decay_is_times_the_learning_rate_and_leaves_batchnorm_and_biases_alone(self, chosen: str) -> None:
        model = build_cae(options(), channels=1)
        names = [weight.path for weight in model.trainable_variables]
        config = options(optimizer=chosen, schedule="constant", learning_rate=0.1, weight_decay=0.1)
        before = [weight.numpy() + 0.5 for weight in model.trainable_variables]
        for weight, value in zip(model.trainable_variables, before, strict=True):
            weight.assign(value)
        optimizer = make_optimizer(tf, keras, config, 1)
        optimizer.build(model.trainable_variables)
        optimizer.apply([tf.zeros_like(weight) for weight in model.trainable_variables])
        for name, weight, value in zip(names, model.trainable_variables, before, strict=True):
            decayed = name.endswith("kernel")
            np.testing.assert_allclose(weight.numpy(), value * (1 - 0.1 * 0.1) if decayed else value, rtol=1e-6, err_msg=name)
        assert sum(name.endswith("kernel") for name in names) == 10
        assert any(name.endswith("gamma") for name in names)
        assert any(name.endswith("bias") for name in names)

    def test_the_schedule_warms_up_and_ends_at_zero(self) -> None:
        rate = optimizers.learning_rate(keras, options(learning_rate=1e-3, warmup_fraction=0.1), 100)
        values = [float(rate(step)) for step in (0, 5, 10, 55, 100)]
        assert values == pytest.approx([0.0, 5e-4, 1e-3, 5e-4, 0.0], abs=1e-7)
        rate = optimizers.learning_rate(keras, options(learning_rate=1e-3, warmup_fraction=0.0), 100)
        assert [float(rate(step)) for step in (0, 50, 100)] == pytest.approx([1e-3, 5e-4, 0.0], abs=1e-7)

    def test_a_spike_of_the_gradient_is_cut(self) -> None:
        optimizer = make_optimizer(tf, keras, options(), 10)
        clipped = optimizer._clip_gradients([tf.constant([3e4, 4e4]), tf.constant([0.0])])
        assert float(tf.linalg.global_norm(clipped)) == pytest.approx(optimizers.GLOBAL_CLIPNORM)


class TestTraining:
    def test_every_epoch_is_a_row_and_progress_is_told_by_step(self, trained: tuple[cae_keras.Trained, Recorder]) -> None:
        result, recorder = trained
        assert result.rows == recorder.rows
        assert [row["epoch"] for row in result.rows] == [1, 2, 3]
        assert [row["step"] for row in result.rows] == [3, 6, 9]
        assert recorder.steps == [(step, 9) for step in range(10)]
        assert recorder.asked >= 9
        for row in result.rows:
            assert set(row) <= set(HISTORY_COLUMNS)
            assert {"loss", "val_loss", "ssim_loss", "mse", "learning_rate", "memory_mib", "images_per_s"} <= set(row)
            assert row["memory_mib"] > 100
        assert result.state == "finished"
        assert result.images_per_s is not None
        assert result.images_per_s > 0

    def test_it_learns_and_keeps_the_best_epoch(self, trained: tuple[cae_keras.Trained, Recorder]) -> None:
        result, _ = trained
        losses = [row["val_loss"] for row in result.rows]
        assert result.rows[-1]["loss"] < result.rows[0]["loss"]
        assert result.best_epoch == 1 + int(np.argmin(losses))

    def test_f04_the_validation_loss_is_the_mean_over_pictures_and_not_over_batches(
        self, trained: tuple[cae_keras.Trained, Recorder]
    ) -> None:
        """9 held-out pictures in batches of 8: a mean of batch means would count the last picture eight times."""
        result, _ = trained
        config = options()
        clean = standardise(stripes(9, seed=1), "picture")
        rebuilt = reconstructor(result.model)(clean)
        dissimilarity = 1 - tf.image.ssim(clean, rebuilt, max_val=1.0).numpy()
        mse = np.square(clean - rebuilt).mean(axis=(1, 2, 3))
        each = config.ssim_weight * dissimilarity + (1 - config.ssim_weight) * config.mse_scale * mse
        assert result.best_epoch is not None
        row = result.rows[result.best_epoch - 1]
        assert row["val_loss"] == pytest.approx(each.mean(), rel=1e-4)
        assert row["val_mse"] == pytest.approx(mse.mean(), rel=1e-4)
        assert row["val_ssim_loss"] == pytest.approx(dissimilarity.mean(), rel=1e-4)

    def test_the_same_seed_gives_the_same_weights(self, trained: tuple[cae_keras.Trained, Recorder]) -> None:
        again = train_cae(options(epochs=3), stripes(17), stripes(9, seed=1))
        for ours, theirs in zip(again.model.get_weights(), trained[0].model.get_weights(), strict=True):
            np.testing.assert_array_equal(ours, theirs)
        other = train_cae(options(epochs=1, seed=1), stripes(17), stripes(9, seed=1))
        assert other.rows[0]["loss"] != again.rows[0]["loss"]

    @pytest.mark.parametrize(
        "values",
        [
            {"batch_size": 1, "epochs": 1},  # D14-single, F08
            {"mask_ratio": 0.0, "standardise": "none", "schedule": "constant", "ssim_weight": 1.0, "augment": "object"},
            {"precision": "mixed_bfloat16", "augment": "texture", "ssim_weight": 0.0},
        ],
    )
    def test_other_options_train_too_without_anything_held_out(self, values: dict[str, Any]) -> None:
        count = 1 if values.get("batch_size") == 1 else 9
        result = train_cae(options(**values), stripes(count, channels=3), stripes(0, channels=3))
        assert result.best_epoch is not None
        assert "val_loss" not in result.rows[-1]
        assert np.isfinite(reconstructor(result.model)(standardise(stripes(2, channels=3), "picture"))).all()

    def test_d20_constant_pictures_keep_the_loss_finite(self) -> None:
        constant = np.zeros((6, 64, 64, 1), np.uint8)
        constant[5] = 255
        result = train_cae(options(), constant[:5], constant[5:])
        assert all(np.isfinite(list(row.values())).all() for row in result.rows)

    def test_f05_float16_falls_back_to_float32_on_the_cpu_and_says_so(self) -> None:
        recorder = Recorder()
        result = train_cae(options(precision="mixed_float16", epochs=1), stripes(8), stripes(2), reporter=recorder)
        assert recorder.warnings == ["precision: mixed_float16 needs a GPU; this run computes in float32."]
        assert result.model.get_layer("encoder_1_conv").compute_dtype == "float32"

    def test_nothing_to_train_on_is_refused(self) -> None:
        with pytest.raises(DataError, match="at least one good training picture, got none"):
            train_cae(options(), stripes(0), stripes(2))

    def test_early_stopping_waits_for_patience(self) -> None:
        """At this rate nothing improves but by chance; BatchNorm's statistics settle in the first epochs."""
        result = train_cae(options(learning_rate=1e-9, epochs=40, patience=2, batchnorm_momentum=0.0), stripes(8), stripes(4))
        assert result.state == "finished"
        assert result.best_epoch is not None
        assert result.epochs == result.best_epoch + 2 < 40


class TestCancel:
    def test_within_the_first_epoch_the_weights_of_the_moment_are_kept(self) -> None:
        recorder = Recorder(stop_when=lambda self: self.steps[-1][0] == 2)
        result = train_cae(options(), stripes(32), stripes(4), reporter=recorder)
        assert (result.state, result.epochs, result.best_epoch) == ("cancelled", 0, None)
        assert recorder.steps[-1] == (2, 8)
        assert all(np.isfinite(weight).all() for weight in result.model.get_weights())

    def test_later_it_ends_within_a_batch_and_keeps_the_best_weights(self) -> None:
        recorder = Recorder(stop_when=lambda self: self.steps[-1][0] == 6)
        result = train_cae(options(epochs=5), stripes(32), stripes(4), reporter=recorder)
        assert (result.state, result.epochs, result.best_epoch) == ("cancelled", 1, 1)
        assert recorder.steps[-1] == (6, 20)
        first = train_cae(options(epochs=5), stripes(32), stripes(4), reporter=Recorder(lambda self: len(self.rows) == 1))
        for ours, theirs in zip(result.model.get_weights(), first.model.get_weights(), strict=True):
            np.testing.assert_array_equal(ours, theirs)

    def test_before_the_first_step_nothing_is_trained(self) -> None:
        result = train_cae(options(), stripes(8), stripes(2), reporter=Recorder(lambda _: True))
        assert (result.state, result.epochs, result.images_per_s) == ("cancelled", 0, None)


class TestNan:
    @staticmethod
    def poisoned_from(epoch: int, monkeypatch: pytest.MonkeyPatch) -> None:
        whole = training.TrainingBatches.batch

        def batch(self: training.TrainingBatches, at: int, index: int) -> tuple[Any, Any]:
            seen, target = whole(self, at, index)
            return (seen * np.float32("nan"), target) if at >= epoch else (seen, target)

        monkeypatch.setattr(training.TrainingBatches, "batch", batch)

    def test_f01_it_stops_at_once_and_keeps_the_last_good_weights(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.poisoned_from(2, monkeypatch)
        recorder = Recorder()
        result = train_cae(options(epochs=10), stripes(16), stripes(4), reporter=recorder)
        assert (result.state, result.epochs) == ("finished", 2)
        assert recorder.steps[-1][0] == 5  # the first batch of the third epoch
        assert all(np.isfinite(weight).all() for weight in result.model.get_weights())
        assert len(recorder.warnings) == 1
        assert "NaN or infinite in epoch 3; training stopped and the weights of epoch" in recorder.warnings[0]

    def test_f01_without_a_good_epoch_there_is_no_model(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.poisoned_from(0, monkeypatch)
        with pytest.raises(
            TrainingError, match=r"in the first epoch, so there are no usable weights\. Lower the learning rate \(now 0\.001\)"
        ):
            train_cae(options(), stripes(16), stripes(4))


class TestMemory:
    @staticmethod
    def short_above(batch: int, error: Callable[[], Exception], monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """Training that fails with `error` when batches are larger than `batch`; returns the sizes tried."""
        make, tried = cae_keras._trainer, []

        def trainer(model: Any, config: CaeConfig) -> Any:
            made = make(model, config)
            fit = made.fit

            def guarded(x: Any, **values: Any) -> Any:
                tried.append(len(x[0][0]))
                if tried[-1] > batch:
                    raise error()
                return fit(x, **values)

            made.fit = guarded
            return made

        monkeypatch.setattr(cae_keras, "_trainer", trainer)
        return tried

    def test_c05_the_batch_is_halved_until_it_fits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        error = tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor with shape[16,64,64,32]\nmore")
        tried = self.short_above(4, lambda: error, monkeypatch)
        recorder = Recorder()
        result = train_cae(options(batch_size=16, epochs=1), stripes(16), stripes(4), reporter=recorder)
        assert tried == [16, 8, 4]
        assert result.batch_size == 4
        assert (
            recorder.warnings
            == result.warnings
            == [
                f"Memory ran out at batch size {batch} (OOM when allocating tensor with shape[16,64,64,32]); training starts again with "
                f"{batch // 2} and fresh weights."
                for batch in (16, 8)
            ]
        )
        monkeypatch.undo()
        fresh = train_cae(options(batch_size=4, epochs=1), stripes(16), stripes(4))
        assert fresh.rows[0]["loss"] == result.rows[0]["loss"]

    @pytest.mark.parametrize(
        "error",
        [
            lambda: tf.errors.InternalError(None, None, "Failed to call cudnnCreate: CUDNN_STATUS_ALLOC_FAILED"),
            lambda: tf.errors.UnknownError(None, None, "CUBLAS_STATUS_NOT_INITIALIZED"),
            lambda: MemoryError("cannot allocate 4 GiB"),
        ],
        ids=["InternalError", "UnknownError", "MemoryError"],
    )
    def test_c08_memory_errors_under_other_names_are_recognised(
        self, error: Callable[[], Exception], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tried = self.short_above(4, error, monkeypatch)
        recorder = Recorder(lambda self: bool(self.warnings))  # that it was recognised is enough
        train_cae(options(batch_size=8), stripes(8), stripes(2), reporter=recorder)
        assert tried == [8]
        assert recorder.warnings[0].startswith("Memory ran out at batch size 8 (")

    def test_c05_at_batch_1_the_cpu_is_offered(self, monkeypatch: pytest.MonkeyPatch) -> None:
        tried = self.short_above(0, lambda: tf.errors.ResourceExhaustedError(None, None, "OOM"), monkeypatch)
        with pytest.raises(TrainingError, match=r"even at batch size 1 \(OOM\).* train on the CPU \(device cpu\)"):
            train_cae(options(batch_size=2), stripes(8), stripes(2))
        assert tried == [2, 1]

    def test_c05_between_tries_it_can_be_cancelled(self, monkeypatch: pytest.MonkeyPatch) -> None:
        tried = self.short_above(0, lambda: tf.errors.ResourceExhaustedError(None, None, "OOM"), monkeypatch)
        result = train_cae(options(batch_size=8), stripes(8), stripes(2), reporter=Recorder(lambda self: bool(self.warnings)))
        assert result.state == "cancelled"
        assert tried == [8]

    def test_c07_other_failures_are_not_retried(self, monkeypatch: pytest.MonkeyPatch) -> None:
        tried = self.short_above(0, lambda: tf.errors.UnimplementedError(None, None, "DNN library is not found."), monkeypatch)
        with pytest.raises(TrainingError, match=r"TensorFlow stopped training: DNN library is not found\."):
            train_cae(options(batch_size=8), stripes(8), stripes(2))
        assert tried == [8]


class _KilledError(Exception):
    pass


class TestResume:
    def test_a_killed_run_goes_on_and_ends_as_if_nothing_had_happened(self, tmp_path: Path) -> None:
        class Dying(Recorder):
            def phase(self, name: str, done: int, total: int) -> None:
                if done == 7:  # in the middle of the third epoch
                    raise _KilledError

        config = options(epochs=4, augment="texture")
        whole = train_cae(config, stripes(24), stripes(4))
        with pytest.raises(_KilledError):
            train_cae(config, stripes(24), stripes(4), reporter=Dying(), backup_dir=tmp_path)
        backup = read_backup(tmp_path)
        assert backup is not None
        assert backup.epoch == 2
        recorder = Recorder()
        resumed = train_cae(config, stripes(24), stripes(4), reporter=recorder, backup_dir=tmp_path)
        assert recorder.steps[0] == (6, 12)
        assert [row["epoch"] for row in recorder.rows] == [3, 4]
        assert [row["val_loss"] for row in resumed.rows] == [row["val_loss"] for row in whole.rows]
        assert [row["seconds"] for row in resumed.rows] == sorted(row["seconds"] for row in resumed.rows)
        for ours, theirs in zip(resumed.model.get_weights(), whole.model.get_weights(), strict=True):
            np.testing.assert_array_equal(ours, theirs)
        # All epochs are done: the next call only puts the best weights back.
        finished = train_cae(config, stripes(24), stripes(4), backup_dir=tmp_path)
        assert finished.rows == resumed.rows
        assert finished.images_per_s == pytest.approx(mean_images_per_s(finished.rows)), "the speed is that of the earlier parts"
        np.testing.assert_array_equal(finished.model.get_weights()[0], whole.model.get_weights()[0])

    def test_a_run_that_had_to_take_smaller_batches_goes_on_with_them(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        TestMemory.short_above(4, lambda: tf.errors.ResourceExhaustedError(None, None, "OOM"), monkeypatch)
        first = train_cae(options(epochs=1), stripes(8), stripes(2), backup_dir=tmp_path)
        monkeypatch.undo()
        again = train_cae(options(epochs=1, device="cpu"), stripes(8), stripes(2), backup_dir=tmp_path)
        assert again.batch_size == 4
        assert again.rows == first.rows
        assert again.warnings == first.warnings
        assert len(first.warnings) == 1

    def test_a_backup_that_cannot_be_written_does_not_end_training(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("in the way")
        recorder = Recorder()
        result = train_cae(options(), stripes(8), stripes(2), reporter=recorder, backup_dir=tmp_path / "file")
        assert result.epochs == 2
        assert len(recorder.warnings) == 1
        assert "the state of training cannot be kept (File exists); training goes on" in recorder.warnings[0]

    def test_a_backup_of_something_else_is_not_used(self, tmp_path: Path) -> None:
        train_cae(options(epochs=1), stripes(8), stripes(2), backup_dir=tmp_path)
        recorder = Recorder()
        result = train_cae(options(epochs=1, seed=9), stripes(8), stripes(2), reporter=recorder, backup_dir=tmp_path)
        assert "belongs to another configuration or other pictures; training starts from the beginning" in recorder.warnings[0]
        assert result.epochs == 1
        assert recorder.steps[0] == (0, 1)


@saves_a_model
class TestSaving:
    def test_a_saved_model_loads_in_a_fresh_process_without_this_code(
        self, trained: tuple[cae_keras.Trained, Recorder], tmp_path: Path
    ) -> None:
        path = tmp_path / "model.keras"
        save_model(trained[0].model, path)
        assert [file.name for file in tmp_path.iterdir()] == ["model.keras"]
        with zipfile.ZipFile(path) as archive:
            assert "app." not in archive.read("config.json").decode()
        pictures = standardise(stripes(3, seed=2), "picture")
        np.save(tmp_path / "pictures.npy", pictures)
        script = (
            "import sys\n"
            "sys.modules['app'] = None\n"  # from here on, importing our code fails
            "import keras, numpy as np\n"
            "model = keras.saving.load_model('model.keras', compile=False, safe_mode=True)\n"
            "np.save('found.npy', model.predict(np.load('pictures.npy'), verbose=0))\n"
            "assert not [name for name in sys.modules if name.startswith('app.')]\n"
        )
        subprocess.run([sys.executable, "-I", "-c", script], cwd=tmp_path, check=True, timeout=240)
        np.testing.assert_allclose(np.load(tmp_path / "found.npy"), reconstructor(trained[0].model)(pictures), atol=1e-5)
        np.testing.assert_allclose(reconstructor(load_model(path))(pictures), reconstructor(trained[0].model)(pictures), atol=1e-6)

    def test_a_model_that_carries_code_is_refused(self, tmp_path: Path) -> None:
        inputs = keras.Input((64, 64, 1))
        keras.Model(inputs, keras.layers.Lambda(lambda x: x + 1)(inputs)).save(tmp_path / "evil.keras")
        with pytest.raises(DataError, match=r"evil\.keras: expected a model saved by this program"):
            load_model(tmp_path / "evil.keras")

    @pytest.mark.parametrize("content", [None, b"", b"not a zip", b"PK\x03\x04"])
    def test_no_model_is_refused_by_name(self, tmp_path: Path, content: bytes | None) -> None:
        if content is not None:
            (tmp_path / "model.keras").write_bytes(content)
        with pytest.raises(DataError, match=r"model\.keras: expected a model saved by this program"):
            load_model(tmp_path / "model.keras")

    def test_a_damaged_model_is_refused_by_name(self, trained: tuple[cae_keras.Trained, Recorder], tmp_path: Path) -> None:
        save_model(trained[0].model, tmp_path / "model.keras")
        content = bytearray((tmp_path / "model.keras").read_bytes())
        for start in (len(content) // 3, 100):  # within the weights, then within what comes first, too
            content[start : start + 2000] = bytes(2000)
            (tmp_path / "model.keras").write_bytes(content)
            with pytest.raises(DataError, match=r"model\.keras: expected a model saved by this program"):
                load_model(tmp_path / "model.keras")


def test_importing_the_room_does_not_import_tensorflow() -> None:
    script = "import json, sys, app.cae.cae_pipeline; print(json.dumps([name for name in ('tensorflow', 'keras') if name in sys.modules]))"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert json.loads(ended.stdout) == []


def test_the_first_line_of_an_error_that_says_nothing_is_its_name() -> None:
    assert cae_fit.first_line(MemoryError()) == "MemoryError"
