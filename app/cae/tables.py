"""A data set as a table: one row a picture, and what can be said of it before any pixel is decoded."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from app.cae.folders import relative_to

COLUMNS = ("path", "split", "label", "defect", "masks")

SPLITS = {"train": 0, "validation": 1, "test": 2}
"""Splits in the order of the table."""


@dataclass(frozen=True)
class Dataset:
    """Pictures found, where they belong, and what is wrong with them."""

    name: str
    source: str
    """What the user gave: a sample's name or a folder."""
    layout: str
    """How the folder is arranged, in the data sets' own names: "MVTec AD", "VisA", "plain folder" …"""
    table: pd.DataFrame
    """One row a picture: path (str), split ("train", "validation", "test"), label (0 good, 1 defective), defect ("good" or the kind),
    masks (tuple of str, empty where there are none; their union marks the defect)."""
    problems: tuple[str, ...] = ()
    """Sentences that name the file; pictures that cannot be used are not in the table."""
    notes: tuple[str, ...] = ()
    """Sentences on choices made, nothing being wrong."""
    sizes: tuple[tuple[int, int], ...] = ()
    """(width, height) in px of each row's picture, viewing order."""
    root: Path | None = None
    """Folder that paths are shown relative to."""
    full_scale: float | None = None
    """White of pictures of more than 8 bits a sample, one value for the whole set; None when all have 8 bits."""

    @property
    def has_masks(self) -> bool:
        """Whether any defect is marked."""
        return bool(self.table["masks"].map(len).gt(0).any())

    def shown(self, path: str) -> str:
        """`path` relative to the data set's folder where it lies in it."""
        return relative_to(path, self.root)


def make_table(rows: list[tuple[str, str, int, str, tuple[str, ...]]]) -> pd.DataFrame:
    """The table of `Dataset` from rows in the order of `COLUMNS`."""
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    return table.astype({"label": "int64"}) if len(table) else table


def describe(dataset: Dataset) -> pd.DataFrame:
    """What was found by split and class, train first, good first.

    Columns: split, defect, pictures, masks (pictures that have one), sizes ("64 × 64 px", or the smallest and the largest).
    """
    table = dataset.table.assign(marked=dataset.table["masks"].map(len).gt(0), place=range(len(dataset.table)))
    rows = []
    for (split, _, defect), group in table.groupby(["split", "label", "defect"]):
        sizes = [dataset.sizes[place] for place in group["place"]] if dataset.sizes else []
        rows.append((split, defect, len(group), int(group["marked"].sum()), _span(sizes)))
    rows.sort(key=lambda row: (SPLITS[str(row[0])], row[1] != "good"))
    return pd.DataFrame(rows, columns=["split", "defect", "pictures", "masks", "sizes"])


def _span(sizes: list[tuple[int, int]]) -> str:
    if not sizes:
        return ""
    least, most = (pick(sizes, key=lambda size: size[0] * size[1]) for pick in (min, max))
    return f"{least[0]} × {least[1]} px" if len(set(sizes)) == 1 else f"{least[0]} × {least[1]} to {most[0]} × {most[1]} px"


def split_digest(dataset: Dataset) -> str:
    """SHA-256 (hex) over the sorted lines "relative path, split, label": equal digests mean equal splits."""
    columns = (dataset.table[name].tolist() for name in ("path", "split", "label"))
    lines = sorted(f"{dataset.shown(path)}\t{split}\t{label}\n" for path, split, label in zip(*columns, strict=True))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def split_validation(rows: pd.DataFrame, fraction: float, seed: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Positions in `rows` to train on and to hold out, both sorted.

    Only good pictures of split "train" take part. Where the layout ships a validation split, that one is held out and nothing
    else; else `fraction` of the good training pictures, at least one if there are two or more, drawn by `seed`.
    A single picture, or fraction 0, leaves nothing held out.
    """
    good = rows["label"].to_numpy() == 0
    split = rows["split"].to_numpy()
    train = np.flatnonzero(good & (split == "train"))
    own = np.flatnonzero(good & (split == "validation"))
    if len(own) or fraction <= 0 or len(train) < 2:
        return train, own
    held = min(max(1, round(len(train) * fraction)), len(train) - 1)
    drawn = np.random.default_rng(seed).permutation(train)
    return np.sort(drawn[held:]), np.sort(drawn[:held])
