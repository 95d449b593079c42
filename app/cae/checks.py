"""From a recognised folder to a table: every file's header is read, masks are paired, and what is wrong is said by file."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from app.cae.folders import folded, natural_key, relative_to
from app.cae.image_files import Header, PictureError, read_header
from app.cae.images import common_white, white_for
from app.cae.layouts import EXPECTED, Found, Layout
from app.cae.masks import LOSSY, fit, pair_masks
from app.cae.tables import SPLITS, Dataset, make_table
from app.core.errors import DataError

LEAST_SIZE = 64
"""Side of the smallest square the network takes, px."""

DECODED_AT_ONCE_MIB = 16
"""Sets of up to this size are decoded whole when they are opened, so that damage inside a file is listed before training too. In larger
sets only headers and ends are looked at, and damage inside is found when pictures are loaded."""

NAMED = 5
"""A sentence about many files names this many of them."""

Masks = dict[Path, tuple[Path, ...]]
"""Masks by picture."""


@dataclass
class _Desk:
    """What the checks of one folder share."""

    root: Path
    headers: dict[Path, Header] = field(default_factory=dict)
    """Of usable pictures."""
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def shown(self, path: Path) -> str:
        return relative_to(path, self.root)

    def several(self, paths: Iterable[Path], tell: Callable[[Path], str] = lambda _: "") -> str:
        """ "a, b, c and 4 more"."""
        names = [f"{self.shown(path)}{tell(path)}" for path in paths]
        more = len(names) - NAMED
        return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


def checked(layout: Layout, source: str) -> Dataset:
    """The data set of `layout`, unusable files left out and listed.

    Raises:
        DataError: no training picture is left.
    """
    desk = _Desk(layout.root, problems=list(layout.problems), notes=list(layout.notes))
    _read_headers(layout, desk)
    found = [picture for picture in layout.found if picture.path in desk.headers]
    masks = _pair(layout, found, desk)
    _say_unmasked([picture for picture in found if picture.label], masks, desk)
    usable = _fitting(masks, desk)
    white = _say_depths(desk)
    _say_pictures(desk)
    _say_split(found, desk)
    _say_leaks(found, desk)
    found.sort(key=lambda one: (SPLITS[one.split], one.label, folded(one.defect), natural_key(one.path)))
    rows = [(str(one.path), one.split, one.label, one.defect, tuple(map(str, usable.get(one.path, ())))) for one in found]
    sizes = tuple(desk.headers[one.path].size for one in found)
    problems, notes = tuple(dict.fromkeys(desk.problems)), tuple(dict.fromkeys(desk.notes))
    return Dataset(layout.root.name, source, layout.name, make_table(rows), problems, notes, sizes, layout.root, white)


def _read_headers(layout: Layout, desk: _Desk) -> None:
    """Fills `desk.headers`, listing what cannot be used.

    Raises:
        DataError: no training picture is left.
    """
    bad: list[str] = []
    thorough = _bytes_of(layout.found) <= DECODED_AT_ONCE_MIB * 2**20
    for picture in layout.found:
        try:
            desk.headers[picture.path] = read_header(picture.path, thorough=thorough)
        except PictureError as error:
            bad.append(f"{desk.shown(picture.path)}: {error.reason}; left out.")
    desk.problems += bad
    if not any(picture.split == "train" and picture.path in desk.headers for picture in layout.found):
        first = f" The first of {len(bad)} that cannot be read: {bad[0]}" if bad else ""
        raise DataError(f"{layout.root}: 0 images in train/good that can be read; {EXPECTED}.{first}")


def _bytes_of(found: Iterable[Found]) -> int:
    total = 0
    for picture in found:
        with suppress(OSError):
            total += picture.path.stat().st_size
    return total


def _pair(layout: Layout, found: Sequence[Found], desk: _Desk) -> Masks:
    """Masks of the defective pictures; lists masks that belong to none."""
    masks: Masks = {picture.path: picture.masks for picture in found if picture.masks and picture.label}
    unused: dict[Path, None] = {}
    owners: dict[Path, set[str]] = defaultdict(set)
    for defect, folder in layout.mask_folders.items():
        # Pictures left out keep their masks from being called surplus.
        pairing = pair_masks([one.path for one in layout.found if one.defect == defect], folder, shown_from=layout.root)
        masks |= {path: files for path, files in pairing.masks.items() if path in desk.headers}
        for file in (file for files in pairing.masks.values() for file in files):
            owners[file].add(defect)
        unused |= dict.fromkeys(pairing.unused)
        desk.problems += pairing.problems
    shared = {mask for mask, defects in owners.items() if len(defects) > 1}
    desk.problems += [f"{desk.shown(mask)}: pictures of several classes have that name; the mask is not used." for mask in shared]
    desk.problems += [f"{desk.shown(mask)}: no picture of that name; the mask is not used." for mask in unused if mask not in owners]
    return {path: files for path, files in masks.items() if shared.isdisjoint(files)}


def _fitting(masks: Masks, desk: _Desk) -> Masks:
    """Those of `masks` that can be laid on their pictures; the others are listed."""
    fitting, resized = {}, []
    for path, files in masks.items():
        try:
            judged = [(file, *_judged(file, desk.headers[path])) for file in files]
        except PictureError as error:
            desk.problems.append(f"{desk.shown(error.path)}: {error.reason}; {desk.shown(path)} is left out of pixel metrics.")
            continue
        desk.problems += [f"{desk.shown(file)}: {sentence}" for file, _, sentence in judged if sentence]
        resized += [file for file, how, _ in judged if how == "scaled"]
        fitting[path] = files
    if resized:
        desk.problems.append(f"Masks of another size than their picture, resized (nearest): {desk.several(resized)}.")
    return fitting


def _judged(file: Path, picture: Header) -> tuple[str, str]:
    """How the mask fits, and a sentence where a reader should look.

    Raises:
        PictureError: it does not fit.
    """
    header = read_header(file, thorough=file.stat().st_size < 2**20)
    how, guess = fit(header, picture)
    if how == "other aspect":
        sizes = f"{header.size[0]} × {header.size[1]} px, its picture {picture.size[0]} × {picture.size[1]} px"
        raise PictureError(file, f"its aspect differs ({sizes})")
    if guess:
        return how, "its picture is turned by EXIF and the sizes do not tell how the mask was drawn; taken as drawn on the turned picture."
    if header.format in LOSSY:
        return how, "is a JPEG; taken as a mask from half of white up. Save masks as PNG."
    return how, ""


def _say_unmasked(defective: Sequence[Found], masks: Masks, desk: _Desk) -> None:
    if defective and not masks:
        desk.problems.append("There are no masks: pixel metrics are not available.")
    if not defective or not masks:
        return
    total = Counter(picture.defect for picture in defective)
    bare = [picture for picture in defective if picture.path not in masks]
    without = Counter(picture.defect for picture in bare)
    for defect, count in without.items():
        if count == total[defect]:
            desk.problems.append(f"{defect}: no masks for this class; it is left out of pixel metrics.")
    for picture in bare:
        if without[picture.defect] < total[picture.defect]:
            desk.problems.append(f"{desk.shown(picture.path)}: no mask of that name; left out of pixel metrics.")


def _say_pictures(desk: _Desk) -> None:
    headers = desk.headers
    small = [path for path, header in headers.items() if min(header.size) < LEAST_SIZE]
    if small:
        named = desk.several(small, lambda path: " ({} × {} px)".format(*headers[path].size))
        desk.problems.append(f"There are images smaller than the model size (at least {LEAST_SIZE} px), enlarged: {named}.")
    many = [path for path, header in headers.items() if header.frames > 1]
    if many:
        desk.problems.append(f"More than one frame, the first is used: {desk.several(many, lambda path: f' ({headers[path].frames})')}.")
    clear = [path for path, header in headers.items() if header.transparent]
    if clear:
        desk.problems.append(f"Transparent in places, shown on white: {desk.several(clear)}.")
    sizes = Counter(header.size for header in headers.values())
    (width, height), _ = sizes.most_common(1)[0]
    if len(sizes) > 1:
        desk.notes.append(f"{len(sizes)} picture sizes, most often {width} × {height} px; all become one square.")
    elif width != height:
        desk.notes.append(f"Pictures of {width} × {height} px become a square: the network and the heat maps see them squeezed.")


def _say_depths(desk: _Desk) -> float | None:
    """White of the set's pictures of more than 8 bits a sample; None without any."""
    whites = {path: header.white for path, header in desk.headers.items() if header.white is not None}
    white = common_white(whites.values())
    if white is None:
        return None
    desk.notes.append(f"Pictures of more than 8 bits a sample are scaled so that {white:g} is white.")
    others = [path for path, own in whites.items() if white_for(own, white) != white]
    if others:
        named = desk.several(others, lambda path: f" ({whites[path]:g})")
        desk.problems.append(f"Values reach far less than {white:g}: taken as another bit depth and scaled by their own white: {named}.")
    return white


def _say_split(found: Sequence[Found], desk: _Desk) -> None:
    trained = sum(picture.split == "train" for picture in found)
    labels = {picture.label for picture in found if picture.split == "test"}
    if trained == 1:
        desk.problems.append("There is only 1 training image: nothing can be held out for early stopping and the threshold.")
    if len(labels) == 1:
        missing = "good" if 1 in labels else "defective"
        desk.problems.append(f"test has no {missing} pictures: AUROC is not available, only one class in test.")


def _say_leaks(found: Sequence[Found], desk: _Desk) -> None:
    """Lists test pictures that are training pictures too, byte by byte."""
    by_size: dict[int, list[Found]] = defaultdict(list)
    for picture in found:
        by_size[picture.path.stat().st_size].append(picture)
    leaks: list[Path] = []
    for group in by_size.values():
        if len({picture.split == "test" for picture in group}) < 2:
            continue
        digests = {picture.path: hashlib.sha256(picture.path.read_bytes()).digest() for picture in group}
        trained = {digests[picture.path] for picture in group if picture.split != "test"}
        leaks += [picture.path for picture in group if picture.split == "test" and digests[picture.path] in trained]
    if leaks:
        desk.problems.append(f"The same pictures are in train and test, so scores flatter: {desk.several(leaks)}.")
