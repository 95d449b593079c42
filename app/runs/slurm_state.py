"""What a reader makes of a run that SLURM carries out: what its process wrote, together with what SLURM says about the job.

`launch.json` names the job. `slurm.json` keeps SLURM's last word about a job that is over, because SLURM forgets it within minutes; the
process of the run writes it where it is told, else the first reader who hears it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import os
from pathlib import Path
from typing import Any

from app.core.errors import RunError
from app.runs import slurm_sentences as say
from app.runs.files import read_json, write_json
from app.runs.processes import is_alive
from app.runs.slurm_queue import QUEUE, Answer, Job
from app.runs.status import LOST_AFTER_S, RunStatus, iso, judged, parse_time, utc_now

RECORD = "slurm.json"
FORGOTTEN = "FORGOTTEN"
"""Stands in the record of a job that SLURM no longer knew when it was asked; no word of SLURM's."""


def job_of(launch: dict[str, Any] | None) -> str | None:
    """The id of the SLURM job that `launch.json` names; `None` for a run of the local launcher."""
    job_id = (launch or {}).get("job_id")
    return job_id if (launch or {}).get("launcher") == "slurm" and isinstance(job_id, str) and job_id.isdigit() else None


def judged_in_slurm(
    status: RunStatus, path: Path, launch: dict[str, Any], *, cancel_asked: bool, now: dt.datetime | None = None
) -> RunStatus:
    """The state of a run of the launcher `slurm`. SLURM is asked only where the run's own files do not tell.

    Args:
        path: the run's folder.
        launch: content of `launch.json`, which names a job.
    """
    job_id = job_of(launch)
    assert job_id is not None
    if os.environ.get("SLURM_JOB_ID") == job_id and status.pid is None:
        return status  # this process is that job, about to begin
    alive = is_alive(status.mark) if status.mark else None
    heard = (status.heartbeat_age_s(now) or 0.0) <= LOST_AFTER_S
    if status.live and status.pid is not None and (alive or (alive is None and heard)):
        return status
    known = read_record(path, job_id)
    if known is not None:
        answer = Answer(known if known.state != FORGOTTEN else None)
    else:
        answer = QUEUE.job(job_id, submitted=parse_time(launch.get("submitted")))
        if answer.trouble is None and (answer.job is None or answer.job.over):
            # So that nobody asks about it again, draw after draw.
            write_record(path, answer.job or Job(job_id, FORGOTTEN))
    return told(status, answer, job_id, alive=alive, launch=launch, cancel_asked=cancel_asked, now=now)


def told(
    status: RunStatus,
    answer: Answer,
    job_id: str,
    *,
    alive: bool | None,
    launch: dict[str, Any] | None = None,
    cancel_asked: bool = False,
    now: dt.datetime | None = None,
) -> RunStatus:
    """`status` in the light of SLURM's answer. Pure.

    Args:
        status: as written: live without a living process, or interrupted.
        alive: whether its process lives; `None` when it belongs to another machine, or there is none yet.
    """
    job = answer.job
    if job is not None and job.waits:
        return _queued(status, say.pending(job, again=status.started is not None))
    if status.state == "interrupted":
        return status
    if job is not None and job.goes_on and alive is not False:
        if status.pid is None:
            # Its process has said that SLURM takes the job back, and is just leaving.
            leaving = job.state == "COMPLETING" and status.started is not None
            return status if leaving else _queued(status, say.starting(job))
        silent = say.silent(job, status.heartbeat_age_s(now) or 0.0)
        return dataclasses.replace(status, message=silent)
    if job is not None and job.over:
        return _ended(status, job, cancel_asked)
    if status.pid is None:
        if answer.trouble:
            return _queued(status, say.unknown(job_id, answer.trouble))
        return _ended_as(status, say.forgotten(job_id), cancel_asked)
    seen = judged(status, launch=launch, cancel_asked=cancel_asked, now=now)
    if seen.state == "interrupted" and seen.error:
        return dataclasses.replace(
            seen, error=f"{seen.error} {say.forgotten(job_id) if not answer.trouble else say.unknown(job_id, answer.trouble)}"
        )
    return seen


def _queued(status: RunStatus, message: str) -> RunStatus:
    return dataclasses.replace(
        status, state="queued", message=message, error=None, eta_s=None, pid=None, pid_started=None, pid_token=None, ended=None
    )


def _ended(status: RunStatus, job: Job, cancel_asked: bool) -> RunStatus:
    nothing = status.started is None
    if job.state == "CANCELLED" and not cancel_asked and not status.cancel_requested:
        message = say.cancelled_in_slurm(job, nothing=nothing)
        return dataclasses.replace(status, state="cancelled", message=message, error=None, eta_s=None, ended=status.ended or job.ends)
    return _ended_as(status, say.over(job, memory_mib=status.memory_mib, nothing=nothing), cancel_asked, job)


def _ended_as(status: RunStatus, sentence: str, cancel_asked: bool, job: Job | None = None) -> RunStatus:
    ended = status.ended or (job.ends if job else None)
    if cancel_asked or status.cancel_requested:
        message = say.CANCELLED_WAITING if status.started is None else say.KILLED_BY_CANCEL
        return dataclasses.replace(status, state="cancelled", error=None, message=message, eta_s=None, ended=ended)
    return dataclasses.replace(status, state="interrupted", error=sentence, message=None, eta_s=None, ended=ended)


def read_record(path: Path, job_id: str) -> Job | None:
    """SLURM's last word about this job, if somebody heard it."""
    try:
        values = read_json(path / RECORD) or {}
    except ValueError:
        return None
    if values.get("job_id") != job_id or not isinstance(values.get("state"), str):
        return None
    reason, nodes, exit_code = (values[name] if isinstance(values.get(name), str) else None for name in ("reason", "nodes", "exit_code"))
    return Job(job_id, values["state"], reason, nodes, parse_time(values.get("ends")), exit_code)


def write_record(path: Path, job: Job) -> None:
    """Keep SLURM's last word. Never raises: a reader may not be allowed to write, and the next one asks again."""
    values = {**dataclasses.asdict(job), "ends": iso(job.ends) if job.ends else None, "asked": iso(utc_now())}
    with contextlib.suppress(RunError):
        write_json(path / RECORD, values)


def slurm_facts(path: Path, launch: dict[str, Any] | None) -> dict[str, Any]:
    """`launcher`, `slurm_job`, `slurm_state` and `slurm_nodes` of a run, without asking SLURM about jobs whose end is known."""
    job_id = job_of(launch)
    if job_id is None:
        return {"launcher": "local" if launch else None, "slurm_job": None, "slurm_state": None, "slurm_nodes": None}
    job = read_record(path, job_id) or QUEUE.job(job_id).job
    return {
        "launcher": "slurm",
        "slurm_job": job_id,
        "slurm_state": say.state_words(job) if job else None,
        "slurm_nodes": job.nodes if job else None,
    }
