"""Unpacked uploads go when nobody needs them, and never while a run refers to them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from app.cae.config import make_config
from app.runs.folder import RunFolder
from app.runs.keeping import delete_run
from app.runs.status import utc_now
from app.runs.uploads import KEPT_DAYS, remove_unused_uploads, touch_upload

DAY = 86_400
NOW = 1_900_000_000.0
A, B, C, D, E = (letter * 16 for letter in "abcde")
"""Uploads are called after their content: 16 hexadecimal digits."""


@pytest.fixture
def uploads(tmp_path: Path) -> Path:
    return tmp_path / "runs/.uploads"


def upload(uploads: Path, name: str, *, days: float) -> Path:
    """An unpacked upload last chosen so many days ago."""
    folder = uploads / name / "bottle"
    (folder / "good").mkdir(parents=True)
    (folder / "good/0.png").write_bytes(b"x")
    os.utime(folder.parent, (NOW - days * DAY, NOW - days * DAY))
    return folder


def run_on(folder: Path, runs_dir: Path) -> RunFolder:
    run = RunFolder.create(runs_dir, make_config({"data": str(folder)}))
    status = run.status()
    (run.path / "status.json").write_text(
        f'{{"state": "finished", "run_id": "{status.run_id}", "created": "{utc_now().isoformat()}"}}', encoding="utf-8"
    )
    return run


def left(uploads: Path) -> list[str]:
    return sorted(child.name for child in uploads.iterdir())


def test_only_old_uploads_without_a_run_go(uploads: Path) -> None:
    for name, days in ((A, KEPT_DAYS + 1), (B, KEPT_DAYS - 1), (C, 400), (D, 400), (E, 400)):
        upload(uploads, name, days=days)
    run_on(uploads / C / "bottle", uploads.parent)
    delete_run(run_on(uploads / D / "bottle", uploads.parent))
    assert remove_unused_uploads(uploads.parent, uploads, now=NOW) == [A, E]
    assert left(uploads) == [B, C, D], "young, used by a run, used by a run in the bin"
    assert (uploads / C / "bottle/good/0.png").exists()


def test_choosing_an_upload_again_keeps_it(uploads: Path) -> None:
    folder = upload(uploads, A, days=1000)
    touch_upload(folder)
    assert remove_unused_uploads(uploads.parent, uploads) == []


def test_where_a_configuration_is_damaged_but_names_an_upload_it_stays(uploads: Path) -> None:
    run = run_on(upload(uploads, A, days=400), uploads.parent)
    (run.path / "config.json").write_text((run.path / "config.json").read_text()[:-20], encoding="utf-8")
    assert remove_unused_uploads(uploads.parent, uploads, now=NOW) == []


def test_where_a_configuration_cannot_be_read_nothing_goes(uploads: Path) -> None:
    upload(uploads, A, days=400)
    run = run_on(Path("elpv-mono"), uploads.parent)
    (run.path / "config.json").unlink()
    (run.path / "config.json").mkdir()
    assert remove_unused_uploads(uploads.parent, uploads, now=NOW) == []
    assert left(uploads) == [A]


def test_what_an_interrupted_removal_left_goes_and_no_folder_is_no_error(uploads: Path) -> None:
    upload(uploads, f".gone-{A}", days=400)
    remove_unused_uploads(uploads.parent, uploads, now=NOW)
    assert left(uploads) == []
    assert remove_unused_uploads(uploads.parent, uploads / "nowhere") == []


def test_what_is_no_upload_stays(uploads: Path, tmp_path: Path) -> None:
    upload(uploads, "pictures of mine", days=400)
    kept = upload(tmp_path / "elsewhere", A, days=400)
    (uploads / A).symlink_to(kept.parent)
    assert remove_unused_uploads(uploads.parent, uploads, now=NOW) == []
    assert left(uploads) == [A, "pictures of mine"]
    assert (kept / "good/0.png").exists()


def test_where_the_runs_cannot_be_listed_nothing_goes(uploads: Path) -> None:
    upload(uploads, A, days=400)
    assert remove_unused_uploads(uploads.parent / "not mounted", uploads, now=NOW) == []
    assert left(uploads) == [A]
