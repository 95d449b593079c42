"""Pictures to be scored are found once each, read as the run's own were, and named one by one where they cannot be used."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from app.cae.config import make_config
from app.cae.scoring import Calibration, ScoringRule
from app.core.errors import DataError
from app.runs import score_inputs
from app.runs.score_inputs import Given, Reading, find_pictures

CASES = Path(__file__).resolve().parents[1] / "data" / "pictures"


def rule(size: int = 64, channels: int = 1, full_scale: float | None = None) -> Calibration:
    flat = np.zeros((size, size), np.float32)
    return Calibration(ScoringRule.of(make_config({})), flat, flat + 1, channels, 3.0, 0.0, 4.0, "5 good pictures", full_scale)


def save(path: Path, size: tuple[int, int] = (30, 20), value: int = 100) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size, value).save(path)
    return path


def test_folders_and_files_are_looked_through_and_each_picture_comes_once(tmp_path: Path) -> None:
    first, second = save(tmp_path / "in/2.png"), save(tmp_path / "in/deep/10.png")
    save(tmp_path / "in/ground_truth/2_mask.png")
    odd = save(tmp_path / "in/photo.png").rename(tmp_path / "in/photo.dat")
    (tmp_path / "in/notes.txt").write_text("no picture")
    (tmp_path / "in/scan.heic").write_bytes(b"x")
    given, problems = find_pictures([tmp_path / "in", first, odd, tmp_path / "in"])
    assert [picture.file for picture in given] == [first, second, odd], "a named file counts whatever its suffix"
    assert given[0].name == str(first)
    assert problems == [f"{tmp_path}/in/scan.heic: .heic files are not read; convert it to PNG or TIFF."] * 2


def test_nothing_to_score_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "scan.heic").write_bytes(b"x")
    with pytest.raises(DataError, match=r"PICTURE: expected at least one picture file .* got none in .*scan\.heic: \.heic files"):
        find_pictures([tmp_path])


def test_uploads_keep_the_names_that_visitors_know(tmp_path: Path) -> None:
    save(tmp_path / "0001.png")
    given, _ = find_pictures([tmp_path], {"0001.png": "Käfer 1.png"})
    assert [picture.name for picture in given] == ["Käfer 1.png"]


def test_what_cannot_be_read_is_named_and_left_out(tmp_path: Path) -> None:
    good = save(tmp_path / "good.png", (64, 80))
    tiny = save(tmp_path / "tiny.png", (5, 7))
    broken = tmp_path / "broken.png"
    broken.write_bytes(good.read_bytes()[:60])
    text = tmp_path / "text.png"
    text.write_text("hello")
    files = [broken, good, tmp_path / "gone.png", text, tiny]
    told: list[str] = []
    steps: list[tuple[int, int]] = []
    reading = Reading([Given(file, file.name) for file in files], lambda done, total: steps.append((done, total)), told.append)
    images = reading(rule())
    assert images.shape == (2, 64, 64, 1)
    assert [picture.name for picture in reading.kept] == ["good.png", "tiny.png"]
    assert reading.sizes == [(64, 80), (5, 7)], "width and height of the file, not swapped"
    assert [line.split(":")[0] for line in told] == ["broken.png", "gone.png", "text.png"]
    assert "gone.png: is not there; left out." in told
    assert reading.notes == ["tiny.png: is smaller than the 64 px that the model sees, so it was enlarged."]
    assert steps[-1] == (5, 5)


def test_remarks_of_one_kind_are_one_sentence(tmp_path: Path) -> None:
    reading = Reading([Given(save(tmp_path / f"{number}.png"), f"{number}.png") for number in range(8)])
    reading(rule())
    (note,) = reading.notes
    assert note.startswith("0.png, 1.png, 2.png, 3.png, 4.png and 3 more: is smaller than")


def test_none_left_is_an_error_that_names_the_first(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"PICTURE: none of 2 can be scored\. The first: a\.png: is not there; left out\."):
        Reading([Given(tmp_path / name, name) for name in ("a.png", "b.png")])(rule())


def test_deep_pictures_share_the_white_of_the_training_pictures(tmp_path: Path) -> None:
    Image.fromarray(np.full((64, 64), 10_000, np.uint16)).save(tmp_path / "deep.png")
    given, _ = find_pictures([tmp_path])
    assert Reading(given)(rule(full_scale=65535.0)).max() == round(10_000 * 255 / 65535)
    assert Reading(given)(rule()).max() == round(10_000 * 255 / 16383), "alone: 14 bits"


@pytest.mark.parametrize("case", ["D05", "D19"])
def test_sizes_are_those_one_sees(case: str) -> None:
    """Turned by EXIF (D05) or of any shape (D19): width and height in viewing order."""
    given, _ = find_pictures([CASES / case])
    reading = Reading(given)
    reading(rule())
    assert len(reading.kept) > 3
    for picture, found in zip(reading.kept, reading.sizes, strict=True):
        with Image.open(picture.file) as image:
            turned = image.getexif().get(274, 1) >= 5 and image.format != "TIFF"
            assert found == (image.size[::-1] if turned else image.size), picture.name


def test_more_pictures_than_memory_holds_are_kept_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in range(3):
        Image.new("L", (64, 64), 100 * place).save(tmp_path / f"{place}.png")
    (tmp_path / "1.png").write_bytes(b"broken")
    given = [Given(tmp_path / f"{place}.png", f"{place}.png") for place in range(3)]
    whole = Reading(given)(rule())
    monkeypatch.setattr(score_inputs, "free_mib", lambda: 0.1)
    reading = Reading(given, folder=tmp_path / "scoring")
    filed = reading(rule())
    assert isinstance(whole, np.ndarray)
    assert not isinstance(filed, np.ndarray)
    np.testing.assert_array_equal(np.asarray(filed), whole)
    assert len(filed) == len(reading.kept) == 2
    assert any("they are kept in a file" in note for note in reading.notes)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    with pytest.raises(DataError, match=r"scoring: expected 0\.\d MiB of free disk space for 3 pictures of 64 px, which .* got 0\.0 MiB"):
        Reading(given, folder=tmp_path / "scoring")(rule())
