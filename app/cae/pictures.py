"""A data set's pictures and masks, decoded once: into memory where they fit into a share of it, else into a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from app.cae.checks import LEAST_SIZE
from app.cae.image_files import PictureError, read_header
from app.cae.images import LOW_BYTES_NOTE, read_image
from app.cae.masks import read_mask
from app.cae.memory import free_mib
from app.cae.rows import Rows, Store, chosen, in_mib, refuse_full_disk, store_folder
from app.cae.tables import Dataset
from app.core.errors import DataError

ChannelChoice = Literal["auto", "grey", "colour"] | int

SAMPLED = 32
"""Training pictures looked at to tell grey from colour."""

GREY_TOLERANCE = 2
"""Largest difference between channels of a grey picture: JPEG rounds chroma by as much."""

MEMORY_SHARE = 0.4
"""Share of the free memory that pictures may take. Training works on top of them and takes up to 800 MiB at 256 px, batch 16: beside 40 %
of what TensorFlow leaves of 2 GiB it fits. A file is hardly slower, since the system keeps of it in memory what it has room for."""

_ON_DISK = (
    "{count} pictures of {size} px with {channels} channels need {needed}, more than {share:.0%} of the {free} of memory "
    "that are free: they are kept in a file in {folder} while they are used."
)
_IN_ALL = "{count} pictures of {size} px with {channels} channels, which do not fit into memory, and for their maps"

ERRORS_BYTES = 8
"""Of each pixel of a held-out picture: its error and its anomaly, which the calibration keeps side by side."""

NAMED = 5

_MIB = 2**20


@dataclass(frozen=True)
class Pictures:
    """Pictures of a data set, one row each, of equal size. N pictures, H = W = size, C = 1 or 3."""

    images: Rows
    """(N, H, W, C) uint8; a NumPy array where it fits into memory."""
    rows: pd.DataFrame
    """(N rows) the data set's table without pictures that could not be decoded; index 0..N-1."""
    masks: Rows
    """(N, H, W) uint8, 0/1."""
    has_mask: NDArray[np.bool_]
    """(N,) whether `masks` is known: a readable mask, or a good test picture of a set that has masks (then all zero)."""
    original_sizes: NDArray[np.int64]
    """(N, 2) width and height in px, viewing order."""
    channels: int
    full_scale: float | None
    """White of pictures of more than 8 bits a sample; new pictures are read with it to be scored."""
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    cancelled: bool = False
    """Reading was stopped; what had been read until then is here."""


def load_pictures(
    dataset: Dataset,
    *,
    size: int,
    channels: ChannelChoice = "auto",
    progress: Callable[[int, int], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    available_mib: float | None = None,
    folder: Path | None = None,
    val_fraction: float = 0.0,
) -> Pictures:
    """Decodes every picture and mask.

    Args:
        dataset: what to read.
        size: side of the square, px.
        channels: 1 or "grey", 3 or "colour", or "auto" (`detect_channels`).
        progress: called with (pictures done, pictures in all).
        cancelled: asked before each picture; True stops.
        available_mib: memory that is free, MiB; None asks the machine.
        val_fraction: share of the training pictures that will be held out, whose maps need room on the disk too; 0: all will.
        folder: where a file may be made for pictures that take more than `MEMORY_SHARE` of it; None: `rows.store_folder`. The file has no
            name and is gone once nothing of the result is used any more, or the process has ended in whatever way.

    Raises:
        DataError: the pictures fit neither into memory nor on the disk, or no training picture is left.
    """
    wanted = channels_wanted(dataset, channels)
    free = free_mib() if available_mib is None else available_mib
    reading = _Reading(dataset, size, wanted, Store(folder or store_folder(None), MEMORY_SHARE * free), free, val_fraction)
    stopped = False
    for place in range(len(dataset.table)):
        stopped = cancelled is not None and cancelled()
        if stopped:
            break
        reading.read(place)
        if progress is not None:
            progress(place + 1, len(dataset.table))
    return reading.result(stopped)


class _Reading:
    """Arrays being filled."""

    def __init__(self, dataset: Dataset, size: int, channels: int, store: Store, free: float, val_fraction: float) -> None:
        self.dataset, self.size, self.channels = dataset, size, channels
        self.table = dataset.table.reset_index(drop=True)
        self.notes: list[str] = []
        count = len(self.table)
        needed = decoded_mib(count, size, channels)
        if needed > store.left_mib:
            store.left_mib = 0.0  # both or none
            tested = int((self.table["split"] == "test").sum())
            calibrating = (count - tested) * (val_fraction or 1.0) * size**2 * ERRORS_BYTES / _MIB
            what = _IN_ALL.format(count=count, size=size, channels=channels)
            refuse_full_disk(store.folder, needed + calibrating + 2 * result_mib(tested, size, channels), what)
            self.notes.append(on_disk_note(count, size, channels, needed, free, store.folder))
        self.images = store.zeros((count, size, size, channels), np.uint8)
        self.masks = store.zeros((count, size, size), np.uint8)
        self.has_mask = np.zeros(count, np.bool_)
        self.sizes = np.zeros((count, 2), np.int64)
        self.kept: list[int] = []
        self.problems: list[str] = []
        self.low_bytes: list[str] = []
        self.flat: list[str] = []
        self.small: list[str] = []
        self.masked_set = dataset.has_masks

    def read(self, place: int) -> None:
        path, label = str(self.table["path"].iloc[place]), int(self.table["label"].iloc[place])
        shown = self.dataset.shown(path)
        try:
            read = read_image(path, channels=self.channels, size=self.size, full_scale=self.dataset.full_scale)
        except PictureError as error:
            self.problems.append(f"{shown}: {error.reason}; left out.")
            return
        row = len(self.kept)  # not `place`: what is left out leaves no gap
        self.kept.append(place)
        self.images[row], self.sizes[row] = read.pixels, read.original_size
        if label == 0:
            # A good test picture's mask is known to be empty, if masks were drawn at all.
            self.has_mask[row] = self.masked_set and self.table["split"].iloc[place] == "test"
        else:
            self.has_mask[row] = self._read_masks(place, row, path, shown)
        self.low_bytes += [shown] if LOW_BYTES_NOTE in read.notes else []
        self.flat += [shown] if int(read.pixels.min()) == int(read.pixels.max()) else []
        self.small += [shown] if LEAST_SIZE <= min(read.original_size) < self.size else []

    def _read_masks(self, place: int, row: int, path: str, shown: str) -> bool:
        files: Sequence[str] = self.table["masks"].iloc[place]
        if not files:
            return False
        mask = np.zeros((self.size, self.size), np.uint8)
        try:
            header = read_header(Path(path))
            for file in files:
                mask |= read_mask(file, picture=header, size=self.size)
        except PictureError as error:
            self.problems.append(f"{self.dataset.shown(str(error.path))}: {error.reason}; {shown} is left out of pixel metrics.")
            return False
        if not mask.any():
            self.problems.append(f"{shown}: its mask marks nothing; left out of pixel metrics.")
            return False
        self.masks[row] = mask
        return True

    def result(self, stopped: bool) -> Pictures:
        rows = self.table.iloc[self.kept].reset_index(drop=True)
        if not stopped and not (rows["split"] == "train").any():
            first = self.problems[0] if self.problems else "none was found."
            raise DataError(f"{self.dataset.name}: no training picture can be read. The first: {first}")
        if self.flat:
            self.problems.append(f"One flat colour: {_several(self.flat)}.")
        if self.small:
            self.problems.append(f"There are images smaller than the model size of {self.size} px, enlarged: {_several(self.small)}.")
        if self.low_bytes:
            self.notes.append(f"{_several(self.low_bytes)}: {LOW_BYTES_NOTE}.")
        kept, every = len(rows), len(self.table)
        return Pictures(
            self.images if kept == every else chosen(self.images, np.arange(kept)),
            rows,
            self.masks if kept == every else chosen(self.masks, np.arange(kept)),
            self.has_mask[:kept],
            self.sizes[:kept],
            self.channels,
            self.dataset.full_scale,
            tuple(self.problems),
            tuple(self.notes),
            stopped,
        )


def channels_wanted(dataset: Dataset, channels: ChannelChoice) -> int:
    """1 or 3."""
    if channels == "auto":
        return detect_channels(dataset)
    return {"grey": 1, "colour": 3}[channels] if isinstance(channels, str) else channels


def detect_channels(dataset: Dataset) -> int:
    """1 when all of up to `SAMPLED` training pictures, spread evenly, are grey whatever their file says; else 3."""
    table = dataset.table
    paths: Sequence[str] = table.loc[table["split"] == "train", "path"].tolist()
    places: list[int] = sorted({round(place) for place in np.linspace(0, len(paths) - 1, min(SAMPLED, len(paths)))})
    for place in places:
        try:
            pixels = read_image(paths[place], channels=3, size=None, full_scale=dataset.full_scale).pixels
        except PictureError:
            continue
        if np.ptp(pixels.astype(np.int16), axis=2).max() > GREY_TOLERANCE:
            return 3
    return 1


def on_disk_note(count: int, size: int, channels: int, needed: float, free: float, folder: Path) -> str:
    """That pictures are kept in a file, and why: `needed` and `free` are MiB of memory."""
    about = {"needed": in_mib(needed), "share": MEMORY_SHARE, "free": in_mib(free), "folder": folder}
    return _ON_DISK.format(count=count, size=size, channels=channels, **about)


def decoded_mib(count: int, size: int, channels: int) -> float:
    """What `count` pictures of `size` px take with their masks, MiB."""
    return count * size * size * (channels + 1) / _MIB


def result_mib(count: int, size: int, channels: int) -> float:
    """What scoring `count` pictures leaves, MiB: maps as float32, inputs, reconstructions and masks as bytes."""
    return count * size * size * (4 + 2 * channels + 1) / _MIB


def _several(names: Sequence[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
