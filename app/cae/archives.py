"""Unpacking an uploaded zip that nobody has looked at: names, links, number, size and compression are checked first."""

from __future__ import annotations

import contextlib
import shutil
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from app.cae.folders import has_controls, is_junk
from app.cae.image_files import SUFFIXES
from app.core.errors import DataError
from app.core.words import counted

MAX_FILES = 20_000
MAX_TOTAL_MIB = 4096
MAX_RATIO = 200
"""Unpacked over packed size. Deflate reaches 1032 on zeros; pictures, packed already, stay near 1, folders with masks far under 200."""

_MIB = 2**20
_SMALL = 32 * _MIB
"""Entries up to this many bytes may have any ratio: an empty mask in a BMP packs very well."""

_KEPT = SUFFIXES | {".csv", ""}
"""Only what the readers of data sets look at is unpacked. Files without suffix may be pictures."""

_DAMAGED: tuple[type[Exception], ...] = (
    *(zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error),
    *(EOFError, NotImplementedError, RuntimeError, ValueError),
)
"""Each way of packing has errors of its own."""
with contextlib.suppress(ImportError):  # a Python built without it refuses such entries with NotImplementedError or RuntimeError
    from lzma import LZMAError

    _DAMAGED += (LZMAError,)
_CANNOT_UNPACK = "{name}: cannot be unpacked into {folder} ({why})."


def extract_zip(
    file: Path | BinaryIO,
    target: Path,
    *,
    max_files: int = MAX_FILES,
    max_total_mib: float = MAX_TOTAL_MIB,
    max_ratio: float = MAX_RATIO,
) -> Path:
    """Unpacks the pictures of a zip into `target`, which appears whole or not at all.

    Args:
        file: the zip.
        target: folder to be made; its parent is made if need be.
        max_files: entries allowed.
        max_total_mib: unpacked size allowed, MiB.
        max_ratio: unpacked over packed size allowed, for each entry over 32 MiB and for the whole.

    Returns:
        `target`.

    Raises:
        DataError: the target is there, the file is not a zip, is encrypted or damaged, holds no pictures, leaves its folder, holds links
            or special files, or is larger than allowed.
    """
    name = file.name if isinstance(file, Path) else "upload"
    if target.exists():
        raise DataError(f"{target}: expected a new folder to unpack {name} into, got one that is there.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise DataError(_CANNOT_UNPACK.format(name=name, folder=target.parent, why=error.strerror or error)) from None
    try:
        with zipfile.ZipFile(file) as archive:
            entries = _checked(archive.infolist(), name, max_files, max_total_mib, max_ratio)
            _extract(archive, entries, temporary)
        temporary.chmod(0o755)
        temporary.rename(target)
    except _DAMAGED as error:
        raise DataError(f"{name}: expected a zip archive that can be unpacked, got a damaged or unsupported one ({error}).") from None
    except OSError as error:
        raise DataError(_CANNOT_UNPACK.format(name=name, folder=target.parent, why=error.strerror or error)) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def _checked(
    entries: Iterable[zipfile.ZipInfo], name: str, max_files: int, max_total_mib: float, max_ratio: float
) -> dict[PurePosixPath, zipfile.ZipInfo]:
    """Files to unpack by where they go; refuses the whole archive for one bad entry."""
    files = [entry for entry in entries if not entry.is_dir()]
    if len(files) > max_files:
        raise DataError(f"{name}: expected at most {max_files} files, got {len(files)}. Type the path of a folder on the server instead.")
    for entry in files:
        _refuse_bad(entry, name, max_ratio)
    total, packed = sum(entry.file_size for entry in files), sum(entry.compress_size for entry in files)
    if total > max_total_mib * _MIB:
        raise DataError(
            f"{name}: expected at most {max_total_mib:g} MiB unpacked, got {total / _MIB:.0f} MiB. "
            "Type the path of a folder on the server instead."
        )
    if total > _SMALL and total > max_ratio * packed:
        raise DataError(f"{name}: unpacks to {total / max(packed, 1):.0f} times its size, expected at most {max_ratio:g} times.")
    kept = {_safe_name(entry, name): entry for entry in files}
    kept = {path: entry for path, entry in kept.items() if path.suffix.casefold() in _KEPT and not any(map(is_junk, path.parts))}
    if not any(path.suffix.casefold() in SUFFIXES for path in kept):
        raise DataError(f"{name}: expected pictures ({', '.join(sorted(SUFFIXES))}), got {counted(len(files), 'file')} of other kinds.")
    return kept


def _refuse_bad(entry: zipfile.ZipInfo, name: str, max_ratio: float) -> None:
    _safe_name(entry, name)
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind == stat.S_IFLNK:
        raise DataError(f"{name}: {entry.filename!r} is a symbolic link, expected files and folders only.")
    if kind not in (0, stat.S_IFREG):
        raise DataError(f"{name}: {entry.filename!r} is a special file, expected files and folders only.")
    if entry.flag_bits & 0x1:
        raise DataError(f"{name}: {entry.filename!r} is encrypted, expected a zip without password.")
    if entry.file_size > _SMALL and entry.file_size > max_ratio * entry.compress_size:
        ratio = entry.file_size / max(entry.compress_size, 1)
        raise DataError(f"{name}: {entry.filename!r} unpacks to {ratio:.0f} times its size, expected at most {max_ratio:g} times.")


def _safe_name(entry: zipfile.ZipInfo, name: str) -> PurePosixPath:
    """Where the entry goes, below the target. Backslashes separate, as in archives made on Windows."""
    text = entry.orig_filename.replace("\\", "/")
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if text.startswith("/") or ".." in parts or not parts or ":" in parts[0] or has_controls(text):
        raise DataError(f"{name}: {entry.orig_filename!r} leads out of the archive's folder or is no file name; nothing was unpacked.")
    return PurePosixPath(*parts)


def _extract(archive: zipfile.ZipFile, entries: dict[PurePosixPath, zipfile.ZipInfo], folder: Path) -> None:
    # `ZipExtFile` never hands out more than the declared size, which was checked, whatever the packed data hold.
    for path, entry in entries.items():
        file = folder.joinpath(*path.parts)
        file.parent.mkdir(parents=True, exist_ok=True)
        with archive.open(entry) as packed, file.open("xb") as unpacked:
            shutil.copyfileobj(packed, unpacked)
