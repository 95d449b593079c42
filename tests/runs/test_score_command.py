"""`score RUN PICTURE…` as a real process with a really trained model: what it prints, writes and refuses."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from PIL import Image
from run_helpers import as_from_a_terminal, until

from app.cae.heat_maps import Scale, heat_map
from app.runs.folder import RunFolder, load_calibration, load_scores
from app.runs.queue import Line
from app.runs.score_folder import list_scorings, read_scoring

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
CASES = ROOT / "tests" / "data" / "pictures"


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "app.main", *map(str, arguments)]


def call(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), cwd=ROOT, capture_output=True, text=True, timeout=200)


def stripes(seed: int) -> NDArray[np.uint8]:
    place = np.arange(64)[:, None] / 4 + np.zeros((1, 64))
    noise = np.random.default_rng(seed).normal(0, 8, (64, 64))
    return np.clip(127.5 + 90 * np.sin(place) + noise, 0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run whose model has seen horizontal stripes."""
    place = tmp_path_factory.mktemp("trained")
    for split, count in (("train", 12), ("test", 3)):
        (place / f"stripes/{split}/good").mkdir(parents=True)
        for seed in range(count):
            Image.fromarray(stripes(seed + 100 * (split == "test"))).save(place / f"stripes/{split}/good/{seed:02d}.png")
    small = {"image-size": 64, "base-filters": 4, "latent-dim": 8, "batch-size": 4, "epochs": 1, "device": "cpu", "data": place / "stripes"}
    options = [text for name, value in small.items() for text in (f"--{name}", value)]
    done = subprocess.run(
        command("cae", *options, "--runs-dir", place / "runs", "--json"),
        cwd=ROOT,
        env={**os.environ, "TWOPATH_LOCK_DIR": str(place / "locks")},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return RunFolder(Path(json.loads(done.stdout)["run_folder"]))


@pytest.fixture
def run(trained: RunFolder, tmp_path: Path) -> RunFolder:
    """A copy of it, to be written to."""
    return RunFolder(Path(shutil.copytree(trained.path, tmp_path / "runs" / trained.run_id)))


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Of all sorts: wide, turned by EXIF, tiny, broken, text, and the middle one with a defect."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    marked = stripes(7)
    marked[10:30, 40:56] = 255 - marked[10:30, 40:56]
    Image.fromarray(marked).resize((160, 80)).save(folder / "1-wide.png")
    exif = Image.Exif()
    exif[274] = 6
    Image.fromarray(stripes(8)).resize((90, 60)).save(folder / "2-turned.jpg", exif=exif)
    Image.new("RGB", (5, 7), (200, 10, 10)).save(folder / "3-tiny.png")
    (folder / "4-broken.png").write_bytes((folder / "1-wide.png").read_bytes()[:500])
    (folder / "5-text.png").write_text("not a picture")
    return folder


def test_pictures_are_scored_and_everything_is_written(run: RunFolder, pictures: Path, tmp_path: Path) -> None:
    test_picture = str(load_scores(run.path)["path"].iloc[0])
    done = call("score", run.run_id[:12], pictures, test_picture, tmp_path / "gone.png", "--device", "cpu", "--json")
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    left_out = ("4-broken.png: cannot be decoded", "5-text.png: is text, not a picture", "gone.png: is not there")
    assert len(answer["problems"]) == 3
    for said, problem, line in zip(left_out, answer["problems"], done.stderr.strip().splitlines()[-3:], strict=True):
        assert said in problem
        assert problem == line, "named one by one, and nothing else on stderr"

    # Figures.
    assert (answer["count"], answer["good"] + answer["defective"]) == (4, 4)
    assert [Path(row["path"]).name for row in answer["pictures"]][:3] == ["1-wide.png", "2-turned.jpg", "3-tiny.png"]
    calibration = load_calibration(run.path)
    assert calibration is not None
    assert answer["threshold"] == calibration.threshold
    for row in answer["pictures"]:
        assert row["verdict"] == ("defective" if row["score"] > calibration.threshold else "good")
    assert answer["pictures"][3]["score"] == pytest.approx(load_scores(run.path)["score"].iloc[0], rel=1e-4), "as the run itself scored it"
    assert answer["selected_device"] == "cpu"
    assert answer["path"].startswith("CPU")
    assert answer["reason"]
    assert answer["images_per_s"] is None
    assert "first 32 pictures" in answer["not_available"]["images_per_s"]

    # Files: in the run's folder, but no run.
    folder = Path(answer["folder"])
    assert folder.parent == run.path / "scored"
    assert json.loads((folder / "result.json").read_text()) == answer
    table = pd.read_csv(folder / "scores.csv")
    assert list(table.columns) == ["path", "score", "verdict"]
    np.testing.assert_allclose(table["score"], [row["score"] for row in answer["pictures"]])
    scale = Scale(calibration.heat_low, calibration.heat_high)
    with np.load(folder / "maps.npz") as maps:
        assert maps["sizes"].tolist() == [[160, 80], [60, 90], [5, 7], [64, 64]]
        for row, values in zip(answer["pictures"], maps["maps"], strict=True):
            with Image.open(folder / row["heat_map"]) as picture:
                assert picture.size == (row["width"], row["height"]), "as the original, not swapped (D19)"
                np.testing.assert_array_equal(np.asarray(picture), heat_map(values, scale, picture.size))
            with Image.open(folder / row["preview"]) as small:
                assert small.size == (row["width"], row["height"])
    assert not list(folder.rglob(".tmp-*"))
    assert [scoring.status.state for scoring in list_scorings(run)] == ["finished"]
    shown = call("runs", "list", "--json", "--runs-dir", run.path.parent)
    assert [row["run_id"] for row in json.loads(shown.stdout)] == [run.run_id]


def test_people_get_words_and_many_pictures_a_speed(run: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "many").mkdir()
    for seed in range(40):
        Image.fromarray(stripes(seed)).save(tmp_path / f"many/{seed}.png")
    out = tmp_path / "out"
    done = call("score", run.path, tmp_path / "many", "--device", "cpu", "--out", out)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert all("score" in line and "threshold" in line for line in lines[:40])
    assert lines[0].endswith("many/0.png")
    assert lines[40].startswith("40 pictures scored, ")
    assert lines[41].startswith("CPU")
    assert lines[42].endswith("images/s")
    assert lines[43] == f"Written to {out}"
    assert len(list((out / "heatmaps").iterdir())) == 40
    again = call("score", run.path, tmp_path / "many", "--out", out)
    assert (again.returncode, again.stdout) == (2, "")
    assert again.stderr.startswith("--out: expected a new or an empty folder")
    assert len(list((out / "heatmaps").iterdir())) == 40


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["nothing", "p"], 2, "RUN: expected the id of a run"),
        (["RUN", "EMPTY"], 1, "PICTURE: expected at least one picture file or a folder of them, got none in"),
        (["RUN", "p", "--device", "warp"], 2, "device"),
        (["RUN", "p", "--min-vram-mib", "-1"], 2, "min_vram_mib"),
        (["RUN"], 2, "PICTURE"),
        (["RUN", "no\udcffwhere.png"], 1, "where.png: is not there; left out."),  # a name that is no text
    ],
)
def test_what_cannot_work_is_one_sentence(run: RunFolder, tmp_path: Path, arguments: list[str], status: int, says: str) -> None:
    (tmp_path / "empty").mkdir()
    places = {"RUN": run.run_id, "EMPTY": str(tmp_path / "empty")}
    done = call("score", *(places.get(text, text) for text in arguments))
    assert (done.returncode, done.stdout) == (status, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((run.path / "scored").glob("*"))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"x" * 500])
def test_a_damaged_calibration_is_one_sentence(run: RunFolder, pictures: Path, content: bytes) -> None:
    (run.path / "scoring.npz").write_bytes(content)
    done = call("score", run.run_id, pictures)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert "scoring.npz: expected the scoring.npz of a run, got" in done.stderr
    assert list_scorings(run) == [], "nothing was scored, so nothing stays"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_waits_in_the_line_of_its_device_and_can_be_stopped(run: RunFolder, pictures: Path, number: signal.Signals) -> None:
    place = Line("cpu").join("somebody", pictures)
    process = subprocess.Popen(
        command("score", run.run_id, pictures, "--device", "cpu"),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=as_from_a_terminal,
    )
    try:
        until(lambda: [found for found in list_scorings(run) if "somebody" in (found.status.message or "")], "waiting")
        assert list_scorings(run)[0].status.state == "queued"
        process.send_signal(number)
        printed, said = process.communicate(timeout=30)
    finally:
        process.kill()
        place.leave()
    assert (process.returncode, printed) == (130, "")
    assert said.strip().splitlines()[-1].startswith("Stopped (")
    assert "Traceback" not in said
    assert list_scorings(run) == [], "nothing was scored, so nothing stays"


def test_a_killed_scoring_is_seen_as_interrupted(run: RunFolder, pictures: Path) -> None:
    place = Line("cpu").join("somebody", pictures)
    process = subprocess.Popen(command("score", run.run_id, pictures, "--device", "cpu"), cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        scoring = until(lambda: next(iter(found for found in list_scorings(run) if found.status.pid), None), "its first word")
    finally:
        process.kill()
        process.wait()
        place.leave()
    assert read_scoring(scoring.folder.path).status.state == "interrupted"
