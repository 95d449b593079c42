"""Runs as processes: started, found again, cancelled in each phase, killed. Everything is real but the pipeline."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from run_helpers import FAKE, HERE, Start, as_from_a_terminal, run_python, until, wait_phase, wait_state

from app.cae.config import CaeConfig, make_config
from app.core.errors import OptionError, RunError
from app.runs import folder as readers
from app.runs.files import write_json
from app.runs.folder import RunFolder
from app.runs.launch import cancel_run, resume_run, start_run
from app.runs.processes import mark
from app.runs.status import RunStatus, utc_now
from app.runs.table import active_runs

LONG = {"epochs": 500, "batch_s": 0.02}


def test_a_run_goes_through_its_states_in_a_process_of_its_own(start: Start) -> None:
    run = start(epochs=20, batch_s=0.02)
    assert run.status().state == "queued"
    status = wait_phase(run, "training")
    assert status.state == "running"
    assert status.pid
    assert status.pid != os.getpid()
    assert os.getsid(status.pid) == status.pid, "a session of its own: no Ctrl-C here reaches it"
    assert [live.run_id for live in active_runs(run.path.parent)] == [run.run_id]
    wait_state(run, "finished")
    assert len(readers.load_history(run.path)) == 20
    assert active_runs(run.path.parent) == []
    until(lambda: not psutil.pid_exists(status.pid or 0), "its end without a zombie")
    assert run.status().state == "finished"


@pytest.mark.parametrize(
    ("phase", "script"),
    [("reading", {"reading_s": 60}), ("training", LONG), ("scoring", {"epochs": 2, "batch_s": 0, "scoring_s": 60})],
)
def test_cancel_in_each_phase_is_quick_and_keeps_what_was_computed(start: Start, phase: str, script: dict[str, float]) -> None:
    run = start(**script)
    wait_phase(run, phase)
    if phase != "reading":
        until(lambda: len(readers.load_history(run.path)) >= 2, "two epochs")
    begun = time.monotonic()
    assert "Asked run" in cancel_run(run)
    status = wait_state(run, "cancelled", "failed", "interrupted", "finished")
    assert status.state == "cancelled"
    assert status.ended is not None
    assert time.monotonic() - begun < 10
    if phase != "reading":
        assert len(readers.load_history(run.path)) >= 2
        assert len(readers.load_scores(run.path)) == 4, "weights and figures so far stay usable"
    assert "nothing to cancel" in cancel_run(run)


def test_a_signal_that_comes_after_the_file_was_seen_is_still_the_first_request(start: Start) -> None:
    # The heartbeat may read the file before the signal of the same cancel arrives; that must not count as the second, killing request.
    run = start(epochs=3, batch_s=0.4, deaf=1)
    wait_phase(run, "training")
    assert run.ask_cancel()
    until(lambda: run.status().cancel_requested, "the file to be seen")
    pid = run.status().pid
    assert pid is not None
    assert run.status().message == "Stopping: cancel was asked for."
    os.kill(pid, signal.SIGTERM)
    status = wait_state(run, "finished", "cancelled", "failed", "interrupted")
    assert status.state in ("finished", "cancelled")
    assert status.ended is not None, "the run said its last word itself"
    assert len(readers.load_history(run.path)) == 3


def test_cancel_while_writing_lets_the_results_be_written(start: Start) -> None:
    run = start(epochs=1, pictures=40_000)
    wait_phase(run, "writing")
    cancel_run(run)
    status = wait_state(run, "cancelled", "finished", "failed", "interrupted")
    assert status.state in ("finished", "cancelled")
    maps = readers.load_maps(run.path)
    assert maps is not None
    assert len(maps.maps) == len(readers.load_scores(run.path)) == 40_000


def test_cancel_while_queued_is_at_once_and_computes_nothing(start: Start) -> None:
    first = start(**LONG)
    wait_phase(first, "training")
    second = start(**LONG)
    waiting = until(lambda: (status := second.status()).message and status, "a message of the waiting run")
    assert waiting.state == "queued"
    assert waiting.message == f"Waiting for run {first.run_id} on CPU."
    cancel_run(second)
    status = wait_state(second, "cancelled", "running", "failed")
    assert status.state == "cancelled"
    assert status.phase is None
    assert first.status().state == "running"


def test_a_second_cancel_kills_a_run_that_does_not_listen(start: Start) -> None:
    run = start(deaf=True, **LONG)
    until(lambda: len(readers.load_history(run.path)) >= 2, "two epochs")
    pid = run.status().pid
    assert pid
    assert "A second cancel kills it" in cancel_run(run)
    until(lambda: run.status().cancel_requested, "the run's knowledge of it")
    assert run.status().state == "running"
    assert "Killed run" in cancel_run(run)
    status = wait_state(run, "cancelled", "interrupted", "finished")
    assert status.state == "cancelled"
    assert "ended before it could write a result" in str(status.message)
    assert len(readers.load_history(run.path)) >= 2
    until(lambda: not psutil.pid_exists(pid), "the end of the process")


def test_a_killed_run_is_interrupted_and_keeps_its_last_whole_epoch(start: Start) -> None:
    run = start(**LONG)
    until(lambda: len(readers.load_history(run.path)) >= 3, "three epochs")
    pid = run.status().pid
    assert pid
    os.kill(pid, signal.SIGKILL)
    status = wait_state(run, "interrupted", "finished", "failed", "cancelled")
    assert status.state == "interrupted"
    assert "What was written before stays." in str(status.error)
    until(lambda: "ended by SIGKILL (signal 9" in str(run.status().error), "what its starter saw")
    history = readers.load_history(run.path)
    assert history["epoch"].tolist() == list(range(1, len(history) + 1))
    assert history["loss"].notna().all()


def test_a_process_that_dies_before_it_speaks_is_interrupted_with_its_exit_status(runs_dir: Path, config: CaeConfig) -> None:
    run = start_run(config, runs_dir, program=[sys.executable, "-c", "raise SystemExit(7)"])
    until(lambda: "exit status 7" in str(run.status().error), "the exit status")
    assert run.status().state == "interrupted"


def test_a_program_that_does_not_exist_fails_the_run_with_a_sentence(runs_dir: Path, config: CaeConfig) -> None:
    with pytest.raises(RunError, match="its process cannot be started"):
        start_run(config, runs_dir, program=["/no/such/program"])
    (only,) = runs_dir.iterdir()
    assert RunFolder(only).status().state == "failed"


def test_the_run_outlives_its_starter_and_is_cancelled_from_elsewhere(runs_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_RUN", json.dumps(LONG))
    code = (
        "import sys, os, signal; from pathlib import Path; from app.cae.config import make_config; from app.runs.launch import start_run\n"
        f"print(start_run(make_config({{'data': 'synthetic', 'device': 'cpu'}}), Path(sys.argv[1]), program={FAKE!r}).path, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    starter = run_python(code, str(runs_dir))
    path, _ = starter.communicate(timeout=60)
    run = RunFolder(Path(path.strip()))
    assert starter.returncode == -signal.SIGKILL
    pid = wait_phase(run, "training").pid
    assert pid
    try:
        cancel = (
            "import argparse, sys; from pathlib import Path; from app.runs.cli import run_command\n"
            "run_command(argparse.Namespace(action='cancel', run=sys.argv[1], runs_dir=Path(sys.argv[2]), launcher=None, json=True))"
        )
        elsewhere = run_python(cancel, run.run_id[:20], str(runs_dir))
        answer, trouble = elsewhere.communicate(timeout=60)
        assert elsewhere.returncode == 0, trouble
        assert json.loads(answer)["run_id"] == run.run_id
        assert wait_state(run, "cancelled", "interrupted").state == "cancelled"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def test_runs_started_from_several_processes_run_one_after_the_other(start: Start) -> None:
    runs = [start(epochs=2, batch_s=0.02)]
    wait_state(runs[0], "running", "finished")
    runs += [start(epochs=2, batch_s=0.02) for _ in range(2)]
    ends = [wait_state(run, "finished", "failed", "interrupted") for run in runs]
    assert [status.state for status in ends] == ["finished"] * 3
    spans = sorted((status.started, status.ended) for status in ends if status.started and status.ended)
    assert len(spans) == 3
    assert all(earlier[1] <= later[0] for earlier, later in itertools.pairwise(spans)), spans


def test_a_killed_run_frees_its_place_for_the_next(start: Start) -> None:
    first = start(**LONG)
    wait_phase(first, "training")
    second = start(epochs=1)
    until(lambda: second.status().message, "the waiting of the second")
    os.kill(first.status().pid or 0, signal.SIGKILL)
    assert wait_state(second, "finished", "failed", "interrupted").state == "finished"


@pytest.mark.parametrize(
    ("number", "why"), [(signal.SIGINT, "Ctrl-C was pressed"), (signal.SIGHUP, "the terminal it was started in was closed")]
)
def test_one_signal_stops_cleanly_and_a_second_ends_at_once(runs_dir: Path, config: CaeConfig, number: signal.Signals, why: str) -> None:
    run = RunFolder.create(runs_dir, config)
    environment = {**os.environ, "FAKE_RUN": json.dumps({"deaf": True, **LONG})}
    shell = subprocess.Popen(
        [*FAKE, str(run.path)], env=environment, cwd=HERE.parents[1], stderr=subprocess.PIPE, preexec_fn=as_from_a_terminal
    )
    try:
        wait_phase(run, "training")
        shell.send_signal(number)
        until(lambda: run.status().cancel_requested, "the run's knowledge of it")
        assert (run.status().state, run.status().message) == ("running", f"Stopping: {why}.")
        shell.send_signal(number)
        assert shell.wait(20) == -number
        assert run.status().state == "cancelled"
    finally:
        shell.kill()
        shell.communicate()


def test_a_cancelled_run_in_a_shell_exits_like_a_command_stopped_by_ctrl_c(runs_dir: Path, config: CaeConfig) -> None:
    run = RunFolder.create(runs_dir, config)
    environment = {**os.environ, "FAKE_RUN": json.dumps(LONG)}
    shell = subprocess.Popen(
        [*FAKE, str(run.path)], env=environment, cwd=HERE.parents[1], stderr=subprocess.PIPE, preexec_fn=as_from_a_terminal
    )
    try:
        wait_phase(run, "training")
        shell.send_signal(signal.SIGINT)
        assert shell.wait(20) == 130
    finally:
        shell.kill()
        assert shell.communicate() == (None, b"")
    assert run.status().state == "cancelled"


def test_a_process_that_got_the_runs_number_later_is_never_signalled(runs_dir: Path, config: CaeConfig) -> None:
    innocent = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        known = mark(innocent.pid)
        assert known is not None
        run = RunFolder.create(runs_dir, config)
        status = RunStatus(
            run.run_id, "running", pid=innocent.pid, pid_started=(known.started or 0) - 500, host=known.host, created=utc_now()
        )
        write_json(run.path / "status.json", status.to_json())
        for _ in range(3):
            assert "nothing to cancel" in cancel_run(run)
        assert innocent.poll() is None
    finally:
        innocent.communicate(b"\n")
    assert innocent.returncode == 0


def test_a_run_on_another_machine_is_asked_through_its_folder_but_not_killed(runs_dir: Path, config: CaeConfig) -> None:
    run = RunFolder.create(runs_dir, config)
    status = RunStatus(
        *(run.run_id, "running"),
        **{"pid": 1, "pid_token": "boot/pid:[1]/1/1", "host": "node17", "created": utc_now(), "heartbeat": utc_now()},
    )
    write_json(run.path / "status.json", status.to_json())
    assert "it runs on node17" in cancel_run(run)
    assert run.cancel_asked()
    with pytest.raises(RunError, match="it runs on node17 and can be killed only there"):
        cancel_run(run)


def test_an_interrupted_run_is_resumed_and_its_curve_is_joined(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    run = start(**LONG)
    until(lambda: len(readers.load_history(run.path)) >= 3, "three epochs")
    os.kill(run.status().pid or 0, signal.SIGKILL)
    before = wait_state(run, "interrupted")
    kept = len(readers.load_history(run.path))
    monkeypatch.setenv("FAKE_RUN", json.dumps({"first_epoch": kept, "epochs": kept + 2}))
    resume_run(run, program=FAKE)
    status = wait_state(run, "finished", "failed", "cancelled")
    assert status.state == "finished"
    assert (status.created, status.epoch) == (before.created, kept + 2)
    first, last = before.duration_s(), status.duration_s()
    assert first is not None
    assert last is not None
    assert status.started is not None
    assert status.ended is not None
    assert last == pytest.approx(first + (status.ended - status.started).total_seconds()), "both parts count"
    assert status.best_epoch == kept + 2
    history = readers.load_history(run.path)
    assert history["epoch"].tolist() == list(range(1, kept + 3))
    with pytest.raises(RunError, match="got one that is finished"):
        resume_run(run, program=FAKE)


def test_a_cancelled_run_can_be_resumed_at_once(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    run = start(**LONG)
    wait_phase(run, "training")
    cancel_run(run)
    wait_state(run, "cancelled")
    monkeypatch.setenv("FAKE_RUN", json.dumps({"epochs": 2}))
    resume_run(run, program=FAKE)
    assert wait_state(run, "finished", "failed", "cancelled", "interrupted").state == "finished"
    assert readers.load_history(run.path)["epoch"].tolist() == [1, 2]


def test_a_run_whose_pictures_are_gone_is_neither_started_nor_resumed(runs_dir: Path, tmp_path: Path) -> None:
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    config = make_config({"data": str(pictures), "device": "cpu"})
    run = start_run(config, runs_dir, program=[sys.executable, "-c", "raise SystemExit(7)"])
    wait_state(run, "interrupted")
    pictures.rmdir()
    with pytest.raises(RunError, match=r"it cannot go on, since its pictures are gone. .*pictures: not a dataset folder, there is no such"):
        resume_run(run, program=FAKE)
    assert run.status().state == "interrupted"
    with pytest.raises(OptionError, match="pictures: not a dataset folder, there is no such folder"):
        start_run(config, runs_dir, program=FAKE)
    assert [path.name for path in runs_dir.iterdir()] == [run.run_id]


def test_a_bad_memory_limit_makes_no_run(runs_dir: Path, config: CaeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWOPATH_MEMORY_MIB", "plenty")
    with pytest.raises(OptionError, match="TWOPATH_MEMORY_MIB: expected a number of MiB above 0, got 'plenty'"):
        start_run(config, runs_dir, program=FAKE)
    assert not runs_dir.exists() or list(runs_dir.iterdir()) == []


def test_a_run_that_goes_on_is_not_started_again(start: Start) -> None:
    run = start(**LONG)
    wait_phase(run, "training")
    with pytest.raises(RunError, match="got one that is running"):
        resume_run(run, program=FAKE)


@pytest.mark.tensorflow
def test_the_real_pipeline_survives_a_kill_and_is_cancelled_cleanly(runs_dir: Path) -> None:
    """`python -m app.main cae` in the background: trained, killed, resumed where it was, cancelled with everything kept."""
    options = {"data": "synthetic", "device": "cpu", "image_size": 64, "mask_patch": 16, "base_filters": 4, "latent_dim": 8, "epochs": 5000}
    run = start_run(make_config(options), runs_dir)
    try:
        # The status follows the history within a second.
        until(lambda: (run.status().epoch or 0) >= 3, "three epochs", limit_s=120)
        os.kill(run.status().pid or 0, signal.SIGKILL)
        assert wait_state(run, "interrupted").epoch
        kept = readers.load_history(run.path)
        resume_run(run)
        until(lambda: len(readers.load_history(run.path)) >= len(kept) + 3, "three more epochs", limit_s=120)
        cancel_run(run)
        status = wait_state(run, "cancelled", "failed", "interrupted")
        assert status.state == "cancelled", status
        history = readers.load_history(run.path)
        assert history["epoch"].tolist() == list(range(1, len(history) + 1))
        assert history["step"].is_monotonic_increasing
        # At most the last epoch was not in the backup yet, and was trained again.
        same = len(kept) - 1
        assert history["loss"].tolist()[:same] == kept["loss"].tolist()[:same]
        assert (run.path / "model.keras").stat().st_size > 10_000
        assert status.best_epoch == history.set_index("epoch")["val_loss"].idxmin()
        assert "TensorFlow Device Configuration" in (run.path / "log.txt").read_text()
    finally:
        pid = (run.launch_record() or {}).get("pid")
        if isinstance(pid, int):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
