"""Decoding a data set into memory, the held-out split, and what is said of both."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from picture_makers import mask
from PIL import Image

from app.cae.datasets import Dataset, describe, detect_channels, load_pictures, open_dataset, resolve_source, split_digest, split_validation
from app.cae.memory import free_mib
from app.core.errors import DataError, OptionError

BALLSCREW = Path(__file__).parents[1] / "data" / "ballscrew"


@pytest.fixture
def widget(make_folder: Callable[..., Path]) -> Dataset:
    return open_dataset(
        make_folder(
            *(f"train/good/{place}.png" for place in range(6)),
            "test/good/0.png",
            "test/scratch/0.png",
            "test/scratch/1.png",
            "ground_truth/scratch/0_mask.png",
        )
    )


def test_arrays_are_aligned_with_rows(widget: Dataset) -> None:
    loaded = load_pictures(widget, size=64)
    assert loaded.images.shape == (9, 64, 64, 3)
    assert loaded.images.dtype == loaded.masks.dtype == np.uint8
    assert loaded.masks.shape == (9, 64, 64)
    assert loaded.rows["path"].tolist() == widget.table["path"].tolist()
    assert loaded.rows.index.tolist() == list(range(9))
    assert loaded.has_mask.tolist() == [False] * 6 + [True, True, False], "a good test picture's mask is known to be empty"
    assert loaded.masks[6].sum() == 0
    assert set(np.unique(loaded.masks[7])) == {0, 1}
    assert loaded.original_sizes.tolist() == [[80, 70]] * 9
    assert not loaded.cancelled


def test_a_file_that_breaks_after_opening_is_left_out_and_the_rest_stays_aligned(widget: Dataset) -> None:
    whole = load_pictures(widget, size=64)
    Path(widget.table["path"].iloc[2]).write_bytes(b"gone bad")
    loaded = load_pictures(widget, size=64)
    assert len(loaded.images) == len(loaded.rows) == len(loaded.masks) == len(loaded.has_mask) == len(loaded.original_sizes) == 8
    assert np.array_equal(loaded.images, np.delete(whole.images, 2, axis=0))
    assert loaded.rows["path"].tolist() == [path for place, path in enumerate(widget.table["path"]) if place != 2]
    assert loaded.problems == ("train/good/2.png: is text, not a picture (a link unpacked as a text file?); left out.",)


def test_no_training_picture_left_is_an_error(widget: Dataset) -> None:
    for path in widget.table["path"]:
        if "train" in path:
            Path(path).unlink()
    with pytest.raises(DataError, match=r"no training picture can be read.*train/good/0\.png: is not there"):
        load_pictures(widget, size=64)


def test_a_mask_that_marks_nothing_is_no_mask(widget: Dataset) -> None:
    mask(box=(0, 0, 0, 0)).save(widget.table["masks"].iloc[7][0])
    loaded = load_pictures(widget, size=64)
    assert not loaded.has_mask[7]
    assert "test/scratch/0.png: its mask marks nothing; left out of pixel metrics." in loaded.problems


def test_progress_and_cancel(widget: Dataset) -> None:
    seen: list[tuple[int, int]] = []
    load_pictures(widget, size=64, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(place, 9) for place in range(1, 10)]
    part = load_pictures(widget, size=64, cancelled=lambda: len(seen) >= 12, progress=lambda done, total: seen.append((done, total)))
    assert part.cancelled
    assert len(part.images) == len(part.rows) == 3


def test_f10_what_does_not_fit_into_memory_is_kept_in_a_file_and_is_the_same(widget: Dataset, tmp_path: Path) -> None:
    Path(widget.table["path"].iloc[2]).write_bytes(b"gone bad")
    folder = tmp_path / "run"
    kept, filed = load_pictures(widget, size=512, available_mib=30), load_pictures(widget, size=512, available_mib=20, folder=folder)
    assert isinstance(kept.images, np.ndarray)
    assert not isinstance(filed.images, np.ndarray)
    for ours, theirs in ((kept.images, filed.images), (kept.masks, filed.masks)):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        np.testing.assert_array_equal(ours, np.asarray(theirs))
    assert filed.masks[-2].any()
    assert kept.has_mask.tolist() == filed.has_mask.tolist()
    assert kept.notes == ()
    assert filed.notes == (
        "9 pictures of 512 px with 3 channels need 9.0 MiB, more than 40% of the 20 MiB of memory that are free: "
        f"they are kept in a file in {folder} while they are used.",
    )
    assert list(folder.iterdir()) == [], "the file has no name, so that nothing is left of a run that is killed"


def test_f10_what_does_not_fit_on_the_disk_either_is_refused_with_both_numbers(
    widget: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=5 * 2**20))
    # 9 MiB of pictures and masks, twice 11 bytes a pixel for maps, inputs, reconstructions and masks of three test pictures, 8 bytes a
    # pixel for errors and anomalies of good ones: of all six where none is held out.
    sentence = (
        r"run: expected 38 MiB of free disk space for 9 pictures of 512 px with 3 channels, which .* maps, got 5\.0 MiB\. Free some, "
    )
    with pytest.raises(DataError, match=sentence):
        load_pictures(widget, size=512, available_mib=20, folder=tmp_path / "run")
    with pytest.raises(DataError, match="run: expected 32 MiB of free disk space"):
        load_pictures(widget, size=512, available_mib=20, folder=tmp_path / "run", val_fraction=0.5)


@pytest.mark.parametrize(("most", "used", "expected"), [("104857600", "52428800", 50.0), ("52428800", "104857600", 0.0)])
def test_memory_of_a_control_group_counts(tmp_path: Path, most: str, used: str, expected: float) -> None:
    group = tmp_path / "job" / "step"
    group.mkdir(parents=True)
    (tmp_path / "self").write_text("0::/job/step\n")
    (group / "memory.max").write_text("max\n")
    (group.parent / "memory.max").write_text(most)
    (group.parent / "memory.current").write_text(used)
    assert free_mib(cgroup_root=tmp_path, self_cgroup=tmp_path / "self") == expected
    assert free_mib(cgroup_root=tmp_path / "none", self_cgroup=tmp_path / "none") > expected


def test_memory_may_be_limited_by_the_environment(tmp_path: Path) -> None:
    nowhere = {"cgroup_root": tmp_path, "self_cgroup": tmp_path / "none"}
    assert free_mib(**nowhere, environ={"TWOPATH_MEMORY_MIB": "2.5"}) == 2.5
    assert free_mib(**nowhere, environ={"TWOPATH_MEMORY_MIB": " "}) > 2.5
    for text in ("0", "-3", "nan", "inf", "2 GiB"):
        with pytest.raises(OptionError, match=r"TWOPATH_MEMORY_MIB: expected a number of MiB above 0, got '"):
            free_mib(**nowhere, environ={"TWOPATH_MEMORY_MIB": text})


# Channels


def test_grey_is_found_whatever_the_file_says(make_folder: Callable[..., Path], tmp_path: Path) -> None:
    root = make_folder(*(f"train/good/{place}.png" for place in range(3)))
    for file in (root / "train/good").iterdir():
        Image.open(file).convert("L").convert("RGB").save(file)
    assert detect_channels(open_dataset(root)) == 1
    assert load_pictures(open_dataset(root), size=64, channels="auto").images.shape[3] == 1
    assert load_pictures(open_dataset(root), size=64, channels="colour").images.shape[3] == 3
    Image.new("RGB", (80, 70), (100, 100, 110)).save(root / "train/good/1.png")
    assert detect_channels(open_dataset(root)) == 3
    assert load_pictures(open_dataset(root), size=64, channels="grey").images.shape[3] == 1


def test_grey_jpeg_saved_as_colour_is_grey(tmp_path: Path) -> None:
    (tmp_path / "good").mkdir()
    noise = np.random.default_rng(0).integers(0, 256, (70, 80), dtype=np.uint8)
    Image.fromarray(noise).convert("RGB").save(tmp_path / "good" / "a.jpg", quality=70)
    assert detect_channels(open_dataset(tmp_path)) == 1


# Held-out pictures


def rows(train: int, validation: int = 0, test: int = 3) -> pd.DataFrame:
    splits = ["train"] * train + ["validation"] * validation + ["test"] * test
    return pd.DataFrame({"split": splits, "label": [0] * (train + validation) + [1] * test})


def test_the_held_out_share_is_seeded_disjoint_and_only_of_good_training_pictures() -> None:
    train, held = split_validation(rows(40), 0.15, seed=3)
    assert len(held) == 6
    assert sorted([*train, *held]) == list(range(40))
    assert np.array_equal(held, split_validation(rows(40), 0.15, seed=3)[1])
    assert not np.array_equal(held, split_validation(rows(40), 0.15, seed=4)[1])


@pytest.mark.parametrize(
    ("train", "fraction", "expected"), [(1, 0.15, 0), (2, 0.15, 1), (3, 0.01, 1), (10, 0.0, 0), (10, 0.5, 5), (2, 0.5, 1)]
)
def test_small_sets_hold_out_at_least_one_and_never_all(train: int, fraction: float, expected: int) -> None:
    kept, held = split_validation(rows(train), fraction, seed=0)
    assert (len(kept), len(held)) == (train - expected, expected)


def test_a_layouts_own_validation_split_is_used_and_nothing_else() -> None:
    train, held = split_validation(rows(10, validation=4), 0.15, seed=0)
    assert train.tolist() == list(range(10))
    assert held.tolist() == [10, 11, 12, 13]


def test_defects_that_call_themselves_training_are_not_trained_on() -> None:
    table = pd.DataFrame({"split": ["train"] * 4, "label": [0, 1, 0, 0]})
    train, held = split_validation(table, 0.34, seed=0)
    assert 1 not in {*train.tolist(), *held.tolist()}


# What is said


def test_the_description_counts_by_split_and_class(widget: Dataset) -> None:
    table = describe(widget)
    assert table.columns.tolist() == ["split", "defect", "pictures", "masks", "sizes"]
    assert table.to_numpy().tolist() == [
        ["train", "good", 6, 0, "80 × 70 px"],
        ["test", "good", 1, 0, "80 × 70 px"],
        ["test", "scratch", 2, 1, "80 × 70 px"],
    ]


def test_the_digest_tells_splits_apart_and_does_not_hang_on_the_place(widget: Dataset, tmp_path: Path) -> None:
    moved = open_dataset(shutil.copytree(widget.source, tmp_path / "elsewhere" / "widget"))
    assert split_digest(moved) == split_digest(widget)
    Path(moved.table["path"].iloc[0]).unlink()
    assert split_digest(open_dataset(moved.source)) != split_digest(widget)


# Real pictures


@pytest.mark.parametrize(("name", "train", "good", "bad"), [("elpv-mono", 470, 118, 313), ("elpv-poly", 736, 184, 402)])
def test_solar_cells(name: str, train: int, good: int, bad: int) -> None:
    pytest.importorskip("elpv_dataset")
    dataset = open_dataset(name)
    table = dataset.table
    assert ((table["split"] == "train").sum(), ((table["split"] == "test") & (table["label"] == 0)).sum(), table["label"].sum()) == (
        train,
        good,
        bad,
    )
    assert table["path"].is_unique
    assert open_dataset(name, seed=7).table.equals(table), "the protocol's split hangs on no seed"
    assert all(Path(path).is_file() for path in table["path"])
    assert any("neither 0 nor 1" in note for note in dataset.notes)
    assert dataset.problems == ()


def test_the_solar_cells_split_is_pinned() -> None:
    pytest.importorskip("elpv_dataset")
    assert split_digest(open_dataset("elpv-mono")) == "a6b0a941f4ffd4cb3e226f5c586650ff9f2af6c8dc43ac0c9a481f6ff24ab350"


def test_solar_cells_without_the_package_say_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"elpv-mono: expected the package elpv-dataset.*pip install elpv-dataset"):
        open_dataset("elpv-mono")


def test_ball_screws() -> None:
    dataset = open_dataset(BALLSCREW)
    assert dataset.layout == "MVTec AD"
    assert describe(dataset)[["defect", "pictures", "masks"]].to_numpy().tolist() == [["good", 20, 0], ["good", 8, 0], ["pitting", 8, 8]]
    assert dataset.problems == ()
    loaded = load_pictures(dataset, size=128)
    assert loaded.channels == 3
    assert loaded.has_mask.sum() == 16
    assert (loaded.masks.reshape(36, -1).any(axis=1) == (loaded.rows["label"] == 1)).all()


# Folders typed by a visitor


def test_typed_folders_stay_inside_the_data_root(tmp_path: Path) -> None:
    root = tmp_path / "data"
    (root / "bottle").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    (root / "way_out").symlink_to(tmp_path / "secret")
    assert resolve_source("bottle", root) == str(root / "bottle")
    assert resolve_source(f" {root}/bottle ", root) == str(root / "bottle")
    assert resolve_source("elpv-mono", root) == "elpv-mono"
    assert resolve_source("synthetic:washer", root) == "synthetic:washer"
    for text in ("../secret", str(tmp_path / "secret"), "way_out", "/etc", "~", "bottle/../../secret", "\0"):
        with pytest.raises(DataError, match="expected a folder below"):
            resolve_source(text, root)
