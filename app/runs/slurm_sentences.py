"""What runs in SLURM say to people, in one place."""

from __future__ import annotations

from app.runs.sentences import KILLED_BY_CANCEL as KILLED_BY_CANCEL
from app.runs.slurm_queue import Job

CANCELLED_WAITING = "Cancelled while it waited in SLURM's queue; nothing was computed."
ANSWERED_WAITING = "Took run {run_id} out of SLURM's queue (job {job_id}); nothing was computed."
ANSWERED_CANCEL = "Asked run {run_id} to stop (SLURM job {job_id}); what it has computed stays usable. A second cancel kills it."
ANSWERED_FOLDER_ONLY = "Asked run {run_id} to stop through its folder; SLURM could not be told ({trouble})."
ANSWERED_KILL = "Killed run {run_id} (SLURM job {job_id}); what it had written stays."
CANNOT_KILL = "run {run_id}: SLURM job {job_id} cannot be killed ({trouble}); it was asked to stop before."

REQUEUED = "SLURM put job {job_id} back into its queue{why}; the run goes on after its last whole epoch when its turn comes again."
STOPPED = {
    "TIMEOUT": "SLURM stopped job {job_id}: its time limit is over. What was computed stays; resume goes on.",
    "PREEMPTED": "SLURM stopped job {job_id} for another one (preemption). What was computed stays; resume goes on.",
    "NODE_FAIL": "SLURM stopped job {job_id}: its node failed. What was computed stays; resume goes on.",
    "OUT_OF_MEMORY": "SLURM stopped job {job_id}: it needed more memory than it had asked for{held}. Ask for more (--slurm-memory), or "
    "choose a smaller batch size or image size. What was computed stays.",
    "DEADLINE": "SLURM stopped job {job_id}: its deadline has passed. What was computed stays; resume goes on.",
    "BOOT_FAIL": "SLURM could not start the node of job {job_id}. Resume submits the run again.",
}
BY_SLURM = "SLURM asked job {job_id} to stop and did not say why. What was computed stays; resume goes on."


def state_words(job: Job) -> str:
    """`pending (Resources)`, `running`."""
    reason = f" ({job.reason})" if job.reason and (job.waits or job.state not in ("RUNNING", "COMPLETED")) else ""
    return f"{job.state.replace('_', ' ').lower()}{reason}"


def pending(job: Job, *, again: bool) -> str:
    """A job that waits, the first time or again."""
    return f"SLURM job {job.job_id} · {'requeued, ' if again else ''}{state_words(job)}"


def starting(job: Job) -> str:
    return f"SLURM job {job.job_id} · starting{f' on {job.nodes}' if job.nodes else ''}"


def unknown(job_id: str, trouble: str) -> str:
    return f"SLURM job {job_id} · what became of it cannot be asked from here: {trouble}."


def silent(job: Job, age_s: float) -> str:
    """SLURM says the job goes on, its process has not been heard for a while: a shared file system that lags, or a node in trouble."""
    return f"SLURM job {job.job_id} · {state_words(job)}{f' on {job.nodes}' if job.nodes else ''}, but no sign of life for {age_s:.0f} s"


def forgotten(job_id: str) -> str:
    return f"SLURM no longer knows job {job_id}, so why it ended is not known; the log (log.txt) may tell."


def cancelled_in_slurm(job: Job, *, nothing: bool) -> str:
    """Somebody used scancel, and not this program."""
    who = f" {job.reason}" if job.reason and job.reason.startswith("by ") else ""
    kept = "it had not started, and nothing was computed" if nothing else "what was written before stays"
    return f"SLURM job {job.job_id} was cancelled in SLURM (scancel{who}); {kept}."


def over(job: Job, *, memory_mib: int | None, nothing: bool) -> str:
    """A job that is over although its run did not say so."""
    if job.state in STOPPED:
        held = f" (at its last sign of life it held {memory_mib} MiB)" if memory_mib is not None else ""
        return STOPPED[job.state].format(job_id=job.job_id, held=held)
    status, _, number = (job.exit_code or "").partition(":")
    how = f" by signal {number}" if number not in ("", "0") else f" with exit status {status}" if status not in ("", "0") else ""
    where = f" on {job.nodes}" if job.nodes else ""
    when = "before the run could start" if nothing else "before the run could say how it ended"
    # SLURM's reason for a process that failed is a guess (JobLaunchFailure for one that was killed).
    state = job.state.lower() if how else state_words(job)
    return f"SLURM job {job.job_id} ended{where}{how} ({state}) {when}; the log (log.txt) may tell why."
