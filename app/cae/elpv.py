"""Photovoltaic cells in electroluminescence: the pictures that the `elpv-dataset` package brings (CC BY-NC-SA 4.0).

Good is a defect probability of 0, defective of 1; the cells in between (the annotators were not sure) are left out. The split is part
of the protocol and independent of any seed, so that figures compare: 80 % of the good cells, drawn by NumPy's `default_rng(0)`
from the order of labels.csv, are for training, the rest and all defective ones for testing.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np

from app.cae.tables import Dataset, make_table
from app.core.errors import DataError

NAMES = ("elpv-mono", "elpv-poly")
TRAIN_SHARE = 0.8

CELL_SIZE = (300, 300)
"""Width and height of every cell, px."""

_NOT_INSTALLED = "expected the package elpv-dataset, which is not installed. Install it with `pip install elpv-dataset` (extra `samples`)."
_NOT_WHOLE = "which is not there. Reinstall it with `pip install --force-reinstall elpv-dataset`."


def open_elpv(name: str) -> Dataset:
    """`elpv-mono` or `elpv-poly`.

    Raises:
        DataError: the package is not installed, or not whole.
    """
    root = _package_data(name)
    kind = name.removeprefix("elpv-")
    labels = [line.split() for line in (root / "labels.csv").read_text(encoding="utf-8").splitlines() if line.strip()]
    cells = [(root / path, float(probability)) for path, probability, cell in labels if cell == kind]
    good = [path for path, probability in cells if probability == 0.0]
    bad = [path for path, probability in cells if probability == 1.0]
    drawn = np.random.default_rng(0).permutation(len(good))
    trained = {int(place) for place in drawn[: round(TRAIN_SHARE * len(good))]}
    rows: list[tuple[str, str, int, str, tuple[str, ...]]] = [
        (str(path), "train" if place in trained else "test", 0, "good", ()) for place, path in enumerate(good)
    ]
    rows += [(str(path), "test", 1, "defective", ()) for path in bad]
    table = make_table(sorted(rows, key=lambda row: (row[1] != "train", row[2], row[0])))
    unsure = len(cells) - len(good) - len(bad)
    notes = (
        f"{unsure} cells whose defect probability is neither 0 nor 1 are left out.",
        f"test: {len(good) - len(trained)} good, {len(bad)} defective cells; a score that always says defective is right "
        f"for {len(bad) / (len(bad) + len(good) - len(trained)):.0%} of them.",
        "no masks: the cells are labelled as a whole.",
    )
    return Dataset(name, name, "elpv-dataset", table, (), notes, (CELL_SIZE,) * len(table), root)


def _package_data(name: str) -> Path:
    found = importlib.util.find_spec("elpv_dataset")
    if found is None or found.origin is None:
        raise DataError(f"{name}: {_NOT_INSTALLED}")
    root = Path(found.origin).parent / "data"
    if not (root / "labels.csv").is_file():
        raise DataError(f"{name}: expected {root / 'labels.csv'}, {_NOT_WHOLE}")
    return root
