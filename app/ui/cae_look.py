"""A first look at a data set, before training: counts, sizes, examples, problems. Bounded caches keep it from being read at every rerun."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import streamlit as st

from app.cae.datasets import Dataset, describe, detect_channels, open_dataset, split_validation
from app.cae.image_files import PictureError, read_header
from app.cae.images import read_image
from app.cae.masks import read_mask
from app.core.errors import AppError
from app.ui.estimate import Work
from app.ui.pictures import TRUTH, Rgb, enlarged, enlarged_mask, with_outline

THUMBNAIL_PX = 160
EXAMPLES = 3
"""Good ones, and as many defective ones."""
SIZES_LOOKED_AT = 48
STAMP_ENTRIES = 4000


@dataclass(frozen=True)
class Example:
    """A test picture as it is shown before training."""

    picture: Rgb
    name: str
    defect: str
    """"good" or the kind."""
    outlined: bool
    """Whether its mask is drawn."""


@dataclass(frozen=True)
class Look:
    """What is told of a data set before it is trained on."""

    name: str
    layout: str
    channels: int
    counts: pd.DataFrame
    """One row a class: class, then pictures of each split, then masks where the set has any."""
    rows: pd.DataFrame
    """Columns split and label of every picture."""
    sizes: str
    examples: tuple[Example, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]

    def work(self, held_out_share: float, seed: int, channels: str) -> Work:
        """How many pictures a run trains on, holds out and tests."""
        train, held = split_validation(self.rows, held_out_share, seed)
        tested = int((self.rows["split"] == "test").sum())
        return Work(len(train), len(held), tested, {"grey": 1, "colour": 3}.get(channels, self.channels))


def look_at(source: str, seed: int) -> Look:
    """The look at `source`, from the cache while the folder is as it was.

    Args:
        source: a sample's name or a folder.
        seed: of synthetic pictures.

    Raises:
        AppError: the data set cannot be used; says why.
    """
    return _look(source, seed if source.startswith("synthetic") else 0, _stamp(source))


def forget() -> None:
    """Have every data set read again."""
    _look.clear()


@st.cache_data(max_entries=12, ttl=3600, show_spinner=False)
def _look(source: str, seed: int, stamp: int) -> Look:
    del stamp  # only there so that a changed folder is read again
    dataset = open_dataset(source, seed=seed)
    return Look(
        name=dataset.name,
        layout=dataset.layout,
        channels=detect_channels(dataset),
        counts=counts_by_class(describe(dataset)),
        rows=dataset.table[["split", "label"]].copy(),
        sizes=sizes_in_words(dataset),
        examples=tuple(_examples(dataset)),
        problems=dataset.problems,
        notes=dataset.notes,
    )


def _stamp(source: str) -> int:
    """Changes when a file is added to or taken from the folder or one of its subfolders, or a file right in it changes."""
    newest, seen = 0, 0
    for folder, _, _ in os.walk(source):
        seen += 1
        if seen > STAMP_ENTRIES:
            break
        try:
            newest = hash((newest, os.stat(folder).st_mtime_ns))  # noqa: PTH116 - one call a folder, no object
        except OSError:
            continue
    return newest


def counts_by_class(described: pd.DataFrame) -> pd.DataFrame:
    """`describe(dataset)` with a column a split: class, train, validation, test, masks; a split or masks that nobody has is left out."""
    table = described.pivot_table(index="defect", columns="split", values="pictures", aggfunc="sum", fill_value=0, sort=False)
    table = table.reindex(columns=[name for name in ("train", "validation", "test") if name in table.columns])
    if described["masks"].any():
        table["masks"] = described.groupby("defect")["masks"].sum()
    first = [name for name in table.index if name == "good"]
    table = table.loc[[*first, *(name for name in table.index if name != "good")]]
    return table.astype(int).rename_axis("class").rename_axis(None, axis="columns").reset_index()


def sizes_in_words(dataset: Dataset) -> str:
    """`300 × 300 px`, or the range over up to `SIZES_LOOKED_AT` pictures spread over the set."""
    paths = dataset.table["path"].tolist()
    sizes = set()
    for place in np.unique(np.linspace(0, len(paths) - 1, min(SIZES_LOOKED_AT, len(paths))).round().astype(int)):
        try:
            sizes.add(read_header(Path(paths[place])).size)
        except PictureError:
            continue
    if not sizes:
        return "size unknown"
    small, large = min(sizes, key=_pixels), max(sizes, key=_pixels)
    one = f"{small[0]} × {small[1]} px"
    return one if len(sizes) == 1 else f"{one} to {large[0]} × {large[1]} px"


def _pixels(size: tuple[int, int]) -> int:
    return size[0] * size[1]


def _examples(dataset: Dataset) -> Iterator[Example]:
    """Good, then defective test pictures, spread over the kinds; training pictures where the set tests no good ones."""
    table = dataset.table
    tested = table[table["split"] == "test"]
    good = tested[tested["label"] == 0]
    yield from _some(dataset, good if len(good) else table[table["label"] == 0])
    yield from _some(dataset, tested[tested["label"] == 1])


def _some(dataset: Dataset, rows: pd.DataFrame) -> Iterator[Example]:
    """Up to `EXAMPLES` of `rows` that can be read, spread over them; the others stand by for those that cannot."""
    candidates = np.unique(np.linspace(0, len(rows) - 1, min(3 * EXAMPLES, len(rows))).round().astype(int))
    shown = 0
    for place in np.concatenate([candidates[start::EXAMPLES] for start in range(EXAMPLES)]) if len(rows) else ():
        try:
            yield _example(dataset, rows.iloc[int(place)])
        except AppError:
            continue
        shown += 1
        if shown == EXAMPLES:
            return


def _example(dataset: Dataset, row: pd.Series) -> Example:
    path = Path(row["path"])
    picture = read_image(path, channels=3, size=THUMBNAIL_PX, full_scale=dataset.full_scale).pixels
    outlined = bool(len(row["masks"]))
    if outlined:
        marked = np.zeros((THUMBNAIL_PX, THUMBNAIL_PX), np.uint8)
        header = read_header(path)
        for file in row["masks"]:
            marked |= read_mask(file, picture=header, size=THUMBNAIL_PX)
        picture = with_outline(enlarged(picture, THUMBNAIL_PX), enlarged_mask(marked, THUMBNAIL_PX), TRUTH)
    return Example(picture, dataset.shown(str(path)), str(row["defect"]), outlined)
