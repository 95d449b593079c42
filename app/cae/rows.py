"""Arrays of a whole data set, one row a picture, that need not lie in memory: in a file, or as chosen rows of another array.

Rows come into memory when they are asked for. The file is read and written, not mapped: mapped pages count as the process's memory where
SLURM or a shell limit (`ulimit -v`) watches it, and a full disk is an error with a sentence instead of a SIGBUS.
"""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
import weakref
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from app.core.errors import DataError

PART_BYTES = 4 * 2**20
"""Most that is read or written at once where all rows are walked through."""

ROWS_FROM = 64 * 2**20
"""Arrays of an archive of that many bytes or more are read row by row: a page shows a few pictures of them."""

_MIB = 2**20

_NO_ROOM = "{folder}: expected {needed} of free disk space for {what}, got {free}. {advice}"
_ADVICE = "Free some, choose a folder on another disk, a smaller image size, grey, or fewer pictures."
_NO_FILE = "{folder}: pictures that do not fit into memory cannot be kept there ({cause}). Choose another TWOPATH_RUNS_DIR."
_UNREADABLE = "{place}: the pictures kept there cannot be read any more ({cause})."
_NOT_WRITTEN = "{folder}: pictures that do not fit into memory cannot be written there any more ({cause}; {free} are free)."


class LazyRows(ABC):
    """An array (N, …) whose rows are NumPy arrays once they are asked for: one by its number, several by a slice, numbers or bools."""

    def __init__(self, shape: Sequence[int], dtype: DTypeLike) -> None:
        self.shape: tuple[int, ...] = tuple(shape)
        self.dtype: np.dtype[Any] = np.dtype(dtype)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def row_bytes(self) -> int:
        return int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[NDArray[Any]]:
        return (self[place] for place in range(len(self)))

    def __getitem__(self, rows: int | slice | Sequence[int] | NDArray[Any]) -> NDArray[Any]:
        """A copy of what `rows` picks. Raises IndexError where there is no such row."""
        if isinstance(rows, (int, np.integer)):
            found: NDArray[Any] = self._taken(self._numbers([int(rows)]))[0]
            return found
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            return self._stretch(start, max(start, stop)) if step == 1 else self._taken(np.arange(start, stop, step))
        return self._taken(self._numbers(rows))

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        """All rows, in memory."""
        if copy is False:
            raise ValueError("These rows lie outside memory; an array of them is a copy.")
        whole = self[:]
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def _numbers(self, rows: Sequence[int] | NDArray[Any]) -> NDArray[np.intp]:
        chosen = np.asarray(rows)
        if chosen.dtype == np.bool_:
            if chosen.shape != (len(self),):
                raise IndexError(f"Expected {len(self)} bools to choose rows with, got shape {chosen.shape}.")
            return np.flatnonzero(chosen)
        numbers = chosen.astype(np.intp)
        if numbers.ndim != 1 or (len(numbers) and not -len(self) <= numbers.min() <= numbers.max() < len(self)):
            raise IndexError(f"Expected row numbers below {len(self)}, got {chosen!r}.")
        return np.where(numbers < 0, numbers + len(self), numbers)

    @abstractmethod
    def _taken(self, numbers: NDArray[np.intp]) -> NDArray[Any]:
        """Rows by number."""

    @abstractmethod
    def _stretch(self, start: int, stop: int) -> NDArray[Any]:
        """Rows that follow each other."""


class _InFile(LazyRows):
    """Rows that follow each other in an open file, which is closed when nothing of this object is used any more."""

    def __init__(self, file: FileIO, start: int, place: Path, shape: Sequence[int], dtype: DTypeLike) -> None:
        super().__init__(shape, dtype)
        self._file, self._start, self._place = file, start, place  # a file object, and not its number: it can be neither copied nor pickled
        weakref.finalize(self, file.close)

    def _taken(self, numbers: NDArray[np.intp]) -> NDArray[Any]:
        found = np.empty((len(numbers), *self.shape[1:]), self.dtype)
        for place, number in enumerate(numbers.tolist()):
            self._read(found[place : place + 1], number)
        return found

    def _stretch(self, start: int, stop: int) -> NDArray[Any]:
        found = np.empty((stop - start, *self.shape[1:]), self.dtype)
        for part in parts(found):
            self._read(found[part], start + part.start)
        return found

    def _read(self, into: NDArray[Any], start: int) -> None:
        rest, offset = into.reshape(-1).view(np.uint8), self._start + start * self.row_bytes
        while len(rest):
            try:
                read = os.pread(self._file.fileno(), len(rest), offset)
            except OSError as error:
                raise DataError(_UNREADABLE.format(place=self._place, cause=error.strerror or error)) from None
            if not read:
                raise DataError(_UNREADABLE.format(place=self._place, cause="it is shorter than it was written"))
            rest[: len(read)] = np.frombuffer(read, np.uint8)
            rest, offset = rest[len(read) :], offset + len(read)


class ArchivedRows(_InFile):
    """One uncompressed array of an archive. Read, not mapped: a file that is replaced on a network file system would end the process that
    has it mapped (SIGBUS)."""


class FileRows(_InFile):
    """Rows in a file without a name, which the system removes when this process closes it or ends, however it ends. Zero at first."""

    def __init__(self, folder: Path, shape: Sequence[int], dtype: DTypeLike) -> None:
        """Raises DataError where `folder` takes no such file."""
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - it lives as long as the rows
            super().__init__(file, 0, folder, shape, dtype)
            file.truncate(self.row_bytes * len(self))
        except OSError as error:
            raise DataError(_NO_FILE.format(folder=folder, cause=error.strerror or error)) from None

    def __setitem__(self, rows: int | slice, values: ArrayLike) -> None:
        """Writes one row, or rows that follow each other. Raises DataError where the disk does not take them."""
        start, stop, step = rows.indices(len(self)) if isinstance(rows, slice) else (int(rows), int(rows) + 1, 1)
        if step != 1 or not 0 <= start <= stop <= len(self):
            raise IndexError(f"Expected one row or a slice without steps, below {len(self)}, got {rows!r}.")
        block = np.ascontiguousarray(np.broadcast_to(np.asarray(values, self.dtype), (stop - start, *self.shape[1:])))
        rest, offset = block.reshape(-1).view(np.uint8).data, start * self.row_bytes
        try:
            while rest:
                written = os.pwrite(self._file.fileno(), rest, offset)
                rest, offset = rest[written:], offset + written
        except OSError as error:
            free = in_mib(disk_free_mib(self.folder))
            raise DataError(_NOT_WRITTEN.format(folder=self.folder, cause=error.strerror or error, free=free)) from None


class ChosenRows(LazyRows):
    """Some rows of another array, in a given order, without a copy of them."""

    def __init__(self, of: NDArray[Any] | LazyRows, numbers: NDArray[np.intp]) -> None:
        super().__init__((len(numbers), *of.shape[1:]), of.dtype)
        self._of, self._chosen = of, numbers

    def _taken(self, numbers: NDArray[np.intp]) -> NDArray[Any]:
        found: NDArray[Any] = self._of[self._chosen[numbers]]
        return found

    def _stretch(self, start: int, stop: int) -> NDArray[Any]:
        found: NDArray[Any] = self._of[self._chosen[start:stop]]
        return found


Rows = NDArray[Any] | LazyRows
"""An array in memory, or one that behaves like it as far as rows are concerned."""

Zeros = Callable[[Sequence[int], DTypeLike], NDArray[Any] | FileRows]
"""(shape, dtype) → an array of zeros, in memory or not: `numpy.zeros`, `Store.zeros`."""


def chosen(array: Rows, numbers: NDArray[np.intp]) -> Rows:
    """Rows by number, not copied: a slice of an array in memory where the numbers follow each other, else `ChosenRows`."""
    first = int(numbers[0]) if len(numbers) else 0
    if isinstance(array, np.ndarray) and np.array_equal(numbers, np.arange(first, first + len(numbers))):
        return array[first : first + len(numbers)]
    return ChosenRows(array, numbers)


def parts(array: Rows) -> Iterator[slice]:
    """Slices that together are all rows, each of at most `PART_BYTES` (but at least one row)."""
    each = max(1, int(np.prod(array.shape[1:], dtype=np.int64)) * array.dtype.itemsize)
    step = max(1, PART_BYTES // each)
    return (slice(start, min(start + step, len(array))) for start in range(0, len(array), step))


@dataclass
class Store:
    """Gives arrays: in memory as long as they fit into what memory may take, then in files of `folder`."""

    folder: Path
    left_mib: float
    """What memory may still take."""

    def zeros(self, shape: Sequence[int], dtype: DTypeLike) -> NDArray[Any] | FileRows:
        """Raises DataError where it must be a file and `folder` does not take it."""
        needed = float(np.prod(shape, dtype=np.float64)) * np.dtype(dtype).itemsize / _MIB
        if needed <= self.left_mib:
            self.left_mib -= needed
            return np.zeros(shape, dtype)
        refuse_full_disk(self.folder, needed, f"{shape[0]} pictures or maps that do not fit into memory")
        return FileRows(self.folder, shape, dtype)


def refuse_full_disk(folder: Path, needed_mib: float, what: str) -> None:
    """Raises DataError when `folder` has less free than `needed_mib`."""
    free = disk_free_mib(folder)
    if needed_mib > free:
        raise DataError(_NO_ROOM.format(folder=folder, needed=in_mib(needed_mib), what=what, free=in_mib(free), advice=_ADVICE))


def in_mib(mib: float) -> str:
    """ "1250 MiB", "0.4 MiB"."""
    return f"{mib:.0f} MiB" if mib >= 10 else f"{mib:.1f} MiB"


def disk_free_mib(folder: Path) -> float:
    """MiB free for us on the disk that `folder`, or the nearest one above it, lies on; 0 where that cannot be told."""
    for place in (folder, *folder.parents):
        try:
            return shutil.disk_usage(place).free / _MIB
        except FileNotFoundError:
            continue
        except OSError:
            break
    return 0.0


def store_folder(work_dir: Path | None) -> Path:
    """Where files go: the run's folder, else TWOPATH_CACHE_DIR, else the system's folder for temporary files."""
    return work_dir or Path(os.environ.get("TWOPATH_CACHE_DIR") or tempfile.gettempdir())


def save_npz(path: Path, arrays: Mapping[str, Rows]) -> None:
    """As `numpy.savez`, rows that lie outside memory being copied part by part. Raises OSError where the disk does not take it."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                if isinstance(array, np.ndarray):
                    np.lib.format.write_array(file, array, allow_pickle=False)
                    continue
                about = {"descr": np.lib.format.dtype_to_descr(array.dtype), "fortran_order": False, "shape": array.shape}
                np.lib.format.write_array_header_1_0(file, about)
                for part in parts(array):
                    file.write(np.ascontiguousarray(array[part]).data)


def load_npz(path: Path, *, rows_from: int = ROWS_FROM) -> dict[str, Rows]:
    """The arrays of an archive; those of `rows_from` bytes and more as `ArchivedRows`, which come into memory row by row, and whose bytes
    are not checked against the archive's sums. Nothing is unpickled.

    Raises:
        OSError, ValueError, KeyError, EOFError, TypeError, AttributeError, zipfile.BadZipFile: it is missing, damaged or something else
            (`DAMAGED`).
    """
    found: dict[str, Rows] = {}
    # Opened here: np.load leaves its own file open when the archive is damaged.
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        for name in archive.files:
            entry = archive.zip.getinfo(name if name in archive.zip.NameToInfo else f"{name}.npy")
            large = entry.file_size >= rows_from and entry.compress_type == zipfile.ZIP_STORED
            rows = _archived(path, file, entry.header_offset) if large else None
            found[name] = archive[name] if rows is None else rows
    return found


DAMAGED = (OSError, ValueError, KeyError, EOFError, TypeError, AttributeError, zipfile.BadZipFile)
"""What `load_npz` raises."""


def _archived(path: Path, file: BinaryIO, offset: int) -> ArchivedRows | None:
    """The uncompressed array whose local zip header begins at `offset`; None where its rows do not follow each other."""
    file.seek(offset + 26)  # 30 bytes, the last four of which tell the lengths of name and extra field, which follow
    lengths = file.read(4)
    if len(lengths) < 4:
        raise ValueError(f"{path}: an array is said to begin beyond the end of the file.")
    file.seek(sum(struct.unpack("<HH", lengths)), os.SEEK_CUR)
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read_header(file)
    if dtype.hasobject:
        raise ValueError(f"{path}: expected numbers, got {dtype}.")
    if fortran or not shape:
        return None
    return ArchivedRows(os.fdopen(os.dup(file.fileno()), "rb", buffering=0), file.tell(), path, shape, dtype)
