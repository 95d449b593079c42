"""*Score my own pictures*: upload or path, a process, and its results; found again by the URL, and not on anybody else's page."""

from __future__ import annotations

import functools
import io
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from cae_runs import SIZE, THRESHOLD, write_scored_run, write_status
from page_helpers import open_page, words
from PIL import Image
from streamlit.testing.v1 import AppTest

from app.core.errors import DataError
from app.runs.files import write_json
from app.runs.folder import RunFolder
from app.runs.launch import cancel_run
from app.runs.score_folder import list_scorings, new_folder, read_scoring, set_up, start_scoring
from app.ui import cae_judge, score_results, score_section

WAITS = (sys.executable, "-c", "import time; time.sleep(120)")
SCORES = (2.5, 9.0, 4.0)


@pytest.fixture
def run(runs_dir: Path) -> RunFolder:
    return write_scored_run(runs_dir)


@pytest.fixture
def _idle(monkeypatch: pytest.MonkeyPatch, runs_dir: Path) -> Iterator[None]:
    """Scorings started from the page get a real process that only waits; it is killed at the end."""
    monkeypatch.setattr(score_section, "start_scoring", functools.partial(start_scoring, program=WAITS))
    yield
    for folder in runs_dir.glob("2*"):
        for scoring in list_scorings(RunFolder(folder)):
            while read_scoring(scoring.folder.path).status.live:
                cancel_run(scoring.folder)


def write_scoring(run: RunFolder, *, names: bool = True, problems: tuple[str, ...] = ()) -> str:
    """A finished scoring of three pictures, of which the second is the most anomalous. Returns its name."""
    uploads = {"0001.png": "a"} if names else {}
    place = set_up(new_folder(run), {"run_id": run.run_id, "pictures": ["/data/new"], "names": uploads})
    rows = []
    (place.path / "previews").mkdir()
    (place.path / "heatmaps").mkdir()
    for number, score in enumerate(SCORES):
        row = {"path": f"part_{number}.png", "score": score, "threshold": THRESHOLD, "verdict": "good", "width": 60, "height": 30}
        row |= {"heat_map": f"heatmaps/{number}.png", "preview": f"previews/{number}.jpg"}
        Image.new("RGB", (60, 30), (number * 40, 90, 90)).save(place.path / row["preview"])
        Image.new("RGB", (60, 30)).save(place.path / row["heat_map"])
        rows.append(row)
    maps = np.stack([np.full((SIZE, SIZE), score, np.float32) for score in SCORES])
    np.savez(place.path / "maps.npz", maps=maps, inputs=np.zeros((3, SIZE, SIZE, 1), np.uint8))
    (place.path / "scores.csv").write_text("path,score,verdict\n", encoding="utf-8")
    about = {"path": "CPU · AVX2", "reason": "No GPU.", "heat_low": 0.25, "heat_high": 4.0, "images_per_s": 120.0, "notes": []}
    write_json(place.path / "result.json", {"count": 3, "pictures": rows, "problems": list(problems), **about})
    write_status(place, state="finished")
    return place.run_id


def drawn(app: AppTest) -> AppTest:
    app.run()
    assert not app.exception, app.exception
    return app


def table(app: AppTest) -> list[tuple[str, str]]:
    frame = next(element.value for element in app.dataframe if "verdict" in element.value.columns and "size" in element.value.columns)
    return list(zip(frame["name"], frame["verdict"], strict=True))


def start_button(app: AppTest) -> object:
    return app.button(key=score_section.START)


def png() -> bytes:
    buffer = io.BytesIO()
    Image.new("L", (20, 20), 90).save(buffer, "PNG")
    return buffer.getvalue()


def test_results_follow_the_threshold_of_the_page(run: RunFolder) -> None:
    name = write_scoring(run, problems=("broken.png: cannot be decoded; left out.",))
    app = open_page("Keras CAE", scored=name)
    assert table(app) == [("part_1.png", "defective"), ("part_2.png", "defective"), ("part_0.png", "good")]
    assert "2 called defective" in words(app)
    assert "broken.png: cannot be decoded; left out." in words(app)
    app.slider(key=cae_judge.key(run.run_id)).set_value(5.0)
    assert table(drawn(app)) == [("part_1.png", "defective"), ("part_2.png", "good"), ("part_0.png", "good")]
    assert "pink outlines pixels whose anomaly is above 5.00 (the image threshold)." in words(app)


@pytest.mark.usefixtures("_idle")
def test_upload_starts_a_process_and_is_found_again_by_its_link(run: RunFolder) -> None:
    app = open_page("Keras CAE")
    assert start_button(app).disabled  # type: ignore[attr-defined]
    app.file_uploader(key=score_section.upload_key(run.run_id)).set_value(
        [("käfer.png", png(), "image/png"), ("b.png", png(), "image/png")]
    )
    drawn(app)
    app.button(key=score_section.START).click()
    drawn(app)
    (scoring,) = list_scorings(run)
    assert list(scoring.request["names"].values()) == ["käfer.png", "b.png"]
    assert (scoring.request["device"], scoring.request["min_vram_mib"]) == ("auto", 2048)
    assert sorted(path.name for path in (scoring.folder.path / "uploads").iterdir()) == ["0001.png", "0002.png"]
    assert app.query_params["scored"] in (scoring.name, [scoring.name])
    assert "Waiting for its turn." in words(app)
    assert start_button(app).disabled, "the uploader is empty again"  # type: ignore[attr-defined]

    # Reloaded, it is there; another visitor's page has it in the list only.
    assert "Waiting for its turn." in words(open_page("Keras CAE", scored=scoring.name))
    other = open_page("Keras CAE")
    assert "Waiting for its turn." not in words(other)
    assert "scored" not in other.query_params
    assert len(other.selectbox(key=score_section.choice_key(run.run_id)).options) == 2

    app.button(key=score_section.CANCEL).click()
    drawn(app)
    drawn(app)
    assert "Cancelled before everything was written." in words(app)
    assert not (scoring.folder.path / "uploads").exists()


def test_uploads_of_a_killed_scoring_go_although_nobody_looks_at_it(run: RunFolder) -> None:
    place = run.path / "scored" / write_scoring(run)
    (place / "uploads").mkdir()
    (place / "uploads/0001.png").write_bytes(png())
    write_status(RunFolder(place), state="interrupted")
    open_page("Keras CAE")
    assert not (place / "uploads").exists()
    assert (place / "scores.csv").exists()


@pytest.mark.usefixtures("_idle")
def test_a_typed_path_stays_inside_the_data_root(run: RunFolder, data_root: Path) -> None:
    (data_root / "new").mkdir()
    app = open_page("Keras CAE", {score_section.SOURCE: score_section.TYPED})
    for typed, says in (("/etc", "got one outside"), ("../..", "got one outside"), ("missing", "that is not there")):
        app.text_input(key=score_section.PATH).set_value(typed)
        assert says in words(drawn(app))
        assert start_button(app).disabled  # type: ignore[attr-defined]
    app.text_input(key=score_section.PATH).set_value("new")
    drawn(app)
    app.button(key=score_section.START).click()
    drawn(app)
    (scoring,) = list_scorings(run)
    assert scoring.request["pictures"] == [str((data_root / "new").resolve())]
    assert not scoring.uploaded


def test_a_path_called_like_a_sample_is_still_a_path(data_root: Path) -> None:
    with pytest.raises(DataError, match="a path that is not there"):
        score_section.typed_path("synthetic", data_root)
    (data_root / "synthetic").mkdir()
    assert score_section.typed_path("synthetic", data_root) == (data_root / "synthetic").resolve()


def test_too_much_is_refused_with_the_limit() -> None:
    assert score_section.too_much([1] * score_section.MAX_UPLOADS) is None
    assert "at most 100 pictures, got 101" in str(score_section.too_much([1] * 101))
    assert "at most 512 MiB together, got 600 MiB" in str(score_section.too_much([60 * 2**20] * 10))


def test_no_more_is_promised_than_the_server_takes(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = score_section.st.get_option
    monkeypatch.setattr(score_section.st, "get_option", lambda name: 5 if name == "server.maxUploadSize" else asked(name))
    app = open_page("Keras CAE", run=run.run_id)
    uploader = next(item.proto for item in app.get("file_uploader") if score_section.UPLOADS in item.proto.id)
    assert uploader.max_upload_size_mb == 5
    assert "files of 5 MiB" in words(app)
    assert "choose *A path on this machine*" in words(app)


def test_a_scoring_can_be_removed_and_a_wrong_link_is_harmless(run: RunFolder) -> None:
    name = write_scoring(run)
    app = open_page("Keras CAE", scored=name)
    app.button(key=score_results.REMOVE).click()
    drawn(app)
    assert list_scorings(run) == []
    assert "scored" not in app.query_params
    write_scoring(run)
    assert "at the threshold above" not in words(open_page("Keras CAE", scored="../../../etc"))


def test_a_run_without_model_says_why_nothing_can_be_scored(run: RunFolder) -> None:
    (run.path / "model.keras").unlink()
    app = open_page("Keras CAE")
    assert "has no model.keras" in words(app)
    assert score_section.START not in [button.key for button in app.button]


def test_damaged_maps_leave_the_scores(run: RunFolder) -> None:
    name = write_scoring(run)
    (run.path / "scored" / name / "maps.npz").write_bytes(b"PK")
    app = open_page("Keras CAE", scored=name)
    assert len(table(app)) == 3
    assert "maps.npz is missing or damaged" in words(app)


def test_names_in_the_table_tell_pictures_of_several_folders_apart() -> None:
    assert score_results.short_names(["/data/set/good/1.png", "/data/set/bad/1.png"]) == ["good/1.png", "bad/1.png"]
    assert score_results.short_names(["/data/set/1.png"]) == ["1.png"]
    assert score_results.short_names(["käfer.png", "C:/b.png"]) == ["käfer.png", "b.png"]
    assert score_results.short_names([]) == []


def test_the_download_holds_scores_and_all_heat_maps(run: RunFolder) -> None:
    place = run.path / "scored" / write_scoring(run)
    with zipfile.ZipFile(io.BytesIO(score_results.zipped(place))) as archive:
        assert sorted(archive.namelist()) == ["heatmaps/0.png", "heatmaps/1.png", "heatmaps/2.png", "result.json", "scores.csv"]


def test_a_preview_named_outside_its_folder_is_not_read(run: RunFolder) -> None:
    scoring = read_scoring(run.path / "scored" / write_scoring(run))
    assert score_results.preview(scoring, {"preview": "previews/0.jpg"}) is not None
    assert score_results.preview(scoring, {"preview": "../../../other/previews/0.jpg"}) is None
    assert score_results.preview(scoring, {"preview": None}) is None
