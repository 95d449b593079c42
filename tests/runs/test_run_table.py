"""The table of runs, notes, the bin, and finding a run by the beginning of its id."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from app.cae.config import CaeConfig
from app.core.errors import OptionError, RunError
from app.runs.files import write_json
from app.runs.folder import RunFolder
from app.runs.keeping import annotate_run, delete_run, deleted_runs, find_run, read_notes, rename_run, restore_run, run_folders
from app.runs.processes import mark
from app.runs.status import RunStatus, utc_now
from app.runs.table import COLUMNS, active_runs, list_json, runs_table


def ended_run(runs_dir: Path, config: CaeConfig, **values: Any) -> RunFolder:
    run = RunFolder.create(runs_dir, config)
    fields = {
        "state": "finished",
        "started": utc_now(),
        "ended": utc_now(),
        "epoch": 12,
        "selected_device": "cpu",
        "path": "CPU · AVX2",
        **values,
    }
    write_json(run.path / "status.json", RunStatus(run.run_id, **fields).to_json())
    write_json(run.path / "metrics.json", {"image_auroc": 0.93, "pixel_auroc": None, "not_available": {"pixel_auroc": "No masks."}})
    return run


def test_an_empty_or_absent_folder_gives_an_empty_table_with_all_columns(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "absent"):
        frame = runs_table(place)
        assert list(frame.columns) == list(COLUMNS)
        assert frame.empty
        assert list_json(place) == []
        assert active_runs(place) == []
    assert str(runs_table(tmp_path)["image_auroc"].dtype) == "float64"
    assert str(runs_table(tmp_path)["started"].dtype).startswith("datetime64")


def test_a_row_tells_what_matters(runs_dir: Path, config: CaeConfig) -> None:
    run = ended_run(runs_dir, config, train_images_per_s=101.5, best_val_loss=0.2, best_epoch=9)
    annotate_run(run, name="mine", note="on the laptop", tags=["a", " b ", "", "a"])
    (row,) = runs_table(runs_dir).to_dict("records")
    assert (row["run_id"], row["name"], row["state"], row["data"], row["preset"]) == (
        run.run_id,
        "mine",
        "finished",
        "synthetic",
        "recommended",
    )
    assert (row["selected_device"], row["path"], row["epochs"], row["best_epoch"]) == ("cpu", "CPU · AVX2", 12, 9)
    assert (row["train_images_per_s"], row["image_auroc"], row["best_val_loss"]) == (101.5, 0.93, 0.2)
    assert pd.isna(row["pixel_auroc"])
    assert pd.isna(row["score_images_per_s"])
    assert (row["note"], row["tags"], row["error"], row["phase"]) == ("on the laptop", ["a", "b"], None, None)
    assert row["started"].tzinfo is not None
    assert 0 <= row["duration_s"] < 60
    (told,) = list_json(runs_dir)
    assert {"run_id", "state", "phase", "selected_device", "started", "epochs", "metrics"} <= told.keys()
    assert told["metrics"]["image_auroc"] == 0.93
    assert told["metrics"]["pixel_auroc"] is None
    assert told["metrics"]["not_available"] == {"pixel_auroc": "No masks."}
    assert told["epochs"] == 12
    json.dumps(told, allow_nan=False)


def test_the_newest_comes_first_and_strangers_are_left_out(runs_dir: Path, config: CaeConfig) -> None:
    runs = []
    for _ in range(3):
        runs.append(ended_run(runs_dir, config))
        time.sleep(0.01)
    (runs_dir / "my own folder").mkdir()
    (runs_dir / "a file").touch()
    (runs_dir / ".new-1-x").mkdir()
    assert runs_table(runs_dir)["run_id"].tolist() == [run.run_id for run in reversed(runs)]
    assert [run.run_id for run in run_folders(runs_dir)] == [run.run_id for run in runs]


def test_damaged_runs_are_listed_with_a_sentence_beside_whole_ones(runs_dir: Path, config: CaeConfig) -> None:
    whole, broken, odd = (ended_run(runs_dir, config) for _ in range(3))
    (broken.path / "status.json").write_text('{"state": "fini')
    (odd.path / "config.json").write_text("{")
    (odd.path / "metrics.json").write_text('{"image_auroc": "very good"}')
    (odd.path / "notes.json").write_text('{"name": 5, "note": [], "tags": "x"}')
    frame = runs_table(runs_dir).set_index("run_id")
    assert frame.loc[whole.run_id, "state"] == "finished"
    assert frame.loc[broken.run_id, "state"] == "unreadable"
    assert "status.json is not JSON" in str(frame.loc[broken.run_id, "error"])
    assert frame.loc[odd.run_id, "state"] == "finished"
    assert frame.loc[odd.run_id, "data"] is None
    assert pd.isna(frame.loc[odd.run_id, "image_auroc"])
    assert len(list_json(runs_dir)) == 3


def test_what_changed_is_read_again(runs_dir: Path, config: CaeConfig) -> None:
    run = ended_run(runs_dir, config)
    assert runs_table(runs_dir)["image_auroc"].tolist() == [0.93]
    write_json(run.path / "metrics.json", {"image_auroc": 0.94})
    rename_run(run, " new name ")
    frame = runs_table(runs_dir)
    assert (frame["image_auroc"].tolist(), frame["name"].tolist()) == ([0.94], ["new name"])


def test_a_run_whose_process_is_gone_is_interrupted_in_the_table_though_nothing_was_written(runs_dir: Path, config: CaeConfig) -> None:
    me = mark()
    assert me is not None
    living = ended_run(runs_dir, config, state="running", pid=me.pid, pid_token=me.token, host=me.host)
    gone = ended_run(runs_dir, config, state="running", pid=me.pid, pid_token=f"{me.token}0", host=me.host)
    states = runs_table(runs_dir).set_index("run_id")["state"]
    assert (states[living.run_id], states[gone.run_id]) == ("running", "interrupted")
    assert [status.run_id for status in active_runs(runs_dir)] == [living.run_id]


def test_hundreds_of_runs_take_well_under_a_second(runs_dir: Path, config: CaeConfig) -> None:
    template = ended_run(runs_dir, config)
    for number in range(499):
        copy = runs_dir / f"20260101-000000-copy-{number:04d}"
        copy.mkdir()
        for file in template.path.iterdir():
            os.link(file, copy / file.name)
    begun = time.perf_counter()
    assert len(runs_table(runs_dir)) == 500
    assert time.perf_counter() - begun < 2, "first look, on a machine that others use too"
    begun = time.perf_counter()
    assert len(list_json(runs_dir)) == 500
    assert time.perf_counter() - begun < 1, "later looks read changed files only"


def test_notes_change_one_at_a_time(runs_dir: Path, config: CaeConfig) -> None:
    run = RunFolder.create(runs_dir, config, name="first")
    annotate_run(run, note="a note")
    assert read_notes(run.path) == {"name": "first", "note": "a note", "tags": []}
    rename_run(run, "")
    annotate_run(run, tags=["t"])
    assert read_notes(run.path) == {"name": None, "note": "a note", "tags": ["t"]}


def test_delete_moves_to_the_bin_and_restore_brings_everything_back(runs_dir: Path, config: CaeConfig) -> None:
    run, other = ended_run(runs_dir, config), ended_run(runs_dir, config)
    before = {path.name: path.read_bytes() for path in run.path.iterdir()}
    binned = delete_run(run)
    assert binned.path == runs_dir / ".bin" / run.run_id
    assert [row["run_id"] for row in list_json(runs_dir)] == [other.run_id]
    assert [folder.run_id for folder in deleted_runs(runs_dir)] == [run.run_id]
    with pytest.raises(RunError, match="no longer in"):
        delete_run(run)
    back = restore_run(binned)
    assert back == run
    assert {path.name: path.read_bytes() for path in run.path.iterdir()} == before
    assert not (runs_dir / ".bin").exists()
    with pytest.raises(RunError, match="expected a run in the bin"):
        restore_run(run)


def test_a_run_that_is_going_on_is_not_deleted(runs_dir: Path, config: CaeConfig) -> None:
    run = RunFolder.create(runs_dir, config)
    with pytest.raises(RunError, match="it is queued; cancel it first"):
        delete_run(run)
    assert run.path.is_dir()


def test_restore_does_not_overwrite(runs_dir: Path, config: CaeConfig) -> None:
    run = ended_run(runs_dir, config)
    binned = delete_run(run)
    (runs_dir / run.run_id).mkdir()
    with pytest.raises(RunError, match="there is one of that id"):
        restore_run(binned)


def test_a_run_is_found_by_the_beginning_of_its_id(runs_dir: Path, config: CaeConfig) -> None:
    one, two = ended_run(runs_dir, config), ended_run(runs_dir, config)
    assert find_run(runs_dir, one.run_id) == one
    longer = runs_dir / f"{one.run_id}x"
    one.path.rename(longer)
    assert find_run(runs_dir, one.run_id).path == longer
    with pytest.raises(OptionError, match=rf"got '{one.run_id[:8]}', which fits 2: "):
        find_run(runs_dir, one.run_id[:8])
    for text in ("nope", "", "../runs", ".bin"):
        with pytest.raises(OptionError, match=r"which fits none of 2"):
            find_run(runs_dir, text)
    assert two in run_folders(runs_dir)
