"""What the network gets wrong on good pictures again and again is put right: a constant picture is added to every reconstruction.

A convolutional network trained for minutes leaves a residual x - x̂ whose mean over good pictures is not zero: edges that are always there
and always a little soft. It says nothing about a picture, and in |x - x̂| it hides residuals of the opposite sign. The mean over the
training pictures, shrunk by n / (n + 10) for the noise of few, is therefore added to x̂ (image AUROC and AUPRO: docs/quality.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from app.cae.rows import Rows
from app.cae.training import Floats, in_batches, standardise

SHRINKAGE = 10.0
"""Pictures that a mean residual of zero counts for."""

FEWEST = 20
"""Training pictures below which nothing is added: few pictures are learnt by heart, and their residuals tell of themselves."""

BATCH = 32


class Forward(Protocol):
    """A forward pass that also tells of the picture as a whole."""

    def __call__(self, pictures: Floats, /) -> Floats:
        """float32 (N, H, W, C) in 0..1 → its reconstruction."""

    def with_features(self, pictures: Floats) -> tuple[Floats, Floats]:
        """Reconstructions, and features (N, D) of the encoder."""


@dataclass(frozen=True)
class Corrected:
    """A forward pass whose reconstructions have `offset` (H, W, C) added."""

    forward: Forward
    offset: Floats

    def __call__(self, pictures: Floats, /) -> Floats:
        """As `Forward`."""
        corrected: Floats = self.forward(pictures) + self.offset
        return corrected

    def with_features(self, pictures: Floats) -> tuple[Floats, Floats]:
        """As `Forward`."""
        rebuilt, features = self.forward.with_features(pictures)
        return rebuilt + self.offset, features


def mean_residual(images: Rows, forward: Forward, mode: str, tick: Callable[[int], None]) -> Floats:
    """The offset, float32 (H, W, C).

    Args:
        images: (N, H, W, C) uint8, the training pictures.
        forward: the model's.
        mode: as for `standardise`.
        tick: told how many more pictures are done; may raise to stop.
    """
    total = np.zeros(images.shape[1:], np.float64)
    for part in in_batches(len(images), BATCH):
        pictures = standardise(images[part], mode)
        total += (pictures - forward(pictures)).sum(axis=0, dtype=np.float64)
        tick(len(pictures))
    return (total / (len(images) + SHRINKAGE)).astype(np.float32)
