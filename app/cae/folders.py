"""Listing folders of pictures: what is a picture, what is junk, where links lead, in an order people expect."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from app.cae.image_files import SUFFIXES

# fmt: off
GOOD_NAMES = frozenset({"good", "ok", "normal"})
BAD_NAMES = frozenset({
    "bad", "ko", "ng", "nok", "not_ok", "notok", "not_good", "anomaly", "anomalies", "anomalous", "abnormal", "defect", "defects",
    "defective", "damaged", "faulty", "fail", "reject",
})
MASK_NAMES = frozenset({
    "ground_truth", "ground-truth", "groundtruth", "ground truth", "gt", "mask", "masks", "label", "labels", "annotation", "annotations",
    "segmentation",
})

_JUNK_FOLDERS = frozenset({"__macosx", "__pycache__", "@eadir", "#recycle", "$recycle.bin", "system volume information", "lost+found"})
_JUNK_FILES = frozenset({"thumbs.db", "desktop.ini", "ehthumbs.db"})
_UNSUPPORTED = frozenset({
    ".heic", ".heif", ".avif", ".jxl", ".exr", ".hdr", ".svg", ".psd", ".pdf", ".dcm", ".dicom", ".npy", ".npz", ".raw", ".dng", ".cr2",
    ".cr3", ".nef", ".arw", ".fits", ".czi", ".nd2", ".lif", ".mat", ".h5", ".mp4", ".avi", ".mov", ".eps",
})
# fmt: on
_DEEPEST = 6
"""Levels of sub-folders walked below a folder of pictures."""


@dataclass
class Listing:
    """Pictures of one folder in natural order, and sentences on what was passed over (junk is passed over silently)."""

    pictures: list[Path] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def list_pictures(folder: Path, *, shown_from: Path, into: bool = True) -> Listing:
    """Files of `folder` that by name are pictures, sub-folders included unless they hold masks or `into` is False.

    Links to files and folders are followed, except a link to a folder that holds the link: that one is a loop and is listed.
    """
    listing = Listing()
    _walk(folder, shown_from, into, listing, {folder.resolve()}, 0)
    return listing


def subfolders(folder: Path) -> list[Path]:
    """Folders and links to folders in `folder`, junk and loops left out, in natural order."""
    try:
        entries = [entry for entry in folder.iterdir() if entry.is_dir() and not is_junk(entry.name)]
    except OSError:
        return []
    return sorted((entry for entry in entries if not is_loop(entry)), key=natural_key)


def child(folder: Path, names: Collection[str]) -> Path | None:
    """The first sub-folder called one of `names`, in any case."""
    return next((entry for entry in subfolders(folder) if folded(entry.name) in names), None)


def folded(name: str) -> str:
    """`name` without regard to case and to how accents are written (macOS writes them apart)."""
    return unicodedata.normalize("NFC", name).casefold()


def relative_to(path: str | Path, root: Path | None) -> str:
    """`path` below `root` with forward slashes, else as it is; control characters and undecodable bytes as escapes, to be shown."""
    file = Path(path)
    text = (file.relative_to(root) if root is not None and file.is_relative_to(root) else file).as_posix()
    return text.encode("unicode_escape").decode("ascii") if has_controls(text) else text


def has_controls(text: str) -> bool:
    """Control characters, or bytes that were no text (which Python keeps as lone surrogates)."""
    return any(ord(letter) < 32 or ord(letter) == 127 or 0xD800 <= ord(letter) <= 0xDFFF for letter in text)


def is_junk(name: str) -> bool:
    """Left by file managers, archivers and notebooks, never meant as data."""
    return name.startswith((".", "~$")) or name.casefold() in _JUNK_FOLDERS | _JUNK_FILES


def natural_key(path: Path) -> tuple[tuple[int, int, str], ...]:
    """Sorts 2.png before 10.png."""
    parts = re.split(r"([0-9]+)", folded(path.as_posix()))
    return tuple((0, int(part[:18]), part) if part.isdecimal() else (1, 0, part) for part in parts)


def _walk(folder: Path, shown_from: Path, into: bool, listing: Listing, seen: set[Path], depth: int) -> None:
    for entry in _entries(folder, shown_from, listing):
        name = relative_to(entry, shown_from)
        if entry.is_dir():
            if not into or depth >= _DEEPEST or folded(entry.name) in MASK_NAMES:
                continue
            if is_loop(entry) or (target := entry.resolve()) in seen:
                listing.problems.append(f"{name}: links back to a folder already seen; not followed.")
                continue
            seen.add(target)
            _walk(entry, shown_from, into, listing, seen, depth + 1)
        elif entry.suffix.casefold() in _UNSUPPORTED:
            listing.problems.append(f"{name}: {entry.suffix} files are not read; convert it to PNG or TIFF.")
        elif entry.suffix.casefold() in SUFFIXES or (not entry.suffix and _looks_like_a_picture(entry)):
            problem = _unusable(entry)
            if problem:
                listing.problems.append(f"{name}: {problem}; left out.")
            else:
                listing.pictures.append(entry)


def _entries(folder: Path, shown_from: Path, listing: Listing) -> list[Path]:
    try:
        return sorted((entry for entry in folder.iterdir() if not is_junk(entry.name)), key=natural_key)
    except OSError as error:
        listing.problems.append(f"{relative_to(folder, shown_from)}: cannot be listed ({error.strerror or error}).")
        return []


def _unusable(entry: Path) -> str | None:
    if not entry.is_file():
        return ("is a broken link" if entry.is_symlink() else "is not a regular file") if not entry.is_dir() else None
    try:
        entry.name.encode()
    except UnicodeEncodeError:
        return "its name is not valid Unicode, rename it"
    return None


def _looks_like_a_picture(entry: Path) -> bool:
    """A file without suffix that begins like a PNG, JPEG or TIFF."""
    if not entry.is_file():
        return False
    try:
        with entry.open("rb") as file:
            start = file.read(8)
    except OSError:
        return False
    return start.startswith((b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"II*\x00", b"MM\x00*")) or (
        start[:2] == b"BM" and start[6:8] == b"\0\0"
    )


def is_loop(entry: Path) -> bool:
    """Whether `entry` is a link to a folder that holds it (or to itself)."""
    if not entry.is_symlink():
        return False
    try:
        return entry.parent.resolve().is_relative_to(entry.resolve())
    except (OSError, RuntimeError):
        return True
