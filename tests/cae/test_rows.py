"""Rows that lie outside memory behave as the array they stand for, leave nothing behind, and say so where the disk does not take them."""

from __future__ import annotations

import copy
import os
import pickle
import resource
import shutil
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from app.cae.rows import DAMAGED, ArchivedRows, ChosenRows, FileRows, Store, chosen, disk_free_mib, load_npz, parts, save_npz, store_folder
from app.core.errors import DataError

WHOLE = np.random.default_rng(0).integers(0, 256, (11, 5, 4, 3), dtype=np.uint8)
ORDER = np.array([4, 0, 10, 4, 7])


def in_file(whole: NDArray[Any], folder: Path) -> FileRows:
    rows = FileRows(folder, whole.shape, whole.dtype)
    rows[0] = whole[0]
    rows[1 : len(whole)] = whole[1:]
    return rows


@pytest.mark.parametrize(
    "index",
    [
        3,
        -1,
        np.intp(2),
        slice(None),
        slice(2, 7),
        slice(5, 2),
        slice(None, None, 3),
        slice(-3, None),
        [1, -2],
        ORDER,
        np.arange(0),
        WHOLE[:, 0, 0, 0] > 90,
    ],
    ids=repr,
)
def test_rows_are_picked_as_numpy_picks_them(tmp_path: Path, index: Any) -> None:
    filed = in_file(WHOLE, tmp_path)
    for rows, whole in (
        (filed, WHOLE),
        (chosen(filed, np.arange(11)[::-1]), WHOLE[::-1]),
        (chosen(WHOLE, np.arange(11)[::-1]), WHOLE[::-1]),
    ):
        found = rows[index]
        assert found.dtype == np.uint8
        np.testing.assert_array_equal(found, whole[index])


@pytest.mark.parametrize("index", [11, -12, [0, 11], np.ones(10, np.bool_), np.zeros((2, 2), np.intp)], ids=repr)
def test_rows_that_are_not_there_are_an_index_error(tmp_path: Path, index: Any) -> None:
    for rows in (in_file(WHOLE, tmp_path), ChosenRows(WHOLE, np.arange(11))):
        with pytest.raises(IndexError):
            rows[index]


def test_rows_become_an_array_and_are_walked_through(tmp_path: Path) -> None:
    rows = chosen(in_file(WHOLE, tmp_path), ORDER)
    assert (rows.shape, rows.ndim, rows.size, len(rows)) == ((5, 5, 4, 3), 4, 300, 5)
    np.testing.assert_array_equal(np.asarray(rows), WHOLE[ORDER])
    np.testing.assert_array_equal(np.asarray(rows, np.float32), WHOLE[ORDER].astype(np.float32))
    np.testing.assert_array_equal(np.stack(list(rows)), WHOLE[ORDER])
    with pytest.raises(ValueError, match="outside memory"):
        np.asarray(rows, copy=False)


def test_neighbours_in_memory_are_no_copy() -> None:
    found = chosen(WHOLE, np.arange(3, 8))
    assert isinstance(found, np.ndarray)
    assert np.shares_memory(found, WHOLE)
    assert chosen(WHOLE, np.arange(0)).shape == (0, 5, 4, 3)


def test_parts_cover_all_rows_and_stay_small() -> None:
    rows = ChosenRows(np.zeros((1, 1024, 1024), np.float32), np.zeros(3, np.intp))  # 4 MiB a row
    assert [(part.start, part.stop) for part in parts(rows)] == [(0, 1), (1, 2), (2, 3)]
    assert list(parts(WHOLE[:0])) == []


def test_a_file_has_no_name_and_is_closed_with_its_rows(tmp_path: Path) -> None:
    rows = in_file(WHOLE, tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []
    file = rows._file
    assert not file.closed
    some = chosen(rows, ORDER)
    del rows
    np.testing.assert_array_equal(some[:], WHOLE[ORDER])
    del some
    assert file.closed


def test_memory_is_taken_as_long_as_there_is_some(tmp_path: Path) -> None:
    store = Store(tmp_path, left_mib=1.5)
    kinds = [type(store.zeros((side, 1024, 1024), np.uint8)) for side in (1, 1)]
    assert kinds == [np.ndarray, FileRows]
    assert isinstance(store.zeros((1, 1024, 512), np.uint8), np.ndarray)
    assert store.left_mib == 0.0


def test_a_full_disk_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    most = resource.getrlimit(resource.RLIMIT_FSIZE)
    rows = FileRows(tmp_path, (4, 1024, 1024), np.uint8)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, most[1]))
        rows[0] = 1
        with pytest.raises(
            DataError, match=rf"{tmp_path}: pictures .* cannot be written there any more \(File too large; \d+ MiB are free\)"
        ):
            rows[2] = 1
        with pytest.raises(DataError, match=r"cannot be kept there \(File too large\)"):
            FileRows(tmp_path, (4, 1024, 1024), np.uint8)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2**19))
    with pytest.raises(DataError, match=rf"{tmp_path}: expected 4.0 MiB of free disk space for 4 .* got 0.5 MiB\. Free some"):
        Store(tmp_path, left_mib=0).zeros((4, 1024, 1024), np.uint8)


def test_the_disk_of_a_folder_to_come_is_that_of_the_one_above(tmp_path: Path) -> None:
    assert disk_free_mib(tmp_path / "a" / "b") > 0


def test_files_lie_with_the_run_or_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWOPATH_CACHE_DIR", str(tmp_path / "cache"))
    assert (store_folder(tmp_path), store_folder(None)) == (tmp_path, tmp_path / "cache")
    monkeypatch.delenv("TWOPATH_CACHE_DIR")
    assert store_folder(None).is_dir()


@pytest.mark.parametrize("rows_from", [1, 2**30])
def test_archives_are_numpys_and_large_arrays_are_read_row_by_row(tmp_path: Path, rows_from: int) -> None:
    maps = np.random.default_rng(1).normal(size=(3, 700, 700)).astype(np.float32)  # 6 MiB: more than one part
    arrays = {"maps": in_file(maps, tmp_path), "few": chosen(WHOLE, ORDER), "plain": ORDER, "text": np.array("words")}
    save_npz(tmp_path / "a.npz", arrays)
    with np.load(tmp_path / "a.npz") as archive:
        assert archive.files == list(arrays)
        for name, array in arrays.items():
            np.testing.assert_array_equal(archive[name], np.asarray(array))
    found = load_npz(tmp_path / "a.npz", rows_from=rows_from)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], np.asarray(array))
    assert isinstance(found["maps"], ArchivedRows) == (rows_from == 1)


def test_objects_and_halves_of_archives_are_not_read(tmp_path: Path) -> None:
    file = tmp_path / "a.npz"
    np.savez(file, maps=np.array([{"an": "object"}], dtype=object))
    with pytest.raises(ValueError, match="expected numbers"):
        load_npz(file, rows_from=1)
    save_npz(file, {"maps": WHOLE})
    file.write_bytes(file.read_bytes()[:300])
    with pytest.raises((ValueError, zipfile.BadZipFile)):
        load_npz(file, rows_from=1)


def test_an_archive_whose_table_of_contents_lies_is_damaged(tmp_path: Path) -> None:
    file = tmp_path / "a.npz"
    save_npz(file, {"maps": WHOLE})
    content = bytearray(file.read_bytes())
    entry = content.rindex(b"PK\x01\x02")
    content[entry + 42 : entry + 46] = (2**31 - 1).to_bytes(4, "little")  # where the array's own header is said to begin
    file.write_bytes(content)
    with pytest.raises(DAMAGED):
        load_npz(file, rows_from=1)


def test_rows_of_an_archive_stay_those_of_the_file_that_was_opened(tmp_path: Path) -> None:
    """A resumed run replaces maps.npz while a page shows it; one that is cut short is told, and ends nothing."""
    file = tmp_path / "a.npz"
    save_npz(file, {"maps": WHOLE})
    rows = load_npz(file, rows_from=1)["maps"]
    save_npz(tmp_path / "b.npz", {"maps": WHOLE * 0})
    (tmp_path / "b.npz").replace(file)
    np.testing.assert_array_equal(rows[:], WHOLE)
    again = load_npz(file, rows_from=1)["maps"]
    os.truncate(file, 10)
    with pytest.raises(DataError, match=r"a\.npz: the pictures kept there cannot be read any more \(it is shorter than it was written\)"):
        again[0]


def test_rows_in_a_file_are_neither_copied_nor_pickled(tmp_path: Path) -> None:
    """A copy would go on with the number of a file that is closed when the first one goes."""
    rows = in_file(WHOLE, tmp_path)
    for make in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError):
            make(rows)
