"""The recorded folders of trouble (tests/data/pictures), each with what is right; the kinds have tests of their own beside this."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from app.cae.datasets import Dataset, load_pictures, open_dataset
from app.core.errors import DataError

Case = Callable[[str], Path]


def told(dataset: Dataset) -> str:
    return "\n".join(dataset.problems)


def counts(dataset: Dataset) -> tuple[int, int, int, int]:
    """Training, good test, defective test pictures, and pictures with masks."""
    table = dataset.table
    test = table["split"] == "test"
    return (
        int((table["split"] == "train").sum()),
        int((test & (table["label"] == 0)).sum()),
        int((test & (table["label"] == 1)).sum()),
        int(table["masks"].map(len).gt(0).sum()),
    )


def test_d00_a_healthy_folder_has_no_problems(case: Case) -> None:
    dataset = open_dataset(case("D00") / "widget")
    assert counts(dataset) == (6, 3, 3, 3)
    assert dataset.problems == ()
    assert dataset.name == "widget"
    assert dataset.layout == "MVTec AD"
    assert list(dataset.table.columns) == ["path", "split", "label", "defect", "masks"]
    assert set(dataset.table["defect"]) == {"good", "scratch"}
    assert all(Path(path).is_absolute() and Path(path).is_file() for path in dataset.table["path"])
    assert all(isinstance(mask, str) for masks in dataset.table["masks"] for mask in masks)


def test_d01_bit_depths_keep_their_levels_and_nan_is_left_out_by_name(case: Case, tmp_path: Path) -> None:
    root = shutil.copytree(case("D01") / "widget", tmp_path / "widget")
    shutil.copy(case("D01-tiff16") / "gray16.tif", root / "train" / "good")
    shutil.copy(case("D01-float") / "float_nan.tif", root / "train" / "good")
    dataset = open_dataset(root)
    assert counts(dataset) == (8, 3, 1, 1)
    assert "train/good/float_nan.tif" in told(dataset)
    assert "NaN" in told(dataset)
    assert "train/good/010_12bit.png (4095)" in told(dataset)
    loaded = load_pictures(dataset, size=64, channels=1)
    assert min(len(np.unique(image)) for image in loaded.images) >= 60
    assert loaded.full_scale == 65535


def test_d01_a_folder_of_nothing_but_nan_says_so(case: Case) -> None:
    with pytest.raises(DataError, match=r"0 images in train/good.*float_nan\.tif"):
        open_dataset(case("D01-float"))


def test_d02_palettes_become_colours(case: Case) -> None:
    loaded = load_pictures(open_dataset(case("D02") / "widget"), size=64)
    assert loaded.channels == 3
    assert loaded.problems == ()
    means = loaded.images[loaded.rows["split"] == "train"].mean(axis=(1, 2))
    assert np.ptp(means, axis=0).max() < 10, "palette pictures are as bright as the others, channel by channel"


@pytest.mark.parametrize("channels", [1, 3])
def test_d04_mixed_channels_become_one_shape_and_transparency_is_noted_once(case: Case, channels: int) -> None:
    dataset = open_dataset(case("D04") / "widget")
    assert load_pictures(dataset, size=64, channels=channels).images.shape == (12, 64, 64, channels)
    notes = [problem for problem in dataset.problems if "ransparent" in problem]
    assert len(notes) == 1
    assert "white" in notes[0]
    assert "train/good/001.png" in notes[0]


@pytest.mark.parametrize("name", ["D05", "D05-rotmask"])
def test_d05_mask_and_picture_are_turned_alike(case: Case, name: str) -> None:
    loaded = load_pictures(open_dataset(case(name) / "widget"), size=64, channels=1)
    place = loaded.rows.index[loaded.rows["defect"] == "scratch"][0]
    assert loaded.original_sizes[place].tolist() == [64, 48]
    assert loaded.has_mask[place]
    good = loaded.images[loaded.rows["split"] == "train"].astype(float).mean()
    inside = loaded.images[place, ..., 0][loaded.masks[place] == 1].astype(float)
    outside = loaded.images[place, ..., 0][loaded.masks[place] == 0].astype(float)
    assert abs(inside.mean() - good) > 2 * abs(outside.mean() - good), "the mask lies on the defect"


def test_d07_junk_is_ignored_quietly(case: Case) -> None:
    for root in (case("D07") / "widget", case("D07")):
        dataset = open_dataset(root)
        assert counts(dataset) == (6, 3, 3, 3)
        assert set(dataset.table["defect"]) == {"good", "scratch"}
        assert dataset.name == "widget"
        assert dataset.problems == ()


def test_d07_more_junk_is_ignored_quietly(copied: Case) -> None:
    root = copied("D00")
    picture = root / "train" / "good" / "000.png"
    for junk in (".hidden.png", "._000.png", "~$000.png", "Thumbs.db", "desktop.ini", "notes.txt", "labels.csv", ".DS_Store"):
        shutil.copy(picture, root / "train" / "good" / junk)
        shutil.copy(picture, root / "test" / junk)
    for folder in (".ipynb_checkpoints", "__MACOSX", "@eaDir", "$RECYCLE.BIN", "__pycache__", ".git"):
        for parent in ("train/good", "test", "ground_truth", "ground_truth/scratch", "."):
            shutil.copytree(root / "test" / "scratch", root / parent / folder)
    dataset = open_dataset(root)
    assert counts(dataset) == (6, 3, 3, 3)
    assert set(dataset.table["defect"]) == {"good", "scratch"}
    assert dataset.problems == ()


def test_d08_every_extension_in_every_case_is_found(case: Case) -> None:
    dataset = open_dataset(case("D08") / "widget")
    assert counts(dataset)[0] == 6
    assert len(load_pictures(dataset, size=64).images) == 12


@pytest.mark.parametrize("name", ["plain", "mask", "gt", "bmp", "upper", "loco", "sort"])
def test_d10_masks_are_paired_by_name(case: Case, name: str) -> None:
    dataset = open_dataset(case(f"D10-{name}") / "widget")
    assert counts(dataset)[3] == 3
    assert dataset.problems == ()
    for row in dataset.table[dataset.table["label"] == 1].itertuples():
        stem = Path(str(row.path)).stem
        (mask,) = row.masks  # type: ignore[misc]
        assert stem in (Path(mask).stem.split("_")[0], Path(mask).parent.name)


def test_d10_a_missing_mask_shifts_nothing_and_is_listed(case: Case) -> None:
    dataset = open_dataset(case("D10-offset") / "widget")
    masks = {
        Path(path).name: [Path(mask).name for mask in files]
        for path, files in zip(*(dataset.table[c] for c in ("path", "masks")), strict=True)
    }
    assert masks["000.png"] in ([], ["000_mask.png"])
    scratched = dataset.table[dataset.table["defect"] == "scratch"]
    assert [[Path(mask).name for mask in files] for files in scratched["masks"]] == [["000_mask.png"], [], ["002_mask.png"]]
    assert "test/scratch/001.png: no mask" in told(dataset)


def test_d11_no_masks_at_all_is_one_sentence(case: Case) -> None:
    dataset = open_dataset(case("D11") / "widget")
    assert counts(dataset) == (6, 3, 3, 0)
    assert told(dataset).count("no masks") == 1
    assert len(dataset.problems) == 1
    loaded = load_pictures(dataset, size=64)
    assert not loaded.has_mask.any(), "not even for good pictures: nothing was marked"


def test_d13_same_aspect_is_resized_and_another_is_named(case: Case) -> None:
    dataset = open_dataset(case("D13") / "widget")
    assert "ground_truth/scratch/001_mask.png: its aspect differs" in told(dataset)
    assert "resized (nearest): ground_truth/scratch/000_mask.png" in told(dataset)
    loaded = load_pictures(dataset, size=64)
    scratched = loaded.rows["defect"] == "scratch"
    assert loaded.has_mask[scratched].tolist() == [True, False, True]
    assert set(np.unique(loaded.masks)) == {0, 1}


@pytest.mark.parametrize(("name", "missing"), [("D14-nodefect", "no defective"), ("D14-nogood", "no good")])
def test_d14_one_class_in_test(case: Case, name: str, missing: str) -> None:
    dataset = open_dataset(case(name) / "widget")
    assert missing in told(dataset)
    assert "only one class in test" in told(dataset)


def test_d14_nothing_to_test(case: Case) -> None:
    dataset = open_dataset(case("D14-notest") / "widget")
    assert counts(dataset) == (6, 0, 0, 0)
    assert "no test folder" in told(dataset)


def test_d14_an_empty_class_is_named(copied: Case) -> None:
    root = copied("D14-emptyclass")
    (root / "test" / "dent").mkdir(exist_ok=True)
    dataset = open_dataset(root)
    assert counts(dataset) == (6, 3, 3, 3)
    assert "dent is empty" in told(dataset)


def test_d14_a_single_picture(case: Case) -> None:
    dataset = open_dataset(case("D14-single") / "widget")
    assert counts(dataset)[0] == 1
    assert "1 training image" in told(dataset)


def test_d14_a_flat_folder_is_good_pictures_and_says_what_is_missing(case: Case) -> None:
    dataset = open_dataset(case("D14-flat"))
    assert dataset.layout == "plain folder"
    assert counts(dataset) == (5, 0, 0, 0)
    assert "nothing to test" in told(dataset)
    assert "expected train/good and test/" in told(dataset)


def test_d14_a_root_offers_its_categories(case: Case) -> None:
    with pytest.raises(DataError, match="choose one of: bottle, cable"):
        open_dataset(case("D14-root"))


def test_d14_empty_and_missing_stop_with_the_expected_layout(tmp_path: Path) -> None:
    (tmp_path / "widget" / "train" / "good").mkdir(parents=True)
    with pytest.raises(DataError, match=r"0 images in train/good; expected train/good and test/"):
        open_dataset(tmp_path / "widget")
    (tmp_path / "bare").mkdir()
    with pytest.raises(DataError, match=r"not a dataset folder.*0 images in train/good.*expected train/good and test/"):
        open_dataset(tmp_path / "bare")
    with pytest.raises(DataError, match=r"missing: not a dataset folder, there is no such folder; expected train/good and test/"):
        open_dataset(tmp_path / "missing")
    (tmp_path / "file.zip").write_bytes(b"PK")
    with pytest.raises(DataError, match=r"file\.zip: not a dataset folder, it is a file"):
        open_dataset(tmp_path / "file.zip")


def test_d14_defects_in_train_are_not_trained_on(case: Case) -> None:
    dataset = open_dataset(case("D14-traindefect") / "widget")
    assert counts(dataset) == (6, 3, 3, 3)
    assert "train has a defect folder; it is not used for training" in told(dataset)


@pytest.fixture
def d16(copied: Case) -> Path:
    """Links do not travel: file link, broken link, loops, linked class and category, and a link unpacked as text."""
    root = copied("D00")
    good = root / "train" / "good"
    shutil.copy(root / "test" / "good" / "000.png", root.parent / "elsewhere.png")
    (good / "linked.png").symlink_to(root.parent / "elsewhere.png")
    (good / "broken.png").symlink_to("nowhere.png")
    (good / "textlink.png").write_text("../../elsewhere.png")
    (good / "loop").symlink_to("..")
    (root / "test" / "self").symlink_to(".")
    (root / "again").symlink_to(root)
    (root.parent / "linked_category").symlink_to("widget")
    return root


def test_d16_links(d16: Path) -> None:
    dataset = open_dataset(d16)
    assert counts(dataset) == (7, 3, 3, 3)
    assert set(dataset.table["defect"]) == {"good", "scratch"}
    for name in ("train/good/broken.png", "train/good/textlink.png", "train/good/loop"):
        assert name in told(dataset), name
    assert len(load_pictures(dataset, size=64).images) == 13


def test_d16_a_linked_category_is_opened_and_not_offered_twice(d16: Path) -> None:
    assert counts(open_dataset(d16.parent / "linked_category"))[0] == 7
    assert open_dataset(d16.parent).name == "widget"


def test_d16_a_linked_class_is_read(copied: Case, tmp_path: Path) -> None:
    root = copied("D00")
    (root / "train" / "good").rename(tmp_path / "far")
    (root / "train" / "good").symlink_to(tmp_path / "far")
    (root / "test" / "scratch").rename(tmp_path / "bad")
    (root / "test" / "scratch").symlink_to(tmp_path / "bad")
    dataset = open_dataset(root)
    assert counts(dataset) == (6, 3, 3, 3)
    assert dataset.problems == ()


def test_d17_one_frame_each(case: Case) -> None:
    dataset = open_dataset(case("D17") / "widget")
    assert "010.tif (3)" in told(dataset)
    assert "011.gif (3)" in told(dataset)
    loaded = load_pictures(dataset, size=64)
    assert loaded.images.shape == (17, 64, 64, 3)


def test_d19_sizes(case: Case) -> None:
    dataset = open_dataset(case("D19") / "widget")
    assert "images smaller than the model size" in told(dataset)
    assert "train/good/004.png (1 × 1 px)" in told(dataset)
    loaded = load_pictures(dataset, size=64)
    assert loaded.images.shape == (12, 64, 64, 3)
    sizes = {
        Path(path).name: size.tolist() for path, size in zip(loaded.rows["path"], loaded.original_sizes, strict=True) if "train" in path
    }
    assert sizes["001.png"] == [100, 50]
    assert sizes["005.png"] == [640, 480]


def test_d20_constant_pictures_are_read_and_told(case: Case) -> None:
    loaded = load_pictures(open_dataset(case("D20") / "widget"), size=64)
    assert sum(int(image.min()) == int(image.max()) for image in loaded.images) >= 6
    assert any(problem.startswith("One flat colour: train/good/000.png") for problem in loaded.problems)
