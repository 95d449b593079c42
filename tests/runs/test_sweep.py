"""Sweeps: the table of runs, and starting them on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from run_helpers import FAKE, wait_state

from app.core.errors import OptionError
from app.main import main
from app.runs.keeping import read_notes
from app.runs.sweep import MOST_LOCAL_RUNS, expand, start_sweep

DEVICES = "--device: expected auto, cpu, gpu, the index of a GPU or its UUID (GPU-… or MIG-…)"
TEXTURES = "synthetic:nosuch: expected a texture out of weave, brushed, grain, dots, tiles, washer"
AXES = {"data": ["synthetic", "elpv-mono"], "latent_dim": ["64", "128"], "seed": ["0"], "device": ["cpu", "gpu"]}


def test_every_combination_comes_once_the_last_axis_fastest() -> None:
    cells = expand(AXES)
    assert len(cells) == 8
    assert [cell.name for cell in cells[:3]] == [
        "data synthetic · latent_dim 64 · device cpu",
        "data synthetic · latent_dim 64 · device gpu",
        "data synthetic · latent_dim 128 · device cpu",
    ]
    assert (cells[-1].config.data, cells[-1].config.latent_dim, cells[-1].config.device) == ("elpv-mono", 128, "gpu")
    assert len(expand({"seed": ["0", "1", "0"], "device": ["cpu"]})) == 2
    assert expand({"seed": ["0"]})[0].name is None


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        ({"latent": ["1"]}, "--set: expected an option of cae (see cae --help), got 'latent'."),
        ({"seed": ["1", ""]}, "--set seed: expected one or more values, separated by commas, got '1,'."),
        (
            {"seed": [str(n) for n in range(30)], "latent_dim": [str(n) for n in range(2, 40)]},
            "sweep: expected at most 500 runs, got 1140.",
        ),
        ({"latent_dim": ["8", "1"]}, "latent_dim: expected 2 or more, got '1'."),
    ],
)
def test_what_does_not_fit_starts_nothing(axes: dict[str, list[str]], words: str) -> None:
    with pytest.raises(OptionError) as caught:
        expand(axes)
    assert str(caught.value) == words


def test_too_many_runs_for_one_machine_are_refused_before_the_first(runs_dir: Path) -> None:
    cells = expand({"seed": [str(n) for n in range(MOST_LOCAL_RUNS + 1)]})
    with pytest.raises(OptionError, match="Use --launcher slurm"):
        list(start_sweep(cells, runs_dir, tag="t", program=FAKE))
    assert not runs_dir.exists()


def test_local_runs_are_tagged_named_and_take_turns(runs_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_RUN", json.dumps({"epochs": 1}))
    started = list(
        start_sweep(expand({"data": ["synthetic"], "seed": ["0", "1"], "device": ["cpu"]}), runs_dir, tag="sweep-x", program=FAKE)
    )
    assert [one.error for one in started] == [None, None]
    for number, one in enumerate(started):
        assert one.run is not None
        assert wait_state(one.run, "finished", "failed", "interrupted").state == "finished"
        notes = read_notes(one.run.path)
        assert (notes["name"], notes["tags"]) == (f"seed {number}", ["sweep-x"])
        assert one.run.config().seed == number


def test_after_one_that_cannot_be_started_the_others_are_told_and_left(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    started = list(start_sweep(expand({"seed": ["0", "1"]}), tmp_path / "file" / "runs", tag="t", program=FAKE))
    assert [one.run for one in started] == [None, None]
    assert "a folder for runs cannot be made there" in str(started[0].error)
    assert started[1].error == "Not started, since one before could not be."


def test_a_dry_run_prints_the_table_and_starts_nothing(runs_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["sweep", "--data", "synthetic", "--set", "latent-dim=8,16", "--set", "epochs=1", "--device", "cpu,gpu", "--dry-run"]
    assert main(arguments) == 0
    head, titles, *rows = capsys.readouterr().out.splitlines()
    assert head == "4 runs, all with data synthetic, epochs 1"
    assert titles.split() == ["#", "latent_dim", "device"]
    assert [row.split() for row in rows] == [["1", "8", "cpu"], ["2", "8", "gpu"], ["3", "16", "cpu"], ["4", "16", "gpu"]]
    assert main([*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["runs"][1] == {
        "name": "latent_dim 8 · device gpu",
        "options": {"data": "synthetic", "latent_dim": "8", "epochs": "1", "device": "gpu"},
    }
    assert not runs_dir.exists()


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_runs_that_would_repeat_another_are_said_to_be_left_out(form: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "--data", "synthetic", "--set", "seed=0,1,0", "--device", "cpu,cpu", "--dry-run", *form]) == 0
    told = capsys.readouterr()
    assert told.err == "Left out: 4 combinations that would repeat another run of the sweep.\n"
    assert len(json.loads(told.out)["runs"]) == 2 if form else told.out.startswith("2 runs, all with data synthetic")


def test_pictures_that_are_not_there_end_a_dry_run_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "--data", str(tmp_path / "nosuch"), "--dry-run"]) == 2
    told = capsys.readouterr()
    assert (told.out, "nosuch: not a dataset folder, there is no such folder; expected" in told.err) == ("", True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "seed"], "--set: expected OPTION=A,B, got 'seed'."),
        (["--set", "seed=0", "--set", "seed=1"], "--set seed: expected every option once, got it twice."),
        (["--device", "cpu", "--set", "device=gpu"], "--device: expected the paths once, got them also as --set device."),
        (["--max-parallel", "2"], "--max-parallel: expected --launcher slurm beside it; runs on this machine take turns on their device."),
        (["--max-parallel", "0", "--launcher", "slurm"], "--max-parallel: expected a number from 1 to 9999, got '0'."),
        (["--tag", " "], "--tag: expected a word, got nothing."),
        (["--data", "synthetic", "--device", "cpu,foo", "--dry-run"], f"{DEVICES}, got 'foo'."),
        (["--data", "synthetic", "--set", "device=7x", "--launcher", "slurm", "--dry-run"], f"{DEVICES}, got '7x'."),
        (["--data", "synthetic:nosuch", "--dry-run"], f"{TEXTURES}, got 'nosuch'."),
        (["--data", "synthetic:nosuch", "--launcher", "slurm", "--dry-run"], f"{TEXTURES}, got 'nosuch'."),
        (["--slurm-time", "1"], "--slurm-time: expected --launcher slurm beside it."),
    ],
)
def test_bad_options_are_one_sentence_and_status_2(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", *arguments]) == 2
    assert capsys.readouterr().err.strip() == words
