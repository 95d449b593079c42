"""The launcher and the sweep on the Keras CAE tab."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from cae_runs import write_pictures, write_status
from page_helpers import open_page, words
from streamlit.testing.v1 import AppTest

from app.cae.config import make_config
from app.core.errors import OptionError
from app.runs.files import write_json
from app.runs.folder import RunFolder
from app.runs.keeping import read_notes, run_folders
from app.runs.launch import cancel_run
from app.runs.slurm_queue import COMMANDS, QUEUE
from app.runs.sweep import start_sweep
from app.ui import cae_data, cae_launch, cae_sweep

WAITS = (sys.executable, "-c", "import time; time.sleep(120)")


@pytest.fixture
def no_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """SLURM's commands as files: sbatch takes every job as number 12, which then waits."""
    folder = tmp_path / "bin"
    folder.mkdir()
    answers = {"sbatch": "Submitted batch job 12", "squeue": "12|PENDING||N/A|Priority"}
    for name in (*COMMANDS, "srun"):
        (folder / name).write_text(f"#!/bin/sh\necho '{answers.get(name, '')}'\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")
    QUEUE.forget()
    return folder


@pytest.fixture
def page(data_root: Path) -> Iterator[AppTest]:
    session = {cae_data.CHOICE: cae_data.FOLDER, cae_data.FOLDER_PATH: str(write_pictures(data_root / "plate"))}
    yield open_page("Keras CAE", session)
    QUEUE.forget()


@pytest.mark.usefixtures("no_slurm")
def test_without_slurm_the_launcher_is_this_machine_and_says_why(page: AppTest) -> None:
    choice = page.selectbox(cae_launch.LAUNCHER)
    assert (choice.value, choice.disabled) == ("local", True)
    assert choice.help == "SLURM cannot be chosen: SLURM's command sbatch is not found on this machine."
    assert not [field for field in page.text_input if str(field.key).startswith("cae_slurm_")]


@pytest.mark.usefixtures("slurm")
def test_a_run_goes_to_slurm_with_what_the_fields_say(page: AppTest, runs_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWOPATH_SLURM_PARTITION", "long")
    monkeypatch.setenv("TWOPATH_SLURM_ACCOUNT", "lab")  # emptied below: then it is not asked for
    page.selectbox(cae_launch.LAUNCHER).set_value("slurm").run()
    assert page.text_input(cae_launch.key("partition")).value == "long", "the environment gives a start"
    assert "will be a **SLURM** job; its path is decided on the node" in words(page)
    page.text_input(cae_launch.key("account")).set_value("").run()
    page.text_input(cae_launch.key("cpus")).set_value("many").run()
    assert "slurm cpus: expected number of CPUs a run gets, 1 to 4096, got 'many'." in words(page)
    assert page.button("cae_start").disabled
    page.text_input(cae_launch.key("cpus")).set_value("3").run()
    page.button("cae_start").click().run()
    assert not page.exception
    (run,) = run_folders(runs_dir)
    record = run.launch_record() or {}
    assert (record["job_id"], record["settings"]) == ("12", {"partition": "long", "cpus": 3})
    assert "SLURM job 12 · pending (Priority)" in words(page)


@pytest.mark.usefixtures("slurm")
def test_what_slurm_refuses_is_said_under_the_button(page: AppTest, slurm: Path) -> None:
    (slurm / "sbatch").write_text("#!/bin/sh\necho 'sbatch: error: Batch job submission failed: Invalid account' >&2\nexit 1\n")
    page.selectbox(cae_launch.LAUNCHER).set_value("slurm").run()
    page.button("cae_start").click().run()
    assert "SLURM refused the job: Invalid account." in words(page)


def test_a_finished_job_shows_where_it_ran(runs_dir: Path) -> None:
    run = RunFolder.create(runs_dir, make_config({"data": "synthetic"}))
    write_status(run, state="finished", host="node7")
    write_json(run.path / "launch.json", {"launcher": "slurm", "job_id": "12"})
    app = open_page("Keras CAE", run=run.run_id)
    assert any("SLURM job 12 on node7" in str(item.value) for item in app.markdown)


def _cells(rows: list[tuple[object, object]], paths: list[str] | None = None) -> list[str | None]:
    return [cell.name for cell in cae_sweep.cells_of("synthetic", pd.DataFrame(rows, columns=["option", "values"]), paths or [])]


def test_the_table_means_every_combination() -> None:
    assert _cells([("latent_dim", "8, 16"), (None, None), ("seed", "0,1")], ["cpu", "gpu"])[:3] == [
        "latent_dim 8 · seed 0 · device cpu",
        "latent_dim 8 · seed 0 · device gpu",
        "latent_dim 8 · seed 1 · device cpu",
    ]
    assert _cells([]) == [None], "nothing varied is one run"
    with pytest.raises(OptionError, match="seed: expected every option in one row, got it in two"):
        _cells([("seed", "1"), ("seed", "2")])
    with pytest.raises(OptionError, match="data: expected an option that the table offers"):
        _cells([("data", "/etc")])


@pytest.mark.usefixtures("no_slurm")
def test_a_sweep_starts_from_the_page_with_one_tag(page: AppTest, runs_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cae_sweep, "start_sweep", functools.partial(start_sweep, program=WAITS))
    page.session_state[cae_sweep.FOLD] = True
    page.run()
    try:
        assert "**4 runs**, they take turns on their device." in words(page)
        page.button(cae_sweep.START).click().run()
        assert not page.exception
        runs = run_folders(runs_dir)
        assert len(runs) == 4
        (tag,) = {tag for run in runs for tag in read_notes(run.path)["tags"]}
        assert tag.startswith("sweep-")
    finally:
        for run in run_folders(runs_dir):
            cancel_run(run)
            cancel_run(run)
