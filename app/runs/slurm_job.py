"""A run's process inside a SLURM job: whether SLURM has started it again, and why SLURM asks it to stop."""

from __future__ import annotations

import datetime as dt
import os
import re
from pathlib import Path
from typing import Any

from app.runs import slurm_sentences as say
from app.runs.files import read_json
from app.runs.folder import RunFolder
from app.runs.slurm_queue import Job, show_job
from app.runs.slurm_state import job_of, write_record
from app.runs.status import utc_now

_TAIL_BYTES = 65536
_WORD = r"\*\*\* JOB {job_id} ON (\S+) CANCELLED AT \S+( DUE (?:TO|to) ([A-Za-z ,]+?))? ?\*\*\*"
_CAUSES = {"TIME LIMIT": "TIMEOUT", "PREEMPTION": "PREEMPTED", "JOB REQUEUE": "REQUEUED", "NODE FAILURE": "NODE_FAIL"}
_MAYBE_REQUEUED = {"PREEMPTED": "preemption", "NODE_FAIL": "its node failed"}
_AT_THE_LIMIT_S = 240.0
"""A signal this short before the job's end is the warning of its time limit (sbatch's --signal, which may come up to 60 s early)."""


def job_id_here(run: RunFolder) -> str | None:
    """The SLURM job that this process is, when that job was submitted to carry out `run`."""
    job_id = job_of(run.launch_record())
    return job_id if job_id is not None and os.environ.get("SLURM_JOB_ID") == job_id else None


def started_again(run: RunFolder) -> bool:
    """Whether this process is a job that SLURM has requeued: its run then goes on, unless somebody asked it to stop."""
    if job_id_here(run) is None or not _restarts_seen():
        return False
    try:
        state = (read_json(run.path / "status.json") or {}).get("state")
    except ValueError:
        return False
    return state in ("queued", "running", "interrupted") and not run.cancel_asked()


def _restarts_seen() -> int:
    """How often the job of this process had been put back into the queue when it started."""
    count = os.environ.get("SLURM_RESTART_COUNT", "").strip()
    return int(count) if count.isdecimal() else 0


def last_word(run: RunFolder, *, signalled: bool) -> dict[str, Any] | None:
    """How a run that was asked to stop by a signal, and not through its folder, has ended: fields of the status.

    Returns:
        `None` where SLURM has nothing to do with it: it is then cancelled like any other.
    """
    job_id = job_id_here(run)
    if job_id is None or not signalled or run.cancel_asked():
        return None
    job = _stopped_as(run.path, job_id)
    if job.state == "REQUEUED":
        # No process any more: the next one begins with SLURM's next start of the job.
        why = f" ({job.reason})" if job.reason else ""
        gone = {"pid": None, "pid_started": None, "pid_token": None, "ended": None, "cancel_requested": False}
        return {**gone, "state": "queued", "message": say.REQUEUED.format(job_id=job_id, why=why)}
    if job.over and job.state != "UNKNOWN":
        write_record(run.path, job)
    if job.state == "CANCELLED":
        return {"state": "cancelled", "message": say.cancelled_in_slurm(job, nothing=False)}
    if job.state == "RUNNING":  # scancel --signal, or kill on the node
        return None
    sentence = say.STOPPED.get(job.state, say.BY_SLURM).format(job_id=job_id, held="")
    return {"state": "interrupted", "error": sentence, "message": None, "cancel_requested": False}


def _stopped_as(path: Path, job_id: str) -> Job:
    """Why SLURM sent the signal: slurmstepd first writes it into the job's output, which is the run's log; else scontrol is asked.

    While a job is being ended, `scontrol` tells COMPLETING and not yet how it ends. A job that makes room for another, or whose node fails,
    may be over or start again, as the cluster is set up; that it will is known by one restart more than this process has seen.
    """
    told = _from_log(path / "log.txt", job_id)
    if told is not None and told.state not in _MAYBE_REQUEUED:
        return told
    job = show_job(job_id)
    if told is not None:
        again = job is not None and (job.waits or job.restarts > _restarts_seen())
        return Job(job_id, "REQUEUED", _MAYBE_REQUEUED[told.state], told.nodes) if again else told
    if job is None:
        return Job(job_id, "UNKNOWN")
    if job.waits:
        return Job(job_id, "REQUEUED", None, job.nodes)
    if job.state == "RUNNING" and job.preempted:  # with a grace time: nothing stands in the log yet
        return Job(job_id, "PREEMPTED", None, job.nodes)
    if job.state == "RUNNING" and job.ends is not None and job.ends - utc_now() < dt.timedelta(seconds=_AT_THE_LIMIT_S):
        return Job(job_id, "TIMEOUT", "TimeLimit", job.nodes, job.ends)
    if job.reason == "TimeLimit":
        return Job(job_id, "TIMEOUT", "TimeLimit", job.nodes, job.ends)
    return job if job.state == "RUNNING" or job.over else Job(job_id, "UNKNOWN")


def _from_log(path: Path, job_id: str) -> Job | None:
    """`slurmstepd: error: *** JOB 12 ON node7 CANCELLED AT 2026-11-29T22:39:45 DUE TO TIME LIMIT ***`, the last such line of this start."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            tail = file.read().decode(errors="replace")
    except OSError:
        return None
    this_start = tail.rpartition(STARTED_LINE.format(job_id=job_id))[2]
    found = re.findall(_WORD.format(job_id=re.escape(job_id)), this_start)
    if not found:
        return None
    node, _, cause = found[-1]
    state = next((state for words, state in _CAUSES.items() if cause.startswith(words)), "CANCELLED")
    return Job(job_id, state, "TimeLimit" if state == "TIMEOUT" else None, node, utc_now())


STARTED_LINE = "SLURM job {job_id} starts the run"
"""Written into the log at every start, so that the words about an earlier one are not taken for this one's."""
