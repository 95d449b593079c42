"""Every option once: name, type, bounds, help. The command line, the form and the run folder are made from it.

A field's `json_schema_extra` carries what a form needs beyond the type: `group` (the folded section it stands in) and `label`.
The preset *Recommended* is recipe F with score R and what was found to improve them (docs/quality.md), *As documented* the network as it is
usually described; between the two lies up to 0.3 of image AUROC on real sets.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from app.cae.config_words import in_plain_words
from app.core.device_policy import DEFAULT_MIN_VRAM_MIB
from app.core.device_word import refuse_meaningless_device
from app.core.errors import OptionError

LEAST_BACKGROUND = 4.0
"""Smallest `background_sigma` but 0, px at 128: four times the usual smoothing."""

FEW_PICTURES = 150
"""Training pictures below which a set is small: `centre` auto does not centre, `mixtures` auto mixes. Measured (docs/quality.md): centring
helps with 400 and 626 and harms with 51, mixing the other way round."""

STRIDE_PRODUCT = 16
"""Four stride-2 stages halve the picture four times: sizes must be multiples of 2**4."""


def _option(default: Any, group: str, label: str, help_: str, **bounds: Any) -> Any:
    return Field(default, description=help_, json_schema_extra={"group": group, "label": label}, **bounds)


class CaeConfig(BaseModel):
    """What a run is asked to do. Frozen; unknown options are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    data: str = _option("elpv-mono", "Data", "Data set", "elpv-mono, elpv-poly, synthetic, or a folder in a layout that docs/data.md lists")
    preset: Literal["recommended", "documented", "quick", "thorough"] = _option(
        "recommended",
        "Data",
        "Preset",
        "values of all options not given: recommended (recipe F, score R, improved), documented (as usually described), "
        "quick (recommended, few steps), thorough (recommended, three times the steps)",
    )
    image_size: int = _option(
        128, "Data", "Image size", "side of the square the network sees, px; a multiple of 16", ge=64, le=512, multiple_of=16
    )
    channels: Literal["auto", "grey", "colour"] = _option(
        "auto", "Data", "Channels", "auto keeps grey pictures as one channel, which makes SSIM and the outer layers a third of the work"
    )
    val_fraction: float = _option(
        0.15, "Data", "Held-out share", "share of the good training pictures held out for early stopping and the threshold", ge=0.0, le=0.5
    )
    seed: int = _option(0, "Data", "Seed", "of the split, the weights, the masks and the order of pictures", ge=0, le=2**31 - 1)

    latent_dim: int = _option(128, "Network", "Latent size", "units of the dense bottleneck", ge=2, le=1024)
    base_filters: int = _option(32, "Network", "Filters", "channels of the first stage; each further stage doubles them", ge=4, le=128)
    centre: Literal["auto", "yes", "no"] = _option(
        "auto",
        "Network",
        "Centre",
        "yes: the network is given, and gives back, the difference from the mean training picture; no: the picture itself, through a "
        f"sigmoid; auto: yes from {FEW_PICTURES} training pictures on. With fewer, differences were learnt by heart and maps less clear",
    )
    batchnorm_momentum: float = _option(
        0.9, "Network", "BatchNorm momentum", "0.9 follows short runs; Keras' own 0.99 lags behind them", ge=0.0, lt=1.0
    )

    mask_ratio: float = _option(
        0.25, "Masking", "Mask ratio", "share of patches hidden from the network while it trains; 0 is off", ge=0.0, le=0.9
    )
    mask_patch: int = _option(16, "Masking", "Patch size", "side of a masked patch, px; must divide the image size", ge=4, le=128)
    masked_pictures: float = _option(
        0.5,
        "Masking",
        "Masked pictures",
        "share of pictures that are masked at all; a network that never sees an unmasked one scores them badly",
        ge=0.0,
        le=1.0,
    )
    mask_fill: Literal["mean", "zero"] = _option(
        "mean", "Masking", "Mask fill", "what stands in a masked patch: the mean training picture, or 0"
    )

    standardise: Literal["picture", "none"] = _option(
        "picture",
        "Loss",
        "Standardise",
        "picture: clip(0.5 + (I - mean) / (8 (std + 0.01)), 0, 1) for each picture; none: raw values in 0..1",
    )
    ssim_weight: float = _option(0.5, "Loss", "SSIM weight a", "loss = a (1 - SSIM) + (1 - a) s MSE", ge=0.0, le=1.0)
    mse_scale: float = _option(
        20.0, "Loss", "MSE scale s", "brings MSE to the size of 1 - SSIM; with 1 it is under 2 % of the loss", gt=0.0, le=1000.0
    )

    epochs: int | None = _option(
        None, "Training", "Epochs", "passes over the training pictures; not given: as many as `steps` needs", ge=1, le=10_000
    )
    steps: int = _option(1150, "Training", "Optimizer steps", "least number of steps when epochs are not given", ge=1, le=1_000_000)
    batch_size: int = _option(16, "Training", "Batch size", "pictures a step; below 4 BatchNorm statistics are poor", ge=1, le=512)
    optimizer: Literal["muon", "adamw"] = _option(
        "muon",
        "Training",
        "Optimizer",
        "muon: orthogonal steps for the two dense layers, AdamW for all others; rebuilds good pictures as well after about a third of "
        "AdamW's steps, each of which takes an eighth longer",
    )
    learning_rate: float = _option(1e-3, "Training", "Learning rate", "of the optimizer, at its highest", gt=0.0, le=1.0)
    weight_decay: float = _option(
        1e-4,
        "Training",
        "Weight decay",
        "of the optimizer; Keras multiplies it by the learning rate; biases and BatchNorm are left out",
        ge=0.0,
        le=1.0,
    )
    schedule: Literal["cosine", "constant"] = _option("cosine", "Training", "Schedule", "cosine: warm-up, then to 0 over the whole run")
    warmup_fraction: float = _option(
        0.05, "Training", "Warm-up share", "share of the steps over which the rate rises (cosine only)", ge=0.0, le=0.5
    )
    patience: int = _option(
        0,
        "Training",
        "Patience",
        "epochs without a better validation loss after which training stops; 0 never stops early. The best weights are kept either way",
        ge=0,
        le=10_000,
    )
    augment: Literal["none", "texture", "object"] = _option(
        "none",
        "Training",
        "Augmentation",
        "texture: flips and quarter turns; object: small shifts and brightness",
    )
    mixtures: Literal["auto", "yes", "no"] = _option(
        "auto",
        "Training",
        "Mixtures",
        "yes: the network learns λ x + (1 - λ) x' of two training pictures, λ from -0.5 to 1.5, in place of x; auto: yes below "
        f"{FEW_PICTURES} training pictures, which would be learnt by heart. Both come from one batch, so a batch of 1 is not mixed",
    )
    precision: Literal["float32", "mixed_bfloat16", "mixed_float16"] = _option(
        "float32", "Training", "Precision", "of the hidden layers; output and loss stay float32. mixed_float16 is for GPUs"
    )

    error_map: Literal["absolute", "squared", "ssim", "mixed"] = _option(
        "absolute", "Scoring", "Error map", "|x-x̂|, (x-x̂)², 1-SSIM, or b (1-SSIM) + (1-b) |x-x̂|; channel mean"
    )
    error_mix: float = _option(0.5, "Scoring", "Error mix b", "share of 1-SSIM in the mixed error map", ge=0.0, le=1.0)
    smoothing_sigma: float = _option(
        1.0, "Scoring", "Smoothing σ", "of the Gaussian over the error map, px at 128; scales with the image size", ge=0.0, le=16.0
    )
    correct_mean: bool = _option(
        True,
        "Scoring",
        "Add residual",
        "add to every reconstruction what it lacks, pixel by pixel, on the average training picture; from 20 training pictures on",
    )
    calibration: Literal["pixel", "global", "none"] = _option(
        "pixel", "Scoring", "Calibration", "z value against good pictures, per pixel (shrunk towards the global values), global, or none"
    )
    pooling: Literal["top", "max", "mean"] = _option(
        "top", "Scoring", "Pooling", "how a map becomes an image score: mean of its largest pixels, maximum, or mean"
    )
    top_fraction: float = _option(0.01, "Scoring", "Top share", "share of pixels pooled by `top`", gt=0.0, le=1.0)
    background_sigma: float = _option(
        32.0,
        "Scoring",
        "Background σ",
        "image scores are pooled from what stands out of the map's own blur by this Gaussian, px at 128 (scales with the image size), so "
        "that pictures rebuilt a little worse everywhere do not stand in the way; 0 pools the map itself (score R), as do mean pooling "
        "and a top share above 0.5",
        ge=0.0,
        le=128.0,
    )
    whole_weight: float = _option(
        1.5,
        "Scoring",
        "Whole picture W",
        "weight of how unlike good pictures a picture is as a whole (brightness, contrast, texture) beside its pooled errors, times the "
        "share of good pictures that the network cannot rebuild; 0 judges by maps alone. 1.5 moved image AUROC by +0.09, +0.03 and -0.00 "
        "on three real sets",
        ge=0.0,
        le=10.0,
    )
    threshold_rule: Literal["quantile", "sigma"] = _option(
        "quantile", "Scoring", "Threshold rule", "image threshold from the held-out good scores: a quantile, or mean + k σ"
    )
    threshold_quantile: float = _option(0.95, "Scoring", "Threshold quantile", "of the held-out good scores", gt=0.0, le=1.0)
    threshold_sigma: float = _option(3.0, "Scoring", "Threshold k", "of mean + k σ", ge=0.0, le=20.0)

    device: str = _option("auto", "Device", "Device", "auto, cpu, gpu, or one GPU by UUID or index")
    min_vram_mib: int = _option(
        DEFAULT_MIN_VRAM_MIB, "Device", "Free VRAM needed", "MiB a GPU must have free to be chosen", ge=0, le=1_048_576
    )
    gpus: int = _option(
        1,
        "Device",
        "GPUs",
        "GPUs that share one training (MirroredStrategy), each with the free VRAM needed; 1, since this network is small: "
        "runs side by side, one a GPU, use several GPUs better",
        ge=1,
        le=16,
    )
    intra_op_threads: int | None = _option(
        None, "Device", "Intra-op threads", "threads inside one operation; not given: the usable cores", ge=1, le=1024
    )
    inter_op_threads: int | None = _option(
        None,
        "Device",
        "Inter-op threads",
        "operations run at once; not given: the usable cores (1 costs 10-20 % of this network's throughput on two cores)",
        ge=1,
        le=1024,
    )

    tensorboard: bool = _option(
        False,
        "Records",
        "TensorBoard files",
        "write the history also as TensorBoard event files into the run's folder (extra tensorboard); off, since the pages show it all",
    )

    @model_validator(mode="before")
    @classmethod
    def _preset_fills_what_is_not_given(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        name = values.get("preset", "recommended")
        preset = dict(PRESETS.get(name, {})) if isinstance(name, str) else {}
        given = {option: value for option, value in values.items() if value is not None}
        if "steps" in given and "epochs" not in given:
            preset.pop("epochs", None)  # who asks for steps means them
        return {**preset, **given}

    @field_validator("centre", mode="before")
    @classmethod
    def _centre_was_a_switch_once(cls, value: Any) -> Any:
        return ("no", "yes")[value] if isinstance(value, bool) else value

    @field_validator("device")
    @classmethod
    def _a_device_is_named(cls, value: str) -> str:
        refuse_meaningless_device(value)  # its OptionError passes through pydantic as it is
        return value

    @model_validator(mode="after")
    def _patches_tile_the_picture(self) -> Self:
        if self.mask_ratio > 0 and self.image_size % self.mask_patch:
            raise ValueError(
                f"mask_patch: expected a divisor of image_size {self.image_size}, got {self.mask_patch}. Choose 16, or set mask_ratio to 0."
            )
        return self

    @model_validator(mode="after")
    def _a_background_is_wider_than_a_defect_is_sharp(self) -> Self:
        if 0 < self.background_sigma < LEAST_BACKGROUND:
            raise ValueError(
                f"background_sigma: expected 0 or at least {LEAST_BACKGROUND:g} px, got {self.background_sigma:g}: "
                "less would take the defects themselves away."
            )
        return self

    def centred(self, train_pictures: int) -> bool:
        """Whether `centre` means yes for `train_pictures` pictures."""
        return self.centre == "yes" or (self.centre == "auto" and train_pictures >= FEW_PICTURES)

    def mixed(self, train_pictures: int) -> bool:
        """Whether `mixtures` means yes for `train_pictures` pictures."""
        return self.mixtures == "yes" or (self.mixtures == "auto" and train_pictures < FEW_PICTURES)

    @property
    def steps_ignored(self) -> bool:
        """Whether `steps` is another number than the preset's and yet has no effect, since epochs are given."""
        usual = PRESETS[self.preset].get("steps", CaeConfig.model_fields["steps"].default)
        return self.epochs is not None and self.steps != usual

    def epochs_for(self, train_pictures: int) -> int:
        """Epochs this configuration means for `train_pictures` pictures: `epochs` if given, else enough for `steps`."""
        if self.epochs is not None:
            return self.epochs
        return max(1, math.ceil(self.steps / self.steps_per_epoch(train_pictures)))

    def steps_per_epoch(self, train_pictures: int) -> int:
        return max(1, math.ceil(train_pictures / self.batch_size))


PRESETS: dict[str, dict[str, Any]] = {
    "recommended": {},
    "quick": {"steps": 150},
    "thorough": {"steps": 3450},
    "documented": {
        "batchnorm_momentum": 0.99,
        "masked_pictures": 1.0,
        "mask_fill": "zero",
        "standardise": "none",
        "ssim_weight": 0.84,
        "mse_scale": 1.0,
        "centre": "no",
        "epochs": 20,
        "mixtures": "no",
        "optimizer": "adamw",
        "schedule": "constant",
        "patience": 5,
        "smoothing_sigma": 0.0,
        "correct_mean": False,
        "calibration": "none",
        "top_fraction": 0.002,
        "background_sigma": 0.0,
        "whole_weight": 0.0,
    },
}
"""What each preset changes against the fields' own defaults, which are the preset *recommended*."""


def make_config(values: Mapping[str, Any]) -> CaeConfig:
    """A checked configuration.

    Raises:
        OptionError: one sentence for the first option that does not fit, with what was expected and what came.
    """
    try:
        return CaeConfig.model_validate(dict(values))
    except ValidationError as error:
        raise OptionError(in_plain_words(error.errors()[0])) from None


BEFORE: Mapping[str, Any] = {
    "centre": "no",
    "mixtures": "no",
    "optimizer": "adamw",
    "correct_mean": False,
    "background_sigma": 0.0,
    "whole_weight": 0.0,
    "tensorboard": False,
    "gpus": 1,
}
"""What runs did that were made before these options were there: their config.json does not name them."""


def read_config(path: Path) -> CaeConfig:
    """The configuration a run folder was made with.

    Raises:
        OptionError: the file is missing, is not JSON or does not hold a configuration.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise OptionError(f"{path.name}: expected the configuration of a run as JSON, got {error}.") from None
    if not isinstance(values, dict):
        raise OptionError(f"{path.name}: expected a JSON object, got {type(values).__name__}.")
    return make_config({**BEFORE, **values})
