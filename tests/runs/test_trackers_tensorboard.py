"""Event files of runs, read back with TensorBoard's own reader."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from run_helpers import FAKE, Start, until, wait_state

from app.cae.config import CaeConfig, make_config
from app.runs.launch import cancel_run, resume_run, start_run
from app.runs.trackers_tensorboard import CANNOT_WRITE, FOLDER, NO_TENSORBOARD, TensorBoardLog

pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")

ROW = {"epoch": 1, "step": 5, "seconds": 0.5, "loss": 0.25}


@pytest.fixture
def config() -> CaeConfig:
    return make_config({"data": "synthetic", "device": "cpu", "tensorboard": True})


READ = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1])
events.Reload()
print(json.dumps({tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}))
"""


def _scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Read in another process, since the reader imports TensorFlow where it is installed."""
    ended = subprocess.run([sys.executable, "-c", READ, str(folder)], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    return {tag: [(step, value) for step, value in values] for tag, values in json.loads(ended.stdout.splitlines()[-1]).items()}


def test_the_history_stands_in_event_files_and_a_resumed_run_goes_on_in_them(start: Start) -> None:
    run = start(epochs=100, batch_s=0.05)
    until(lambda: (run.status().epoch or 0) >= 2, "two epochs")
    cancel_run(run)
    epochs = wait_state(run, "cancelled").epoch or 0
    # As if the state of the last epoch had not been kept: training repeats it.
    os.environ["FAKE_RUN"] = json.dumps({"first_epoch": epochs, "epochs": epochs + 1})
    resume_run(run, program=FAKE)
    wait_state(run, "finished")
    found = _scalars(run.path / FOLDER)
    assert [step for step, _ in found["loss"]] == list(range(1, epochs + 2)), "each epoch once"
    assert found["val_loss"] == [(epoch, pytest.approx(2 / epoch)) for epoch in range(1, epochs + 2)]
    assert {"step", "seconds", "images_per_s"} <= set(found)


def test_without_the_option_there_are_none(runs_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_RUN", json.dumps({"epochs": 1}))
    run = start_run(make_config({"data": "synthetic", "device": "cpu"}), runs_dir, program=FAKE)
    wait_state(run, "finished")
    assert not (run.path / FOLDER).exists()


def test_without_the_package_one_sentence_says_what_to_install(start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u\nfind = u.find_spec\nu.find_spec = lambda name, *a: None if name == 'tensorboard' else find(name, *a)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    run = start(epochs=2)
    status = wait_state(run, "finished")
    assert NO_TENSORBOARD in status.warnings
    assert not (run.path / FOLDER).exists()


def test_a_place_that_cannot_be_written_costs_one_sentence(tmp_path: Path) -> None:
    (tmp_path / FOLDER).write_text("in the way")
    said: list[str] = []
    log = TensorBoardLog(tmp_path, said.append)
    log.epoch(ROW)
    log.epoch({**ROW, "epoch": 2})
    log.leave()
    assert said == [CANNOT_WRITE.format(path=tmp_path / FOLDER, why="File exists")]
