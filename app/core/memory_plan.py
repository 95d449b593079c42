"""The VRAM the autoencoder needs to train, layer by layer, from its shapes alone (pure).

The network is the one `app.cae.cae_keras.build_cae` builds: a test compares every layer's shape and parameters with Keras'.
What is kept between the forward and the backward pass follows TensorFlow's kernels: a convolution's output (BatchNorm's
gradient reads it) and the ELU's (its own gradient and the next convolution read it); BatchNorm's output is not, because ELU
writes over it; flatten and reshape share their input's memory.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Literal

from app.core.errors import OptionError

Precision = Literal["float32", "mixed_bfloat16", "mixed_float16"]

KERNEL = 4
STAGES = (1, 2, 4, 8)
"""Filters of the four stride-2 stages, as multiples of the base."""
STRIDE_PRODUCT = 2 ** len(STAGES)
MIB = 2**20

CONTEXT_MIB = 512.0
"""CUDA context with cuDNN and cuBLAS handles: 300-500 MiB on current GPUs, rounded up; not measured here."""
SSIM_WINDOW = 11
HEADROOM = 1.1
"""TensorFlow's allocator rounds blocks up and fragments; the suggested threshold leaves a tenth for it."""
_THRESHOLD_STEP_MIB = 64
_COMPUTE_BYTES = {"float32": 4, "mixed_bfloat16": 2, "mixed_float16": 2}


@dataclass(frozen=True)
class LayerPlan:
    """One layer, for one picture."""

    name: str
    kind: str
    """Keras' class of the layer."""
    output_shape: tuple[int, ...]
    """Without the batch axis: (H, W, C) or (units,)."""
    parameters: int
    """All of them, moving statistics of BatchNorm included."""
    trainable: int
    activation_bytes: int
    """Size of the output for one picture, in the precision it is computed in."""
    kept: bool
    """Whether it stays in memory until the backward pass."""


@dataclass(frozen=True)
class MemoryPlan:
    """What training needs at its peak, MiB. `need_mib` is the sum of the parts, which `parts` lists with their names."""

    layers: tuple[LayerPlan, ...]
    batch_size: int
    precision: str
    weights_mib: float
    """Float32 weights, and their copy in the precision computed in."""
    gradients_mib: float
    optimizer_mib: float
    """Float32 slots: AdamW keeps two for each trainable weight, Muon one for those of the dense layers. What Muon
    computes with while it steps comes when the activations are gone, and is not counted."""
    activations_mib: float
    """Kept for the backward pass, whole batch."""
    backward_mib: float
    """Two gradients of the largest activation, whole batch."""
    loss_mib: float
    """SSIM: four moments before, between and after the two passes of the window, and the maps computed from them; whole batch."""
    workspace_mib: float
    """The largest convolution's unfolded input, whole batch: what a cuDNN algorithm that is not implicit may ask for."""
    context_mib: float

    @property
    def parameters(self) -> int:
        return sum(layer.parameters for layer in self.layers)

    @property
    def trainable(self) -> int:
        return sum(layer.trainable for layer in self.layers)

    @property
    def parts(self) -> tuple[tuple[str, float], ...]:
        """(name, MiB) of each part, in the order they come to be."""
        return (
            ("framework context", self.context_mib),
            ("weights", self.weights_mib),
            ("optimizer slots", self.optimizer_mib),
            ("gradients", self.gradients_mib),
            ("activations", self.activations_mib),
            ("backward pass", self.backward_mib),
            ("SSIM", self.loss_mib),
            ("convolution workspace", self.workspace_mib),
        )

    @property
    def need_mib(self) -> float:
        return sum(mib for _, mib in self.parts)

    @property
    def fixed_mib(self) -> float:
        """What does not grow with the batch."""
        return self.context_mib + self.weights_mib + self.optimizer_mib + self.gradients_mib

    @property
    def per_picture_mib(self) -> float:
        return (self.need_mib - self.fixed_mib) / self.batch_size

    @property
    def suggested_threshold_mib(self) -> int:
        """Need with headroom, rounded up to 64 MiB: a threshold with which this training fits any GPU that passes it."""
        return math.ceil(self.need_mib * HEADROOM / _THRESHOLD_STEP_MIB) * _THRESHOLD_STEP_MIB

    def largest_batch(self, free_mib: float) -> int:
        """Pictures a step that fit into `free_mib`, headroom kept; 0 when not even one does."""
        return max(0, math.floor((free_mib / HEADROOM - self.fixed_mib) / self.per_picture_mib))


def plan_memory(
    *,
    image_size: int,
    channels: int,
    base_filters: int,
    latent_dim: int,
    batch_size: int,
    precision: str = "float32",
    centre: bool = False,
    optimizer: str = "adamw",
) -> MemoryPlan:
    """The plan for these options.

    Args:
        image_size: side of the square the network sees, px; a multiple of 16.
        channels: 1 or 3.
        precision: of the hidden layers; `float32`, `mixed_bfloat16` or `mixed_float16`. Weights, loss and optimizer stay float32.
        centre: whether the network works on differences from the mean picture.
        optimizer: `muon` or `adamw`.

    Raises:
        OptionError: a size that four stride-2 stages do not divide, a number below 1, or an unknown precision.
    """
    _check(image_size=image_size, channels=channels, base_filters=base_filters, latent_dim=latent_dim, batch_size=batch_size)
    if precision not in _COMPUTE_BYTES:
        raise OptionError(f"precision: expected one of {', '.join(_COMPUTE_BYTES)}, got {precision!r}.")
    width = _COMPUTE_BYTES[precision]
    layers = tuple(_layers(image_size, channels, base_filters, latent_dim, width, centre))
    weights = sum(layer.parameters for layer in layers)
    trainable = sum(layer.trainable for layer in layers)
    orthogonal = sum(latent_dim * math.prod(layer.output_shape) for layer in layers if layer.name in ("flatten", "unlatent"))
    slots = 2 * trainable - (orthogonal if optimizer == "muon" else 0)
    largest = max(layer.activation_bytes for layer in layers)
    return MemoryPlan(
        layers=layers,
        batch_size=batch_size,
        precision=precision,
        weights_mib=(weights * 4 + (trainable * width if width < 4 else 0)) / MIB,
        gradients_mib=trainable * 4 / MIB,
        optimizer_mib=slots * 4 / MIB,
        activations_mib=batch_size * sum(layer.activation_bytes for layer in layers if layer.kept) / MIB,
        backward_mib=batch_size * 2 * largest / MIB,
        loss_mib=batch_size * _ssim_bytes(image_size, channels) / MIB,
        workspace_mib=batch_size * _workspace_bytes(layers, width) / MIB,
        context_mib=CONTEXT_MIB,
    )


def _check(*, image_size: int, **counts: int) -> None:
    if image_size < STRIDE_PRODUCT or image_size % STRIDE_PRODUCT:
        raise OptionError(f"image_size: expected a multiple of {STRIDE_PRODUCT} (four stages of stride 2), got {image_size}.")
    for name, value in counts.items():
        if value < 1:
            raise OptionError(f"{name}: expected a whole number of at least 1, got {value}.")


def _layers(size: int, channels: int, base: int, latent: int, width: int, centre: bool) -> list[LayerPlan]:
    """Every layer in order; `width`: bytes of a computed value."""
    rows = [LayerPlan("picture", "InputLayer", (size, size, channels), 0, 0, size * size * channels * 4, True)]
    if centre:
        rows.append(_normalization("centre", (size, size, channels)))
    inputs = channels
    filters = [base * multiple for multiple in STAGES]
    for number, outputs in enumerate(filters, start=1):
        size //= 2
        rows += _stage(f"encoder_{number}", "Conv2D", size, inputs, outputs, width)
        inputs = outputs
    units = size * size * inputs
    rows += [
        _row("flatten", "Flatten", (units,), 0, width, kept=False),
        _row("latent", "Dense", (latent,), units * latent + latent, width),
        _row("unlatent", "Dense", (units,), latent * units + units, width),
        _row("unflatten", "Reshape", (size, size, inputs), 0, width, kept=False),
    ]
    for number, outputs in enumerate(reversed(filters[:-1]), start=1):
        size *= 2
        rows += _stage(f"decoder_{number}", "Conv2DTranspose", size, inputs, outputs, width)
        inputs = outputs
    size *= 2
    picture = (size, size, channels)
    rows.append(_row("decoder_4_conv", "Conv2DTranspose", picture, KERNEL**2 * inputs * channels + channels, width, kept=width < 4))
    rows.append(_normalization("reconstruction", picture) if centre else _row("reconstruction", "Activation", picture, 0, 4))
    return rows


def _normalization(name: str, shape: tuple[int, ...]) -> LayerPlan:
    """Mean and variance of each pixel, and a counter; float32 whatever the precision."""
    values = math.prod(shape)
    return LayerPlan(name, "Normalization", shape, 2 * values + 1, 0, values * 4, True)


def _stage(name: str, kind: str, size: int, inputs: int, outputs: int, width: int) -> list[LayerPlan]:
    shape = (size, size, outputs)
    norm = LayerPlan(f"{name}_norm", "BatchNormalization", shape, 4 * outputs, 2 * outputs, math.prod(shape) * width, False)
    return [
        _row(f"{name}_conv", kind, shape, KERNEL**2 * inputs * outputs, width),
        norm,
        _row(f"{name}_elu", "ELU", shape, 0, width),
    ]


def _row(name: str, kind: str, shape: tuple[int, ...], parameters: int, width: int, *, kept: bool = True) -> LayerPlan:
    return LayerPlan(name, kind, shape, parameters, parameters, math.prod(shape) * width, kept)


def _ssim_bytes(size: int, channels: int) -> int:
    """Float32, one picture: 4 moments at full size, after the vertical, after the horizontal pass, and about ten maps of them."""
    inner = max(size - SSIM_WINDOW + 1, 0)
    return 4 * channels * (4 * size * size + 4 * inner * size + 14 * inner * inner)


def _workspace_bytes(layers: tuple[LayerPlan, ...], width: int) -> int:
    """One picture: 4·4 input values for each position of the smaller side of the widest convolution."""
    sizes = [0]
    for before, layer in itertools.pairwise(layers):
        if layer.kind == "Conv2D":
            sizes.append(math.prod(layer.output_shape[:2]) * before.output_shape[2])
        if layer.kind == "Conv2DTranspose":
            sizes.append(math.prod(before.output_shape[:2]) * layer.output_shape[2])
    return max(sizes) * KERNEL**2 * width
