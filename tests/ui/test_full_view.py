"""The full-size view of a picture: proportions and resolution of the original, heat map and contours at the threshold in force."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cae_runs import SIZE, map_arrays, score_table, write_scored_run
from page_helpers import open_page, words
from PIL import Image

from app.runs.folder import Maps
from app.ui import cae_full_view, cae_gallery
from app.ui.cae_full_view import Subject, layers, shown_picture
from app.ui.originals import LONGEST_PX, read_original, size_of
from app.ui.pictures import PREDICTION, TRUTH, Scale

SCALE = Scale(0.0, 4.0)
SEEN = np.full((SIZE, SIZE, 1), 120, np.uint8)


def marked() -> np.ndarray:
    values = np.zeros((SIZE, SIZE), np.float32)
    values[4:8, 8:12] = 9.0
    return values


def subject(*files: Path, size: tuple[int, int] | None = None, mask: np.ndarray | None = None) -> Subject:
    return Subject("a.png", tuple(map(str, files)), SEEN, size, marked(), mask, 9.0, "defective")


def test_the_prediction_holds_what_the_image_threshold_judges() -> None:
    """A map that is high everywhere has no defect where scores are pooled less the background, and is one where they are not."""
    everywhere = np.full((128, 128), 9.0, np.float32)
    spot = everywhere.copy()
    spot[40:44, 60:64] += 9.0
    picture = np.zeros((128, 128, 3), np.uint8)
    local = Scale(0.0, 4.0, 32.0)
    assert len(colour_places(layers(picture, everywhere, SCALE, threshold=5.0), PREDICTION)) > 0, "around the whole picture"
    assert len(colour_places(layers(picture, everywhere, local, threshold=5.0), PREDICTION)) == 0
    around = colour_places(layers(picture, spot, local, threshold=5.0), PREDICTION)
    assert len(around) > 0
    assert np.abs(around - [41.5, 61.5]).max() < 8
    assert "stands out of its surroundings by more than 5.00" in cae_full_view.pixels_above(5.0, local)
    assert "is above 5.00" in cae_full_view.pixels_above(5.0, SCALE)


def colour_places(picture: np.ndarray, colour: str) -> np.ndarray:
    wanted = [int(colour[place : place + 2], 16) for place in (1, 3, 5)]
    return np.argwhere((picture == wanted).all(axis=2))


def test_the_original_is_shown_at_its_own_size(tmp_path: Path) -> None:
    Image.new("RGB", (1200, 700), (10, 20, 30)).save(tmp_path / "a.png")
    picture, size, about = shown_picture(subject(tmp_path / "a.png"))
    assert (picture.shape, size, about) == ((700, 1200, 3), (1200, 700), "1200 × 700 px.")
    assert size_of(str(tmp_path / "a.png")) == (1200, 700)


def test_a_turned_original_is_shown_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[274] = 6
    Image.new("RGB", (900, 700)).save(tmp_path / "a.jpg", exif=exif)
    picture, size, _ = shown_picture(subject(tmp_path / "a.jpg"))
    assert (picture.shape[:2], size, size_of(str(tmp_path / "a.jpg"))) == ((900, 700), (700, 900), (700, 900))


def test_huge_originals_are_shown_smaller_and_small_ones_larger(tmp_path: Path) -> None:
    Image.new("L", (3000, 1500)).save(tmp_path / "huge.png")
    picture, size, about = shown_picture(subject(tmp_path / "huge.png"))
    assert (picture.shape[:2], size) == ((LONGEST_PX // 2, LONGEST_PX), (3000, 1500))
    assert about == "3000 × 1500 px, shown at 2048 × 1024 px."
    Image.new("L", (5, 7)).save(tmp_path / "tiny.png")
    picture, size, _ = shown_picture(subject(tmp_path / "tiny.png"))
    assert (max(picture.shape[:2]), size) == (cae_full_view.SMALLEST_PX, (5, 7))


def test_without_its_file_the_network_s_input_stands_in_and_it_is_said(tmp_path: Path) -> None:
    picture, size, about = shown_picture(subject(tmp_path / "gone.png", size=(200, 100)))
    assert (picture.shape, size) == ((320, 640, 3), (200, 100)), "proportions are known all the same"
    assert about.replace("\\", "") == "Its file is not there, so here is what the network saw, 16 × 16 px."
    assert shown_picture(subject())[2].startswith("Its file is not kept")
    assert size_of(str(tmp_path / "gone.png")) is None
    (tmp_path / "text.png").write_text("x")
    assert "is text" in str(read_original(str(tmp_path / "text.png"), None))


def test_heat_and_contours_lie_where_the_defect_is() -> None:
    picture = np.full((100, 400, 3), 50, np.uint8)
    mask = np.zeros((SIZE, SIZE), np.uint8)
    mask[12:, :4] = 1
    drawn = layers(picture, marked(), SCALE, threshold=5.0, mask=mask)
    rows, columns = colour_places(drawn, PREDICTION).T
    assert 20 <= rows.min() < rows.max() <= 55
    assert 190 <= columns.min() < columns.max() <= 310
    assert (colour_places(drawn, TRUTH).min(axis=0) == [75, 0]).all()
    assert not len(colour_places(layers(picture, marked(), SCALE, threshold=10.0), PREDICTION)), "nothing lies above the threshold"
    heated = layers(picture, marked(), SCALE, opacity=1.0)
    assert heated[40, 250].sum() > heated[90, 20].sum()
    np.testing.assert_array_equal(layers(picture, marked(), SCALE), picture)


@pytest.mark.parametrize(("size", "shape"), [((640, 480), (216, 288, 3)), ((5, 7), (288, 206, 3)), (None, (288, 288, 3))])
def test_the_gallery_keeps_the_proportions_of_the_original(size: tuple[int, int] | None, shape: tuple[int, int, int]) -> None:
    maps = Maps(**map_arrays(score_table()))
    assert [panel.shape for panel in cae_gallery.panels(maps, 0, SCALE, 0.5, 3.0, size)] == [shape] * 4


def test_each_picture_of_the_gallery_opens_large(runs_dir: Path) -> None:
    write_scored_run(runs_dir)
    app = open_page("Keras CAE")
    buttons = [button for button in app.button if str(button.key).startswith(cae_gallery.ENLARGE)]
    assert len(buttons) == cae_gallery.PER_PAGE
    buttons[0].click()
    app.run()
    assert not app.exception, app.exception
    said = words(app)
    assert "Score **9.25**, threshold 3.00: called defective, truly spot." in said
    assert "Its file is not there" in said
    assert "Pink: pixels whose anomaly stands out of its surroundings by more than 3.00 (the image threshold)." in said
    assert app.slider(key=cae_full_view.OPACITY).value == 60
