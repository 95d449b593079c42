"""Scorings as folders: started as processes, found again, cancelled, removed; uploads never outlive their scoring."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from run_helpers import until

from app.cae.config import CaeConfig
from app.core.errors import DataError, OptionError, RunError
from app.runs import score_worker
from app.runs.devices import DeviceChoice
from app.runs.files import write_json
from app.runs.folder import RunFolder
from app.runs.keeping import run_folders
from app.runs.launch import cancel_run
from app.runs.score_folder import (
    UPLOADS,
    Scoring,
    Upload,
    find_scoring,
    list_scorings,
    new_folder,
    read_scoring,
    remove_scoring,
    set_up,
    start_scoring,
)

FAKE = """
import json, pathlib, sys, time
from app.runs.folder import RunFolder
folder = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
files = sorted(path.name for path in pathlib.Path(sys.argv[-1]).iterdir())
pictures = [{"path": name, "score": 1.0, "verdict": "good", "width": 4, "height": 3} for name in files]
if "--wait" in sys.argv:
    time.sleep(100)
(folder / "result.json").write_text(json.dumps({"count": len(files), "pictures": pictures, "arguments": sys.argv[1:]}))
status = json.loads((folder / "status.json").read_text())
(folder / "status.json").write_text(json.dumps({**status, "state": "finished", "pid": None}))
"""


@pytest.fixture
def run(runs_dir: Path, config: CaeConfig) -> RunFolder:
    folder = RunFolder.create(runs_dir, config)
    for name in ("model.keras", "scoring.npz"):
        (folder.path / name).write_bytes(b"x")
    return folder


def program(tmp_path: Path, *more: str) -> list[str]:
    (tmp_path / "fake.py").write_text(FAKE, encoding="utf-8")
    return [sys.executable, str(tmp_path / "fake.py"), *more]


def ended(place: RunFolder) -> Scoring:
    until(lambda: not read_scoring(place.path).status.live and not (place.path / UPLOADS).exists(), "the end of the scoring")
    return read_scoring(place.path)


def test_uploads_are_scored_by_a_process_and_then_gone(run: RunFolder, tmp_path: Path) -> None:
    uploads = [Upload("../../Käfer 1.PNG", b"a"), Upload("no suffix", b"b"), Upload("Käfer 1.png", b"c")]
    place = start_scoring(run, uploads, device="cpu", min_vram_mib=512, program=program(tmp_path))
    assert place.path.parent == run.path / "scored"
    scoring = ended(place)
    assert scoring.status.state == "finished"
    assert scoring.uploaded
    assert scoring.result is not None
    assert [row["path"] for row in scoring.result["pictures"]] == ["0001.png", "0002", "0003.png"], "a visitor's name is no file name"
    assert scoring.request["names"] == {"0001.png": "../../Käfer 1.PNG", "0002": "no suffix", "0003.png": "Käfer 1.png"}
    asked = scoring.result["arguments"]
    assert asked == ["--out", str(place.path), "--device", "cpu", "--min-vram-mib", "512", "--", str(run.path), str(place.path / UPLOADS)]


def test_the_same_folder_is_found_again_and_runs_take_no_notice(run: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    first = start_scoring(run, tmp_path / "pictures", program=program(tmp_path))
    second = start_scoring(run, tmp_path / "pictures", program=program(tmp_path))
    assert [scoring.name for scoring in list_scorings(run)] == [second.run_id, first.run_id], "newest first"
    assert ended(first).source == str(tmp_path / "pictures")
    found = find_scoring(run, second.run_id)
    assert found is not None
    assert found.folder == second
    assert [folder.run_id for folder in run_folders(run.path.parent)] == [run.run_id]
    assert [find_scoring(run, name) for name in ("..", "../..", "", "nothing", "a/b")] == [None] * 5


def test_cancel_ends_it_and_its_uploads_go(run: RunFolder, tmp_path: Path) -> None:
    place = start_scoring(run, [Upload("a.png", b"a")], program=program(tmp_path, "--wait"))
    assert read_scoring(place.path).status.live
    with pytest.raises(RunError, match="cancel it first"):
        remove_scoring(read_scoring(place.path))
    cancel_run(place)
    scoring = ended(place)
    assert scoring.status.state == "cancelled"
    assert scoring.result is None
    remove_scoring(scoring)
    assert list((run.path / "scored").iterdir()) == []
    remove_scoring(scoring)


@pytest.mark.parametrize("content", ["{", "[]", '{"pictures": 3}', '{"pictures": [{"score": 1}]}'])
def test_a_damaged_result_is_said_and_not_shown(run: RunFolder, content: str) -> None:
    place = set_up(new_folder(run), {})
    write_json(place.path / "status.json", {"state": "finished"})
    (place.path / "result.json").write_text(content, encoding="utf-8")
    scoring = read_scoring(place.path)
    assert (scoring.status.state, scoring.result) == ("unreadable", None)
    assert "result.json is missing or damaged" in str(scoring.status.error)


def test_a_run_without_model_is_one_sentence(runs_dir: Path, config: CaeConfig, tmp_path: Path) -> None:
    run = RunFolder.create(runs_dir, config)
    (run.path / "scoring.npz").write_bytes(b"x")
    with pytest.raises(RunError, match=rf"run {run.run_id}: expected one with model\.keras and .* is queued and has no model\.keras\."):
        start_scoring(run, tmp_path)
    assert not (run.path / "scored").exists()


def test_a_process_that_cannot_start_leaves_nothing(run: RunFolder) -> None:
    with pytest.raises(RunError, match="its process cannot be started"):
        start_scoring(run, [Upload("a.png", b"a")], program=["/no/such/program"])
    assert list_scorings(run) == []


def test_a_folder_that_holds_something_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(OptionError, match="--out: expected a new or an empty folder"):
        set_up(tmp_path, {})
    assert json.dumps(sorted(path.name for path in tmp_path.iterdir())) == '["mine.txt"]'
    with pytest.raises(RunError, match=r"a folder for the scores cannot be made there .* Choose another with --out"):
        set_up(tmp_path / "mine.txt" / "in", {})


def test_a_scoring_that_fails_takes_back_what_it_wrote_and_nothing_else(run: RunFolder, config: CaeConfig, tmp_path: Path) -> None:
    pictures, out = tmp_path / "pictures", tmp_path / "out"
    pictures.mkdir()
    out.mkdir()
    (pictures / "a.png").write_bytes(b"x")
    (pictures / "loop").symlink_to(pictures)  # a problem, told while the scoring goes on

    def somebody_writes(_: str) -> None:
        (out / "mine.txt").write_text("x")

    with pytest.raises(DataError, match=r"expected the scoring\.npz of a run"):
        score_worker.carry_out(out, run, [pictures], config, problem=somebody_writes)
    assert [path.name for path in out.iterdir()] == ["mine.txt"]
    with pytest.raises(DataError):
        score_worker.carry_out(tmp_path / "new", run, [pictures], config)
    assert not (tmp_path / "new").exists()


def test_it_computes_on_the_gpu_in_whose_line_it_stands(
    run: RunFolder, config: CaeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not on the one with more free memory that another run holds."""
    (tmp_path / "a.png").write_bytes(b"x")
    taken: list[tuple[str, ...]] = []

    def score(*_: object, gpus: tuple[str, ...], **__: object) -> None:
        taken.append(tuple(gpus))
        raise DataError("enough.")

    monkeypatch.setattr("app.runs.waiting.Turn._decide", lambda _self, **_: DeviceChoice(("GPU-1",), "GPU 1", "Because."))
    monkeypatch.setattr("app.cae.cae_pipeline.score_with_saved_model", score)
    with pytest.raises(DataError, match="enough"):
        score_worker.carry_out(tmp_path / "out", run, [tmp_path / "a.png"], config)
    assert taken == [("GPU-1",)]


def test_what_another_process_works_in_is_left_to_it(
    run: RunFolder, config: CaeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.png").write_bytes(b"x")
    monkeypatch.setattr(score_worker, "try_lock", lambda _: False)
    with pytest.raises(OptionError, match="another process is working in"):
        score_worker.carry_out(tmp_path / "out", run, [tmp_path / "a.png"], config)
    assert (tmp_path / "out/request.json").is_file()
