"""Pictures that somebody wants to have scored: finding them, reading them as the run's own were read, and saying what is left out."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from app.cae.folders import list_pictures, relative_to
from app.cae.image_files import PictureError
from app.cae.images import read_image
from app.cae.memory import free_mib
from app.cae.pictures import MEMORY_SHARE, NAMED, on_disk_note, result_mib
from app.cae.rows import FileRows, Rows, Store, chosen, refuse_full_disk, store_folder
from app.core.errors import DataError

if TYPE_CHECKING:
    from app.cae.scoring import Calibration

NO_PICTURES = "PICTURE: expected at least one picture file or a folder of them, got none in {given}."
NONE_LEFT = "PICTURE: none of {count} can be scored. The first: {first}"
LEFT_OUT = "{name}: {reason}; left out."
ENLARGED = "is smaller than the {size} px that the model sees, so it was enlarged"
ON_THE_DISK = "{count} pictures of {size} px, which do not fit into memory, and for their maps"
_MIB = 2**20


@dataclass(frozen=True)
class Given:
    """A picture to be scored."""

    file: Path
    name: str
    """How it is called in what people read: its absolute path, or the name of an upload."""


def find_pictures(paths: Sequence[Path], names: Mapping[str, str] | None = None) -> tuple[list[Given], list[str]]:
    """The picture files among `paths` and in the folders among them, each once, and a sentence on each thing that was passed over.

    Args:
        paths: files, whatever their suffix, and folders, whose sub-folders are looked through too.
        names: how uploaded files are to be called, by file name.

    Raises:
        DataError: there is no picture at all.
    """
    found: dict[str, Given] = {}
    problems: list[str] = []
    for path in paths:
        files = [path]
        if path.is_dir():
            listing = list_pictures(path, shown_from=path)
            files = listing.pictures
            problems += [f"{relative_to(path, None)}/{problem}" for problem in listing.problems]
        for file in files:
            place = Path(os.path.abspath(file))  # noqa: PTH100 - a link keeps its own name
            found.setdefault(str(place), Given(place, (names or {}).get(place.name) or relative_to(place, None)))
    if not found:
        given = ", ".join(relative_to(path, None) for path in paths[:3]) + (" …" if len(paths) > 3 else "")
        raise DataError(f"{NO_PICTURES.format(given=given)}{f' The first problem: {problems[0]}' if problems else ''}")
    return list(found.values()), problems


@dataclass
class Reading:
    """Reads pictures as a run's own were read. Call it with the run's calibration."""

    given: Sequence[Given]
    progress: Callable[[int, int], None] = lambda _done, _total: None
    """Told of (pictures done, pictures in all); may raise to stop."""
    problem: Callable[[str], None] = lambda _sentence: None
    """Told of each picture that is left out."""
    kept: list[Given] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    """(width, height) in viewing order, px, of each picture kept."""
    folder: Path | None = None
    """Where pictures that do not fit into memory are kept meanwhile; None: see `rows.store_folder`."""
    _kept_on_disk: list[str] = field(default_factory=list)
    _noted: dict[str, list[str]] = field(default_factory=dict)

    @property
    def notes(self) -> list[str]:
        """What people should know about the pictures that were scored, one sentence for each kind."""
        return [*self._kept_on_disk, *(f"{_several(names)}: {note}." for note, names in self._noted.items())]

    def __call__(self, rule: Calibration) -> Rows:
        """(N, S, S, C) uint8 of the pictures that can be read.

        Raises:
            DataError: none can be, or they fit neither into memory nor on the disk.
        """
        size, channels = rule.size, rule.channels
        images = self._room(size, channels)
        first = ""
        for place, picture in enumerate(self.given):
            try:
                read = read_image(picture.file, channels=channels, size=size, full_scale=rule.full_scale)
            except PictureError as error:
                sentence = LEFT_OUT.format(name=picture.name, reason=error.reason)
                first = first or sentence
                self.problem(sentence)
            else:
                images[len(self.kept)] = read.pixels
                self.kept.append(picture)
                self.sizes.append(read.original_size)
                self._note(picture.name, read.original_size, read.notes, size)
            self.progress(place + 1, len(self.given))
        if not self.kept:
            raise DataError(NONE_LEFT.format(count=len(self.given), first=first))
        return chosen(images, np.arange(len(self.kept)))

    def _room(self, size: int, channels: int) -> NDArray[np.uint8] | FileRows:
        """For all pictures: in memory where that is free for them and what comes of them."""
        count, free = len(self.given), free_mib()
        pictures = count * size * size * channels / _MIB
        needed = pictures + result_mib(count, size, channels)
        store = Store(store_folder(self.folder), MEMORY_SHARE * free if needed <= MEMORY_SHARE * free else 0.0)
        if not store.left_mib:
            # The maps also as the file that stays.
            what = ON_THE_DISK.format(count=count, size=size)
            refuse_full_disk(store.folder, needed + result_mib(count, size, channels), what)
            self._kept_on_disk.append(on_disk_note(count, size, channels, needed, free, store.folder))
        return store.zeros((count, size, size, channels), np.uint8)

    def _note(self, name: str, original: tuple[int, int], notes: Sequence[str], size: int) -> None:
        for note in (*notes, *([ENLARGED.format(size=size)] if min(original) < size else ())):
            self._noted.setdefault(note, []).append(name)


def _several(names: Sequence[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
