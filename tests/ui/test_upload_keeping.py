"""The page removes unpacked uploads that nobody needs any more: when the dashboard starts, and when somebody uploads."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import pytest
from page_helpers import open_page
from PIL import Image

from app.ui import cae_data, state


@pytest.fixture
def old(runs_dir: Path) -> Path:
    """An upload of long ago that no run refers to."""
    folder = runs_dir / state.UPLOADS_FOLDER / "0123456789abcdef"
    (folder / "set").mkdir(parents=True)
    os.utime(folder, (1_000_000_000, 1_000_000_000))
    return folder


def test_the_first_page_of_a_dashboard_tidies_up(old: Path) -> None:
    cae_data._tidy_once.clear()
    open_page("Keras CAE")
    assert not old.exists()


def test_an_upload_tidies_up_and_stays_itself(old: Path) -> None:
    picture, archive = io.BytesIO(), io.BytesIO()
    Image.new("L", (64, 64)).save(picture, "PNG")
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("train/good/0.png", picture.getvalue())
    folder = cae_data.unpack(archive.getvalue(), "set.zip", old.parent)
    assert not old.exists()
    os.utime(folder.parent, (1_000_000_000, 1_000_000_000))
    assert cae_data.unpack(archive.getvalue(), "set.zip", old.parent) == folder, "chosen again today, so it is not an old one"
    assert (folder / "train/good/0.png").is_file()
