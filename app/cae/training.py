"""What training needs that is not TensorFlow: the input of a batch, the clock, the record of epochs. NumPy only.

Everything drawn at random is a function of (seed, epoch, batch), so that a resumed run sees what an uninterrupted one would have seen.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from app.cae.config import CaeConfig
from app.cae.reporting import Reporter, Row
from app.cae.rows import Rows

Floats = NDArray[np.float32]
Weights = list[NDArray[np.generic]]

WARMUP_STEPS = 5
"""First optimizer steps of a process, left out of every throughput: they trace, plan memory and fill caches."""

STANDARD_SPREAD = 8.0
"""Standard deviations of a picture that the range 0..1 spans (recipe F): ±4 σ around the mean."""

STANDARD_FLOOR = 0.01
"""Added to the standard deviation: a constant picture becomes 0.5 everywhere instead of a division by zero."""

LEAST_VARIANCE = 1e-4
"""Of pixels about the mean picture (σ of 0.01, as `STANDARD_FLOOR`): where pictures are nearly copies of one another, a masked patch would
be thousands of σ away, and gradients too small to be told from the optimizer's ε. Ordinary sets have 5e-4 to 6e-3."""

OBJECT_SHIFT = 0.03
"""Largest shift of the augmentation `object`, as a share of the side."""

OBJECT_BRIGHTNESS = 0.05
"""Largest change of level of the augmentation `object`, on the scale 0..1."""


MIXED = (-0.5, 1.5)
"""Bounds of λ in `mixtures`."""

MOST_RAISED = 2.0
"""Largest gain of contrast in `mixtures`; halves of two pictures that have nothing in common need 1.4."""


def standardise(images: NDArray[np.uint8], mode: str) -> Floats:
    """The network's input.

    Args:
        images: (N, H, W, C), 0..255.
        mode: "picture" for clip(0.5 + (I - mean) / (8 (std + 0.01)), 0, 1) with one mean and one standard deviation a picture (all channels
            together, so that colours keep their relation), I being in 0..1; "none" for I.

    Returns:
        float32 (N, H, W, C) in 0..1.
    """
    pixels = images.astype(np.float32)
    pixels /= 255.0
    if mode == "none":
        return pixels
    mean = pixels.mean(axis=(1, 2, 3), keepdims=True)
    std = pixels.std(axis=(1, 2, 3), keepdims=True)
    pixels -= mean
    pixels /= STANDARD_SPREAD * (std + STANDARD_FLOOR)
    pixels += 0.5
    return np.clip(pixels, 0.0, 1.0, out=pixels)


def patch_mask(count: int, size: int, patch: int, ratio: float, random: np.random.Generator) -> NDArray[np.bool_]:
    """Masked pixels: exactly round(ratio × patches) patches of each picture, drawn without replacement.

    Returns:
        bool (count, size, size, 1), True where hidden.
    """
    side = size // patch
    hidden = round(ratio * side * side)
    order = random.random((count, side * side)).argsort(axis=1)
    grid: NDArray[np.bool_] = (order < hidden).reshape(count, side, side)
    return grid.repeat(patch, axis=1).repeat(patch, axis=2)[..., None]


def augmented(batch: Floats, kind: str, random: np.random.Generator) -> Floats:
    """`batch` (N, H, W, C), each picture changed in its own way.

    "texture": flips and quarter turns, for surfaces that have no up. "object": shifts of up to 3 % with the edge repeated, and a change
    of level of up to 0.05, for parts that lie a little differently each time.
    """
    if kind == "none":
        return batch
    change = _turned if kind == "texture" else _shifted
    return np.stack([change(picture, random) for picture in batch])


def _turned(picture: Floats, random: np.random.Generator) -> Floats:
    picture = np.rot90(picture, int(random.integers(4)))
    return picture[:, ::-1] if random.integers(2) else picture


def _shifted(picture: Floats, random: np.random.Generator) -> Floats:
    size = picture.shape[0]
    most = max(1, round(OBJECT_SHIFT * size))
    down, right = random.integers(-most, most + 1, size=2)
    padded = np.pad(picture, ((most, most), (most, most), (0, 0)), mode="edge")
    moved: Floats = padded[most + down : most + down + size, most + right : most + right + size].copy()
    moved += np.float32(random.uniform(-OBJECT_BRIGHTNESS, OBJECT_BRIGHTNESS))
    return np.clip(moved, 0.0, 1.0, out=moved)


def mixtures(batch: Floats, random: np.random.Generator) -> Floats:
    """Each picture of `batch` (N, H, W, C) mixed with another of it: λ x + (1 - λ) x', brought back to the mean and the standard deviation
    of x, in 0..1; contrast is raised `MOST_RAISED` times at most, for two pictures may cancel each other out.

    λ is drawn from `MIXED` for each picture; by chance x' may be x. One without half the contrast of x is not mixed in, for what is left
    beside it would be x itself, made brighter or inverted. Of pictures that lie alike, mixtures are nearly good pictures again; a network
    that has seen them, and not only the few themselves, rebuilds new good pictures better (mixup, Zhang et al. 2018, arXiv 1710.09412, with
    λ beyond 0..1). One picture alone stays as it is.
    """
    share = random.uniform(*MIXED, (len(batch), 1, 1, 1)).astype(np.float32)
    order = random.permutation(len(batch))
    mean, spread = _level(batch)
    share = np.where(spread[order] < spread / 2, np.float32(1.0), share)
    mixed = share * batch + (1.0 - share) * batch[order]
    mixed_mean, mixed_spread = _level(mixed)
    mixed = mean + (mixed - mixed_mean) * np.minimum(spread / np.maximum(mixed_spread, 1e-6), MOST_RAISED)
    return np.clip(mixed, 0.0, 1.0, out=mixed)


def _level(batch: Floats) -> tuple[Floats, Floats]:
    """Mean and standard deviation of each picture, (N, 1, 1, 1) both."""
    return batch.mean(axis=(1, 2, 3), keepdims=True), batch.std(axis=(1, 2, 3), keepdims=True)


def in_batches(count: int, size: int) -> Iterator[slice]:
    """Slices of `size` over `count` items; the last may be shorter."""
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def mean_picture(images: Rows, mode: str) -> Floats:
    """(H, W, C) mean of the standardised pictures (N, H, W, C), without holding all of them as floats."""
    total = np.zeros(images.shape[1:], np.float64)
    for part in in_batches(len(images), 64):
        # The sums of 64 pictures are added up, as ever, so that the mean is the same to the last bit.
        of_part = np.zeros_like(total)
        for place in range(part.start, part.stop):
            of_part += standardise(images[place : place + 1], mode)[0]
        total += of_part
    return (total / len(images)).astype(np.float32)


@dataclass(frozen=True)
class Usual:
    """What good pictures have in common."""

    mean: Floats
    """(H, W, C) mean standardised picture."""
    variance: float
    """Of single pixels about `mean`, averaged over pictures, pixels and channels."""


def usual_picture(images: Rows, mode: str) -> Usual:
    """Mean and variance of pictures (N ≥ 1, H, W, C), the latter at least `LEAST_VARIANCE`."""
    mean = mean_picture(images, mode)
    return Usual(mean, max(LEAST_VARIANCE, spread_about(images, mean, mode)))


def spread_about(images: Rows, mean: Floats, mode: str) -> float:
    """Mean of (x - mean)² over the standardised pictures (N ≥ 1, H, W, C), their pixels and channels."""
    total = 0.0
    for part in in_batches(len(images), 32):
        pictures = standardise(images[part], mode)
        total += float(np.square(pictures - mean).mean(dtype=np.float64)) * len(pictures)
    return total / len(images)


@dataclass
class TrainingBatches:
    """Masked input and clean target of any batch of any epoch. Pictures stay uint8, in memory or not; a batch is made when it is asked for,
    and what an epoch shuffles is row numbers."""

    images: Rows
    """(N, H, W, C) uint8."""
    config: CaeConfig
    multiple: int = 1
    """Devices that share every batch evenly: the last, shorter one is filled up to a multiple of it with pictures of the same epoch."""
    fill: Floats = field(init=False)
    """What stands in a masked patch, (H, W, C)."""
    _drawn: tuple[int, NDArray[np.intp], NDArray[np.bool_]] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.config.mask_fill == "mean":
            self.fill = mean_picture(self.images, self.config.standardise)
        else:
            self.fill = np.zeros(self.images.shape[1:], np.float32)

    def __len__(self) -> int:
        """Batches an epoch."""
        return self.config.steps_per_epoch(len(self.images))

    def batch(self, epoch: int, index: int) -> tuple[Floats, Floats]:
        """(input, target) of batch `index` of `epoch`, both (B, H, W, C) float32 in 0..1; the last batch may be shorter."""
        order, masked = self._order(epoch)
        part = slice(index * self.config.batch_size, (index + 1) * self.config.batch_size)
        random = np.random.default_rng((self.config.seed, epoch, index))
        target = standardise(self.images[order[part]], self.config.standardise)
        target = augmented(target, self.config.augment, random)
        if self.config.mixed(len(self.images)):
            target = mixtures(target, random)
        if self.config.mask_ratio == 0 or not masked[part].any():
            return target, target
        hidden = patch_mask(len(target), target.shape[1], self.config.mask_patch, self.config.mask_ratio, random)
        hidden &= masked[part][:, None, None, None]
        return np.where(hidden, self.fill, target), target

    def _order(self, epoch: int) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """The pictures in the order of `epoch`, and which of them are masked: exactly round(share × N), drawn anew each epoch."""
        if self._drawn is None or self._drawn[0] != epoch:
            count = len(self.images)
            random = np.random.default_rng((self.config.seed, epoch))
            order = random.permutation(count)
            masked = random.permutation(count) < round(self.config.masked_pictures * count)
            even = count + -count % self.multiple
            self._drawn = (epoch, np.resize(order, even), np.resize(masked, even))
        return self._drawn[1], self._drawn[2]


@dataclass
class Throughput:
    """Pictures a second, the first `warmup` steps left out."""

    warmup: int = 1
    clock: Callable[[], float] = time.perf_counter
    pictures: int = 0
    seconds: float = 0.0
    _seen: int = 0
    _since: float | None = None

    def start(self) -> None:
        """Time counts from here; call again after a pause that is not to count."""
        self._since = self.clock()

    def step(self, pictures: int) -> None:
        """A step of `pictures` is over."""
        now = self.clock()
        self._seen += 1
        if self._seen > self.warmup and self._since is not None:
            self.pictures += pictures
            self.seconds += now - self._since
        self._since = now

    @property
    def images_per_s(self) -> float | None:
        """None when nothing but warm-up was seen."""
        return self.pictures / self.seconds if self.seconds > 0 else None


def warmup_steps(total_steps: int) -> int:
    """Steps left out of the throughput: the first five, or only the first where training has fewer than twenty."""
    return WARMUP_STEPS if total_steps >= 4 * WARMUP_STEPS else 1


class StopTraining(Exception):  # noqa: N818 - a signal, like StopIteration
    """Ends training at once; `reason` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


CANCELLED = "cancelled"
NOT_FINITE = "not finite"


@dataclass
class Monitor:
    """Watches training: asks for cancel, stops on NaN, keeps the record and the best weights.

    The best epoch is the one with the lowest validation loss, or the lowest training loss where nothing is held out.
    """

    reporter: Reporter
    patience: int
    total_steps: int
    throughput: Throughput
    rows: list[Row] = field(default_factory=list)
    best_epoch: int | None = None
    best_loss: float = math.inf
    best_weights: Weights | None = None
    seconds_before: float = 0.0
    """Wall time of the part of training before a resume."""
    steps: int = 0
    _started: float = field(default_factory=time.perf_counter)
    _of_epoch: list[Row] = field(default_factory=list)
    """The steps of the epoch going on."""
    _seen: tuple[int, float] = (0, 0.0)
    """Pictures of the epoch so far, and the sum of their losses."""
    _epoch_before: tuple[int, float] = (0, 0.0)

    def epoch_begin(self) -> None:
        self._epoch_before = (self.throughput.pictures, self.throughput.seconds)
        self._of_epoch, self._seen = [], (0, 0.0)
        self.throughput.start()

    def batch_end(self, loss: float, pictures: int) -> None:
        """A step of `pictures` is over; `loss` is the mean over the epoch so far, as Keras tells it.

        Raises:
            StopTraining: the loss is not finite or the run is cancelled.
        """
        self.throughput.step(pictures)
        self.steps += 1
        count, total = self._seen
        self._seen = (count + pictures, loss * (count + pictures))
        own = (self._seen[1] - total) / pictures if pictures else loss
        self._of_epoch.append({"step": self.steps, "epoch": len(self.rows) + 1, "seconds": round(self.seconds, 4), "loss": own})
        self.reporter.phase("training", self.steps, self.total_steps)
        if not math.isfinite(loss):
            raise StopTraining(NOT_FINITE)
        if self.reporter.cancelled():
            raise StopTraining(CANCELLED)

    def epoch_end(self, epoch: int, figures: Row, weights: Callable[[], Weights]) -> None:
        """Records epoch `epoch` (from 1).

        Raises:
            StopTraining: the loss or the validation loss is not finite. Such an epoch is neither recorded nor kept.
        """
        watched = figures.get("val_loss", figures["loss"])
        if not (math.isfinite(watched) and math.isfinite(figures["loss"])):
            raise StopTraining(NOT_FINITE)
        if watched < self.best_loss:
            self.best_epoch, self.best_loss, self.best_weights = epoch, watched, weights()
        row: Row = {"epoch": epoch, "step": self.steps, "seconds": self.seconds, **figures}
        pictures, seconds = self._epoch_before
        if self.throughput.seconds > seconds:
            row["images_per_s"] = (self.throughput.pictures - pictures) / (self.throughput.seconds - seconds)
        self.rows.append(row)
        self.reporter.epoch_step_rows(self._of_epoch)
        self.reporter.epoch(row)

    def patience_is_out(self) -> bool:
        """Whether `patience` epochs have gone by without a better one; 0 is endless patience."""
        return bool(self.patience) and self.best_epoch is not None and len(self.rows) - self.best_epoch >= self.patience

    @property
    def seconds(self) -> float:
        """Wall time since training began, s."""
        return self.seconds_before + time.perf_counter() - self._started
