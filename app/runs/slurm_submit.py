"""Submitting a run as a SLURM job, and stopping it. The run folder on the shared file system is the only channel.

submitit makes the batch script and reads sbatch's answer. Its own way of running a function is not used: it writes the function as a
pickle and loads that in the job, and no pickle is ever loaded here; it also swallows SIGTERM, which is how SLURM asks a run to stop.
The script ends in `exec python -m app.main cae --run-folder …`: the run *is* the job's batch process, so signals reach it, no srun
stands between, and its exit status is the job's.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import app
from app.core.errors import RunError
from app.runs import sentences
from app.runs.detached import absolute_folders
from app.runs.slurm_options import SlurmSettings
from app.runs.slurm_queue import QUEUE, first_error, run_command, slurm_missing

SCRIPTS = "slurm"
"""Sub-folder of a run with the batch scripts that were submitted for it."""
_SBATCH_LIMIT_S = 60.0
_NOT_IN_NAMES = re.compile(r"[^\w.@+-]")
"""A name stands in a line of the script; what follows a line break would be the shell's."""
_WARN_S = 60
_WARN_FROM_MIN = 10.0
"""From this time limit on, SLURM is asked to send SIGTERM a minute before the end, and not only KillWait (30 s by default) before."""


def submit(
    run_folder: Path,
    command: Sequence[str],
    settings: SlurmSettings,
    *,
    with_gpus: bool = True,
    job_name: str | None = None,
    in_turn: bool = False,
) -> str:
    """Submit `command` as a job whose output is appended to the run's `log.txt`.

    Args:
        with_gpus: whether `settings.gpus` are asked for: a run on the CPU path needs none.
        job_name: default: `twopath-` and the run's id.
        in_turn: jobs of one name and user run one after the other (SLURM's dependency `singleton`).

    Returns:
        The job's id.

    Raises:
        RunError: submitit or SLURM is not there, or SLURM refuses the job; says why in SLURM's words.
    """
    if trouble := slurm_missing():
        raise RunError(f"--launcher slurm: {trouble} Run it on a machine that can submit jobs.")
    parameters = {
        "job_name": _NOT_IN_NAMES.sub("_", job_name or f"twopath-{run_folder.name}"),
        "partition": settings.partition,
        "account": settings.account,
        "cpus_per_task": settings.cpus,
        "mem": settings.memory,
        "time": None,  # submitit's default is five minutes
        "wckey": None,  # and a key for accounting that few clusters know
        "dependency": "singleton" if in_turn else None,
        "stderr_to_stdout": True,
        "use_srun": False,
        "setup": _setup(),
        "additional_parameters": _additional(run_folder, settings, with_gpus),
    }
    text = _script(run_folder, f"exec {shlex.join(command)}", parameters)
    return _sbatch(run_folder, text, _environment(settings, with_gpus=with_gpus))


def _additional(run_folder: Path, settings: SlurmSettings, with_gpus: bool) -> dict[str, Any]:
    assert app.__file__ is not None
    # In the names of output files sbatch replaces %j and its like.
    asked: dict[str, Any] = {
        "output": str(run_folder / "log.txt").replace("%", "%%"),
        "chdir": str(Path(app.__file__).resolve().parents[1]),
        "open-mode": "append",
    }
    if settings.time is not None:
        asked["time"] = settings.time
        if (settings.minutes() or 0) >= _WARN_FROM_MIN:
            asked["signal"] = f"B:TERM@{_WARN_S}"
    if settings.gpus is not None and with_gpus and settings.gpus.rpartition(":")[2].strip("0"):
        asked["gpus-per-node"] = settings.gpus
    return {**asked, **{name: value or True for name, value in settings.extra.items()}}


def _setup() -> list[str]:
    """Lines of the script before the command: what `start_detached` gives a local run."""
    variables = {"PYTHONUNBUFFERED": "1", **absolute_folders()}
    return [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]


def _script(run_folder: Path, command: str, parameters: dict[str, Any]) -> str:
    if any(character in str(run_folder) for character in "\n\r'\"\\"):
        raise RunError(
            f"{run_folder}: expected a folder for runs without quotes, backslashes and line breaks in its name, which sbatch cannot take."
        )
    try:
        from submitit import SlurmExecutor
    except ImportError:
        raise RunError(
            "--launcher slurm: expected the package submitit, which is not installed. Install the extra: pip install 'twopath[slurm]'."
        ) from None

    class Script(SlurmExecutor):
        """The part of submitit that turns parameters into a batch script."""

        def text(self) -> str:
            return str(self._make_submission_file_text(command, uid=""))

    executor = Script(folder=run_folder / SCRIPTS)
    executor.update_parameters(**parameters)
    return executor.text()


def _sbatch(run_folder: Path, text: str, environment: dict[str, str]) -> str:
    place = run_folder / SCRIPTS
    script = place / f"{secrets.token_hex(4)}.sh"
    try:
        place.mkdir(exist_ok=True)
        script.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunError(sentences.cannot_write(script, error)) from error
    answer, trouble = run_command(["sbatch", str(script)], _SBATCH_LIMIT_S, environment=environment, complaint=_refusal)
    QUEUE.forget()
    if answer is None:
        script.unlink(missing_ok=True)
        raise RunError(f"SLURM refused the job: {trouble}.")
    found = re.search(r"job (\d+)", answer)
    if found is None:
        raise RunError(f"SLURM's sbatch: expected the number of a job, got {' '.join(answer.split())[:200]!r}.")
    with contextlib.suppress(OSError):
        script.rename(place / f"{found[1]}.sh")
    return found[1]


def _refusal(text: str) -> str:
    """sbatch's own words: one complaint may name the option, another the cause."""
    lines = [line for line in text.splitlines() if ": error: " in line] or [text]
    return "; ".join(first_error(line).removeprefix("Batch job submission failed: ") for line in lines)


def _environment(settings: SlurmSettings, *, with_gpus: bool = True) -> dict[str, str]:
    """Of sbatch, and so of the run. sbatch takes its SBATCH_… variables before the lines of the script: those that contradict go.

    A dashboard may itself be a job of SLURM: that job's variables (its number, its share of CPUs) are not the run's.
    """
    gone = {f"SBATCH_{name}" for name in _RESERVED} | {f"SBATCH_{name.upper().replace('-', '_')}" for name in settings.extra}
    if not with_gpus:
        gone |= _VARIABLES["gpus"]
    for name, variables in _VARIABLES.items():
        if getattr(settings, name) is not None:
            gone |= variables
    return {
        name: value for name, value in os.environ.items() if name not in gone and (name == "SLURM_CONF" or not name.startswith("SLURM_"))
    }


_RESERVED = ("ARRAY_INX", "CLUSTERS", "ERROR", "EXPORT", "INPUT", "JOB_NAME", "OPEN_MODE", "OUTPUT", "SIGNAL", "WAIT")
_VARIABLES = {
    "partition": {"SBATCH_PARTITION"},
    "account": {"SBATCH_ACCOUNT"},
    "time": {"SBATCH_TIMELIMIT"},
    "gpus": {"SBATCH_GPUS", "SBATCH_GPUS_PER_NODE", "SBATCH_GPUS_PER_SOCKET", "SBATCH_GPUS_PER_TASK"},
    "memory": {"SBATCH_MEM_PER_NODE", "SBATCH_MEM_PER_CPU", "SBATCH_MEM_PER_GPU"},
}


def stop_waiting_job(job_id: str) -> str | None:
    """Take a job out of the queue. `None`, or why that did not work."""
    return _scancel(job_id)


def signal_job(job_id: str) -> str | None:
    """Send SIGTERM to the run's process, wherever it runs. `None`, or why that did not work."""
    return _scancel("--batch", "--signal=TERM", job_id)


def kill_job(job_id: str) -> str | None:
    """Kill the run's processes and end the job. `None`, or why that did not work."""
    trouble = _scancel("--full", "--signal=KILL", job_id)
    # Also, so that SLURM does not take the kill for a failure after which it would start the job again.
    return _scancel(job_id) and trouble


def _scancel(*arguments: str) -> str | None:
    _, trouble = run_command(["scancel", *arguments])
    QUEUE.forget()
    return trouble
