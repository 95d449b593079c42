"""Layouts with a train and a test folder: MVTec AD and its many relatives."""

from __future__ import annotations

from pathlib import Path

from app.cae.folders import BAD_NAMES, GOOD_NAMES, MASK_NAMES, child, folded, list_pictures, relative_to, subfolders
from app.cae.layout_base import EXPECTED, Layout, by_own_masks, masks_of_class
from app.cae.masks import part_siblings
from app.core.errors import DataError
from app.core.words import counted

TRAIN_NAMES = frozenset({"train", "training"})
TEST_NAMES = frozenset({"test", "testing", "test_public"})
_VALIDATION_NAMES = frozenset({"validation", "val", "valid"})
_LOCO_NAMES = frozenset({"logical_anomalies", "structural_anomalies"})


def split_folders(root: Path) -> Layout | None:
    """`root` with train/good and, mostly, test/<class>; None where it has neither.

    Raises:
        DataError: there are no training pictures.
    """
    train, test = child(root, TRAIN_NAMES), child(root, TEST_NAMES)
    if train is None and (test is None or child(test, GOOD_NAMES | BAD_NAMES) is None):
        return None
    layout = Layout("MVTec AD", root)
    if train is not None:
        _add_good(layout, train, "train")
    if not layout.found:
        raise DataError(f"{root}: 0 images in {train.name if train else 'train'}/good; {EXPECTED}.{_first(layout.problems)}")
    validation = child(root, _VALIDATION_NAMES)
    if validation is not None:
        _add_good(layout, validation, "validation")
    if test is None:
        layout.problems.append("There is no test folder: the model can be trained, but there is nothing to score it on.")
    else:
        _add_test(layout, test)
    layout.name = _name(layout, test, validation)
    private = [folder.name for folder in subfolders(root) if folded(folder.name).startswith("test_private")]
    if private:
        layout.notes.append(f"{', '.join(private)}: no labels, left out.")
    return layout


def _add_good(layout: Layout, folder: Path, split: str) -> None:
    classes = [entry for entry in subfolders(folder) if folded(entry.name) not in MASK_NAMES]
    good = [entry for entry in classes if folded(entry.name) in GOOD_NAMES]
    for entry in good:
        layout.add(entry, split, 0, "good")
    if good:
        _say_loose(layout, folder)
    else:
        _add_loose(layout, folder, split)
    for entry in classes:
        count = 0 if entry in good else len(list_pictures(entry, shown_from=layout.root).pictures)
        if count:
            use = "used for training" if split == "train" else "used"
            layout.problems.append(
                f"{split} has a defect folder; it is not {use}: {folder.name}/{entry.name} ({counted(count, 'picture')})."
            )


def _add_loose(layout: Layout, folder: Path, split: str) -> None:
    """Pictures that lie in a split folder itself: good, unless labels beside them say otherwise (KolektorSDD2)."""
    before = len(layout.found)
    layout.add(folder, split, 0, "good", into=False)
    if not any(found.masks for found in layout.found[before:]):
        return
    layout.found[before:], defective = by_own_masks(layout, layout.found[before:])
    layout.name = "KolektorSDD2"
    if split == "test":
        layout.found += defective
    elif defective:
        layout.problems.append(f"{split} has {counted(len(defective), 'picture')} marked as defective; they are not used for training.")


def _add_test(layout: Layout, test: Path) -> None:
    masks = child(test, MASK_NAMES) or child(layout.root, MASK_NAMES)
    for entry in subfolders(test):
        name = folded(entry.name)
        if name in MASK_NAMES:
            continue
        good = name in GOOD_NAMES
        defect = "good" if good else entry.name
        if layout.add(entry, "test", 0 if good else 1, defect) == 0:
            layout.problems.append(f"{test.name}/{entry.name} is empty: there are no pictures of this class.")
        folder = masks_of_class(entry, masks)
        if folder is not None and not good:
            layout.mask_folders[defect] = folder
    _say_surplus(layout, test, masks)
    if part_siblings(list_pictures(test, shown_from=layout.root, into=False).pictures)[1]:
        _add_loose(layout, test, "test")
    else:
        _say_loose(layout, test)
    if not any(found.split == "test" for found in layout.found):
        layout.problems.append(f"{test.name} has no pictures in class folders: there is nothing to score the model on.")


def _say_loose(layout: Layout, folder: Path) -> None:
    """Lists pictures that lie beside class folders."""
    loose = list_pictures(folder, shown_from=layout.root, into=False).pictures
    if loose:
        layout.problems.append(
            f"{folder.name}: {counted(len(loose), 'picture')} in no class folder (first {loose[0].name}), not used; {EXPECTED}."
        )


def _say_surplus(layout: Layout, test: Path, masks: Path | None) -> None:
    """Lists folders of masks whose class has no pictures."""
    classes = {folded(entry.name) for entry in subfolders(test)} | GOOD_NAMES
    for folder in subfolders(masks) if masks else ():
        if folded(folder.name) not in classes and list_pictures(folder, shown_from=layout.root).pictures:
            name = relative_to(folder, layout.root)
            layout.problems.append(f"{name}: there is no {test.name}/{folder.name}; its masks are not used.")


def _name(layout: Layout, test: Path | None, validation: Path | None) -> str:
    classes = {folded(entry.name) for entry in subfolders(test)} if test is not None else set()
    if test is not None and folded(test.name) == "test_public":
        return "MVTec AD 2"
    if classes & _LOCO_NAMES or (validation is not None and any(subfolders(folder) for folder in layout.mask_folders.values())):
        return "MVTec LOCO AD"
    if {"ok", "ko"} & classes:
        return "BTAD"
    if classes - MASK_NAMES == {"good", "bad"}:
        return "VisA (converted)"
    return layout.name


def _first(problems: list[str]) -> str:
    return f" {problems[0]}" if problems else ""
