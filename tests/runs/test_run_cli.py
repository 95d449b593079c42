"""`python -m app.main runs …`: what it prints and how it ends."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from app.cae.config import CaeConfig
from app.core.errors import AppError, OptionError, RunError
from app.runs.cli import add_runs_parser, resolve_run, run_command
from app.runs.files import write_json
from app.runs.folder import RunFolder
from app.runs.status import RunStatus, utc_now


def call(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    add_runs_parser(parser.add_subparsers())
    return run_command(parser.parse_args(["runs", *arguments]))


@pytest.fixture
def run(runs_dir: Path, config: CaeConfig) -> RunFolder:
    run = RunFolder.create(runs_dir, config, name="a name")
    status = RunStatus(run.run_id, "finished", phase="writing", epoch=3, selected_device="cpu", train_images_per_s=98.76, started=utc_now())
    write_json(run.path / "status.json", status.to_json())
    write_json(run.path / "metrics.json", {"image_auroc": 0.9375})
    return run


def test_list_prints_one_line_a_run(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("list") == 0
    head, line = capsys.readouterr().out.splitlines()
    assert head.split() == ["run_id", "state", "phase", "device", "epochs", "train/s", "score/s", "AUROC", "name"]
    assert line.split() == [run.run_id, "finished", "writing", "cpu", "3", "98.8", "–", "0.938", "a", "name"]


def test_list_keeps_its_columns_beside_a_long_id(run: RunFolder, config: CaeConfig, capsys: pytest.CaptureFixture[str]) -> None:
    run.path.rename(run.path.parent / f"{run.run_id}-and-a-very-long-name-of-pictures")
    other = RunFolder.create(run.path.parent, config)
    assert call("list") == 0
    head, *lines = capsys.readouterr().out.splitlines()
    column = head.index("state")
    assert sorted(line[column:].split()[0] for line in lines) == ["finished", "queued"]
    assert any(line.startswith(f"{other.run_id} ") for line in lines)


def test_list_as_json_is_a_list_of_objects(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("list", "--json") == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert (told["run_id"], told["state"], told["phase"], told["selected_device"], told["epochs"]) == (
        run.run_id,
        "finished",
        "writing",
        "cpu",
        3,
    )
    assert told["metrics"]["image_auroc"] == 0.9375
    assert told["started"]


def test_list_of_an_empty_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("list", "--runs-dir", str(tmp_path), "--json") == 0
    assert json.loads(capsys.readouterr().out) == []
    call("list", "--runs-dir", str(tmp_path))
    assert capsys.readouterr().out == f"No runs in {tmp_path}.\n"


def test_show_tells_configuration_and_metrics(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("show", run.run_id[:-2], "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["config"]["data"] == "synthetic"
    assert told["status"]["state"] == "finished"
    call("show", run.run_id)
    text = capsys.readouterr().out
    assert "state                finished" in text
    assert "image_auroc          0.9375" in text


def test_a_run_can_be_named_by_its_path(
    run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TWOPATH_RUNS_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.chdir(run.path.parent)
    for text in (str(run.path), f"{run.run_id}/", f"./{run.run_id}", run.run_id):
        assert call("show", text, "--json") == 0
        assert json.loads(capsys.readouterr().out)["run_id"] == run.run_id
    monkeypatch.chdir(run.path)
    assert resolve_run(tmp_path, ".") == run
    with pytest.raises(OptionError, match="RUN: expected the id of a run"):
        resolve_run(tmp_path, str(tmp_path))


def test_an_id_comes_before_a_folder_of_that_name(run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here" / run.run_id).mkdir(parents=True)
    (tmp_path / "here" / run.run_id / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path / "here")
    assert resolve_run(run.path.parent, run.run_id) == run


def test_a_run_in_the_bin_is_not_deleted_again(run: RunFolder) -> None:
    assert call("delete", run.run_id) == 0
    with pytest.raises(RunError, match="it is in the bin already"):
        call("delete", str(run.path.parent / ".bin" / run.run_id))


def test_delete_and_restore(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("delete", run.run_id[:-2]) == 0
    assert "runs restore" in capsys.readouterr().out
    assert not run.path.exists()
    assert call("restore", run.run_id[:-2], "--json") == 0
    assert json.loads(capsys.readouterr().out)["run_folder"] == str(run.path)
    assert run.path.exists()


def test_cancel_of_an_ended_run_says_so(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("cancel", run.run_id) == 0
    assert "there is nothing to cancel" in capsys.readouterr().out
    assert not run.cancel_asked()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("show", "nope"), "RUN: expected the id of a run"),
        (("show",), "RUN: runs show expects the id of a run; runs list shows them."),
        (("list", "x"), "RUN: runs list takes no run, got 'x'"),
        (("restore", "2"), "in the bin of"),
    ],
)
def test_wrong_arguments_are_one_sentence_and_status_2(run: RunFolder, arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(OptionError, match=words) as caught:
        call(*arguments)
    assert caught.value.exit_status == 2


def test_deleting_a_live_run_is_refused_with_status_1(runs_dir: Path, config: CaeConfig) -> None:
    run = RunFolder.create(runs_dir, config)
    with pytest.raises(RunError, match="cancel it first") as caught:
        call("delete", run.run_id)
    assert isinstance(caught.value, AppError)
    assert caught.value.exit_status == 1
