"""What SLURM says about jobs. It is asked rarely and for all jobs at once: a page that is drawn every second must not burden a cluster.

`squeue` knows what waits and runs, and what ended within the last minutes (MinJobAge); `scontrol` the same of one job; `sacct`, on clusters
that keep accounts, everything that ever was.
"""

from __future__ import annotations

import datetime as dt
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

LOOK_EVERY_S = 3.0
"""An answer is good for this long; after a slow one, for ten times what it took."""
LOOK_DEEPER_EVERY_S = 30.0
PATIENCE_S = 10.0
COMMANDS = ("sbatch", "squeue", "scontrol", "scancel")

WAITING = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")
GOING_ON = ("RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT")

_NOT_KNOWN = "Invalid job id"
_SQUEUE = "%i|%T|%N|%e|%r"
_SACCT = "JobIDRaw,State,NodeList,End,ExitCode"


@dataclass(frozen=True)
class Job:
    """One job as SLURM tells it."""

    job_id: str
    state: str
    """In SLURM's words: PENDING, RUNNING, TIMEOUT …"""
    reason: str | None = None
    """Why it waits, or ended."""
    nodes: str | None = None
    ends: dt.datetime | None = None
    """When it ended, or when its time limit ends it."""
    exit_code: str | None = None
    """`status:signal`."""
    restarts: int = 0
    """How often SLURM has put it back into its queue; it counts one more as soon as it has decided to."""
    preempted: bool = False
    """Whether SLURM has told it to make room for another job."""

    @property
    def waits(self) -> bool:
        return self.state in WAITING

    @property
    def goes_on(self) -> bool:
        return self.state in GOING_ON

    @property
    def over(self) -> bool:
        return not self.waits and not self.goes_on


@dataclass(frozen=True)
class Answer:
    """`job` is `None` when SLURM does not know it, or, with `trouble`, when SLURM could not be asked."""

    job: Job | None
    trouble: str | None = None


def slurm_missing() -> str | None:
    """Why no job can be submitted from here; `None` when one can."""
    missing = [name for name in COMMANDS if shutil.which(name) is None]
    return f"SLURM's command {missing[0]} is not found on this machine." if missing else None


def run_command(
    command: Sequence[str],
    limit_s: float = PATIENCE_S,
    *,
    environment: Mapping[str, str] | None = None,
    complaint: Callable[[str], str] | None = None,
) -> tuple[str | None, str | None]:
    """(output, `None`) of one of SLURM's commands, or (`None`, why there is none). Never raises.

    Args:
        command: and its arguments.
        limit_s: how long to wait, s.
        environment: of the command, just so, since a job inherits it; not given: this process's, with answers in English.
        complaint: of the text on stderr, what to tell; not given: `first_error`.
    """
    try:
        done = subprocess.run(
            list(command),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            stdin=subprocess.DEVNULL,
            env=environment or {**os.environ, "SLURM_TIME_FORMAT": "standard", "LC_ALL": "C"},
        )
    except FileNotFoundError:
        return None, f"SLURM's command {command[0]} is not found on this machine"
    except subprocess.TimeoutExpired:
        return None, f"SLURM did not answer {command[0]} within {limit_s:.0f} s"
    except OSError as error:
        return None, f"SLURM's command {command[0]} cannot be run ({error.strerror or error})"
    if done.returncode:
        return None, (complaint or first_error)(done.stderr) or f"{command[0]} ended with status {done.returncode}"
    return done.stdout, None


def first_error(text: str) -> str:
    """What SLURM complained about, without the name of the program before it."""
    for line in text.splitlines():
        program, _, message = line.partition(": error: ")
        if message and " " not in program:
            return message.strip()[:300].rstrip(".")
    return " ".join(text.split())[:300].rstrip(".")


class JobQueue:
    """Answers about jobs, remembered for a few seconds and shared by all threads of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: dict[str, Job] = {}
        self._trouble: str | None = None
        self._asked_at = float("-inf")
        self._good_for_s = 0.0
        self._deeper: dict[str, tuple[float, Answer]] = {}

    def job(self, job_id: str, *, submitted: dt.datetime | None = None) -> Answer:
        """What SLURM says about a job now, or said a few seconds ago. Blocks for at most `PATIENCE_S`, and rarely.

        Args:
            submitted: an answer from before that is too old.
        """
        asked_at = self._asked_at
        age = time.monotonic() - asked_at
        known_since = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=age) if age < 1e9 else None
        too_old = known_since is None or (submitted is not None and job_id not in self._jobs and known_since <= submitted)
        if (age > self._good_for_s or too_old) and self._lock.acquire(blocking=known_since is None):
            try:
                if self._asked_at == asked_at:  # nobody else has asked while this thread waited
                    self._look()
            finally:
                self._lock.release()
        if self._trouble:
            return Answer(None, self._trouble)
        if found := self._jobs.get(job_id):
            # squeue does not tell the exit status.
            return Answer(show_job(job_id) or found if found.over else found)
        return self._look_deeper(job_id)

    def forget(self) -> None:
        """Ask anew next time: this process has just changed something."""
        self._asked_at, self._good_for_s = float("-inf"), 0.0
        self._deeper.clear()

    def _look(self) -> None:
        begun = time.monotonic()
        who = f"--user={os.getuid()}" if hasattr(os, "getuid") else "--me"
        text, self._trouble = run_command(["squeue", "--noheader", "--states=all", who, f"--format={_SQUEUE}"])
        if text is not None:
            self._jobs = {job.job_id: job for line in text.splitlines() if (job := _from_squeue(line))}
        self._asked_at = time.monotonic()
        self._good_for_s = max(LOOK_EVERY_S, 10 * (self._asked_at - begun))

    def _look_deeper(self, job_id: str) -> Answer:
        """A job that `squeue` does not list: another user's, or one that ended a while ago."""
        when, answer = self._deeper.get(job_id, (float("-inf"), None))
        if answer is None or time.monotonic() - when > LOOK_DEEPER_EVERY_S:
            answer = _ask_about(job_id)
            self._deeper[job_id] = time.monotonic(), answer
        return answer


QUEUE = JobQueue()


def show_job(job_id: str) -> Job | None:
    """The job as `scontrol show job` tells it; `None` when it does not."""
    return _from_scontrol(job_id)[0]


def _ask_about(job_id: str) -> Answer:
    job, trouble = _from_scontrol(job_id)
    job = job or _from_accounts(job_id)
    return Answer(job) if job is not None or _NOT_KNOWN in (trouble or "") else Answer(None, trouble)


def _from_scontrol(job_id: str) -> tuple[Job | None, str | None]:
    text, trouble = run_command(["scontrol", "show", "job", job_id, "--oneliner"])
    # The first of a name: what comes later may be a user's comment.
    values = dict(reversed([part.split("=", 1) for part in (text or "").split() if "=" in part]))
    if "JobState" not in values:
        return None, trouble or f"scontrol told nothing about job {job_id}"
    reason, nodes = _known(values.get("Reason")), _known(values.get("NodeList"))
    restarts = values.get("Restarts", "0")
    found = Job(job_id, values["JobState"], reason, nodes, _time(values.get("EndTime")), values.get("ExitCode"))
    preempted = _known(values.get("PreemptTime")) is not None
    return replace(found, restarts=int(restarts) if restarts.isdecimal() else 0, preempted=preempted), None


def _from_squeue(line: str) -> Job | None:
    parts = line.split("|", 4)
    if len(parts) != 5:
        return None
    job_id, state, nodes, ends, reason = (part.strip() for part in parts)
    return Job(job_id, state, _known(reason), _known(nodes), _time(ends))


def _from_accounts(job_id: str) -> Job | None:
    text, _ = run_command(["sacct", "--allocations", "--noheader", "--parsable2", f"--format={_SACCT}", f"--jobs={job_id}"])
    for line in (text or "").splitlines():
        parts = line.split("|")
        if len(parts) == 5 and parts[0] == job_id and parts[1]:
            state, _, rest = parts[1].partition(" ")  # CANCELLED by 1000
            return Job(job_id, state, rest.strip() or None, _known(parts[2]), _time(parts[3]), parts[4])
    return None


def _known(text: str | None) -> str | None:
    return None if text in (None, "", "None", "(null)", "None assigned") else text


def _time(text: str | None) -> dt.datetime | None:
    """SLURM tells local times without a zone."""
    try:
        return dt.datetime.fromisoformat(text or "").astimezone(dt.UTC)
    except ValueError:
        return None
