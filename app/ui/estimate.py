"""How long a run will take and how much memory it needs, before it starts. Pure; every figure says where it comes from."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from app.cae import correction
from app.cae.config import CaeConfig
from app.cae.pictures import ERRORS_BYTES, MEMORY_SHARE, decoded_mib

MEASURED_TRAIN_PER_S = 140.0
MEASURED_SCORE_PER_S = 350.0
MEASURED_SIZE = 128
MEASURED_CORES = 2
"""Measured on 2 cores of an AMD EPYC, three channels, 128 px: training 137-140 images/s, scoring 285-540."""
GREY_GAIN = 1.25
"""Grey pictures leave SSIM and the outer layers a third of the work; the layers between stay."""
START_S = 12.0
"""Importing TensorFlow, tracing the training step and the forward pass."""
RUNS_LOOKED_AT = 3


@dataclass(frozen=True)
class Work:
    """What a run has to do."""

    train: int
    """Pictures trained on."""
    held_out: int
    test: int
    channels: int

    def training_pictures(self, config: CaeConfig) -> int:
        """Pictures that pass through the network while it trains."""
        return config.epochs_for(self.train) * self.train


@dataclass(frozen=True)
class Rates:
    """Throughput to reckon with, and what it rests on."""

    train_images_per_s: float
    score_images_per_s: float
    basis: str


@dataclass(frozen=True)
class Estimate:
    """`None` where nothing is known."""

    seconds: float | None
    basis: str


def rates(config: CaeConfig, runs: pd.DataFrame, *, device: str, cores: int, channels: int) -> Rates | None:
    """Throughput of this configuration on `device`: from the newest finished runs on that path, else, for the CPU, as measured elsewhere.

    Args:
        config: of the run to come.
        runs: `app.runs.table.runs_table`, newest first.
        device: "cpu" or "gpu".
        cores: usable ones.
        channels: 1 or 3.

    Returns:
        None on a GPU on which nothing has finished yet.
    """
    known = runs[(runs["state"] == "finished") & (runs["selected_device"] == device) & runs["train_images_per_s"].gt(0)]
    same = known[(known["data"] == config.data) & (known["image_size"] == config.image_size)]
    used = (same if len(same) else known).head(RUNS_LOOKED_AT)
    if len(used):
        pixels = (used["image_size"].fillna(MEASURED_SIZE) / config.image_size) ** 2
        train = float((used["train_images_per_s"] * pixels).median())
        score = float((used["score_images_per_s"] * pixels).median())
        what = "runs of this data set" if len(same) else "runs of other data, scaled by pixels"
        return Rates(train, score if score > 0 else train, f"from earlier {what} on this path")
    if device != "cpu":
        return None
    factor = (MEASURED_SIZE / config.image_size) ** 2 * max(1, cores) / MEASURED_CORES * (GREY_GAIN if channels == 1 else 1.0)
    return Rates(MEASURED_TRAIN_PER_S * factor, MEASURED_SCORE_PER_S * factor, "from figures measured on another machine")


def duration(config: CaeConfig, work: Work, found: Rates | None) -> Estimate:
    """Seconds from start to finish; with early stopping, at most."""
    if found is None:
        return Estimate(None, "no run on this path has finished here yet")
    training = work.training_pictures(config) / found.train_images_per_s
    validation = config.epochs_for(work.train) * work.held_out / found.score_images_per_s
    twice = work.train if config.correct_mean and work.train >= correction.FEWEST else 0
    scoring = (work.train + twice + work.held_out + work.test) / found.score_images_per_s
    return Estimate(START_S + training + validation + scoring, found.basis)


PROCESS_MIB = 800.0
KEPT_PER_FILTER = 4
KEPT_PER_CHANNEL = 22
"""Copies of each stage's output, and of the picture, that a training step holds on the CPU. Chosen with `PROCESS_MIB` to fit resident
memory measured with TensorFlow 2.21, MiB, this formula in brackets: 128 px batch 16 colour 995 [1000], grey with 431 test pictures
1090-1120 [1020], 128 px batch 64 1360 [1560], 256 px batch 16 1660 [1570]."""


@dataclass(frozen=True)
class Room:
    """What a run's process will take, MiB."""

    memory_mib: float
    disk_mib: float = 0.0
    """Of files that it keeps in its folder meanwhile, in place of memory."""


def room(config: CaeConfig, work: Work, free_mib: float = math.inf) -> Room:
    """What the run will need where `free_mib` of memory are free: by the rules of `app.cae.pictures` and `app.cae.rows`."""
    in_memory = memory_mib(config, work)
    pictures = decoded_mib(work.train + work.held_out + work.test, config.image_size, work.channels)
    free = free_mib - PROCESS_MIB / 2  # what TensorFlow takes before pictures are read
    if pictures <= MEMORY_SHARE * free:
        return Room(in_memory)
    maps = _maps_mib(config, work)
    kept = min(maps, MEMORY_SHARE * max(0.0, free - _step_mib(config, work)))  # what training took is not given back
    return Room(in_memory - pictures - maps + kept, pictures + maps - kept)


def memory_mib(config: CaeConfig, work: Work) -> float:
    """Memory the run's process will hold, MiB, where all fits: TensorFlow, the pictures as bytes, one training step, the maps of the test
    pictures."""
    pictures = decoded_mib(work.train + work.held_out + work.test, config.image_size, work.channels)
    return PROCESS_MIB + pictures + _step_mib(config, work) + _maps_mib(config, work)


def _step_mib(config: CaeConfig, work: Work) -> float:
    stages = 2 * sum(config.base_filters * 2.0**stage / 4.0 ** (stage + 1) for stage in range(4))
    return config.batch_size * config.image_size**2 * (stages * KEPT_PER_FILTER + work.channels * KEPT_PER_CHANNEL) * 4 / 2**20


def _maps_mib(config: CaeConfig, work: Work) -> float:
    return (work.test * (4 + 2 * work.channels) + (work.held_out or work.train) * ERRORS_BYTES) * config.image_size**2 / 2**20
