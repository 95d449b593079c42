"""Masks find their pictures by name and lie on them as drawn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from picture_makers import mask, picture
from PIL import Image

from app.cae.datasets import open_dataset
from app.cae.image_files import Header, PictureError, read_header
from app.cae.masks import fit, pair_masks, part_siblings, read_mask


def paired(folder: Path, picture_names: list[str]) -> dict[str, list[str]]:
    pairing = pair_masks([Path("/pictures") / name for name in picture_names], folder, shown_from=folder)
    return {owner.name: [mask.relative_to(folder).as_posix() for mask in masks] for owner, masks in pairing.masks.items()}


def put(folder: Path, *names: str) -> Path:
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        mask().save(file)
    return folder


# Pairing


@pytest.mark.parametrize(
    "name",
    [
        "007.png",
        "007.bmp",
        "007_mask.png",
        "007_MASK.PNG",
        "007-mask.tif",
        "007_gt.png",
        "007_GT.bmp",
        "007_label.bmp",
        "007_seg.png",
        "007.mask.png",
        "007_mask_2.png",
        "007_ground_truth.png",
        "mask_007.png",
        "007.jpg.png",
        "007/000.png",
    ],
)
def test_names_that_belong_to_a_picture(tmp_path: Path, name: str) -> None:
    assert paired(put(tmp_path, name), ["007.jpg", "7.jpg", "0077.jpg"]) == {"007.jpg": [name]}


@pytest.mark.parametrize("name", ["7.png", "0071.png", "007_masked.png", "other.png", "007mask.png", "000/007x.png"])
def test_names_that_do_not(tmp_path: Path, name: str) -> None:
    pairing = pair_masks([Path("/pictures/007.jpg")], put(tmp_path, name), shown_from=tmp_path)
    assert pairing.masks == {}
    assert [path.name for path in pairing.unused] == [Path(name).name]


def test_ten_does_not_sort_before_two(tmp_path: Path) -> None:
    names = [f"{place}.png" for place in range(1, 13)]
    put(tmp_path, *(f"{place}_mask.png" for place in range(1, 13)))
    assert paired(tmp_path, names) == {f"{place}.png": [f"{place}_mask.png"] for place in range(1, 13)}


def test_accents_written_apart_are_the_same_name(tmp_path: Path) -> None:
    assert paired(put(tmp_path, "lo\u0308tstelle_mask.png"), ["l\u00f6tstelle.png"])


def test_sub_folders_that_repeat_names_are_kept_apart(tmp_path: Path) -> None:
    put(tmp_path, "left/1.png", "right/1.png")
    pictures = [Path("/p/left/1.jpg"), Path("/p/right/1.jpg")]
    pairing = pair_masks(pictures, tmp_path, shown_from=tmp_path)
    assert {owner.parent.name: [file.parent.name for file in files] for owner, files in pairing.masks.items()} == {
        "left": ["left"],
        "right": ["right"],
    }
    assert pair_masks(pictures, put(tmp_path / "flat", "1.png"), shown_from=tmp_path).masks == {}, "never guessed"


def test_masks_beside_their_pictures() -> None:
    files = [Path("k/Part0.jpg"), Path("k/Part0_label.bmp"), Path("k/Part1.jpg"), Path("k/lonely_label.bmp"), Path("other/Part1_label.bmp")]
    pictures, masks = part_siblings(files)
    assert [path.name for path in pictures] == ["Part0.jpg", "Part1.jpg", "lonely_label.bmp", "Part1_label.bmp"]
    assert masks == {files[0]: (files[1],)}


# How a mask lies on its picture


def header(size: tuple[int, int], orientation: int = 1) -> Header:
    return Header("PNG", "L", size, orientation)


@pytest.mark.parametrize(
    ("mask_size", "picture_size", "orientation", "expected"),
    [
        ((64, 48), (64, 48), 1, ("same", False)),
        ((64, 48), (64, 48), 6, ("same", False)),
        ((48, 64), (64, 48), 6, ("turned", False)),
        ((96, 128), (64, 48), 6, ("turned", False)),
        ((64, 64), (64, 64), 6, ("same", True)),
        ((64, 48), (64, 48), 3, ("same", True)),
        ((128, 96), (64, 48), 1, ("scaled", False)),
        ((33, 25), (64, 48), 1, ("scaled", False)),
        ((48, 64), (64, 48), 1, ("other aspect", False)),
        ((64, 40), (64, 48), 1, ("other aspect", False)),
        ((1, 1), (64, 48), 1, ("other aspect", False)),
    ],
)
def test_fit(mask_size: tuple[int, int], picture_size: tuple[int, int], orientation: int, expected: tuple[str, bool]) -> None:
    assert fit(header(mask_size), header(picture_size, orientation)) == expected


@pytest.mark.parametrize(
    ("orientation", "drawn"),
    [(orientation, "viewing") for orientation in range(1, 9)] + [(orientation, "stored") for orientation in (1, 5, 6, 7, 8)],
)
def test_mask_and_picture_are_turned_alike(tmp_path: Path, orientation: int, drawn: str) -> None:
    """Half turns (2, 3, 4) cannot be told from the sizes: viewing order is taken then, and that is said."""
    back = [None, *(Image.Transpose[name] for name in ("FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM", "TRANSPOSE"))]
    back += [Image.Transpose[name] for name in ("ROTATE_90", "TRANSVERSE", "ROTATE_270")]
    method = back[orientation - 1]
    viewing = mask((90, 60), (5, 5, 30, 20))
    stored = viewing if method is None else viewing.transpose(method)
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored.convert("RGB").save(tmp_path / "a.jpg", quality=95, exif=exif)
    (stored if drawn == "stored" else viewing).save(tmp_path / "a_mask.png")
    found = read_mask(tmp_path / "a_mask.png", picture=read_header(tmp_path / "a.jpg"))
    assert np.array_equal(found, np.asarray(viewing) // 255)


def test_a_mask_with_its_own_orientation_is_turned_by_that(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    viewing = mask((90, 60), (5, 5, 30, 20))
    viewing.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "m.png", exif=exif)
    assert np.array_equal(read_mask(tmp_path / "m.png"), np.asarray(viewing) // 255)


def test_another_aspect_is_refused_by_name(tmp_path: Path) -> None:
    mask((64, 40)).save(tmp_path / "a_mask.png")
    with pytest.raises(PictureError, match=r"a_mask\.png: is 64 × 40 px, its picture 64 × 64 px"):
        read_mask(tmp_path / "a_mask.png", picture=header((64, 64)))


# Values


@pytest.mark.parametrize("value", [1, 2, 40, 127, 128, 255])
def test_any_class_id_is_a_defect(tmp_path: Path, value: int) -> None:
    mask(value=value).save(tmp_path / "m.png")
    found = read_mask(tmp_path / "m.png")
    assert set(np.unique(found)) == {0, 1}
    assert int(found.sum()) == 20 * 20


@pytest.mark.parametrize(
    ("form", "mode"),
    [("png", mode) for mode in ("1", "RGB", "RGBA", "LA", "P")]
    + [("tif", mode) for mode in ("1", "RGB", "RGBA", "LA", "P", "I", "F", "CMYK")]
    + [("bmp", mode) for mode in ("1", "RGB", "P")],
)
def test_masks_of_any_mode(tmp_path: Path, mode: str, form: str) -> None:
    mask().convert(mode).save(tmp_path / f"m.{form}")
    assert int(read_mask(tmp_path / f"m.{form}").sum()) == 400


def test_16_bit_and_float_masks(tmp_path: Path) -> None:
    values = np.asarray(mask()).astype(np.uint16) // 255
    Image.fromarray(values).save(tmp_path / "m.png")
    Image.fromarray(values.astype(np.float32)).save(tmp_path / "m.tif")
    assert int(read_mask(tmp_path / "m.png").sum()) == int(read_mask(tmp_path / "m.tif").sum()) == 400


def test_palette_masks_by_colour_or_by_index(tmp_path: Path) -> None:
    index = Image.fromarray(np.asarray(mask()) // 255, mode="P")
    index.putpalette([0, 0, 0, 128, 0, 0])
    index.save(tmp_path / "voc.png")
    swapped = Image.fromarray(1 - np.asarray(mask()) // 255, mode="P")
    swapped.putpalette([255, 255, 255, 0, 0, 0])
    swapped.save(tmp_path / "swapped.png")
    bare = Image.fromarray(np.asarray(mask()) // 255, mode="P")
    bare.putpalette([0, 0, 0] * 256)
    bare.save(tmp_path / "bare.png")
    for name in ("voc", "swapped", "bare"):
        assert int(read_mask(tmp_path / f"{name}.png").sum()) == 400, name


def test_masks_drawn_in_the_alpha_channel(tmp_path: Path) -> None:
    black = Image.new("RGBA", (80, 70), (0, 0, 0, 0))
    black.paste((0, 0, 0, 255), (10, 20, 30, 40))
    black.save(tmp_path / "black.png")
    white = Image.new("RGBA", (80, 70), (255, 255, 255, 0))
    white.paste((255, 255, 255, 255), (10, 20, 30, 40))
    white.save(tmp_path / "white.png")
    for name in ("black", "white"):
        assert int(read_mask(tmp_path / f"{name}.png").sum()) == 400, name


def test_ripples_of_jpeg_masks_are_not_defects(tmp_path: Path) -> None:
    mask().save(tmp_path / "m.jpg", quality=60)
    assert abs(int(read_mask(tmp_path / "m.jpg").sum()) - 400) <= 20


def test_sizes_by_nearest_and_small_defects_do_not_vanish(tmp_path: Path) -> None:
    mask((128, 128), (32, 32, 64, 64)).save(tmp_path / "m.png")
    half = read_mask(tmp_path / "m.png", size=64)
    assert int(half.sum()) == 16 * 16
    mask((640, 640), (333, 401, 334, 402)).save(tmp_path / "dot.png")
    small = read_mask(tmp_path / "dot.png", size=64)
    assert np.argwhere(small).tolist() == [[40, 33]]
    mask((64, 64), (0, 0, 0, 0)).save(tmp_path / "none.png")
    assert int(read_mask(tmp_path / "none.png", size=128).sum()) == 0


# Through the front door


def test_unpaired_and_surplus_masks_are_listed(make_folder: Callable[..., Path]) -> None:
    root = make_folder(
        "train/good/0.png",
        "test/good/0.png",
        "test/scratch/0.png",
        "test/scratch/1.png",
        "test/dent/0.png",
        "ground_truth/scratch/0_mask.png",
        "ground_truth/scratch/9_mask.png",
        "ground_truth/crack/0_mask.png",
    )
    dataset = open_dataset(root)
    assert dataset.table["masks"].map(len).tolist() == [0, 0, 0, 1, 0]
    told = "\n".join(dataset.problems)
    assert "test/scratch/1.png: no mask of that name" in told
    assert "ground_truth/scratch/9_mask.png: no picture of that name" in told
    assert "dent: no masks for this class" in told
    assert "ground_truth/crack: there is no test/crack" in told


def test_a_mask_loose_among_all_classes_is_not_given_to_two(make_folder: Callable[..., Path]) -> None:
    root = make_folder(
        "train/good/a.png", "test/scratch/0.png", "test/dent/0.png", "test/dent/1.png", "ground_truth/0_mask.png", "ground_truth/1_mask.png"
    )
    dataset = open_dataset(root)
    masks = {
        Path(path).parent.name + Path(path).name: files for path, files in zip(dataset.table["path"], dataset.table["masks"], strict=True)
    }
    assert masks["dent1.png"]
    assert not masks["dent0.png"]
    assert not masks["scratch0.png"]
    assert any("ground_truth/0_mask.png: pictures of several classes have that name" in problem for problem in dataset.problems)


def test_several_masks_of_a_picture_are_united(make_folder: Callable[..., Path], tmp_path: Path) -> None:
    from app.cae.datasets import load_pictures

    root = make_folder("train/good/0.png", "validation/good/0.png", "test/good/0.png", "test/structural_anomalies/0.png", size=(80, 80))
    folder = root / "ground_truth" / "structural_anomalies" / "0"
    folder.mkdir(parents=True)
    mask((80, 80), (0, 0, 10, 10)).save(folder / "000.png")
    mask((80, 80), (40, 40, 50, 50)).save(folder / "001.png")
    dataset = open_dataset(root)
    assert dataset.layout == "MVTec LOCO AD"
    loaded = load_pictures(dataset, size=80)
    assert int(loaded.masks[-1].sum()) == 200


def test_an_unreadable_mask_costs_only_the_mask(make_folder: Callable[..., Path]) -> None:
    root = make_folder("train/good/0.png", "test/good/0.png", "test/scratch/0.png", "test/scratch/1.png", "ground_truth/scratch/0_mask.png")
    (root / "ground_truth/scratch/1_mask.png").write_bytes(b"")
    dataset = open_dataset(root)
    assert len(dataset.table) == 4
    assert any(
        problem.startswith("ground_truth/scratch/1_mask.png: is empty") and "test/scratch/1.png is left out of pixel metrics" in problem
        for problem in dataset.problems
    )


def test_a_guess_about_the_turn_is_told(make_folder: Callable[..., Path]) -> None:
    root = make_folder("train/good/0.png", "test/good/0.png", "ground_truth/scratch/0_mask.png", size=(80, 80))
    exif = Image.Exif()
    exif[0x0112] = 6
    (root / "test/scratch").mkdir()
    picture(9, (80, 80)).save(root / "test/scratch/0.jpg", exif=exif)
    dataset = open_dataset(root)
    assert any("ground_truth/scratch/0_mask.png: its picture is turned by EXIF" in problem for problem in dataset.problems)
