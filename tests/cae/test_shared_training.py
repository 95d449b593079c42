"""One training shared by two devices: two logical CPUs in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.cae.config import make_config
from app.cae.training import TrainingBatches

pytestmark = pytest.mark.tensorflow

ROOT = Path(__file__).resolve().parents[2]
MUON = {"optimizer": "muon", "centre": "yes"}
FIGURES = ("loss", "val_loss", "ssim_loss", "mse", "val_ssim_loss", "val_mse", "learning_rate", "step")


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One process for all questions: what takes long is TensorFlow's start and the tracing of each training."""
    folder = tmp_path_factory.mktemp("shared")
    thirty = {"train": 30, "held_out": 7}
    jobs = {
        "alone": {"devices": 1, **thirty},
        "cancelled": {"devices": 2, **thirty, "cancel_at": 6, "backup": str(folder / "backup")},
        "resumed": {"devices": 2, **thirty, "backup": str(folder / "backup"), "save": str(folder / "model.keras")},
        "alone_muon": {"devices": 1, **thirty, "config": MUON},
        "two_muon": {"devices": 2, **thirty, "config": MUON},
        "odd": {"devices": 2, "train": 17, "held_out": 1, "config": {"batch_size": 5}, "poisoned_from": 1},
    }
    (folder / "jobs.json").write_text(json.dumps(jobs))
    command = [sys.executable, str(Path(__file__).with_name("shared_training.py")), str(folder / "jobs.json")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout.splitlines()[-1]), "folder": folder}


def test_two_devices_train_as_one_does_even_over_a_cancel_and_a_resume(answers: dict[str, Any]) -> None:
    alone, cancelled, resumed = (answers[name] for name in ("alone", "cancelled", "resumed"))
    assert (cancelled["state"], len(cancelled["rows"])) == ("cancelled", 1)
    assert (resumed["state"], resumed["warnings"], resumed["batch_size"]) == ("finished", [], 8)
    assert [row["epoch"] for row in resumed["rows"]] == [1, 2]
    for mine, reference in zip(resumed["rows"], alone["rows"], strict=True):
        assert {name: mine[name] for name in FIGURES} == pytest.approx({name: reference[name] for name in FIGURES}, rel=1e-4)
    assert resumed["weights"] == pytest.approx(alone["weights"], rel=1e-3, abs=1e-3)


def test_two_devices_train_as_one_does_with_muon_on_centred_pictures(answers: dict[str, Any]) -> None:
    """One device takes the Gram matrix, two take Keras' own iterations."""
    alone, two = answers["alone_muon"], answers["two_muon"]
    for mine, reference in zip(two["rows"], alone["rows"], strict=True):
        assert {name: mine[name] for name in FIGURES} == pytest.approx({name: reference[name] for name in FIGURES}, rel=1e-2)
    assert two["weights"] == pytest.approx(alone["weights"], rel=1e-2, abs=1e-2)
    assert alone["rows"][0]["loss"] != pytest.approx(answers["alone"]["rows"][0]["loss"], rel=1e-3)


def test_the_model_is_one_that_a_single_device_loads(answers: dict[str, Any]) -> None:
    assert not answers["resumed"]["synchronised"]
    assert (answers["folder"] / "model.keras").stat().st_size > 10_000


def test_shares_that_do_not_come_out_even_and_a_loss_that_becomes_nan(answers: dict[str, Any]) -> None:
    odd = answers["odd"]
    assert odd["batch_size"] == 4
    assert odd["warnings"][0] == "Batch size 5 cannot be shared evenly by 2 devices; 4 is used."
    assert "NaN or infinite in epoch 2; training stopped and the weights of epoch 1 are kept" in odd["warnings"][1]
    (row,) = odd["rows"]
    assert row["step"] == 5
    assert np.isfinite([row["loss"], row["val_loss"]]).all(), "17 pictures leave one for two devices, and so does the one held out"


def test_the_last_batch_of_an_epoch_is_filled_up_with_pictures_of_the_same_epoch() -> None:
    images = np.arange(5, dtype=np.uint8)[:, None, None, None] * np.ones((1, 64, 64, 1), np.uint8)
    config = make_config(
        {"data": "synthetic", "image_size": 64, "batch_size": 4, "mask_ratio": 0.0, "mixtures": "no", "standardise": "none"}
    )
    batches = TrainingBatches(images, config, 4)
    first, last = (batches.batch(0, index)[0][:, 0, 0, 0] * 255 for index in range(2))
    assert (len(batches), len(first), len(last)) == (2, 4, 4)
    assert sorted({*first.round(), last[0].round()}) == [0, 1, 2, 3, 4]
    assert np.array_equal(last[1:], first[:3])
