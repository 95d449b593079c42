"""`python -m app.main cae --launcher slurm`: submits the run and tells its id and the job's; with `--wait`, also how it ends."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from app.cae.config import CaeConfig
from app.core.errors import OptionError
from app.runs.folder import RunFolder, default_runs_dir
from app.runs.slurm_options import add_slurm_options, settings_from
from app.runs.slurm_state import job_of

_LOOK_EVERY_S = 2.0
EXIT_STATUS = {"finished": 0, "cancelled": 130}


def add_launcher_options(parser: argparse.ArgumentParser) -> None:
    """Add `--launcher`, its settings and `--wait`."""
    add_slurm_options(parser)
    parser.add_argument("--wait", action="store_true", help="with --launcher slurm: wait until the run has ended")


def submit_command(args: argparse.Namespace, config: CaeConfig) -> int:
    """Submit one run. Exit status 0 when SLURM took it; with `--wait` the run's own: 0 finished, 130 cancelled, else 1.

    Raises:
        AppError: a setting does not fit, or SLURM refuses the job.
    """
    from app.runs.launch import start_run
    from app.runs.worker import summary

    run = start_run(config, args.runs_dir or default_runs_dir(), slurm=settings_from(args))
    if not args.wait:
        tell(args, submitted(run), f"Submitted run {run.run_id} as SLURM job {job_of(run.launch_record())}, in {run.path}")
        return 0
    status = wait_for(run, say=None if args.json else print)
    tell(args, {**summary(run.path), **submitted(run)}, f"Run {run.run_id} {status}, in {run.path}. {run.status().error or ''}".rstrip())
    return EXIT_STATUS.get(status, 1)


def submitted(run: RunFolder) -> dict[str, Any]:
    """What a script needs to know about a run that was started in the background."""
    job_id = job_of(run.launch_record())
    launcher = "slurm" if job_id else "local"
    return {"run_id": run.run_id, "run_folder": str(run.path), "state": run.status().state, "launcher": launcher, "slurm_job": job_id}


def wait_for(run: RunFolder, *, say: Any = None) -> str:
    """The state in which the run ends. `say` gets a line whenever it begins to wait for something else, or enters a phase.

    Ctrl-C ends the waiting and not the run.
    """
    before = None
    try:
        while True:
            status = run.status()
            now = status.message if status.state == "queued" else f"running: {status.phase or 'starting TensorFlow'}"
            if not status.live:
                return status.state
            if say is not None and now != before:
                say(now)
                sys.stdout.flush()
            before = now
            time.sleep(_LOOK_EVERY_S)
    except KeyboardInterrupt:
        print(f"Run {run.run_id} goes on; runs cancel {run.run_id} stops it.", file=sys.stderr)
        raise


def tell(args: argparse.Namespace, values: dict[str, Any], sentence: str) -> None:
    print(json.dumps(values, indent=2, ensure_ascii=False) if args.json else sentence)


def refuse_wait_alone(args: argparse.Namespace) -> None:
    """Raises OptionError where `--wait` has nothing to wait for."""
    if args.wait and args.launcher != "slurm":
        raise OptionError("--wait: expected --launcher slurm beside it; without it the command itself is the run.")
