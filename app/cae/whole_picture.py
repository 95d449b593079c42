"""How unlike good pictures a picture is as a whole: what a map of local errors cannot see.

Two Mahalanobis distances. *Photometry*: logarithms of mean and standard deviation of the picture, the very two numbers that
standardising takes away. *Encoder*: mean and standard deviation over space of the second encoder stage's channels, which tell of
texture and grain everywhere in the picture. Covariances are shrunk (Ledoit and Wolf 2004), so that few pictures suffice.

The image score of a picture is then

    R + W · u · σ_R · (z_photometry + 0.4 · z_encoder)

R being the pooled error map (less its background, where the options say so), σ_R its standard deviation over held-out good pictures, z
distances standardised over good pictures, W the option `whole_weight`, and u the share of the held-out good pictures' variance that the
network leaves unexplained: where it rebuilds good pictures well, errors tell nearly everything; where it cannot, they tell little and the
whole picture counts for more. With W = 0 the score is R. What W, 0.4 and the second stage do is measured in docs/quality.md. NumPy and
scikit-learn only; labels are never seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from app.cae.rows import Rows
from app.cae.training import Floats, in_batches

Doubles = NDArray[np.float64]

ENCODER_SHARE = 0.4
"""Weight of the encoder's distance beside that of photometry."""

FEWEST_GOOD = 20
"""Good pictures below which no distance is fitted: two numbers of photometry and a covariance need some."""

FEWEST_HELD_OUT = 5
"""Held-out good pictures below which σ_R says nothing."""

FOLDS = 10
"""Parts of the good pictures, each measured against the others: a picture that a covariance was fitted to lies too close to it. With fewer
parts each fit sees so few of a small set's pictures that the usual distance comes out too large (simulated: 5 parts of 20 pictures, 128
features, new good pictures at z = -0.65; 10 parts: -0.31)."""

LEAST_DEVIATION, LEAST_VARIANCE, LEAST_SPREAD = 1e-3, 1e-3, 0.1
"""Floors of a feature's standard deviation, of the scaled features' variance and of distances' standard deviation: good pictures that are
all alike make others far away, not infinitely far. Ordinary features vary by 0.01 to 1, distances by about 0.7."""

DARKEST = 0.01
"""Added before logarithms, on the scale 0..1: a black or constant picture is far away, not infinitely far."""


def photometry(images: Rows) -> Doubles:
    """(N, 2): logarithms of mean and standard deviation of each picture (N, H, W, C), values in 0..1, all channels together."""
    found = np.empty((len(images), 2))
    for part in in_batches(len(images), 64):
        pixels = images[part].astype(np.float32) / 255.0
        found[part] = np.stack([pixels.mean(axis=(1, 2, 3)), pixels.std(axis=(1, 2, 3))], axis=1)
    return np.log(found + DARKEST)


@dataclass(frozen=True)
class Gaussian:
    """Mean and shrunk covariance of good pictures' features, and how far good pictures lie from it."""

    mean: Doubles
    """(D,)."""
    scale: Doubles
    """(D,) standard deviations; the covariance is that of features divided by them."""
    precision: Doubles
    """(D, D) inverse covariance."""
    usual: float
    """Mean distance of good pictures that the fit has not seen."""
    spread: float
    """Standard deviation of those distances."""

    @classmethod
    def fit(cls, features: Doubles) -> tuple[Self, Doubles]:
        """The fit to all of (N, D), N ≥ `FEWEST_GOOD`, and z values (N,) of the same pictures, each from a fit without its fold."""
        folds = np.random.default_rng(0).permutation(len(features)) % FOLDS
        distances = np.empty(len(features))
        for fold in range(FOLDS):
            mean, scale, precision = _fitted(features[folds != fold])
            distances[folds == fold] = _distances(features[folds == fold], mean, scale, precision)
        usual, spread = float(distances.mean()), float(distances.std())
        found = cls(*_fitted(features), usual, max(spread, LEAST_SPREAD))
        return found, (distances - found.usual) / found.spread

    def z(self, features: Doubles) -> Doubles:
        """(N,) distances of new pictures' features (N, D), in standard deviations above what is usual for good ones."""
        return (_distances(features, self.mean, self.scale, self.precision) - self.usual) / self.spread


def _fitted(features: Doubles) -> tuple[Doubles, Doubles, Doubles]:
    from sklearn.covariance import LedoitWolf

    mean = features.mean(axis=0)
    deviation = features.std(axis=0)
    scale = np.maximum(deviation, LEAST_DEVIATION)
    covariance = LedoitWolf(assume_centered=True).fit((features - mean) / scale).covariance_
    precision: Doubles = np.linalg.inv(covariance + LEAST_VARIANCE * np.eye(len(covariance)))
    return mean, scale, precision


def _distances(features: Doubles, mean: Doubles, scale: Doubles, precision: Doubles) -> Doubles:
    away = (features - mean) / scale
    found: Doubles = np.sqrt(np.maximum(0.0, np.einsum("nd,de,ne->n", away, precision, away, optimize=True)))
    return found


@dataclass(frozen=True)
class WholePicture:
    """The part of an image score that is not local."""

    photometry: Gaussian
    encoder: Gaussian
    unit: float
    """W · u · σ_R: what one standard deviation of distance adds to the score."""

    @classmethod
    def fit(cls, light: Doubles, features: Floats, unit: float) -> tuple[Self, Doubles]:
        """From good pictures' photometry (N, 2) and encoder features (N, D); also what each of them has added to its score, (N,)."""
        photo, photo_z = Gaussian.fit(light)
        encoder, encoder_z = Gaussian.fit(features.astype(np.float64))
        return cls(photo, encoder, unit), unit * (photo_z + ENCODER_SHARE * encoder_z)

    def added(self, images: Rows, features: Floats) -> Doubles:
        """What pictures (N, H, W, C) with encoder features (N, D) have added to their scores, (N,)."""
        return self.unit * (self.photometry.z(photometry(images)) + ENCODER_SHARE * self.encoder.z(features.astype(np.float64)))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What `scoring.npz` holds of it."""
        found: dict[str, NDArray[Any]] = {"whole_unit": np.array(self.unit)}
        for name in ("photometry", "encoder"):
            part: Gaussian = getattr(self, name)
            found |= {f"whole_{name}_{key}": np.asarray(getattr(part, key)) for key in Gaussian.__dataclass_fields__}
        return found

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self | None:
        """The reverse of `arrays`; None where the run has no such part. Raises KeyError or ValueError where something is missing or odd."""
        if "whole_unit" not in arrays:
            return None
        parts = {}
        for name in ("photometry", "encoder"):
            values = {key: arrays[f"whole_{name}_{key}"] for key in Gaussian.__dataclass_fields__}
            if not values["mean"].shape == values["scale"].shape == values["precision"].shape[:1] == values["precision"].shape[1:]:
                raise ValueError(f"the shapes of the {name} statistics do not agree")
            parts[name] = Gaussian(values["mean"], values["scale"], values["precision"], float(values["usual"]), float(values["spread"]))
        return cls(parts["photometry"], parts["encoder"], float(arrays["whole_unit"]))
