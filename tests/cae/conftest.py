"""Folders of pictures for tests: the recorded cases, and small ones made on the spot."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from picture_makers import mask, picture

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Synthetic pictures of one test session, not the user's."""
    monkeypatch.setenv("TWOPATH_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def case() -> Callable[[str], Path]:
    """The recorded folder of a case, not to be written to."""
    return lambda name: DATA / "pictures" / name


@pytest.fixture
def copied(tmp_path: Path) -> Callable[[str], Path]:
    """A copy of the `widget` folder of a case."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(DATA / "pictures" / name / "widget", tmp_path / name / "widget"))

    return copy


@pytest.fixture
def make_folder(tmp_path: Path) -> Callable[..., Path]:
    """Makes a folder from paths: names with `mask` or in mask folders become masks, all others distinct pictures."""

    def make(*files: str, name: str = "widget", size: tuple[int, int] = (80, 70)) -> Path:
        root = tmp_path / name
        for place, file in enumerate(files):
            path = root / file
            path.parent.mkdir(parents=True, exist_ok=True)
            words = ("mask", "ground_truth", "_label", "_gt", "masks")
            image = mask(size) if any(word in file.casefold() for word in words) else picture(place, size)
            image.save(path)
        return root

    return make
