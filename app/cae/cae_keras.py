"""The autoencoder in Keras: layers, loss, optimizer, training, saving.

TensorFlow is imported inside functions only, through `_require_tf`. A process that wants a say in devices and threads calls
`app.core.tf_device.configure_tensorflow` first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from app.cae.cae_fit import Session, Trained, first_line
from app.cae.config import STRIDE_PRODUCT, CaeConfig
from app.cae.error_maps import SSIM_C1, SSIM_C2, SSIM_SIGMA, SSIM_WINDOW
from app.cae.optimizers import NO_MUON, has_muon, make_optimizer
from app.cae.reporting import Reporter, SilentReporter
from app.cae.rows import Rows
from app.cae.training import Floats, Usual, usual_picture
from app.core.errors import DataError, DeviceError, OptionError

KERNEL = 4
"""Side of every convolution kernel, px: a multiple of the stride, so that transposed convolutions leave no checkerboard."""

STAGES = (1, 2, 4, 8)
"""Filters of the four stages as multiples of `base_filters`: 32-64-128-256."""

FEATURE_LAYER = "encoder_2_elu"
"""Layer whose channels, pooled over space, tell of a picture as a whole (`app.cae.whole_picture`). Measured on three real sets: the second
stage told more of defects that are everywhere than the others or the latent code."""

_NO_TENSORFLOW = "TensorFlow is not installed, expected one of the extras cpu and gpu. Install it: pip install 'twopath[cpu]'."
_OTHER_BACKEND = "KERAS_BACKEND is set to {backend!r}, expected tensorflow or no value. Unset it and start again."
_BAD_SIZE = "image_size: expected a multiple of {multiple} (four stages of stride 2), got {size}. Choose {below} or {above}."
_SMALLER_THAN_WINDOW = "image_size: expected at least {window} px, the window of SSIM, got {size}. Choose 64 or more."
_FP16_ON_CPU = "precision: mixed_float16 needs a GPU; this run computes in float32."
_BAD_MODEL = "{path}: expected a model saved by this program (.keras), got {cause}."


def _require_tf() -> tuple[Any, Any]:
    """(tensorflow, keras). Raises DeviceError when they cannot be used together."""
    try:
        import tensorflow as tf
    except ImportError:
        raise DeviceError(_NO_TENSORFLOW) from None
    import keras

    if keras.backend.backend() != "tensorflow":
        raise DeviceError(_OTHER_BACKEND.format(backend=keras.backend.backend()))
    return tf, keras


def held_to(device: str) -> AbstractContextManager[Any]:
    """Keeps what is created and run inside on the CPU when `device` (`HardwareProfile.tf_device_string`) says so.

    Needed where a GPU failed after TensorFlow had taken it up: it is still listed, and TensorFlow would still prefer it. The GPU path needs
    no such hold, and would only force operations onto the GPU that have no kernel there.
    """
    if "CPU" not in device.upper():
        return nullcontext()
    tf, _ = _require_tf()
    hold: AbstractContextManager[Any] = tf.device(device)
    return hold


def build_cae(config: CaeConfig, *, channels: int, usual: Usual | None = None, synchronised: bool = False) -> Any:
    """The autoencoder as a plain functional `keras.Model`, (N, S, S, C) in 0..1 to the same; float32 in and out whatever the precision.

    Encoder: four [Conv2D 4×4 stride 2, no bias · BatchNorm · ELU], flattened into a dense latent of `latent_dim`; decoder: a dense layer
    back to the last feature map and the mirror image with Conv2DTranspose, ending in `channels` and a sigmoid. With `config.centre` yes the
    encoder is given the difference from the mean training picture, in units of its standard deviation, and what the decoder ends in is
    that difference in place of a sigmoid, so that 0..1 may be left a little; little of the network is then spent on what all pictures
    share.

    Args:
        config: sizes, precision, and `centre`, of which auto counts as no: `train_cae` knows the number of pictures.
        channels: of the pictures.
        usual: of the training pictures, for `config.centre`; without it, mean 0 and variance 1.
        synchronised: BatchNorm over all devices of a training together, so that its statistics are those of the whole batch.

    Raises:
        OptionError: the image size does not survive four halvings, or is smaller than the window of SSIM.
    """
    _check_size(config.image_size)
    _, keras = _require_tf()
    layers = keras.layers
    policy = config.precision  # by name: a policy object would keep the model from being saved
    filters = [config.base_filters * multiple for multiple in STAGES]

    def stage(x: Any, kind: Any, width: int, name: str) -> Any:
        x = kind(width, KERNEL, strides=2, padding="same", use_bias=False, dtype=policy, name=f"{name}_conv")(x)
        norm = layers.BatchNormalization(momentum=config.batchnorm_momentum, dtype=policy, name=f"{name}_norm", synchronized=synchronised)
        x = norm(x)
        return layers.ELU(dtype=policy, name=f"{name}_elu")(x)

    shape = (config.image_size, config.image_size, channels)
    picture = x = keras.Input(shape, dtype="float32", name="picture")
    centred = config.centre == "yes"
    if centred:
        x = _normalization(keras, "centre", shape, usual)(x)
    for number, width in enumerate(filters, start=1):
        x = stage(x, layers.Conv2D, width, f"encoder_{number}")
    feature_map = x.shape[1:]
    x = layers.Flatten(dtype=policy, name="flatten")(x)
    x = layers.Dense(config.latent_dim, dtype=policy, name="latent")(x)
    x = layers.Dense(math.prod(feature_map), dtype=policy, name="unlatent")(x)
    x = layers.Reshape(feature_map, dtype=policy, name="unflatten")(x)
    for number, width in enumerate(reversed(filters[:-1]), start=1):
        x = stage(x, layers.Conv2DTranspose, width, f"decoder_{number}")
    x = layers.Conv2DTranspose(channels, KERNEL, strides=2, padding="same", dtype=policy, name="decoder_4_conv")(x)
    end = _normalization(keras, "reconstruction", shape, usual, invert=True) if centred else None
    x = (end or layers.Activation("sigmoid", dtype="float32", name="reconstruction"))(x)
    return keras.Model(picture, x, name="cae")


def _normalization(keras: Any, name: str, shape: tuple[int, int, int], usual: Usual | None, *, invert: bool = False) -> Any:
    """(x - mean) / σ or its inverse, with a mean for each pixel and one σ; both are weights, so that a saved model is small."""
    layer = keras.layers.Normalization(axis=(1, 2, 3), invert=invert, dtype="float32", name=name)
    layer.build((None, *shape))
    if usual is not None:
        layer.adapt_mean.assign(usual.mean)
        layer.adapt_variance.assign(np.full(shape, usual.variance, np.float32))
        layer.finalize_state()
    return layer


def _check_size(size: int) -> None:
    if size < SSIM_WINDOW:
        raise OptionError(_SMALLER_THAN_WINDOW.format(window=SSIM_WINDOW, size=size))
    if size % STRIDE_PRODUCT:
        below = max(64, size // STRIDE_PRODUCT * STRIDE_PRODUCT)
        above = max(64, math.ceil(size / STRIDE_PRODUCT) * STRIDE_PRODUCT)
        raise OptionError(_BAD_SIZE.format(multiple=STRIDE_PRODUCT, size=size, below=below, above=above))


def ssim(target: Any, output: Any) -> Any:
    """SSIM of each picture, (N,), as `tf.image.ssim(target, output, max_val=1)` gives it within rounding, forward and backward.

    The Gaussian window is separable: two one-dimensional depthwise convolutions in place of an 11×11 one, the four moments stacked into
    one call. Measured on two cores: 12 ms in place of 54 ms for 16 grey pictures of 128 px, backward included.
    """
    tf, _ = _require_tf()
    offsets = np.arange(SSIM_WINDOW) - SSIM_WINDOW // 2
    window = np.exp(-(offsets**2) / (2 * SSIM_SIGMA**2))
    window = (window / window.sum()).astype(np.float32)
    moments = tf.concat([target, output, tf.square(target) + tf.square(output), target * output], axis=-1)
    for shape in ((SSIM_WINDOW, 1, 1, 1), (1, SSIM_WINDOW, 1, 1)):
        kernel = np.tile(window.reshape(shape), (1, 1, moments.shape[-1], 1))
        moments = tf.nn.depthwise_conv2d(moments, kernel, strides=(1, 1, 1, 1), padding="VALID")
    mean_t, mean_o, squares, product = tf.split(moments, 4, axis=-1)
    cross, both = mean_t * mean_o, tf.square(mean_t) + tf.square(mean_o)
    luminance = (2 * cross + SSIM_C1) / (both + SSIM_C1)
    structure = (2 * (product - cross) + SSIM_C2) / (squares - both + SSIM_C2)
    return tf.reduce_mean(luminance * structure, axis=(1, 2, 3))


def _trainer(model: Any, config: CaeConfig) -> Any:
    """`model` with loss a (1 - SSIM) + (1 - a) s MSE: same layers and weights, wrapped so that the saved model stays plain."""
    tf, keras = _require_tf()

    class CaeTrainer(keras.Model):  # type: ignore[misc, name-defined]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.parts = [keras.metrics.Mean(name="ssim_loss"), keras.metrics.Mean(name="mse")]

        def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, *_: Any, **__: Any) -> Any:
            del x
            target, output = tf.cast(y, tf.float32), tf.cast(y_pred, tf.float32)
            mse = tf.reduce_mean(tf.square(target - output), axis=(1, 2, 3))
            dissimilarity = 1.0 - ssim(target, output)
            for tracker, values in zip(self.parts, (dissimilarity, mse), strict=True):
                tracker.update_state(values)
            each = config.ssim_weight * dissimilarity + (1.0 - config.ssim_weight) * config.mse_scale * mse
            replicas = tf.distribute.get_strategy().num_replicas_in_sync
            if replicas == 1:
                return tf.reduce_mean(each)
            # Gradients are summed over the devices, whose shares are equal (`TrainingBatches.multiple`). A share of a validation batch may
            # be empty; it then weighs nothing.
            return tf.math.divide_no_nan(tf.reduce_sum(each), tf.cast(tf.size(each), tf.float32)) / replicas

    return CaeTrainer(model.inputs, model.outputs, name="cae_trainer")


def train_cae(
    config: CaeConfig,
    train: Rows,
    held_out: Rows,
    *,
    reporter: Reporter | None = None,
    backup_dir: Path | None = None,
    devices: Sequence[str] = (),
) -> Trained:
    """Trains on good pictures; the epoch with the lowest loss on held-out good pictures gives the weights.

    Args:
        config: what to do.
        train: (N, S, S, C) uint8, good pictures.
        held_out: (M, S, S, C) uint8, other good pictures, M ≥ 0; without any, the training loss chooses.
        reporter: told of phases, epochs and warnings, and asked for cancel at every batch.
        backup_dir: where the state of the last whole epoch is kept, and taken from when there is one of the same configuration. The caller
            removes it (`app.cae.backup.remove_backup`) when the results are safe.
        devices: TensorFlow's devices (`HardwareProfile.strategy_devices`) that share every batch evenly, each with a copy of the weights;
            fewer than two: no sharing.

    Raises:
        OptionError: see `build_cae`.
        DataError: there is no picture to train on.
        TrainingError: the loss was never finite, memory does not suffice for a batch of 1, or TensorFlow failed.
    """
    told = reporter or SilentReporter()
    if not len(train):
        raise DataError("train: expected at least one good training picture, got none.")
    tf, keras = _require_tf()
    if not tf.config.list_logical_devices("GPU"):
        tf.config.experimental.enable_op_determinism()  # costs nothing on the CPU; on a GPU it would be several times slower
        if config.precision == "mixed_float16":
            told.warning(_FP16_ON_CPU)
            config = config.model_copy(update={"precision": "float32"})

    if config.optimizer == "muon" and not has_muon(keras):
        told.warning(NO_MUON.format(version=keras.__version__))
        config = config.model_copy(update={"optimizer": "adamw"})

    strategy = tf.distribute.MirroredStrategy(list(devices)) if len(devices) > 1 else None
    centred = config.centred(len(train))
    meant = {"centre": "yes" if centred else "no", "mixtures": "yes" if config.mixed(len(train)) else "no"}
    config = config.model_copy(update=meant)
    usual = usual_picture(train, config.standardise) if centred else None

    def make(attempt: CaeConfig, total_steps: int) -> tuple[Any, Any]:
        with strategy.scope() if strategy else nullcontext():
            model = build_cae(attempt, channels=train.shape[-1], usual=usual, synchronised=strategy is not None)
            trainer = _trainer(model, attempt)
            optimizer = make_optimizer(tf, keras, attempt, total_steps)
            trainer.compile(optimizer=optimizer, jit_compile=False)  # XLA: several times slower on CPUs
            trainer.optimizer.build(trainer.trainable_variables)
        return model, trainer

    replicas = len(devices) if strategy else 1
    trained = Session(tf, keras, make, config, train, held_out, told, backup_dir, replicas).train_until_it_fits()
    if strategy is not None:
        trained.model = _on_one_device(trained.model, config, train.shape[-1], usual)
    return trained


def _on_one_device(model: Any, config: CaeConfig, channels: int, usual: Usual | None) -> Any:
    """The same network with the same weights, as if it had been trained on one device: to score with, and to save."""
    plain = build_cae(config, channels=channels, usual=usual)
    plain.set_weights(model.get_weights())
    return plain


class Reconstructor:
    """The forward pass: float32 (N, S, S, C) in 0..1 → the same, as NumPy arrays; any N, each way traced once."""

    def __init__(self, model: Any) -> None:
        tf, keras = _require_tf()
        self._tf, self._model = tf, model
        signature = [tf.TensorSpec((None, *model.input_shape[1:]), tf.float32)]

        @tf.function(input_signature=signature)  # type: ignore[untyped-decorator]
        def forward(pictures: Any) -> Any:
            return model(pictures, training=False)

        @tf.function(input_signature=signature)  # type: ignore[untyped-decorator]
        def both(pictures: Any) -> Any:
            both_ends = keras.Model(model.inputs, [model.outputs[0], model.get_layer(FEATURE_LAYER).output])
            rebuilt, stage = both_ends(pictures, training=False)
            stage = tf.cast(stage, tf.float32)
            over_space = [tf.reduce_mean(stage, axis=(1, 2)), tf.math.reduce_std(stage, axis=(1, 2))]
            return rebuilt, tf.concat(over_space, axis=-1)

        self._forward, self._both = forward, both

    def __call__(self, pictures: Floats) -> Floats:
        result: Floats = self._forward(self._tf.convert_to_tensor(pictures)).numpy()
        return result

    def with_features(self, pictures: Floats) -> tuple[Floats, Floats]:
        """Reconstructions, and features (N, D): mean and standard deviation over space of each channel of the second encoder stage.

        Raises:
            DataError: the model is not one of ours.
        """
        if FEATURE_LAYER not in {layer.name for layer in self._model.layers}:
            raise DataError(f"model.keras: expected a layer {FEATURE_LAYER}, from which whole pictures are judged; there is none.")
        rebuilt, features = self._both(self._tf.convert_to_tensor(pictures))
        return rebuilt.numpy(), features.numpy()


def reconstructor(model: Any) -> Reconstructor:
    """The forward pass of `model`."""
    return Reconstructor(model)


def save_model(model: Any, path: Path) -> None:
    """Writes `model` as a whole `.keras` file: plain layers, no loss, no code of ours, loadable with Keras' safe mode."""
    part = path.with_name(f".{path.stem}.part.keras")
    model.save(part)
    part.replace(path)


def load_model(path: Path) -> Any:
    """The model saved at `path`, in Keras' safe mode: nothing in the file is executed.

    Raises:
        DataError: the file is missing, is no Keras model, or asks for code.
    """
    _, keras = _require_tf()
    try:
        return keras.saving.load_model(path, compile=False, safe_mode=True)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - a damaged archive fails in zipfile's, zlib's, json's, h5py's and Keras' own ways
        raise DataError(_BAD_MODEL.format(path=path, cause=first_line(error))) from None
