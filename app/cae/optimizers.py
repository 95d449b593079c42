"""Optimizer and schedule of the autoencoder's training; TensorFlow and Keras come in as arguments, `app.cae.cae_keras` is the door."""

from __future__ import annotations

from typing import Any

from app.cae.config import CaeConfig

GLOBAL_CLIPNORM = 10.0
"""Longest gradient, all weights together. The gradient of SSIM has a spike wherever a window is nearly flat; one such batch must not throw
the network off. Ordinary steps, of length 0.2 to 1.5 with recipe F on elpv-mono and synthetic pictures, are left as they are."""

MUON_SINCE = (3, 13)
"""Keras version whose Muon scales its steps so that AdamW's learning rate and weight decay suit them."""

NO_MUON = "optimizer: muon needs Keras 3.13 or later, got {version}; this run trains with adamw."


def has_muon(keras: Any) -> bool:
    """Whether this Keras has Muon as it is meant here."""
    return tuple(int(part) for part in keras.__version__.split(".")[:2]) >= MUON_SINCE


def make_optimizer(tf: Any, keras: Any, config: CaeConfig, total_steps: int) -> Any:
    """Muon or AdamW with Keras' meaning of weight decay (times the learning rate); biases and BatchNorm's γ and β are left out of it.

    Muon (Jordan 2024; scaled as in Liu et al. 2025, arXiv 2502.16982) makes the steps of the two dense layers orthogonal, so that
    directions in which good pictures vary little are learned as fast as those in which they vary most; other weights go with AdamW.
    """
    options = {"weight_decay": config.weight_decay, "global_clipnorm": GLOBAL_CLIPNORM}
    if config.optimizer == "muon":
        kind, options["adam_weight_decay"] = keras.optimizers.Muon, config.weight_decay
    else:
        kind = keras.optimizers.AdamW
    if not tf.distribute.has_strategy():
        kind = fused(tf, kind)
    optimizer = kind(learning_rate(keras, config, total_steps), **options)
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    return keras.optimizers.LossScaleOptimizer(optimizer) if config.precision == "mixed_float16" else optimizer


def fused(tf: Any, kind: Any) -> Any:
    """Keras' Muon or AdamW by the same formulas in fewer passes over the weights; on one device only, since on several a variable has
    several handles.

    Adam's update is TensorFlow's fused kernel in place of a dozen operations. Muon's Newton-Schulz iterations act on the small Gram matrix,
    of side `latent_dim`, in place of the wide gradient: the iterates are polynomials of it times the gradient either way, and agree within
    4e-4 where the gradient is of low rank and 2e-6 where it is not (speed: benchmarks/train_step.py). Only where nothing but the CPU
    computes: a GPU multiplies in TF32, with which products of the Gram matrix, not those with the gradient, run away.
    """
    on_gpu = bool(tf.config.list_logical_devices("GPU"))

    def adam(optimizer: Any, betas: tuple[float, float], slots: tuple[Any, Any], variable: Any, gradient: Any, rate: Any) -> None:
        step = tf.cast(optimizer.iterations + 1, variable.dtype)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=slots[0].value.handle,
            v=slots[1].value.handle,
            beta1_power=tf.pow(tf.cast(betas[0], variable.dtype), step),
            beta2_power=tf.pow(tf.cast(betas[1], variable.dtype), step),
            lr=tf.cast(rate, variable.dtype),
            beta1=betas[0],
            beta2=betas[1],
            epsilon=optimizer.epsilon,
            grad=tf.cast(gradient, variable.dtype),
        )

    class FusedAdamW(kind):  # type: ignore[misc]
        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            place = self._get_variable_index(variable)
            slots = self._momentums[place], self._velocities[place]
            adam(self, (self.beta_1, self.beta_2), slots, variable, gradient, learning_rate)

    class FusedMuon(kind):  # type: ignore[misc]
        def _adamw_update_step(self, gradient: Any, variable: Any, learning_rate: Any, m: Any, v: Any) -> None:
            adam(self, (self.adam_beta_1, self.adam_beta_2), (m, v), variable, gradient, learning_rate)

        def zeropower_via_newtonschulz5(self, x: Any, steps: int) -> Any:
            if on_gpu:
                return super().zeropower_via_newtonschulz5(x, steps)
            x = x / (tf.norm(x) + 1e-7)
            tall = x.shape[0] > x.shape[1]
            gram = tf.matmul(x, x, transpose_a=tall, transpose_b=not tall)
            product = unit = tf.eye(gram.shape[0], dtype=x.dtype)
            for _ in range(steps):
                factor = self.muon_a * unit + self.muon_b * gram + self.muon_c * gram @ gram
                product, gram = factor @ product, factor @ gram @ factor
            return x @ product if tall else product @ x

    return FusedMuon if kind.__name__ == "Muon" else FusedAdamW


def learning_rate(keras: Any, config: CaeConfig, total_steps: int) -> Any:
    """The schedule of `config`: constant, or linear warm-up and a cosine down to 0."""
    if config.schedule == "constant":
        return config.learning_rate
    warmup = round(config.warmup_fraction * total_steps)
    if not warmup:
        return keras.optimizers.schedules.CosineDecay(config.learning_rate, total_steps)
    return keras.optimizers.schedules.CosineDecay(
        0.0, max(1, total_steps - warmup), warmup_target=config.learning_rate, warmup_steps=warmup
    )
