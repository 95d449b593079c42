"""Layouts are recognised by themselves, whatever the case of their names."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from picture_makers import mask, picture
from PIL import Image

from app.cae.datasets import Dataset, load_pictures, open_dataset, split_digest
from app.core.errors import DataError

Make = Callable[..., Path]


def numbered(folder: str, count: int, suffix: str = ".png") -> list[str]:
    return [f"{folder}/{place:03}{suffix}" for place in range(count)]


def counts(dataset: Dataset) -> dict[tuple[str, str], tuple[int, int]]:
    """(split, defect) → pictures, of which with masks."""
    table = dataset.table.assign(marked=dataset.table["masks"].map(len).gt(0))
    return {key: (len(group), int(group["marked"].sum())) for key, group in table.groupby(["split", "defect"])}  # type: ignore[misc]


def told(dataset: Dataset) -> str:
    return "\n".join(dataset.problems)


def test_mvtec_with_several_defects(make_folder: Make) -> None:
    root = make_folder(
        *numbered("train/good", 4),
        *numbered("test/good", 2),
        *numbered("test/broken_large", 2),
        *numbered("test/contamination", 1),
        *numbered("ground_truth/broken_large", 2, "_mask.png"),
        *numbered("ground_truth/contamination", 1, "_mask.png"),
    )
    dataset = open_dataset(root)
    assert dataset.layout == "MVTec AD"
    assert counts(dataset) == {
        ("train", "good"): (4, 0),
        ("test", "good"): (2, 0),
        ("test", "broken_large"): (2, 2),
        ("test", "contamination"): (1, 1),
    }
    assert dataset.problems == ()
    assert dataset.table["split"].tolist()[:4] == ["train"] * 4


def test_upper_case_folders(make_folder: Make) -> None:
    root = make_folder("Train/Good/0.png", "TEST/GOOD/0.png", "TEST/Scratch/0.png", "Ground_Truth/SCRATCH/0_mask.png")
    dataset = open_dataset(root)
    assert counts(dataset) == {("train", "good"): (1, 0), ("test", "good"): (1, 0), ("test", "Scratch"): (1, 1)}


def test_btad(make_folder: Make) -> None:
    root = make_folder(
        *numbered("train/ok", 3, ".bmp"),
        *numbered("test/ok", 2, ".bmp"),
        *numbered("test/ko", 2, ".bmp"),
        *numbered("ground_truth/ko", 2, ".png"),
    )
    dataset = open_dataset(root)
    assert dataset.layout == "BTAD"
    assert counts(dataset) == {("train", "good"): (3, 0), ("test", "good"): (2, 0), ("test", "ko"): (2, 2)}


def test_visa_converted_with_class_ids(make_folder: Make) -> None:
    root = make_folder(*numbered("train/good", 3, ".JPG"), *numbered("test/good", 1, ".JPG"), *numbered("test/bad", 1, ".JPG"))
    (root / "ground_truth/bad").mkdir(parents=True)
    mask(value=3).save(root / "ground_truth/bad/000.png")
    dataset = open_dataset(root)
    assert dataset.layout == "VisA (converted)"
    assert counts(dataset)["test", "bad"] == (1, 1)
    assert int(load_pictures(dataset, size=64).masks.sum()) > 0


def test_loco_with_validation_and_folders_of_masks(make_folder: Make) -> None:
    root = make_folder(
        *numbered("train/good", 3),
        *numbered("validation/good", 2),
        *numbered("test/good", 1),
        *numbered("test/logical_anomalies", 2),
        "ground_truth/logical_anomalies/000/000.png",
        "ground_truth/logical_anomalies/000/001.png",
        "ground_truth/logical_anomalies/001/000.png",
    )
    dataset = open_dataset(root)
    assert dataset.layout == "MVTec LOCO AD"
    assert counts(dataset)["validation", "good"] == (2, 0)
    assert dataset.table["masks"].map(len).tolist() == [0] * 6 + [2, 1]
    assert dataset.problems == ()


def test_ad2(make_folder: Make) -> None:
    root = make_folder(
        *numbered("train/good", 3),
        *numbered("validation/good", 1),
        *numbered("test_public/good", 1),
        *numbered("test_public/bad", 2),
        *numbered("test_public/ground_truth/bad", 2, "_mask.png"),
        *numbered("test_private", 4),
        *numbered("test_private_mixed", 4),
    )
    dataset = open_dataset(root)
    assert dataset.layout == "MVTec AD 2"
    assert counts(dataset) == {
        ("train", "good"): (3, 0),
        ("validation", "good"): (1, 0),
        ("test", "good"): (1, 0),
        ("test", "bad"): (2, 2),
    }
    assert any("test_private" in note for note in dataset.notes)


@pytest.mark.parametrize("data", ["Data/", ""])
def test_visa_as_it_ships(make_folder: Make, data: str) -> None:
    root = make_folder(
        *numbered(f"{data}Images/Normal", 10, ".JPG"), *numbered(f"{data}Images/Anomaly", 3, ".JPG"), *numbered(f"{data}Masks/Anomaly", 3)
    )
    dataset = open_dataset(root)
    assert dataset.layout == "VisA"
    assert counts(dataset) == {("train", "good"): (8, 0), ("test", "good"): (2, 0), ("test", "anomaly"): (3, 3)}
    assert open_dataset(root, seed=5).table.equals(dataset.table), "the split does not hang on the seed"


def test_visa_with_its_own_split(make_folder: Make) -> None:
    root = make_folder(*numbered("candle/Data/Images/Normal", 4, ".JPG"), *numbered("candle/Data/Images/Anomaly", 1, ".JPG"), name="VisA")
    (root / "split_csv").mkdir()
    lines = ["object,split,label,image,mask"]
    lines += [f"candle,{'test' if n == 2 else 'train'},normal,candle/Data/Images/Normal/{n:03}.JPG," for n in range(4)]
    (root / "split_csv/1cls.csv").write_text("\n".join(lines))
    dataset = open_dataset(root / "candle")
    tested = dataset.table[(dataset.table["split"] == "test") & (dataset.table["label"] == 0)]
    assert [Path(path).name for path in tested["path"]] == ["002.JPG"]


def test_kolektor(make_folder: Make) -> None:
    root = make_folder(*[f"kos{item:02}/Part{part}.jpg" for item in range(1, 11) for part in range(3)])
    for item in range(1, 11):
        for part in range(3):
            mask(box=(10, 10, 30, 30) if part == 1 else (0, 0, 0, 0)).save(root / f"kos{item:02}/Part{part}_label.bmp")
    (root / "kos05/Part2_label.bmp").unlink()
    dataset = open_dataset(root)
    assert dataset.layout == "KolektorSDD"
    assert counts(dataset)["test", "defective"] == (10, 10)
    assert "kos05/Part2.jpg: no label beside it" in told(dataset)
    good = dataset.table[dataset.table["label"] == 0]
    folders = good.groupby("split")["path"].agg(lambda paths: {Path(path).parent.name for path in paths})
    assert len(folders["train"]) == 8
    assert not folders["train"] & folders["test"], "no item is in both splits"


def test_kolektor_2(make_folder: Make) -> None:
    root = make_folder(*numbered("train", 4), *numbered("test", 3))
    for split, count in (("train", 4), ("test", 3)):
        for place in range(count):
            mask(box=(5, 5, 20, 20) if place == 0 else (0, 0, 0, 0)).save(root / split / f"{place:03}_GT.png")
    dataset = open_dataset(root)
    assert dataset.layout == "KolektorSDD2"
    assert counts(dataset) == {("train", "good"): (3, 0), ("test", "good"): (2, 0), ("test", "defective"): (1, 1)}
    assert "train has 1 picture marked as defective" in told(dataset)


@pytest.mark.parametrize("good", ["good", "OK", "Normal"])
def test_plain_folder_with_bad_ones_and_masks(make_folder: Make, good: str) -> None:
    root = make_folder(*numbered(good, 10), *numbered("scratched", 2), *numbered("masks/scratched", 2), name="parts")
    dataset = open_dataset(root)
    assert dataset.layout == "plain folder"
    assert counts(dataset) == {("train", "good"): (8, 0), ("test", "good"): (2, 0), ("test", "scratched"): (2, 2)}
    assert dataset.problems == ()


def test_plain_folder_with_masks_loose_or_inside(make_folder: Make) -> None:
    loose = open_dataset(make_folder(*numbered("good", 5), *numbered("bad", 2), *numbered("masks", 2), name="loose"))
    inside = open_dataset(make_folder(*numbered("good", 5), *numbered("bad", 2), *numbered("bad/masks", 2), name="inside"))
    beside = open_dataset(make_folder(*numbered("good", 5), *numbered("bad", 2), *numbered("bad", 2, "_mask.png"), name="beside"))
    for dataset in (loose, inside, beside):
        assert counts(dataset)["test", "bad"] == (2, 2), dataset.name


def test_plain_folder_of_loose_good_pictures_beside_bad_ones(make_folder: Make) -> None:
    dataset = open_dataset(make_folder(*numbered(".", 5), *numbered("defect", 2), name="mixed"))
    assert counts(dataset) == {("train", "good"): (4, 0), ("test", "good"): (1, 0), ("test", "defect"): (2, 0)}


def test_plain_folder_without_bad_ones(make_folder: Make) -> None:
    dataset = open_dataset(make_folder(*numbered("good", 5)))
    assert counts(dataset) == {("train", "good"): (5, 0)}
    assert "nothing to test" in told(dataset)


def test_folders_beside_loose_pictures_that_nobody_named_bad_are_not_used(make_folder: Make) -> None:
    dataset = open_dataset(make_folder(*numbered(".", 5), *numbered("more", 2), *numbered("others", 2)))
    assert counts(dataset) == {("train", "good"): (5, 0)}
    assert "more, others: folders beside the good pictures, not used" in told(dataset)


def test_train_and_test_with_loose_pictures(make_folder: Make) -> None:
    dataset = open_dataset(make_folder(*numbered("train", 3), *numbered("test", 2), *numbered("test/bad", 1)))
    assert counts(dataset) == {("train", "good"): (3, 0), ("test", "bad"): (1, 0)}
    assert "test: 2 pictures in no class folder" in told(dataset)


def test_sub_folders_of_classes_are_read(make_folder: Make) -> None:
    dataset = open_dataset(make_folder("train/good/monday/0.png", "train/good/tuesday/0.png", "test/good/0.png", "test/bad/x/0.png"))
    assert counts(dataset) == {("train", "good"): (2, 0), ("test", "good"): (1, 0), ("test", "bad"): (1, 0)}


def test_wrapping_folders_are_entered(make_folder: Make, tmp_path: Path) -> None:
    make_folder("train/good/0.png", "test/good/0.png", name="archive/archive/bottle")
    assert open_dataset(tmp_path / "archive").name == "bottle"


def test_one_category_beside_other_folders_is_entered(make_folder: Make, tmp_path: Path) -> None:
    make_folder("train/good/0.png", name="root/cable")
    (tmp_path / "root" / "docs").mkdir()
    picture().save(tmp_path / "root" / "overview.png")
    assert open_dataset(tmp_path / "root").name == "cable"


def test_categories_of_any_layout_are_offered(make_folder: Make, tmp_path: Path) -> None:
    make_folder("Data/Images/Normal/0.jpg", name="root/candle")
    make_folder("good/0.png", "bad/0.png", name="root/fryum")
    make_folder("train/good/0.png", name="root/bottle10")
    make_folder("train/good/0.png", name="root/bottle9")
    with pytest.raises(DataError, match="choose one of: bottle9, bottle10, candle, fryum"):
        open_dataset(tmp_path / "root")


def test_what_is_no_data_set_says_what_lies_there(make_folder: Make) -> None:
    root = make_folder("reports/0.png", "scans/0.png")
    with pytest.raises(DataError, match=r"not a dataset folder, it holds the folders reports, scans; expected train/good and test/"):
        open_dataset(root)


def test_test_without_train_is_an_error(make_folder: Make) -> None:
    with pytest.raises(DataError, match="0 images in train/good"):
        open_dataset(make_folder("test/good/0.png", "test/bad/0.png"))


def test_an_empty_name_is_an_error() -> None:
    with pytest.raises(DataError, match="got nothing"):
        open_dataset("  ")


# Files inside


def test_bad_files_are_left_out_and_listed_before_training(make_folder: Make) -> None:
    root = make_folder(*numbered("train/good", 5), *numbered("test/good", 1), *numbered("test/bad", 1))
    good = root / "train" / "good"
    (good / "empty.png").write_bytes(b"")
    (good / "cut.png").write_bytes((good / "000.png").read_bytes()[:3000])
    picture().save(good / "whole.jpg")
    (good / "cut.jpg").write_bytes((good / "whole.jpg").read_bytes()[:2000])
    (good / "lfs.png").write_text("version https://git-lfs.github.com/spec/v1\n")
    (good / "phone.heic").write_bytes(b"\0\0\0\x18ftypheic")
    (good / "volume.npy").write_bytes(b"\x93NUMPY")
    os.mkfifo(good / "pipe.png")
    (good / "folder.png").mkdir()
    dataset = open_dataset(root)
    assert counts(dataset)["train", "good"] == (6, 0)
    for name in ("empty.png", "cut.png", "cut.jpg", "lfs.png", "phone.heic", "volume.npy", "pipe.png"):
        assert any(problem.startswith(f"train/good/{name}: ") for problem in dataset.problems), name
    assert len(load_pictures(dataset, size=64).images) == 8


def test_damage_inside_a_file_is_listed_before_training(make_folder: Make) -> None:
    root = make_folder(*numbered("train/good", 3), "test/good/0.png", "test/bad/0.png", "ground_truth/bad/0.png")
    for name in ("train/good/001.png", "ground_truth/bad/0.png"):
        data = bytearray((root / name).read_bytes())
        data[50:60] = b"\0" * 10
        (root / name).write_bytes(data)
    dataset = open_dataset(root)
    assert counts(dataset) == {("train", "good"): (2, 0), ("test", "good"): (1, 0), ("test", "bad"): (1, 0)}
    assert "train/good/001.png: cannot be decoded" in told(dataset)
    assert "ground_truth/bad/0.png: cannot be decoded" in told(dataset)


def test_damage_inside_a_file_of_a_large_set_is_listed_when_it_is_loaded(make_folder: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_folder(*numbered("train/good", 3))
    data = bytearray((root / "train/good/001.png").read_bytes())
    data[-40:-30] = b"\0" * 10
    (root / "train/good/001.png").write_bytes(data)
    monkeypatch.setattr("app.cae.checks.DECODED_AT_ONCE_MIB", 0)
    dataset = open_dataset(root)
    assert len(dataset.table) == 3
    loaded = load_pictures(dataset, size=64)
    assert len(loaded.images) == 2
    assert loaded.problems[0].startswith("train/good/001.png: cannot be decoded")


def test_an_empty_test_folder_and_loose_pictures_are_told(make_folder: Make) -> None:
    root = make_folder(*numbered("train/good", 3), "train/stray.png")
    (root / "test").mkdir()
    dataset = open_dataset(root)
    assert counts(dataset) == {("train", "good"): (3, 0)}
    assert "train: 1 picture in no class folder (first stray.png), not used" in told(dataset)
    assert "test has no pictures in class folders" in told(dataset)


def test_nothing_left_names_the_first_bad_file(tmp_path: Path) -> None:
    good = tmp_path / "widget" / "train" / "good"
    good.mkdir(parents=True)
    (good / "a.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"0 images in train/good that can be read.*1 that cannot be read: train/good/a\.png: is empty"):
        open_dataset(tmp_path / "widget")


def test_nothing_but_foreign_files_is_told(tmp_path: Path) -> None:
    good = tmp_path / "widget" / "train" / "good"
    good.mkdir(parents=True)
    (good / "a.heic").write_bytes(b"x")
    with pytest.raises(DataError, match=r"0 images in train/good.*a\.heic: \.heic files are not read"):
        open_dataset(tmp_path / "widget")


@pytest.mark.parametrize(
    "name",
    [
        "with space.png",
        "Teil [1] (gut) #3 100%.png",
        "löt stelle.png",
        "部品\u3000一.png",
        "🔩.png",
        "-rf.png",
        "a.b.c.png",
        "'quoted\".png",
        "back\\slash.png",
        "new\nline.png",
        "x" * 240 + ".png",
        "%s{0}.png",
        "train.png",
        "good.png",
    ],
)
def test_unusual_names(make_folder: Make, name: str) -> None:
    root = make_folder("train/good/0.png", "test/good/0.png", name="Ordner mit [Klammern] & Ümlaut #1")
    for folder in ("train/good", "test/scratch", "ground_truth/scratch"):
        (root / folder).mkdir(exist_ok=True, parents=True)
        (mask() if "truth" in folder else picture(len(folder))).save(root / folder / name)
    dataset = open_dataset(root)
    assert counts(dataset) == {("train", "good"): (2, 0), ("test", "good"): (1, 0), ("test", "scratch"): (1, 1)}
    assert dataset.problems == ()
    assert len(split_digest(dataset)) == 64
    assert len(load_pictures(dataset, size=64).images) == 4


def test_names_that_are_no_text_are_left_out_and_shown_escaped(make_folder: Make) -> None:
    root = make_folder("train/good/0.png", "test/good/0.png", "test/bad/0.png")
    (root / "test/bad/0.png").rename(root / "test/bad" / os.fsdecode(b"\xff\xfe.png"))
    dataset = open_dataset(root)
    (problem,) = [text for text in dataset.problems if "not valid Unicode" in text]
    assert problem.startswith("test/bad/\\udcff\\udcfe.png: ")
    "\n".join(dataset.problems).encode()


def test_a_file_without_suffix_is_a_picture_by_its_content(make_folder: Make) -> None:
    root = make_folder("train/good/0.png")
    picture(3).save(root / "train/good/IMG_0001", "JPEG")
    (root / "train/good/Makefile").write_text("all:")
    assert counts(open_dataset(root))["train", "good"] == (2, 0)


def test_the_same_picture_in_train_and_test_is_told(make_folder: Make) -> None:
    root = make_folder(*numbered("train/good", 2), *numbered("test/good", 2), "test/bad/0.png")
    (root / "test/good/copy.png").write_bytes((root / "train/good/001.png").read_bytes())
    dataset = open_dataset(root)
    assert any(
        problem.startswith("The same pictures are in train and test") and "test/good/copy.png" in problem for problem in dataset.problems
    )
    assert "000.png" not in next(problem for problem in dataset.problems if problem.startswith("The same"))


def test_many_problems_of_a_kind_are_one_sentence(make_folder: Make) -> None:
    root = make_folder(*numbered("train/good", 12), size=(20, 20))
    (small,) = [problem for problem in open_dataset(root).problems if "smaller than the model size" in problem]
    assert small.endswith("and 7 more.")


def test_a_12_bit_set_shares_one_scale(make_folder: Make) -> None:
    root = make_folder("train/good/0.png", "test/good/0.png", "test/bad/0.png")
    for folder, top in (("train/good", 4000), ("test/good", 2100), ("test/bad", 900)):
        values = np.linspace(0, top, 80 * 70).reshape(70, 80).astype(np.uint16)
        Image.fromarray(values).save(root / folder / "0.png")
    dataset = open_dataset(root)
    assert dataset.full_scale == 4095
    loaded = load_pictures(dataset, size=64)
    assert loaded.images.max(axis=(1, 2, 3)).tolist() == pytest.approx([4000 / 4095 * 255, 2100 / 4095 * 255, 900 / 4095 * 255], abs=3)
    assert "bit depth" not in told(dataset), "a dark picture is no other depth"
