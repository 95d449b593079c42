"""What becomes of a run by what SLURM says: the judgement, the words in the log, and asking rarely. Answers are in the words of a
real SLURM (22.05); those of its accounts (sacct), of a failed node and of its out-of-memory killer are after its manual pages."""

from __future__ import annotations

import dataclasses
import datetime as dt
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from run_helpers import until

from app.cae.config import CaeConfig
from app.runs import slurm_job
from app.runs.files import write_json
from app.runs.folder import RunFolder
from app.runs.locks import line_dir, lock_dir
from app.runs.slurm_queue import QUEUE, Answer, Job, JobQueue
from app.runs.slurm_state import read_record, slurm_facts, told, write_record
from app.runs.status import RunStatus, utc_now

NOW = dt.datetime(2026, 11, 29, 22, 0, tzinfo=dt.UTC)
NEW = RunStatus("r", "queued", created=NOW)
RAN = RunStatus("r", "running", phase="training", epoch=3, pid=7, host="node1", created=NOW, started=NOW, heartbeat=NOW, memory_mib=900)
CANCELLED = "Cancelled; its process ended before it could write a result. What was written before stays."

SCONTROL = (
    "JobId=3 JobName=j.sh UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=4294901757 Nice=0 Account=(null) QOS=(null) "
    "JobState={state} Reason={reason} Dependency=(null) Requeue=1 Restarts=0 ExitCode=130:0 RunTime=00:00:21 TimeLimit=01:00:00 "
    "StartTime=2026-11-29T22:39:49 EndTime={end} Partition=main NodeList=vm BatchHost=vm"
)


@pytest.mark.parametrize(
    ("status", "answer", "alive", "state", "words"),
    [
        (NEW, Answer(Job("12", "PENDING", "Resources")), None, "queued", "SLURM job 12 · pending (Resources)"),
        (NEW, Answer(Job("12", "PENDING")), None, "queued", "SLURM job 12 · pending"),
        (NEW, Answer(Job("12", "CONFIGURING", None, "node7")), None, "queued", "SLURM job 12 · starting on node7"),
        (NEW, Answer(None, "no squeue"), None, "queued", "SLURM job 12 · what became of it cannot be asked from here: no squeue."),
        (NEW, Answer(None), None, "interrupted", "SLURM no longer knows job 12, so why it ended is not known; the log (log.txt) may tell."),
        (
            NEW,
            Answer(Job("12", "FAILED", "NonZeroExitCode", "node7", exit_code="127:0")),
            None,
            "interrupted",
            "SLURM job 12 ended on node7 with exit status 127 (failed) before the run could start; the log (log.txt) may tell why.",
        ),
        (
            NEW,
            Answer(Job("12", "CANCELLED", "by 1000")),
            None,
            "cancelled",
            "SLURM job 12 was cancelled in SLURM (scancel by 1000); it had not started, and nothing was computed.",
        ),
        (RAN, Answer(Job("12", "PENDING", "BeginTime")), False, "queued", "SLURM job 12 · requeued, pending (BeginTime)"),
        (
            RAN,
            Answer(Job("12", "NODE_FAIL")),
            None,
            "interrupted",
            "SLURM stopped job 12: its node failed. What was computed stays; resume goes on.",
        ),
        (
            RAN,
            Answer(Job("12", "OUT_OF_MEMORY")),
            False,
            "interrupted",
            "SLURM stopped job 12: it needed more memory than it had asked for (at its last sign of life it held 900 MiB). Ask for more "
            "(--slurm-memory), or choose a smaller batch size or image size. What was computed stays.",
        ),
        (
            RAN,
            Answer(Job("12", "RUNNING", None, "node1")),
            None,
            "running",
            "SLURM job 12 · running on node1, but no sign of life for 120 s",
        ),
        (
            dataclasses.replace(RAN, state="interrupted", error="SLURM stopped it."),
            Answer(Job("12", "PENDING", "Priority")),
            False,
            "queued",
            "SLURM job 12 · requeued, pending (Priority)",
        ),
        (
            dataclasses.replace(RAN, state="interrupted", error="As written."),
            Answer(Job("12", "TIMEOUT")),
            False,
            "interrupted",
            "As written.",
        ),
    ],
)
def test_what_a_reader_says(status: RunStatus, answer: Answer, alive: bool | None, state: str, words: str) -> None:
    seen = told(status, answer, "12", alive=alive, now=NOW + dt.timedelta(seconds=120))
    assert (seen.state, seen.error or seen.message) == (state, words)
    assert (seen.error is None) == (state != "interrupted")


def test_a_run_that_was_asked_to_stop_is_cancelled_however_slurm_calls_it() -> None:
    for state in ("CANCELLED", "FAILED", "TIMEOUT"):
        seen = told(RAN, Answer(Job("12", state)), "12", alive=False, cancel_asked=True)
        assert (seen.state, seen.message, seen.error) == ("cancelled", CANCELLED, None)


def test_a_lost_run_whose_job_is_forgotten_says_both() -> None:
    seen = told(RAN, Answer(None), "12", alive=None, now=NOW + dt.timedelta(seconds=120))
    assert seen.state == "interrupted"
    assert "No sign of life from node1" in str(seen.error)
    assert "SLURM no longer knows job 12" in str(seen.error)


@pytest.fixture
def run(runs_dir: Path, config: CaeConfig, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run in the process that is its job 3."""
    run = RunFolder.create(runs_dir, config)
    write_json(run.path / "launch.json", {"launcher": "slurm", "job_id": "3", "submitted": "2026-11-29T22:39:44+00:00", "settings": {}})
    monkeypatch.setenv("SLURM_JOB_ID", "3")
    return run


def log(run: RunFolder, *lines: str) -> None:
    (run.path / "log.txt").write_text("\n".join(["SLURM job 3 starts the run on vm", *lines, ""]))


def commands(folder: Path, monkeypatch: pytest.MonkeyPatch, **outputs: str | None) -> Path:
    """SLURM's commands as files: each prints its text, or fails where it is `None`. Gives the file that counts the calls."""
    folder.mkdir()
    for name, text in outputs.items():
        end = "exit 1" if text is None else "exit 0"
        (folder / f"{name}.txt").write_text(text or "")
        trouble = "slurm_load_jobs error: Invalid job id specified" if name == "scontrol" else f"{name}: error: it is down"
        told = f"cat '{folder}/{name}.txt'" if text is not None else f"echo '{trouble}' >&2"
        (folder / name).write_text(f"#!/bin/sh\necho {name} >> '{folder}/calls'\n{told}\n{end}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")
    return folder / "calls"


@pytest.mark.parametrize(
    ("line", "state", "words"),
    [
        ("slurmstepd-vm: error: *** JOB 3 ON vm CANCELLED AT 2026-11-29T22:39:41 ***", "cancelled", "was cancelled in SLURM (scancel)"),
        (
            "slurmstepd: error: *** JOB 3 ON vm CANCELLED AT 2026-11-29T22:40:10 DUE TO TIME LIMIT ***",
            "interrupted",
            "its time limit is over",
        ),
        (
            "slurmstepd: error: *** JOB 3 ON vm CANCELLED AT 2026-11-29T22:39:45 DUE TO JOB REQUEUE ***",
            "queued",
            "back into its queue; the run goes",
        ),
        (
            "slurmstepd: error: *** JOB 3 ON vm CANCELLED AT 2026-11-29T22:39:45 DUE TO PREEMPTION ***",
            "interrupted",
            "for another one (preemption)",
        ),
        (
            "slurmstepd: error: *** JOB 3 ON vm CANCELLED AT 2026-11-29T22:39:45 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***",
            "interrupted",
            "its node failed",
        ),
        ("slurmstepd: error: *** JOB 3 ON vm CANCELLED AT 2026-11-29T22:39:41 DUE to SIGNAL Terminated ***", "cancelled", "(scancel)"),
        ("slurmstepd: error: *** JOB 33 ON vm CANCELLED AT 2026-11-29T22:39:41 ***", "interrupted", "did not say why"),
    ],
)
def test_slurm_says_in_the_log_why_it_stops_a_run(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, state: str, words: str
) -> None:
    commands(tmp_path / "bin", monkeypatch, scontrol=None)
    log(run, "2026-11-29 22:39:40 epoch 3 of 9", line)
    word = slurm_job.last_word(run, signalled=True)
    assert word is not None
    assert word["state"] == state
    assert words in str(word.get("error") or word["message"])


def test_words_about_an_earlier_start_are_not_taken_for_this_one(run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands(tmp_path / "bin", monkeypatch, scontrol=SCONTROL.format(state="RUNNING", reason="None", end="Unknown"))
    log(
        run,
        "slurmstepd: error: *** JOB 3 ON vm CANCELLED AT 2026-11-29T22:39:45 DUE TO JOB REQUEUE ***",
        "SLURM job 3 starts the run on vm",
        "stopping",
    )
    assert slurm_job.last_word(run, signalled=True) is None, "a signal of somebody else: a cancel like any other"


def test_a_warning_before_the_time_limit_is_known_by_the_jobs_end(run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    soon = dt.datetime.now() + dt.timedelta(seconds=60)
    commands(
        tmp_path / "bin", monkeypatch, scontrol=SCONTROL.format(state="RUNNING", reason="None", end=soon.isoformat(timespec="seconds"))
    )
    log(run)
    word = slurm_job.last_word(run, signalled=True)
    assert word is not None
    assert "its time limit is over" in word["error"]


@pytest.mark.parametrize(("cause", "words"), [("PREEMPTION", "(preemption)"), ("NODE FAILURE, SEE SLURMCTLD LOG", "(its node failed)")])
@pytest.mark.parametrize(
    ("told", "seen", "state"),
    [
        ("JobState=PENDING Restarts=1", "", "queued"),
        ("JobState=COMPLETING Restarts=1", "", "queued"),
        ("JobState=COMPLETING Restarts=2", "1", "queued"),
        ("JobState=COMPLETING Restarts=1", "1", "interrupted"),
        ("JobState=COMPLETING Restarts=0", "", "interrupted"),
    ],
)
def test_a_job_that_slurm_ends_for_a_reason_of_its_own_is_queued_where_it_will_start_again(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: str, words: str, told: str, seen: str, state: str
) -> None:
    """scontrol's words as SLURM 22.05 gave them while it preempted a job."""
    commands(tmp_path / "bin", monkeypatch, scontrol=f"JobId=3 {told} Reason=None Requeue=1 ExitCode=0:0 EndTime=Unknown NodeList=vm")
    monkeypatch.setenv("SLURM_RESTART_COUNT", seen)
    log(run, f"slurmstepd: error: *** JOB 3 ON vm CANCELLED AT 2026-11-29T22:39:45 DUE TO {cause} ***")
    word = slurm_job.last_word(run, signalled=True)
    assert word is not None
    assert word["state"] == state
    if state == "queued":
        assert word["pid"] is None
        assert words in word["message"]


def test_a_preempted_job_with_a_grace_time_is_not_taken_for_one_at_its_time_limit(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SLURM pulls the end of the job near and tells when it preempted it; a comment of the user's may look like anything."""
    soon = (dt.datetime.now() + dt.timedelta(seconds=60)).isoformat(timespec="seconds")
    told = f"JobId=3 JobState=RUNNING Reason=None Restarts=0 EndTime={soon} PreemptTime={soon} NodeList=vm"
    commands(tmp_path / "bin", monkeypatch, scontrol=f"{told} Comment=x Restarts=7 JobState=PENDING")
    log(run)
    word = slurm_job.last_word(run, signalled=True)
    assert word is not None
    assert (word["state"], "(preemption)" in word["error"]) == ("interrupted", True)


def test_a_cancel_through_the_folder_is_nothing_of_slurms(run: RunFolder) -> None:
    run.ask_cancel()
    assert slurm_job.last_word(run, signalled=True) is None


def test_only_a_restart_of_the_very_job_goes_on(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    write_json(run.path / "status.json", dataclasses.replace(RAN, run_id=run.run_id).to_json())
    assert not slurm_job.started_again(run)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert slurm_job.started_again(run)
    run.ask_cancel()
    assert not slurm_job.started_again(run), "somebody asked it to stop"
    (run.path / "cancel").unlink()
    monkeypatch.setenv("SLURM_JOB_ID", "4")
    assert not slurm_job.started_again(run)


def test_slurm_is_asked_once_for_all_jobs_and_again_only_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = commands(
        tmp_path / "bin", monkeypatch, squeue="1|PENDING||N/A|Priority\n2|RUNNING|n1|2026-11-29T23:00:00|None\n", scontrol=None, sacct=None
    )
    queue = JobQueue()
    for _ in range(50):
        assert queue.job("1").job == Job("1", "PENDING", "Priority")
        running = queue.job("2").job
        assert running is not None
        assert (running.state, running.nodes, running.reason) == ("RUNNING", "n1", None)
    assert calls.read_text().split() == ["squeue"]
    assert queue.job("3") == Answer(None), "SLURM answered, and does not know it"
    assert queue.job("3", submitted=utc_now()) == Answer(None)
    assert calls.read_text().split() == ["squeue", "scontrol", "sacct", "squeue"], "a job submitted since is looked for at once"


def test_pages_that_wait_for_the_same_answer_share_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bin_, go = tmp_path / "bin", tmp_path / "go"
    bin_.mkdir()
    squeue = f"#!/bin/sh\necho x >> {tmp_path}/asked\nwhile [ ! -e {go} ]; do sleep 0.05; done\necho '7|RUNNING|node1|N/A|None'\n"
    (bin_ / "squeue").write_text(squeue)
    (bin_ / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_}{os.pathsep}{os.environ['PATH']}")
    queue, began = JobQueue(), threading.Barrier(4)

    def ask() -> Job | None:
        began.wait()
        return queue.job("7").job

    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(ask) for _ in range(4)]
        until((tmp_path / "asked").exists, "the first question")
        go.touch()
        assert [answer.result() for answer in answers] == [Job("7", "RUNNING", None, "node1")] * 4
    assert (tmp_path / "asked").read_text().count("x") == 1


def test_accounts_are_asked_where_the_queue_has_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accounts = "5|CANCELLED by 1000|n[1-2]|2026-11-29T23:00:00|0:15\n"
    commands(tmp_path / "bin", monkeypatch, squeue="", scontrol=None, sacct=accounts)
    found = JobQueue().job("5").job
    assert found is not None
    assert (found.state, found.reason, found.nodes, found.exit_code) == ("CANCELLED", "by 1000", "n[1-2]", "0:15")


def test_a_silent_slurm_is_trouble_and_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands(tmp_path / "bin", monkeypatch, squeue=None)
    assert JobQueue().job("5") == Answer(None, "it is down")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert JobQueue().job("5") == Answer(None, "SLURM's command squeue is not found on this machine")


def test_a_forgotten_job_is_asked_about_once(run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = commands(tmp_path / "bin", monkeypatch, squeue="", scontrol=None, sacct=None)
    monkeypatch.delenv("SLURM_JOB_ID")
    for _ in range(3):
        QUEUE.forget()
        status = run.status()
        assert (status.state, "SLURM no longer knows job 3" in str(status.error)) == ("interrupted", True)
    assert calls.read_text().split() == ["squeue", "scontrol", "sacct"]


def test_slurms_last_word_is_kept_for_this_job_only(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    job = Job("3", "TIMEOUT", "TimeLimit", "vm", NOW, "130:0")
    write_record(run.path, job)
    assert read_record(run.path, "3") == job
    assert read_record(run.path, "4") is None
    assert slurm_facts(run.path, run.launch_record()) == {
        "launcher": "slurm",
        "slurm_job": "3",
        "slurm_state": "timeout (TimeLimit)",
        "slurm_nodes": "vm",
    }


def test_cores_that_slurm_gave_have_a_line_of_their_own_and_gpus_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    assert line_dir("cpu") == line_dir("GPU-1") == lock_dir()
    monkeypatch.setenv("SLURM_JOB_ID", "3")
    assert line_dir("cpu") == lock_dir() / "slurm-3"
    assert line_dir("GPU-1") == lock_dir()
