"""The state of a run: what its process last wrote, and what a reader makes of it.

The writer knows queued, running, finished, failed and cancelled, and inside SLURM *interrupted* (SLURM stops it). A reader adds
*interrupted* (it should be alive but its process is gone) and *unreadable* (the folder does not tell), so that a run which could not say
its last word is still shown truthfully. What SLURM says about a job comes in through `slurm_state`.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from app.runs import sentences
from app.runs.processes import ProcessMark, is_alive, oom_kills

State = Literal["queued", "running", "finished", "failed", "cancelled", "interrupted", "unreadable"]
Phase = Literal["reading", "training", "scoring", "writing"]
STATES: tuple[str, ...] = get_args(State)
PHASES: tuple[str, ...] = get_args(Phase)
LIVE_STATES = ("queued", "running")

HEARTBEAT_S = 2.0
LOST_AFTER_S = 60.0
"""A run on another machine counts as gone after this long without a heartbeat. Generous: shared file systems cache for seconds."""
START_WITHIN_S = 60.0
"""A run that was set up must have a process within this time. Importing Python packages from a cold network disk takes a while."""


@dataclass(frozen=True)
class RunStatus:
    """`status.json`. Times are aware datetimes in UTC; unknown is `None`, never 0."""

    run_id: str
    state: State
    phase: str | None = None
    """reading, training, scoring or writing; `None` before the first."""
    progress_done: int | None = None
    progress_total: int | None = None
    """Progress within the phase, in the pipeline's own steps."""
    eta_s: float | None = None
    """Seconds this phase still takes, from the speed since its first step; the first step, which compiles, is left out."""
    message: str | None = None
    """What is going on, where that needs words: what a queued run waits for."""
    epoch: int | None = None
    epochs: int | None = None
    best_epoch: int | None = None
    best_val_loss: float | None = None
    batch_size: int | None = None
    """The one that fitted into memory, once training is over."""
    pid: int | None = None
    pid_started: float | None = None
    pid_token: str | None = None
    host: str | None = None
    created: dt.datetime | None = None
    set_up: dt.datetime | None = None
    """When it was queued again to be resumed."""
    started: dt.datetime | None = None
    """When it left the queue; of a resumed run, for the last time."""
    earlier_s: float | None = None
    """Seconds that the parts before the last resume took."""
    heartbeat: dt.datetime | None = None
    ended: dt.datetime | None = None
    error: str | None = None
    """Why it failed or was interrupted, a sentence."""
    selected_device: str | None = None
    path: str | None = None
    reason: str | None = None
    train_images_per_s: float | None = None
    score_images_per_s: float | None = None
    memory_mib: int | None = None
    """Resident memory of the process at the last heartbeat."""
    memory_free_mib: int | None = None
    oom_kills: int | None = None
    """The machine's count of out-of-memory kills when the run began."""
    cancel_requested: bool = False
    warnings: tuple[str, ...] = field(default=())

    @property
    def live(self) -> bool:
        return self.state in LIVE_STATES

    @property
    def progress(self) -> float | None:
        """Share of the phase that is done, 0-1."""
        if not self.progress_total or self.progress_done is None:
            return None
        return min(1.0, max(0.0, self.progress_done / self.progress_total))

    @property
    def mark(self) -> ProcessMark | None:
        return ProcessMark(self.pid, self.pid_started, self.host, self.pid_token) if self.pid else None

    def duration_s(self, now: dt.datetime | None = None) -> float | None:
        """From leaving the queue to the end, or to the last sign of life, or to now; the parts before a resume are added."""
        end = self.ended or ((now or utc_now()) if self.live else self.heartbeat)
        if self.started is None or end is None:
            return self.earlier_s
        return max(0.0, (end - self.started).total_seconds()) + (self.earlier_s or 0.0)

    def heartbeat_age_s(self, now: dt.datetime | None = None) -> float | None:
        return max(0.0, ((now or utc_now()) - self.heartbeat).total_seconds()) if self.heartbeat else None

    def to_json(self) -> dict[str, Any]:
        """Times as ISO 8601 with milliseconds, UTC."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: iso(value) if isinstance(value, dt.datetime) else value for name, value in values.items()}


_KINDS: dict[str, Any] = {item.name: str(item.type) for item in fields(RunStatus)}


def status_from_json(run_id: str, values: dict[str, Any]) -> RunStatus:
    """A status from what a file holds. Unknown keys are ignored, values of the wrong type count as not known.

    Raises:
        ValueError: no state, or one that does not exist.
    """
    state = values.get("state")
    if state not in STATES:
        raise ValueError(f"status.json: expected a state ({', '.join(STATES[:5])}), got {state!r}")
    known = {name: read for name in _KINDS if name in values and (read := _as_kind(_KINDS[name], values[name])) is not None}
    return RunStatus(**{**known, "run_id": run_id, "state": state})


def _as_kind(kind: str, value: Any) -> Any:
    if kind.startswith("dt."):
        return parse_time(value)
    if kind.startswith("tuple"):
        return tuple(str(item) for item in value) if isinstance(value, list) else None
    if kind == "bool":
        return value is True
    if kind.startswith("str"):
        return value if isinstance(value, str) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value) if kind.startswith("float") else int(value)


def judged(status: RunStatus, *, launch: dict[str, Any] | None, cancel_asked: bool, now: dt.datetime | None = None) -> RunStatus:
    """What a reader makes of the written status: still alive, or ended without a word.

    Args:
        launch: content of `launch.json` (who started the process, and how it ended as its parent saw it), if there is one.
        cancel_asked: whether somebody asked the run to stop through its folder.
    """
    if not status.live:
        return status
    now = now or utc_now()
    process = status.mark or launched(launch)
    if process is None:
        born = status.set_up or status.created or now
        if (now - born).total_seconds() <= START_WITHIN_S:
            return status
        return _ended(status, cancel_asked, sentences.NEVER_STARTED)
    alive = is_alive(process)
    if alive or (alive is None and (status.heartbeat_age_s(now) or 0.0) <= LOST_AFTER_S):
        return status
    killed = oom_kills() if alive is False else None
    sentence = sentences.gone(
        heartbeat=status.heartbeat.strftime("%Y-%m-%d %H:%M:%S UTC") if status.heartbeat else None,
        rss_mib=status.memory_mib,
        free_mib=status.memory_free_mib,
        oom=killed is not None and status.oom_kills is not None and killed > status.oom_kills,
        returncode=_returncode(launch, process),
        elsewhere=process.host if alive is None else None,
    )
    return _ended(status, cancel_asked, sentence)


def _ended(status: RunStatus, cancel_asked: bool, sentence: str) -> RunStatus:
    if cancel_asked or status.cancel_requested:
        return dataclasses.replace(status, state="cancelled", error=None, message=sentences.KILLED_BY_CANCEL, eta_s=None)
    return dataclasses.replace(status, state="interrupted", error=sentence, message=None, eta_s=None)


def launched(launch: dict[str, Any] | None) -> ProcessMark | None:
    """The process that `launch.json` names; `None` when there is no such file or it names none."""
    if not launch or not isinstance(launch.get("pid"), int):
        return None
    started, host, token = launch.get("pid_started"), launch.get("host"), launch.get("pid_token")
    return ProcessMark(
        launch["pid"],
        float(started) if isinstance(started, (int, float)) else None,
        host if isinstance(host, str) else None,
        token if isinstance(token, str) else None,
    )


def _returncode(launch: dict[str, Any] | None, process: ProcessMark) -> int | None:
    value = (launch or {}).get("returncode")
    return value if isinstance(value, int) and (launch or {}).get("pid") == process.pid else None


def utc_now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def iso(time: dt.datetime) -> str:
    return time.astimezone(dt.UTC).isoformat(timespec="milliseconds")


def parse_time(text: Any) -> dt.datetime | None:
    """An ISO 8601 time as an aware datetime; a time without a zone counts as UTC; anything else is `None`."""
    if not isinstance(text, str):
        return None
    try:
        time = dt.datetime.fromisoformat(text)
    except ValueError:
        return None
    return time.astimezone(dt.UTC) if time.tzinfo else time.replace(tzinfo=dt.UTC)
