"""Recognising how a folder of pictures is arranged.

| layout | shape |
|---|---|
| MVTec AD, MPDD | train/good, test/good, test/<defect>, ground_truth/<defect>/<stem>_mask.png (masks optional, here and below) |
| BTAD | train/ok, test/ok, test/ko, ground_truth/ko |
| VisA (converted) | train/good, test/good, test/bad, ground_truth/bad |
| MVTec LOCO AD | also validation/good; several masks a picture in ground_truth/<defect>/<stem>/ |
| MVTec AD 2 | test_public/good, test_public/bad, test_public/ground_truth/bad; the private test folders have no labels and are left out |
| VisA | Data/Images/Normal, Data/Images/Anomaly, Data/Masks/Anomaly |
| KolektorSDD | kosNN/PartK.jpg beside PartK_label.bmp; normal where the label is all zero |
| KolektorSDD2 | train/N.png beside train/N_GT.png, the same in test |
| plain folder | pictures, all good; or good ones (loose, or in good, ok, normal), folders of bad ones, optionally a folder of masks |

Folder names count in any case. Where a layout has no split of its own, 80 % of the good pictures (of KolektorSDD's items) are for
training, drawn by NumPy's `default_rng(0)` from their natural order, and the rest and everything defective is for testing.
"""

from __future__ import annotations

from pathlib import Path

from app.cae.folders import GOOD_NAMES, folded, natural_key, subfolders
from app.cae.layout_base import EXPECTED, Found, Layout
from app.cae.layout_others import flat, kolektor, plain_with_classes, visa, visa_data
from app.cae.layout_split import TEST_NAMES, TRAIN_NAMES, split_folders
from app.core.errors import DataError

_DEEPEST_WRAPPING = 3
"""Folders that hold nothing but one folder are entered this far (archives wrap data sets like that)."""


def find_layout(root: Path) -> Layout:
    """The layout of `root`, entering folders that only wrap one data set.

    Raises:
        DataError: no folder, no layout, no pictures, or several categories of which one has to be chosen.
    """
    try:
        what = None if root.is_dir() else "it is a file; unpack archives first" if root.is_file() else "there is no such folder"
    except (OSError, ValueError) as error:  # a name too long, a folder above that is locked, a NUL in the name
        what = f"it cannot be looked at ({getattr(error, 'strerror', None) or error})"
    if what is not None:
        raise DataError(f"{root}: not a dataset folder, {what}; {EXPECTED}.")
    for _ in range(_DEEPEST_WRAPPING + 1):
        layout = _recognise(root)
        if layout is not None:
            return layout
        categories = _categories(root)
        if len(categories) > 1:
            names = ", ".join(folder.name for folder in categories)
            raise DataError(f"{root}: holds several data sets; choose one of: {names} (for example {categories[0]}).")
        layout = None if categories else flat(root)
        if layout is not None:
            return layout
        inner = categories or subfolders(root)
        if len(inner) != 1:
            break
        root = inner[0]
    raise DataError(f"{root}: not a dataset folder, {_what_lies_there(root)}; {EXPECTED}.")


def _recognise(root: Path) -> Layout | None:
    for kind in (split_folders, visa, kolektor, plain_with_classes):
        layout = kind(root)
        if layout is not None:
            return layout
    return None


def _categories(root: Path) -> list[Path]:
    """Sub-folders that are data sets themselves; of a folder and links to it, the folder."""
    found = {folder.resolve(): folder for folder in sorted(subfolders(root), key=Path.is_symlink, reverse=True) if _is_dataset(folder)}
    return sorted(found.values(), key=natural_key)


def _is_dataset(folder: Path) -> bool:
    """Cheap look: does the folder itself have the shape of a data set?"""
    names = {folded(entry.name) for entry in subfolders(folder)}
    return bool(names & TRAIN_NAMES or names & TEST_NAMES or names & GOOD_NAMES) or visa_data(folder) is not None


def _what_lies_there(root: Path) -> str:
    folders = [entry.name for entry in subfolders(root)]
    if not folders:
        return "there are no pictures in it (0 images in train/good)"
    return f"it holds the folders {', '.join(folders[:8])}{' …' if len(folders) > 8 else ''}"


__all__ = ["EXPECTED", "Found", "Layout", "find_layout"]
