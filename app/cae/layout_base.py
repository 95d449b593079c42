"""What the finders of layouts share: a picture and its place, a recognised folder, the split of layouts that have none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from app.cae.folders import MASK_NAMES, child, folded, list_pictures, natural_key, relative_to
from app.cae.image_files import PictureError
from app.cae.masks import part_siblings, read_mask

EXPECTED = (
    "expected train/good and test/ (test/good, test/<defect>, optionally ground_truth/<defect>), "
    "another layout that docs/data.md lists, or a folder of good pictures"
)
TRAIN_SHARE = 0.8


@dataclass(frozen=True)
class Found:
    """A picture and where it belongs."""

    path: Path
    split: str
    label: int
    defect: str
    masks: tuple[Path, ...] = ()
    """Masks already known because they lie beside the picture."""


@dataclass
class Layout:
    """A recognised folder: pictures, where the masks of each test class lie, sentences."""

    name: str
    root: Path
    found: list[Found] = field(default_factory=list)
    mask_folders: dict[str, Path] = field(default_factory=dict)
    """Folder of masks by defect."""
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, folder: Path, split: str, label: int, defect: str, *, into: bool = True) -> int:
        """Takes the pictures of `folder`; returns how many."""
        listing = list_pictures(folder, shown_from=self.root, into=into)
        files, masks = part_siblings(listing.pictures)
        self.problems += listing.problems
        self.found += [Found(file, split, label, defect, masks.get(file, ())) for file in files]
        return len(files)


def share_out(layout: Layout) -> None:
    """Gives `TRAIN_SHARE` of the good pictures to training, all others to testing: the documented split of layouts without one."""
    good = sorted((picture for picture in layout.found if picture.label == 0), key=lambda picture: natural_key(picture.path))
    drawn = np.random.default_rng(0).permutation(len(good))
    trained = {int(place) for place in drawn[: max(1, round(TRAIN_SHARE * len(good)))]}
    layout.notes.append(f"No official split: {len(trained)} of {len(good)} good pictures are for training, all others for testing.")
    shared = [replace(picture, split="train" if place in trained else "test") for place, picture in enumerate(good)]
    layout.found = shared + [picture for picture in layout.found if picture.label]


def by_own_masks(layout: Layout, found: Sequence[Found]) -> tuple[list[Found], list[Found]]:
    """Good and defective ones among pictures that are labelled by the masks beside them; those without are listed and left out."""
    good, defective = [], []
    for picture in found:
        name = relative_to(picture.path, layout.root)
        if not picture.masks:
            layout.problems.append(f"{name}: no label beside it, so it is neither good nor defective; left out.")
            continue
        try:
            marked = any(read_mask(mask).any() for mask in picture.masks)
        except PictureError as error:
            layout.problems.append(f"{relative_to(error.path, layout.root)}: {error.reason}; {picture.path.name} is left out with it.")
            continue
        if marked:
            defective.append(replace(picture, split="test", label=1, defect="defective"))
        else:
            good.append(replace(picture, masks=()))
    return good, defective


def masks_of_class(pictures_of: Path, masks: Path | None) -> Path | None:
    """The folder of masks for the class folder `pictures_of`: inside it, or of its name in `masks`, or `masks` if masks lie loose there."""
    inside = child(pictures_of, MASK_NAMES)
    if inside is not None or masks is None:
        return inside
    by_name = child(masks, {folded(pictures_of.name)})
    if by_name is not None:
        return by_name
    return masks if list_pictures(masks, shown_from=masks, into=False).pictures else None
