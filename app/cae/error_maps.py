"""From pictures and reconstructions to error maps, and from maps to image scores. NumPy and SciPy only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray
from scipy.fft import dctn, idctn
from scipy.ndimage import gaussian_filter

from app.cae.config import CaeConfig
from app.cae.rows import Rows, parts
from app.cae.training import Floats

Doubles = NDArray[np.float64]

SIGMA_AT = 128.0
"""Image side, px, at which `smoothing_sigma` is stated."""

SSIM_SIGMA = 1.5
SSIM_WINDOW = 11
SSIM_C1 = 0.01**2
SSIM_C2 = 0.03**2
"""σ and side of the window, and constants, of SSIM for values in 0..1 (Wang et al. 2004), as `tf.image.ssim` has them."""


LARGEST_TOP = 0.5
"""Share of pixels pooled above which a map's background is part of what is asked for."""


@dataclass(frozen=True)
class ScoringRule:
    """How errors become scores; the same for every picture of a run. Fields as in `CaeConfig`."""

    standardise: str
    error_map: Literal["absolute", "squared", "ssim", "mixed"]
    error_mix: float
    smoothing_sigma: float
    calibration: Literal["pixel", "global", "none"]
    pooling: Literal["top", "max", "mean"]
    top_fraction: float
    background_sigma: float = 0.0

    @property
    def outlined_sigma(self) -> float:
        """Background that is taken off a map before it is pooled, and before a pixel is compared with the image threshold, px at 128: none
        where the mean is taken of all pixels or of more than `LARGEST_TOP`, for little or nothing of it would remain."""
        wide = self.pooling == "mean" or (self.pooling == "top" and self.top_fraction > LARGEST_TOP)
        return 0.0 if wide else self.background_sigma

    @classmethod
    def of(cls, config: CaeConfig) -> Self:
        return cls(**{name: getattr(config, name) for name in cls.__dataclass_fields__})


def error_maps(pictures: Floats, reconstructions: Floats, rule: ScoringRule) -> Floats:
    """Smoothed errors, channel mean.

    Args:
        pictures: (N, H, W, C) as the network saw them, 0..1.
        reconstructions: the same shape.
        rule: |x-x̂|, (x-x̂)², 1-SSIM or b (1-SSIM) + (1-b) |x-x̂|; then a Gaussian of σ · W / 128 px with mirrored edges.

    Returns:
        float32 (N, H, W).
    """
    difference = pictures - reconstructions
    if rule.error_map == "absolute":
        maps = np.abs(difference).mean(axis=-1)
    elif rule.error_map == "squared":
        maps = np.square(difference).mean(axis=-1)
    else:
        maps = 1.0 - ssim_maps(pictures, reconstructions)
        if rule.error_map == "mixed":
            maps = rule.error_mix * maps + (1.0 - rule.error_mix) * np.abs(difference).mean(axis=-1)
    sigma = rule.smoothing_sigma * maps.shape[-1] / SIGMA_AT
    if sigma > 0:
        maps = gaussian_filter(maps, sigma=(0, sigma, sigma), mode="reflect")
    return np.ascontiguousarray(maps, dtype=np.float32)


def ssim_maps(pictures: Floats, reconstructions: Floats) -> Floats:
    """SSIM of each pixel's 11×11 Gaussian neighbourhood, channel mean; (N, H, W), edges mirrored."""

    def blurred(values: Floats) -> Floats:
        result: Floats = gaussian_filter(
            values, sigma=(0, SSIM_SIGMA, SSIM_SIGMA, 0), truncate=SSIM_WINDOW // 2 / SSIM_SIGMA, mode="reflect"
        )
        return result

    mean_x, mean_y = blurred(pictures), blurred(reconstructions)
    cross, both = mean_x * mean_y, mean_x**2 + mean_y**2
    squares, product = blurred(pictures**2 + reconstructions**2), blurred(pictures * reconstructions)
    luminance = (2 * cross + SSIM_C1) / (both + SSIM_C1)
    structure = (2 * (product - cross) + SSIM_C2) / (squares - both + SSIM_C2)
    result: Floats = (luminance * structure).mean(axis=-1)
    return result


def pooled(maps: Rows, rule: ScoringRule) -> Doubles:
    """Image scores, float64 (N,): mean of the round(top_fraction · H · W) largest pixels (at least one), maximum, or mean.

    With `background_sigma`, largest pixels are those of the map less its own background, so that a picture all of which is rebuilt a little
    worse than usual does not pass for one with a defect; not so where `ScoringRule.outlined_sigma` says.

    Args:
        maps: (N, H, W) float32.
        rule: its pooling and background.
    """
    return np.concatenate([np.empty(0), *(_pooled(maps[part], rule) for part in parts(maps))])


def background(maps: Floats, sigma: float) -> Floats:
    """`maps` (N, H, W) blurred by a Gaussian of `sigma` px, 2 or more, with mirrored edges, as a product of cosine transforms: what
    `scipy.ndimage.gaussian_filter` gives in mode reflect, without its cut-off tails, and its cost does not grow with σ."""
    wide = dctn(maps, axes=(1, 2))
    for axis in (1, 2):
        side = maps.shape[axis]
        damping = np.exp(-0.5 * np.square(np.pi * sigma * np.arange(side) / side)).astype(maps.dtype)
        wide *= damping[:, None] if axis == 1 else damping
    found: Floats = idctn(wide, axes=(1, 2), overwrite_x=True)
    return found


def standing_out(maps: Floats, sigma: float) -> Floats:
    """`maps` (N, H, W) less their background of `sigma` px at a side of 128; as they are with 0."""
    return maps - background(maps, sigma * maps.shape[-1] / SIGMA_AT) if sigma > 0 and len(maps) else maps


def _pooled(maps: Floats, rule: ScoringRule) -> Doubles:
    maps = standing_out(maps, rule.outlined_sigma)
    flat = maps.reshape(len(maps), maps.shape[1] * maps.shape[2])
    if rule.pooling == "max":
        largest: Doubles = flat.max(axis=1).astype(np.float64)
        return largest
    if rule.pooling == "top":
        top = max(1, round(rule.top_fraction * flat.shape[1]))
        flat = np.partition(flat, flat.shape[1] - top, axis=1)[:, -top:]
    scores: Doubles = flat.mean(axis=1, dtype=np.float64)
    return scores
