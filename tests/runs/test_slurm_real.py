"""Runs as jobs of a real SLURM on this machine. Only the pipeline is a fake, and in one test not even that."""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from run_helpers import FAKE, until, wait_phase, wait_state
from slurm_cluster import CPUS, URGENT, Cluster, why_not

from app.cae.config import CaeConfig, make_config
from app.core.errors import RunError
from app.main import main
from app.runs import folder as readers
from app.runs import slurm_queue
from app.runs.folder import RunFolder
from app.runs.launch import cancel_run, resume_run, start_run
from app.runs.processes import hostname
from app.runs.slurm_options import SlurmSettings, make_settings
from app.runs.slurm_queue import QUEUE
from app.runs.slurm_state import read_record
from app.runs.sweep import expand, start_sweep

LONG = {"epochs": 2000, "batch_s": 0.02}
LIMIT_S = 90.0

EPOCHS = 40

Submit = Callable[..., RunFolder]


@dataclass
class RealRun:
    """`cae --launcher slurm --wait` with the real pipeline."""

    shell: subprocess.Popen[str]
    runs_dir: Path
    kept: pd.DataFrame | None = None
    """Its curve when it was requeued."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    reason = why_not()
    if reason:
        assert not os.environ.get("CI"), reason
        pytest.skip(reason)
    one = Cluster()
    try:
        one.start()
        yield one
    finally:
        one.stop()


@pytest.fixture(autouse=True)
def _slurm(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
    monkeypatch.setattr(slurm_queue, "LOOK_EVERY_S", 0.2)
    QUEUE.forget()


@pytest.fixture
def submit(runs_dir: Path, config: CaeConfig, monkeypatch: pytest.MonkeyPatch) -> Iterator[Submit]:
    """Submit a run with a fake pipeline; `slurm` holds settings, `device` the path asked for, other keywords are the fake's script."""
    runs: list[RunFolder] = []
    # What a user has set for other jobs: sbatch would take it before the lines of the script.
    monkeypatch.setenv("SBATCH_OUTPUT", os.devnull)
    monkeypatch.setenv("SBATCH_EXPORT", "NONE")

    def one(slurm: dict[str, Any] | None = None, device: str = "cpu", **script: Any) -> RunFolder:
        monkeypatch.setenv("FAKE_RUN", json.dumps(script))
        asked = config.model_copy(update={"device": device})
        runs.append(start_run(asked, runs_dir, program=FAKE, slurm=make_settings(slurm or {})))
        return runs[-1]

    yield one
    for run in runs:
        subprocess.run(["scancel", "--full", "--signal=KILL", job(run)], capture_output=True, check=False)
        subprocess.run(["scancel", job(run)], capture_output=True, check=False)


@pytest.fixture(scope="module")
def time_limited(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run whose time limit ends it while the other tests go on: SLURM looks at limits twice a minute only."""
    folder = tmp_path_factory.mktemp("limited")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(cluster.conf))
        patch.setenv("TWOPATH_LOCK_DIR", str(folder / "locks"))
        patch.setenv("FAKE_RUN", json.dumps(LONG))
        run = start_run(make_config({"data": "synthetic", "device": "cpu"}), folder, program=FAKE, slurm=make_settings({"time": "1:00"}))
        wait_phase(run, "training")
        cluster.ask("scontrol", "update", f"jobid={job(run)}", "EndTime=now")
        return run


@pytest.fixture(scope="module")
def real_run(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealRun]:
    """The real pipeline trains while the other tests go on."""
    folder = tmp_path_factory.mktemp("real")
    options = [
        "--data",
        "synthetic",
        "--device",
        "cpu",
        "--image-size",
        "64",
        "--base-filters",
        "4",
        "--latent-dim",
        "8",
        "--epochs",
        str(EPOCHS),
    ]
    launcher = ["--launcher", "slurm", "--slurm-cpus", "1", "--wait", "--runs-dir", str(folder / "runs"), "--json"]
    shell = subprocess.Popen(
        [sys.executable, "-m", "app.main", "cae", *options, *launcher],
        cwd=Path(__file__).parents[2],
        env={**cluster.environment(), "TWOPATH_CACHE_DIR": str(tmp_path_factory.getbasetemp() / "cache"), "TWOPATH_LOCK_DIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    yield RealRun(shell, folder / "runs")
    shell.kill()
    shell.communicate()


def job(run: RunFolder) -> str:
    return str((run.launch_record() or {}).get("job_id"))


def waiting(run: RunFolder, words: str) -> str:
    def message() -> str | None:
        status = run.status()
        return status.message if status.state == "queued" and words in (status.message or "") else None

    return str(until(message, f"{words!r} of {run.run_id}: {run.status()}"))


def start_again(run: RunFolder, cluster: Cluster, first: int | None) -> None:
    """Wait for the second start of a job that was put back into the queue, where it would wait two minutes.

    Those two minutes have a reason: a job that starts in the second in which its first start ended is killed as "non-startable", since the
    node knows its credentials by their second. And for a moment after its end it takes no other time."""
    back = time.time()
    until(lambda: time.time() >= math.floor(back) + 2, "another second than that in which the first start ended")

    def started() -> bool:
        if "PENDING" in cluster.ask("squeue", "--noheader", f"--jobs={job(run)}", "--format=%T"):
            cluster.ask("scontrol", "update", f"jobid={job(run)}", "StartTime=now")
        return run.status().pid not in (None, first)

    until(started, f"its second start: {run.status()}", limit_s=LIMIT_S)


def test_a_preempted_run_is_told_and_goes_on_when_its_place_is_free_again(
    submit: Submit, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stands first: it fills the whole node."""
    run = submit({"cpus": CPUS}, **LONG)
    wait_phase(run, "training")
    first = run.status().pid
    monkeypatch.delenv("SBATCH_EXPORT")
    other = [f"--partition={URGENT}", f"--cpus-per-task={CPUS}", "--output=/dev/null", "--wrap=sleep 600"]
    urgent = cluster.ask("sbatch", "--parsable", *other).strip()
    try:
        waiting(run, "requeued, pending")
        assert f"SLURM put job {job(run)} back into its queue (preemption)" in (run.path / "log.txt").read_text(encoding="utf-8")
    finally:
        cluster.ask("scancel", urgent)
    start_again(run, cluster, first)
    wait_phase(run, "training")


def test_jobs_that_ask_for_the_gpu_take_turns(submit: Submit, cluster: Cluster) -> None:
    holder = submit({"gpus": 1}, device="auto", **LONG)
    wait_phase(holder, "training")
    assert "gres:gpu:1" in cluster.ask("scontrol", "show", "job", job(holder), "--oneliner")
    second = submit({"gpus": 1}, device="auto", epochs=1)
    waiting(second, "Resources")
    cancel_run(holder)
    assert wait_state(second, "finished", "failed", "interrupted").state == "finished"


@pytest.mark.tensorflow
@pytest.mark.usefixtures("time_limited")
def test_a_requeued_training_goes_on_by_itself_after_its_last_whole_epoch(real_run: RealRun, cluster: Cluster) -> None:
    (folder,) = until(lambda: list(real_run.runs_dir.glob("2*")), "the run's folder")
    run = RunFolder(folder)
    until(lambda: len(readers.load_history(run.path)) >= 3, "three epochs", limit_s=LIMIT_S)
    first = run.status().pid
    cluster.ask("scontrol", "requeue", job(run))
    waiting(run, "requeued, pending")
    kept = readers.load_history(run.path)
    assert 3 <= len(kept) < EPOCHS
    start_again(run, cluster, first)
    real_run.kept = kept


def test_a_job_goes_through_its_states_and_decides_on_its_node(submit: Submit) -> None:
    run = submit({"cpus": 2, "extra": ["comment=two paths"]}, epochs=3)
    assert run.status().state == "queued"
    assert f"SLURM job {job(run)} · " in str(run.status().message)
    status = wait_state(run, "finished", "failed", "interrupted", "cancelled")
    assert status.state == "finished"
    profile = readers.load_profile(run.path) or {}
    assert profile["host"] == hostname()
    log = (run.path / "log.txt").read_text()
    assert f"SLURM job {job(run)} starts the run on {hostname()}" in log
    assert "Waiting for run" not in log, "SLURM gave it cores of its own: it does not wait for the other job on this machine"
    assert [path.name for path in (run.path / "slurm").iterdir()] == [f"{job(run)}.sh"]
    assert not [path for path in run.path.rglob("*") if path.suffix in (".pkl", ".pickle")], "no pickle is written"


def test_what_slurm_refuses_is_told_in_its_words_and_leaves_a_failed_run(submit: Submit, runs_dir: Path) -> None:
    with pytest.raises(RunError, match="SLURM refused the job: invalid partition specified: nowhere; Invalid partition name"):
        submit({"partition": "nowhere"}, epochs=1)
    (folder,) = runs_dir.iterdir()
    status = RunFolder(folder).status()
    assert status.state == "failed"
    assert "invalid partition specified: nowhere" in str(status.error)


def test_a_waiting_job_tells_why_and_is_cancelled_at_once(submit: Submit) -> None:
    first = submit(**LONG)
    wait_phase(first, "training")
    second = submit({"cpus": CPUS}, **LONG)
    assert waiting(second, "pending (Resources)") == f"SLURM job {job(second)} · pending (Resources)"
    assert "Took run" in cancel_run(second)
    status = wait_state(second, "cancelled", "running", "failed", "interrupted")
    assert status.state == "cancelled"
    assert status.message == "Cancelled while it waited in SLURM's queue; nothing was computed."
    assert first.status().state == "running"


def test_a_running_job_is_cancelled_with_everything_kept_and_resumed_as_a_job(submit: Submit, monkeypatch: pytest.MonkeyPatch) -> None:
    run = submit({"cpus": 1}, **LONG)
    until(lambda: len(readers.load_history(run.path)) >= 2, "two epochs")
    assert "A second cancel kills it" in cancel_run(run)
    assert wait_state(run, "cancelled", "finished", "failed", "interrupted").state == "cancelled"
    assert len(readers.load_scores(run.path)) == 4
    kept = len(readers.load_history(run.path))
    before = job(run)
    monkeypatch.setenv("FAKE_RUN", json.dumps({"first_epoch": kept + 1, "epochs": kept + 2}))
    resume_run(run, program=FAKE)
    assert job(run) != before
    assert (run.launch_record() or {})["settings"] == {"cpus": 1}
    assert wait_state(run, "finished", "failed", "interrupted").state == "finished"
    assert readers.load_history(run.path)["epoch"].tolist() == list(range(1, kept + 3))


def test_a_second_cancel_kills_a_job_that_does_not_listen(submit: Submit, cluster: Cluster) -> None:
    run = submit(deaf=True, **LONG)
    until(lambda: len(readers.load_history(run.path)) >= 1, "an epoch")
    cancel_run(run)
    until(lambda: run.status().cancel_requested, "the run's knowledge of it")
    assert run.status().state == "running"
    assert "Killed run" in cancel_run(run)
    assert wait_state(run, "cancelled", "interrupted", "finished").state == "cancelled"
    until(lambda: f"{job(run)}|" not in cluster.ask("squeue", "--noheader", "--format=%i|"), "the end of the job")


def test_scancel_by_somebody_is_told_as_such(submit: Submit, cluster: Cluster) -> None:
    run = submit(**LONG)
    wait_phase(run, "training")
    cluster.ask("scancel", job(run))
    status = wait_state(run, "cancelled", "finished", "failed", "interrupted")
    assert status.state == "cancelled"
    assert status.message == f"SLURM job {job(run)} was cancelled in SLURM (scancel); what was written before stays."
    assert not run.cancel_asked()


def test_a_killed_process_is_told_with_what_slurm_knows(submit: Submit) -> None:
    run = submit(**LONG)
    wait_phase(run, "training")
    pid = run.status().pid
    assert pid
    os.kill(pid, signal.SIGKILL)
    status = until(lambda: (now := run.status()).state == "interrupted" and "by signal 9" in str(now.error) and now, "SLURM's word")
    assert f"SLURM job {job(run)} ended on {hostname().split('.')[0]} by signal 9 (failed) before the run could say" in str(status.error)
    assert read_record(run.path, job(run)) is not None, "kept, since SLURM forgets it"


def test_a_sweep_is_one_job_each_and_keeps_to_its_limit(runs_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_RUN", json.dumps({"epochs": 1, "batch_s": 0.05}))
    cells = expand({"data": ["synthetic"], "seed": ["0", "1"], "device": ["cpu"]})
    started = list(start_sweep(cells, runs_dir, tag="sweep-x", slurm=SlurmSettings(), max_parallel=1, program=FAKE))
    runs = [one.run for one in started if one.run is not None]
    ends = [wait_state(run, "finished", "failed", "interrupted", "cancelled") for run in runs]
    assert [status.state for status in ends] == ["finished"] * 2
    spans = sorted((status.started, status.ended) for status in ends if status.started and status.ended)
    assert all(earlier[1] <= later[0] for earlier, later in itertools.pairwise(spans)), spans
    assert len({job(run) for run in runs}) == 2


@pytest.mark.tensorflow
def test_the_real_pipeline_as_a_job_by_the_command_line(real_run: RealRun, capsys: pytest.CaptureFixture[str]) -> None:
    answer, trouble = real_run.shell.communicate(timeout=LIMIT_S)
    assert real_run.shell.returncode == 0, trouble
    told = json.loads(answer)
    run = RunFolder(Path(told["run_folder"]))
    assert (told["state"], told["launcher"], told["slurm_job"]) == ("finished", "slurm", job(run))
    assert told["metrics"]["image_auroc"] is not None
    history = readers.load_history(run.path)
    assert history["epoch"].tolist() == list(range(1, EPOCHS + 1))
    assert history["step"].is_monotonic_increasing
    assert real_run.kept is not None
    # At most the last epoch was not in the backup yet, and was trained again.
    same = len(real_run.kept) - 1
    assert history["loss"].tolist()[:same] == real_run.kept["loss"].tolist()[:same], "its curve is joined"
    assert (readers.load_profile(run.path) or {})["cpu"]["usable_cores"] == 1, "the share that SLURM gave"
    until(lambda: (known := QUEUE.job(job(run)).job) and known.over, "the end of the job, a moment after the run's")
    assert main(["runs", "show", run.run_id, "--runs-dir", str(run.path.parent), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["launcher"], shown["slurm_job"], shown["slurm_state"]) == ("slurm", job(run), "completed")
    main(["runs", "list", "--runs-dir", str(run.path.parent)])
    assert f"{job(run)} completed" in capsys.readouterr().out


def test_a_time_limit_is_told_and_the_run_may_be_resumed(time_limited: RunFolder) -> None:
    status = wait_state(time_limited, "interrupted", "cancelled", "failed", "finished")
    assert status.state == "interrupted"
    assert status.error == f"SLURM stopped job {job(time_limited)}: its time limit is over. What was computed stays; resume goes on."
    assert len(readers.load_scores(time_limited.path)) == 4, "it was asked first, and had time to keep what it had"
