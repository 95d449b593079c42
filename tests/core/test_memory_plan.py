"""The memory plan: numbers one can derive on paper, invariances, and every layer against the model Keras builds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app.core.errors import OptionError
from app.core.facts import Gpu
from app.core.memory_plan import CONTEXT_MIB, MemoryPlan, plan_memory
from app.ui.memory_need import fitting_batch

ROOT = Path(__file__).resolve().parent.parent.parent


def plan(**values: Any) -> MemoryPlan:
    return plan_memory(**{"image_size": 128, "channels": 1, "base_filters": 32, "latent_dim": 128, "batch_size": 16, **values})


def test_parameters_of_the_documented_network_on_paper() -> None:
    convolutions = 16 * (1 * 32 + 32 * 64 + 64 * 128 + 128 * 256)
    norms = 4 * (32 + 64 + 128 + 256)
    dense = 8 * 8 * 256 * 128 + 128 + 128 * 8 * 8 * 256 + 8 * 8 * 256
    decoder = 16 * (256 * 128 + 128 * 64 + 64 * 32 + 32 * 1) + 1 + 4 * (128 + 64 + 32)
    assert plan().parameters == convolutions + norms + dense + decoder == 5_590_913
    assert plan(centre=True).parameters == 5_590_913 + 2 * (2 * 128 * 128 + 1), "mean and variance of each pixel, before and after"
    assert plan().trainable == plan(centre=True).trainable == 5_590_913 - (2 * (32 + 64 + 128 + 256) + 2 * (128 + 64 + 32))


def test_parts_of_a_plan_on_paper() -> None:
    found = plan(batch_size=2)
    assert found.context_mib == CONTEXT_MIB
    assert found.weights_mib == pytest.approx(5_590_913 * 4 / 2**20)
    assert found.optimizer_mib == pytest.approx(2 * found.gradients_mib)
    dense = 2 * 8 * 8 * 256 * 128
    assert plan(optimizer="muon").optimizer_mib == pytest.approx(found.optimizer_mib - dense * 4 / 2**20)
    assert plan(batch_size=2, centre=True).activations_mib == pytest.approx(found.activations_mib + 2 * 4 * 128 * 128 / 2**20)
    # Kept for one picture, in values: the picture in and out, two of each stage's outputs, latent and the dense layer's output.
    stages = [64 * 64 * 32, 32 * 32 * 64, 16 * 16 * 128, 8 * 8 * 256, 16 * 16 * 128, 32 * 32 * 64, 64 * 64 * 32]
    values = 2 * 128 * 128 + 2 * sum(stages) + 128 + 8 * 8 * 256
    assert found.activations_mib == pytest.approx(2 * 4 * values / 2**20)
    assert found.backward_mib == pytest.approx(2 * 2 * 4 * 64 * 64 * 32 / 2**20)
    # The second convolution reads 4 × 4 × 32 values for each of its 32 × 32 outputs.
    assert found.workspace_mib == pytest.approx(2 * 4 * 32 * 32 * 16 * 32 / 2**20)
    assert found.need_mib == pytest.approx(sum(mib for _, mib in found.parts))


def test_only_the_batch_grows_with_the_batch() -> None:
    small, large = plan(batch_size=1), plan(batch_size=64)
    assert large.fixed_mib == small.fixed_mib
    assert large.need_mib - large.fixed_mib == pytest.approx(64 * (small.need_mib - small.fixed_mib))
    assert large.per_picture_mib == pytest.approx(small.per_picture_mib)


def test_half_precision_halves_the_activations_and_not_the_optimizer() -> None:
    full, half = plan(), plan(precision="mixed_bfloat16")
    assert half.optimizer_mib == full.optimizer_mib
    assert half.gradients_mib == full.gradients_mib
    assert half.weights_mib > full.weights_mib
    assert full.activations_mib / 2 < half.activations_mib < full.activations_mib * 0.6
    assert half.loss_mib == full.loss_mib


def test_suggested_threshold_lets_its_own_batch_through() -> None:
    for batch in (1, 16, 64):
        found = plan(batch_size=batch)
        assert found.suggested_threshold_mib % 64 == 0
        assert found.suggested_threshold_mib >= found.need_mib
        assert found.largest_batch(found.suggested_threshold_mib) >= batch


def test_largest_batch_grows_with_the_memory_and_is_zero_where_nothing_fits() -> None:
    found = plan()
    batches = [found.largest_batch(free) for free in (0, 400, 887, 2048, 16376)]
    assert batches == sorted(batches)
    assert batches[:2] == [0, 0]
    assert batches[-1] > batches[-2] > 16


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        (Gpu(0, None, "A100", 40960, 30000, mig="parent"), "none: divided by MIG, only its slices compute"),
        (Gpu(0, None, "A100 MIG 1g.5gb", 4864, 4780, mig="1g.5gb"), None),
        (Gpu(0, None, "A100", 40960, 400), "none"),
        (Gpu(0, None, "A100", 40960, None), "–"),
        (Gpu(0, None, "A100", 40960, 30000), "512 (the largest allowed)"),
    ],
)
def test_the_batch_that_fits_a_gpu_in_words(gpu: Gpu, words: str | None) -> None:
    assert fitting_batch(plan(), gpu) == (words or str(plan().largest_batch(gpu.free_mib or 0)))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"image_size": 100}, "image_size: expected a multiple of 16 (four stages of stride 2), got 100."),
        ({"image_size": 0}, "image_size: expected a multiple of 16"),
        ({"batch_size": 0}, "batch_size: expected a whole number of at least 1, got 0."),
        ({"precision": "float64"}, "precision: expected one of float32, mixed_bfloat16, mixed_float16, got 'float64'."),
    ],
)
def test_options_that_do_not_fit(values: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError) as error:
        plan(**values)
    assert words in str(error.value)


SIZES = [
    {"image_size": 128, "base_filters": 32, "latent_dim": 128, "channels": 1, "precision": "float32"},
    {"image_size": 64, "base_filters": 8, "latent_dim": 16, "channels": 3, "precision": "float32", "centre": True},
    {"image_size": 96, "base_filters": 4, "latent_dim": 2, "channels": 3, "precision": "mixed_bfloat16"},
    {"image_size": 256, "base_filters": 16, "latent_dim": 100, "channels": 1, "precision": "float32"},
]

BUILD = """
import json, math, sys
from app.cae.cae_keras import build_cae
from app.cae.config import make_config
models = []
for options in json.loads(sys.argv[1]):
    channels = options.pop("channels")
    centre = "yes" if options.pop("centre", False) else "no"
    model = build_cae(make_config(options | {"centre": centre}), channels=channels)
    models.append({
        "layers": [(layer.name, type(layer).__name__, list(layer.output.shape[1:]), layer.count_params()) for layer in model.layers],
        "trainable": sum(math.prod(weight.shape) for weight in model.trainable_weights),
    })
print(json.dumps(models))
"""


@pytest.mark.tensorflow
def test_every_layer_as_keras_builds_it() -> None:
    done = subprocess.run([sys.executable, "-c", BUILD, json.dumps(SIZES)], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    for options, built in zip(SIZES, json.loads(done.stdout.splitlines()[-1]), strict=True):
        found = plan_memory(**options, batch_size=1)  # type: ignore[arg-type]
        assert [[layer.name, layer.kind, list(layer.output_shape), layer.parameters] for layer in found.layers] == built["layers"]
        assert found.trainable == built["trainable"]
