"""What the process of a run writes, from its first word to its last. The pipeline is a small one; all else is real."""

from __future__ import annotations

import errno
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import fake_run
import numpy as np
import psutil
import pytest
from fake_run import fake_pipeline

from app.cae.cae_pipeline import CaeResult
from app.cae.config import CaeConfig
from app.core.errors import RunError
from app.core.facts import Gpu
from app.core.profile import HardwareProfile
from app.runs import folder as readers
from app.runs.devices import DeviceChoice, run_is_over, wait_for_ended_runs
from app.runs.files import write_json
from app.runs.folder import RunFolder
from app.runs.queue import Line
from app.runs.worker import run_in_folder, summary


@pytest.fixture
def run(runs_dir: Path, config: CaeConfig) -> RunFolder:
    return RunFolder.create(runs_dir, config)


@pytest.fixture(autouse=True)
def _real_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_run, "make_result", CaeResult)


def script(monkeypatch: pytest.MonkeyPatch, **values: Any) -> None:
    monkeypatch.setenv("FAKE_RUN", json.dumps(values))


def test_a_finished_run_leaves_everything(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_in_folder(run.path, pipeline=fake_pipeline) == 0
    status = run.status()
    assert (status.state, status.phase, status.epoch, status.epochs, status.best_epoch) == ("finished", "writing", 3, 3, 3)
    assert (status.selected_device, status.path, status.reason) == ("cpu", "CPU · oneDNN", "Because the test says so.")
    assert (status.train_images_per_s, status.score_images_per_s) == (100.0, 400.0)
    assert status.best_val_loss == pytest.approx(2 / 3)
    assert status.warnings == ("One mask has another size.",)
    assert status.error is status.message is status.eta_s is None
    assert status.created
    assert status.started
    assert status.ended
    assert status.created <= status.started <= status.ended
    assert (status.pid, status.pid_started) == (os.getpid(), pytest.approx(psutil.Process().create_time(), abs=2))
    assert list(readers.load_history(run.path)["loss"]) == pytest.approx([1, 1 / 2, 1 / 3])
    assert readers.load_metrics(run.path) == {"image_auroc": 0.75, "image_ap": 0.5, "not_available": {"pixel_auroc": "No masks."}}
    assert readers.load_scores(run.path)["defect"].tolist() == ["NA"] * 4
    maps = readers.load_maps(run.path)
    assert maps is not None
    assert (maps.maps.shape, maps.maps.dtype, maps.inputs.dtype, maps.indices.tolist()) == ((4, 8, 8), np.float32, np.uint8, [0, 1, 2, 3])
    assert (readers.load_profile(run.path) or {})["selected_device"] == "cpu"
    assert (readers.load_dataset_summary(run.path) or {})["name"] == "synthetic"
    log = readers.read_log_tail(run.path)
    for words in ("phase reading", "data: a.png: cannot be read.", "epoch 3 of 3", "warning: One mask", "finished"):
        assert words in log
    assert {path.name for path in run.path.iterdir()} == {
        *("config.json", "status.json", "profile.json", "dataset.json", "history.csv", "metrics.json", "scores.csv", "maps.npz", "log.txt"),
    }
    assert capsys.readouterr() == ("", "")
    assert Line("cpu").tickets() == []


def test_the_summary_has_the_keys_of_the_command_line(run: RunFolder) -> None:
    run_in_folder(run.path, pipeline=fake_pipeline)
    told = summary(run.path)
    assert list(told) == [
        *(
            "run_id",
            "run_folder",
            "state",
            "selected_device",
            "path",
            "reason",
            "train_images_per_s",
            "score_images_per_s",
            "epochs",
            "metrics",
            "warnings",
            "problems",
        )
    ]
    assert told["problems"] == ["a.png: cannot be read."]
    assert "One mask" in " ".join(told["warnings"])
    assert (told["run_id"], told["run_folder"], told["state"], told["epochs"]) == (run.run_id, str(run.path), "finished", 3)
    assert {name: told["metrics"][name] for name in ("image_auroc", "image_ap", "image_f1", "pixel_auroc")} == {
        **{"image_auroc": 0.75, "image_ap": 0.5, "image_f1": None, "pixel_auroc": None}
    }
    assert told["metrics"]["not_available"]["pixel_auroc"] == "No masks."
    json.dumps(told)


def test_the_summary_of_a_failed_run_says_why_nothing_is_there(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, fail="AppError:train: expected at least one picture, got none.")
    run_in_folder(run.path, pipeline=fake_pipeline)
    told = summary(run.path)
    assert (told["state"], told["epochs"], told["metrics"]["image_auroc"]) == ("failed", 1, None)
    assert told["metrics"]["not_available"]["image_auroc"] == "train: expected at least one picture, got none."


@pytest.mark.parametrize(
    ("fail", "words"),
    [
        ("AppError:x: expected a picture, got a video.", "x: expected a picture, got a video."),
        ("MemoryError:", "Memory is exhausted: this process held "),
        ("ResourceExhaustedError:OOM when allocating tensor", "Memory is exhausted (OOM when allocating tensor): this process held "),
        (f"OSError:{errno.ENOSPC}", "file.bin: the disk is full in /somewhere ("),
        (f"OSError:{errno.EIO}", "/somewhere/file.bin: Input/output error ("),
        (
            "ValueError:shapes (3,) and (4,)\nmore",
            "The run stopped by an unexpected ValueError: shapes (3,) and (4,). The log (log.txt) tells where.",
        ),
    ],
)
def test_a_failure_is_one_sentence_and_its_traceback_is_in_the_log(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fail: str, words: str
) -> None:
    script(monkeypatch, fail=fail)
    assert run_in_folder(run.path, pipeline=fake_pipeline) == 1
    status = run.status()
    assert status.state == "failed"
    assert status.error is not None
    assert words in status.error
    assert "\n" not in status.error
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"{status.error}\n"
    assert "Traceback (most recent call last)" in readers.read_log_tail(run.path)
    assert len(readers.load_history(run.path)) == 1, "what was computed stays"
    assert Line("cpu").tickets() == []


def test_memory_sentences_carry_numbers(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, fail="MemoryError:")
    run_in_folder(run.path, pipeline=fake_pipeline)
    words = str(run.status().error).replace(",", "").split()
    numbers = [int(word) for word in words if word.isdigit()]
    assert len(numbers) == 2, words
    assert all(number > 10 for number in numbers)


def test_a_bad_configuration_ends_with_status_2(run: RunFolder) -> None:
    (run.path / "config.json").write_text('{"batch_size": 0}')
    assert run_in_folder(run.path, pipeline=fake_pipeline) == 2
    status = run.status()
    assert status.state == "failed"
    assert "batch_size" in str(status.error)


def test_an_unknown_device_ends_with_status_2(run: RunFolder) -> None:
    (run.path / "config.json").write_text('{"data": "synthetic", "device": "toaster"}')
    assert run_in_folder(run.path, pipeline=fake_pipeline) == 2
    assert "toaster" in str(run.status().error)


def test_a_run_is_carried_out_once(run: RunFolder) -> None:
    run_in_folder(run.path, pipeline=fake_pipeline)
    before = (run.path / "status.json").read_bytes()
    with pytest.raises(RunError, match="expected a run that waits to be carried out, got one that is finished"):
        run_in_folder(run.path, pipeline=fake_pipeline)
    assert (run.path / "status.json").read_bytes() == before


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"status\.json is missing"):
        run_in_folder(tmp_path, pipeline=fake_pipeline)
    with pytest.raises(RunError, match="no such folder"):
        run_in_folder(tmp_path / "nope", pipeline=fake_pipeline)


def test_a_cancel_asked_before_the_start_is_obeyed(run: RunFolder) -> None:
    assert run.ask_cancel()
    assert run_in_folder(run.path, pipeline=fake_pipeline) == 130
    status = run.status()
    assert status.state == "cancelled"
    assert not (run.path / "scores.csv").exists()


def test_signals_are_handled_as_before_once_the_run_is_over(run: RunFolder) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    run_in_folder(run.path, pipeline=fake_pipeline)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)] == before


def test_training_that_begins_anew_replaces_the_epochs_it_repeats(run: RunFolder) -> None:
    def halved(config: CaeConfig, *, reporter: Any, work_dir: Path) -> Any:
        for epoch, loss in ((1, 9.0), (2, 8.0), (1, 1.0), (2, 0.5), (3, 0.25)):
            reporter.epoch({"epoch": epoch, "loss": loss, "val_loss": loss})
        return fake_pipeline(config, reporter=reporter, work_dir=work_dir)

    run_in_folder(run.path, pipeline=halved)
    history = readers.load_history(run.path)
    assert history["epoch"].tolist() == [1, 2, 3]


def test_the_speed_of_a_run_is_that_of_all_its_epochs(run: RunFolder) -> None:
    def slow_after_a_resume(config: CaeConfig, *, reporter: Any, work_dir: Path) -> Any:
        for epoch, speed in ((1, 60.0), (2, 60.0), (3, 6.0)):
            reporter.epoch({"epoch": epoch, "loss": 1.0, "images_per_s": speed})
        raise RunError("That is enough.")

    run_in_folder(run.path, pipeline=slow_after_a_resume)
    assert run.status().train_images_per_s == pytest.approx(3 / (2 / 60 + 1 / 6))


def test_remaining_time_leaves_the_first_step_out(run: RunFolder) -> None:
    seen: list[float | None] = []

    def timed(config: CaeConfig, *, reporter: Any, work_dir: Path) -> Any:
        done = threading.Event()
        reporter.phase("training", 0, 4)
        for step in range(4):
            done.wait(0.5 if step == 0 else 0.05)
            reporter.phase("training", step + 1, 4)
            seen.append(reporter._recorder.status.eta_s)
        return fake_pipeline(config, reporter=reporter, work_dir=work_dir)

    run_in_folder(run.path, pipeline=timed)
    assert seen[0] is None
    assert seen[1] is not None
    assert seen[3] == 0.0
    assert 0.1 <= seen[1] < 0.5, "two steps of 0.05 s are left; with the first one counted it would be 0.55 s"


def test_progress_goes_to_whoever_wants_it(run: RunFolder) -> None:
    lines: list[str] = []
    run_in_folder(run.path, pipeline=fake_pipeline, echo=lines.append)
    assert "CPU · oneDNN: Because the test says so." in lines
    assert any(line.startswith("epoch 2 of 3  loss 0.5  val_loss 1") for line in lines)


def test_results_are_kept_when_one_file_cannot_be_written(run: RunFolder) -> None:
    (run.path / "metrics.json").mkdir()  # replacing a folder by a file fails for root too
    assert run_in_folder(run.path, pipeline=fake_pipeline) == 1
    status = run.status()
    assert status.state == "failed"
    assert str(status.error).startswith("metrics.json: cannot be written in ")
    assert readers.load_maps(run.path) is not None
    assert len(readers.load_scores(run.path)) == 4


# --- turns on devices ---


def gpu_profile(uuid: str = "GPU-1") -> HardwareProfile:
    return HardwareProfile("gpu", "It has room.", gpu=Gpu(0, uuid, "Card", 8000, 7000))


def choices(monkeypatch: pytest.MonkeyPatch, *keys: str) -> None:
    """Let the decisions of a run be these, the last one from then on."""
    answers = [DeviceChoice((key,), key.upper(), f"Because {key}.") for key in keys]
    monkeypatch.setattr("app.runs.waiting.Turn._decide", lambda _self, **_: answers.pop(0) if len(answers) > 1 else answers[0])


def test_a_decision_that_changes_while_waiting_moves_the_run_to_the_other_line(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.runs.waiting._VRAM_RETURNS_S", 0.0)
    choices(monkeypatch, "GPU-1", "cpu")
    somebody = Line("GPU-1").join("before", run.path)
    threading.Timer(0.5, somebody.leave).start()
    seen: list[str] = []

    def look(config: CaeConfig, *, reporter: Any, work_dir: Path) -> Any:
        seen.extend(ticket.run_id for ticket in Line("cpu").tickets())
        return fake_pipeline(config, reporter=reporter, work_dir=work_dir)

    assert run_in_folder(run.path, pipeline=look) == 0
    assert seen == [run.run_id]
    log = readers.read_log_tail(run.path)
    assert "Waiting for run before on GPU-1." in log
    assert "The decision changed while waiting, from GPU-1 to CPU: Because cpu." in log


def test_a_run_that_ends_up_on_the_cpu_waits_for_its_turn_there(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    choices(monkeypatch, "GPU-1")
    somebody = Line("cpu").join("before", run.path)
    states: list[str] = []

    def leave() -> None:
        states.append(run.status().state)
        somebody.leave()

    threading.Timer(1.0, leave).start()
    assert run_in_folder(run.path, pipeline=fake_pipeline) == 0
    assert states == ["queued"], "a run that waits inside the pipeline is shown as waiting"
    assert Line("GPU-1").tickets() == []


def test_a_gpu_stays_taken_until_the_process_is_gone(
    run: RunFolder, runs_dir: Path, config: CaeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    choices(monkeypatch, "GPU-1")

    def on_gpu(config: CaeConfig, *, reporter: Any, work_dir: Path) -> Any:
        result = fake_pipeline(config, reporter=reporter, work_dir=work_dir)
        reporter.profile(gpu_profile())
        return result

    assert run_in_folder(run.path, pipeline=on_gpu) == 0
    assert [ticket.run_id for ticket in Line("GPU-1").tickets()] == [run.run_id], "its VRAM is held as long"
    # The same process may carry out another run; it does not wait for itself.
    assert run_in_folder(RunFolder.create(runs_dir, config).path, pipeline=fake_pipeline) == 0
    assert Line("GPU-1").tickets() == []


def test_a_run_waits_for_an_ended_one_to_give_its_vram_back(run: RunFolder, runs_dir: Path, config: CaeConfig) -> None:
    ended = RunFolder.create(runs_dir, config)
    write_json(ended.path / "status.json", {"state": "finished"})
    place = Line("GPU-1").join(ended.run_id, ended.path)
    threading.Timer(0.6, place.leave).start()
    begun = time.monotonic()
    wait_for_ended_runs(run_is_over, lambda: False)
    assert 0.5 < time.monotonic() - begun < 9
    going_on = Line("GPU-1").join(run.run_id, run.path)
    begun = time.monotonic()
    wait_for_ended_runs(run_is_over, lambda: False)
    assert time.monotonic() - begun < 9, "nobody waits here for a run that goes on; the queue does that"
    going_on.leave()
