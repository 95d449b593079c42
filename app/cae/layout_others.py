"""Layouts without train and test folders: VisA as it ships, KolektorSDD, plain folders."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np

from app.cae.folders import BAD_NAMES, GOOD_NAMES, MASK_NAMES, child, folded, list_pictures, natural_key, subfolders
from app.cae.layout_base import EXPECTED, TRAIN_SHARE, Layout, by_own_masks, masks_of_class, share_out
from app.cae.masks import part_siblings
from app.core.errors import DataError


def visa_data(root: Path) -> Path | None:
    """The folder that holds Images/Normal."""
    for data in (child(root, {"data"}), root):
        images = data and child(data, {"images"})
        if data and images and child(images, GOOD_NAMES):
            return data
    return None


def visa(root: Path) -> Layout | None:
    """Images/Normal, Images/Anomaly and Masks/Anomaly, in Data or in `root` itself; VisA's own split where it is at hand."""
    data = visa_data(root)
    if data is None:
        return None
    images, masks = child(data, {"images"}), child(data, MASK_NAMES)
    assert images is not None
    layout = Layout("VisA", root)
    for entry in subfolders(images):
        good = folded(entry.name) in GOOD_NAMES
        layout.add(entry, "test", 0 if good else 1, "good" if good else folded(entry.name))
        folder = masks_of_class(entry, masks)
        if folder is not None and not good:
            layout.mask_folders[folded(entry.name)] = folder
    official = _visa_split(root)
    if official:
        layout.found = [replace(found, split=official.get(found.path.name, "test")) for found in layout.found]
        layout.notes.append("Split: split_csv/1cls.csv of VisA.")
    else:
        share_out(layout)
    return layout


def _visa_split(root: Path) -> dict[str, str]:
    """File name → split of the good pictures, from the one-class split that VisA ships beside its categories."""
    table = root.parent / "split_csv" / "1cls.csv"
    try:
        with table.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        return {Path(row["image"]).name: row["split"] for row in rows if row["object"] == root.name and row["label"] == "normal"}
    except (OSError, KeyError, UnicodeDecodeError, csv.Error):
        return {}


def kolektor(root: Path) -> Layout | None:
    """A folder for each item, in each its pictures and beside them their labels. Whole items go to training or testing."""
    items = [(item, list_pictures(item, shown_from=root, into=False).pictures) for item in subfolders(root)]
    if not items or not any(part_siblings(files)[1] for _, files in items):
        return None
    if any(folded(item.name) in GOOD_NAMES | BAD_NAMES for item, _ in items):
        return None
    layout = Layout("KolektorSDD", root)
    for item, _ in items:
        layout.add(item, "test", 0, "good", into=False)
    good, defective = by_own_masks(layout, layout.found)
    folders = sorted({found.path.parent for found in good}, key=natural_key)
    drawn = np.random.default_rng(0).permutation(len(folders))
    trained = {folders[place] for place in drawn[: max(1, round(TRAIN_SHARE * len(folders)))]} if folders else set()
    layout.found = [replace(found, split="train" if found.path.parent in trained else "test") for found in good] + defective
    layout.notes.append(
        f"No official split: the good pictures of {len(trained)} of {len(folders)} items are for training, all others for testing."
    )
    return layout


def plain_with_classes(root: Path) -> Layout | None:
    """A folder of good pictures (or loose good ones) beside folders of bad ones.

    Raises:
        DataError: the folder of good ones is empty.
    """
    classes = [entry for entry in subfolders(root) if folded(entry.name) not in MASK_NAMES]
    good = [entry for entry in classes if folded(entry.name) in GOOD_NAMES]
    bad = [entry for entry in classes if entry not in good]
    loose = bool(list_pictures(root, shown_from=root, into=False).pictures)
    if not good:
        bad = [entry for entry in bad if folded(entry.name) in BAD_NAMES]
        if not (loose and bad):
            return None
    layout = Layout("plain folder", root)
    for entry in good:
        layout.add(entry, "train", 0, "good")
    if not good:
        layout.add(root, "train", 0, "good", into=False)
    if not layout.found:
        raise DataError(f"{root}: 0 images in {good[0].name if good else root.name}; {EXPECTED}.")
    masks = child(root, MASK_NAMES)
    for entry in bad:
        if layout.add(entry, "test", 1, entry.name) == 0:
            layout.problems.append(f"{entry.name} is empty: no pictures of this class.")
        inner = masks_of_class(entry, masks)
        if inner is not None:
            layout.mask_folders[entry.name] = inner
    if any(found.label for found in layout.found):
        share_out(layout)
    else:
        layout.problems.append(_nothing_to_test(root))
    return layout


def flat(root: Path) -> Layout | None:
    """Loose pictures, all taken as good."""
    layout = Layout("plain folder", root)
    if layout.add(root, "train", 0, "good", into=False) == 0:
        return None
    layout.problems.append(_nothing_to_test(root))
    unused = [entry.name for entry in subfolders(root) if list_pictures(entry, shown_from=root).pictures]
    if unused:
        layout.problems.append(f"{', '.join(unused)}: folders beside the good pictures, not used; {EXPECTED}.")
    return layout


def _nothing_to_test(root: Path) -> str:
    return f"{root.name}: all pictures are taken as good ones to train on, there is nothing to test; for scores, {EXPECTED}."
