"""Synthetic pictures: seeded, whole on disk, with masks that mark exactly what was drawn."""

from __future__ import annotations

import hashlib
import multiprocessing
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from app.cae.datasets import describe, load_pictures, open_dataset
from app.cae.drawing import DEFECTS, TEXTURES, add_defect
from app.cae.synthetic import SyntheticOptions, default_cache, parse_options, synthetic_dataset, synthetic_folder, write_pictures
from app.core.errors import DataError


def digest(folder: Path) -> str:
    total = hashlib.sha256()
    for file in sorted(folder.rglob("*.png")):
        total.update(file.relative_to(folder).as_posix().encode() + file.read_bytes())
    return total.hexdigest()


def test_the_default_is_small_and_has_every_kind_of_defect_with_masks() -> None:
    dataset = open_dataset("synthetic")
    table = describe(dataset)
    assert dataset.layout == "synthetic"
    assert dataset.problems == ()
    assert table.loc[table["defect"] == "good", "pictures"].tolist() == [60, 20]
    assert set(table["defect"]) == {"good", *DEFECTS}
    assert table.loc[table["defect"] != "good", "masks"].tolist() == [4] * 5
    loaded = load_pictures(dataset, size=128)
    defective = loaded.rows["label"] == 1
    assert loaded.has_mask[defective].all()
    assert loaded.masks[defective].any(axis=(1, 2)).all()


@pytest.mark.parametrize("texture", TEXTURES)
@pytest.mark.parametrize("kind", DEFECTS)
@pytest.mark.parametrize("channels", [1, 3])
def test_the_mask_is_where_the_picture_changed(texture: str, kind: str, channels: int) -> None:
    random = np.random.default_rng(5)
    clean, ground = TEXTURES[texture](96, random)
    clean = clean[..., :channels]
    picture, mask = add_defect(clean, ground, kind, 0.6, 0.15, random)
    changed = (np.abs(picture - clean) > 1e-6).any(axis=2)
    assert mask.any()
    assert not (changed & ~mask).any(), "nothing changes outside the mask"
    assert not (mask & ~ground).any(), "defects lie on the thing inspected"
    assert picture.min() >= 0
    assert picture.max() <= 1
    assert np.abs(picture - clean)[mask].mean() > 0.02
    assert mask.mean() < 0.1


def test_contrast_and_size_are_options() -> None:
    def drawn(contrast: float, extent: float) -> tuple[float, int]:
        random = np.random.default_rng(2)
        clean, ground = TEXTURES["brushed"](96, random)
        picture, mask = add_defect(clean, ground, "blob", contrast, extent, random)
        return float(np.abs(picture - clean)[mask].mean()), int(mask.sum())

    assert drawn(0.8, 0.15)[0] > 1.5 * drawn(0.3, 0.15)[0]
    assert drawn(0.5, 0.3)[1] > 2 * drawn(0.5, 0.15)[1]


def test_same_seed_same_bytes_other_seed_others(tmp_path: Path) -> None:
    options = SyntheticOptions(train=2, good=1, defective=5, size=64)
    write_pictures(options, tmp_path / "a")
    write_pictures(options, tmp_path / "b")
    write_pictures(SyntheticOptions(train=2, good=1, defective=5, size=64, seed=1), tmp_path / "c")
    assert digest(tmp_path / "a") == digest(tmp_path / "b") != digest(tmp_path / "c")


def test_choices_in_the_name() -> None:
    options = parse_options(
        "synthetic:washer, train=10,good=3,defective=4,size=64,defects=scratch+blob,contrast=0.2,defect_size=0.1,grey=1"
    )
    assert options == SyntheticOptions("washer", 10, 3, 4, 64, ("scratch", "blob"), 0.2, 0.1, True, 0)
    assert parse_options("synthetic", seed=4).seed == 4
    assert parse_options("synthetic:seed=9", seed=4).seed == 9
    dataset = open_dataset("synthetic:washer,train=3,good=1,defective=2,size=64,grey=1,defects=missing")
    assert len(dataset.table) == 6
    assert set(dataset.table["defect"]) == {"good", "missing"}
    assert load_pictures(dataset, size=64).channels == 1


def test_the_seed_of_the_run_draws_other_pictures() -> None:
    first, second = (open_dataset("synthetic:train=1,good=1,defective=1,size=64", seed=seed) for seed in (0, 1))
    assert first.table["path"].tolist() != second.table["path"].tolist()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("synthetic:marble", "expected a texture out of weave, .*got 'marble'"),
        ("synthetic:colours=3", "expected one of texture, .*got 'colours'"),
        ("synthetic:train=many", "train expects a number, got 'many'"),
        ("synthetic:train=0", "train expects 1 to 10000, got 0"),
        ("synthetic:contrast=nan", "contrast expects 0.01 to 1, got nan"),
        ("synthetic:size=8", "size expects 16 to 1024"),
        ("synthetic:defects=hole", "expected defects out of scratch, .*got 'hole'"),
        ("synthetic:defects=", "expected defects out of"),
    ],
)
def test_choices_that_do_not_fit_are_named(text: str, says: str) -> None:
    with pytest.raises(DataError, match=says):
        open_dataset(text)


SMALL = SyntheticOptions(train=2, good=1, defective=1, size=64)


def _make(cache: Path) -> str:
    return str(synthetic_folder(SMALL, cache))


def test_processes_that_make_the_same_set_at_once_get_one_whole_folder(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        folders = pool.map(_make, [tmp_path] * 4)
    assert len(set(folders)) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == [Path(folders[0]).name], "no half-written folder is left"
    assert len(list(Path(folders[0]).rglob("*.png"))) == 5


def test_a_failed_drawing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", full)
    with pytest.raises(DataError, match=r"No space left on device.*TWOPATH_CACHE_DIR"):
        synthetic_dataset("synthetic", cache=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_where_the_cache_lies(tmp_path: Path) -> None:
    assert default_cache({"TWOPATH_CACHE_DIR": str(tmp_path)}) == tmp_path / "synthetic"
    assert default_cache({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "twopath" / "synthetic"
    (tmp_path / "file").write_text("")
    assert default_cache({"XDG_CACHE_HOME": str(tmp_path / "file")}).name == "synthetic"
