"""Which mask belongs to which picture, and reading masks.

Pairing is by name, never by position. For a picture `007.png` these are its masks, in any format and case:
`007.png`, `007_mask.png`, `007_gt.png`, `007_label.png`, `007_seg.png`, `007_ground_truth.png`, with `-` or `.` for `_`, numbered
(`007_mask_2.png`) if there are several, `mask_007.png`, `007.png.png`, and every picture in a folder `007/` (MVTec LOCO). Several masks
are united.

A mask marks a defect wherever it is not 0 (class ids are fine), with three exceptions: lossy formats (JPEG) from half of 255 up, because
compression leaves ripples; palette masks where the colour is not black, if the palette has colours; a mask that says it all in its alpha
channel by that.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from app.cae.folders import MASK_NAMES, folded, list_pictures
from app.cae.image_files import ALPHA_MODES, DEEP_MODES, Header, PictureError, decode, open_image, read_header, turned

_KINDS = r"(?:mask|masks|gt|label|seg|segmentation|ground_truth|groundtruth|anno|annotation)"
_AFTER = re.compile(rf"^(?P<stem>.+?)[_\-. ]{_KINDS}(?:[_\-. ]?\d+)?$")
_BEFORE = re.compile(rf"^{_KINDS}[_\-. ](?P<stem>.+)$")

LOSSY = frozenset({"JPEG", "MPO"})


@dataclass(frozen=True)
class Pairing:
    """Masks by picture, and what was left over."""

    masks: dict[Path, tuple[Path, ...]]
    unused: tuple[Path, ...]
    problems: tuple[str, ...]


def pair_masks(pictures: Sequence[Path], folder: Path, *, shown_from: Path) -> Pairing:
    """Masks in `folder` for `pictures` of one class. Sub-folders are looked into unless `folder` is that of all classes' masks."""
    listing = list_pictures(folder, shown_from=shown_from, into=folded(folder.name) not in MASK_NAMES)
    by_name = _by_name(pictures)
    found: dict[Path, list[Path]] = {}
    unused = []
    for mask in listing.pictures:
        owners = _owners(mask, folder, by_name)
        for owner in owners:
            found.setdefault(owner, []).append(mask)
        if not owners:
            unused.append(mask)
    return Pairing({owner: tuple(masks) for owner, masks in found.items()}, tuple(unused), tuple(listing.problems))


def part_siblings(files: Sequence[Path]) -> tuple[list[Path], dict[Path, tuple[Path, ...]]]:
    """Pictures among `files`, and masks that lie beside the picture they are named after (`Part0.jpg`, `Part0_label.bmp`)."""
    by_name = _by_name(files)
    found: dict[Path, list[Path]] = {}
    for file in files:
        match = _AFTER.match(folded(file.stem))
        owners = [owner for owner in by_name.get(match["stem"], []) if owner.parent == file.parent and owner != file] if match else []
        for owner in owners:
            found.setdefault(owner, []).append(file)
    masks = {mask for group in found.values() for mask in group}
    return [file for file in files if file not in masks], {owner: tuple(group) for owner, group in found.items()}


def fit(mask: Header, picture: Header) -> tuple[str, bool]:
    """How a mask lies on its picture, from the headers.

    Returns:
        ("same" | "scaled" | "turned" | "other aspect", whether that is a guess): "turned" is a mask drawn on the stored pixels of a
        picture that EXIF turns; it fits only once turned alike. A half turn or a square cannot be told from the sizes: then viewing
        order is taken, and it is a guess.
    """
    turnable = picture.orientation != 1 and mask.orientation == 1
    stored = picture.size[::-1] if picture.orientation >= 5 else picture.size
    ambiguous = turnable and stored == picture.size
    if mask.size == picture.size:
        return "same", ambiguous
    if turnable and picture.orientation >= 5 and mask.size == stored and not ambiguous:
        return "turned", False
    if _same_aspect(mask.size, picture.size):
        return "scaled", ambiguous
    if turnable and picture.orientation >= 5 and _same_aspect(mask.size, stored):
        return "turned", False
    return "other aspect", False


def read_mask(path: str | Path, *, picture: Header | None = None, size: int | None = None) -> NDArray[np.uint8]:
    """A mask as 0/1 in the viewing order of its picture.

    Args:
        path: mask file.
        picture: header of the picture it belongs to, for turning; None takes the mask as it is.
        size: side of the square wanted, px, by nearest neighbour, as papers do; where that leaves nothing of a small defect,
            every pixel the defect touches. None keeps the mask's own size.

    Raises:
        PictureError: the mask cannot be read, or has another aspect than its picture.
    """
    file = Path(path)
    marked = _marked(file)
    if picture is not None:
        header = read_header(file)
        how, _ = fit(header, picture)
        if how == "other aspect":
            raise PictureError(file, f"is {_px(header.size)}, its picture {_px(picture.size)}: the aspect differs")
        if how == "turned":
            marked = turned(marked, picture.orientation)
    if size is not None and marked.size != (size, size):
        small = marked.resize((size, size), Image.Resampling.NEAREST)
        if small.getbbox() is None and marked.getbbox() is not None:
            small = _touched(marked, size)
        marked = small
    return (np.asarray(marked) > 0).astype(np.uint8)


def _touched(marked: Image.Image, size: int) -> Image.Image:
    """(size, size), 255 wherever a marked pixel falls."""
    rows, columns = np.nonzero(np.asarray(marked))
    small = np.zeros((size, size), np.uint8)
    small[rows * size // marked.height, columns * size // marked.width] = 255
    return Image.fromarray(small)


def _marked(path: Path) -> Image.Image:
    """0 and 255 in viewing order."""
    with open_image(path) as image:
        orientation = decode(image, path)
        values = _values(image)
        marked: NDArray[np.bool_] = values >= 128 if image.format in LOSSY else np.nan_to_num(values) != 0
    return turned(Image.fromarray(marked.astype(np.uint8) * np.uint8(255)), orientation)


def _values(image: Image.Image) -> NDArray[Any]:
    if image.mode in ALPHA_MODES:
        rgba = np.asarray(image.convert("RGBA"))
        colour = rgba[..., :3].max(axis=2)
        seen = np.where(rgba[..., 3] > 0, colour, 0)
        return seen if seen.any() else rgba[..., 3] * np.uint8(len(np.unique(rgba[..., 3])) > 1)
    if image.mode == "P":
        colours = np.asarray(image.convert("RGB")).max(axis=2)
        indices = np.asarray(image)
        return colours if len(np.unique(colours)) > 1 or not indices.any() else indices
    values = np.asarray(image if image.mode in DEEP_MODES | {"L", "1"} else image.convert("RGB"))
    return values if values.ndim == 2 else values.max(axis=2)


def _by_name(pictures: Sequence[Path]) -> dict[str, list[Path]]:
    """Pictures by stem and by whole name, `folded`."""
    names: dict[str, list[Path]] = {}
    for picture in pictures:
        names.setdefault(folded(picture.stem), []).append(picture)
        names.setdefault(folded(picture.name), []).append(picture)
    return names


def _owners(mask: Path, folder: Path, by_name: dict[str, list[Path]]) -> list[Path]:
    """Pictures that `mask` belongs to by name: one, or several that differ in nothing but their format."""
    stem = folded(mask.stem)
    holder = folded(mask.relative_to(folder).parts[0]) if mask.parent != folder else ""
    matches = [match["stem"] for match in (_AFTER.match(stem), _BEFORE.match(stem)) if match]
    owners: list[Path] = next((by_name[name] for name in (holder, stem, *matches) if name in by_name), [])
    if len({owner.parent for owner in owners}) > 1:
        # Sub-folders repeat the names: only the one with the same sub-folder will do.
        owners = [owner for owner in owners if folded(owner.parent.name) == folded(mask.parent.name)]
    return owners if len({owner.parent for owner in owners}) == 1 else []


def _same_aspect(first: tuple[int, int], second: tuple[int, int]) -> bool:
    """Equal but for rounding to whole pixels of the smaller one, and within 5 %."""
    small, large = sorted((first, second))
    scale = max(large[0] / small[0], large[1] / small[1])
    return all(abs(big - little * scale) <= min(scale, 0.05 * big) for little, big in zip(small, large, strict=True))


def _px(size: tuple[int, int]) -> str:
    return f"{size[0]} × {size[1]} px"
