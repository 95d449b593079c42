"""A run folder: one writer, many readers, the only thing shared between processes and machines.

`config.json` asked for · `status.json` state, phase, progress, process, error · `profile.json` which path and why ·
`dataset.json` what was read · `history.csv` one row an epoch · `steps.csv` one row a step · `metrics.json` · `scores.csv` ·
`maps.npz` · `model.keras` · `scoring.npz` · `log.txt` · `launch.json` who started the process or which SLURM job it is ·
`slurm.json` SLURM's last word about that job · `notes.json` what people say about it · `cancel` please stop ·
`mlflow.json` where it is logged (`trackers_record`) · `tensorboard/` event files · `backup/` the state of training after its last whole
epoch, as long as the run may be resumed.
"""

from __future__ import annotations

import dataclasses
import os
import re
import secrets
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from app.cae.config import CaeConfig, read_config
from app.cae.reporting import HISTORY_COLUMNS
from app.core.errors import RunError
from app.runs import sentences
from app.runs.files import read_json, write_json
from app.runs.loading import (
    SCORE_COLUMNS,
    Maps,
    load_calibration,
    load_dataset_summary,
    load_history,
    load_maps,
    load_metrics,
    load_profile,
    load_scores,
    read_log_tail,
)
from app.runs.slurm_state import RECORD, job_of, judged_in_slurm
from app.runs.status import RunStatus, judged, status_from_json, utc_now

__all__ = [
    "HISTORY_COLUMNS",
    "SCORE_COLUMNS",
    "Maps",
    "RunFolder",
    "RunStatus",
    "default_runs_dir",
    "load_calibration",
    "load_dataset_summary",
    "load_history",
    "load_maps",
    "load_metrics",
    "load_profile",
    "load_scores",
    "read_log_tail",
]

BUILT_IN_DATA = ("elpv-mono", "elpv-poly", "synthetic")


def default_runs_dir() -> Path:
    """Where runs live: TWOPATH_RUNS_DIR, else `runs` in the current folder."""
    return Path(os.environ.get("TWOPATH_RUNS_DIR") or "runs").absolute()


@dataclass(frozen=True)
class RunFolder:
    """One run's folder. Reading never raises, except where said."""

    path: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path).absolute())

    @classmethod
    def create(cls, runs_dir: Path, config: CaeConfig, *, name: str | None = None) -> RunFolder:
        """Make the folder of a new run, state queued. It appears whole: readers never see it without config and status.

        A relative data folder is made absolute, since the run's process may live elsewhere.

        Raises:
            RunError: nothing can be written there; says why, with the free space when the disk is full.
        """
        runs_dir = Path(runs_dir).absolute()
        config = _with_absolute_data(config)
        try:
            runs_dir.mkdir(parents=True, exist_ok=True)
            building = runs_dir / f".new-{os.getpid()}-{secrets.token_hex(4)}"
            building.mkdir()
        except OSError as error:
            raise RunError(sentences.cannot_create(runs_dir, error)) from error
        try:
            write_json(building / "config.json", config.model_dump(mode="json"))
            if name:
                write_json(building / "notes.json", {"name": name})
            return _move_into_place(building, runs_dir, config)
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            raise

    @property
    def run_id(self) -> str:
        return self.path.name

    def config(self) -> CaeConfig:
        """What the run was asked to do. Raises OptionError when `config.json` is missing or holds no configuration."""
        return read_config(self.path / "config.json")

    def status(self) -> RunStatus:
        """The state of the run as of now. A folder that does not tell gives the state *unreadable* and a sentence in `error`."""
        try:
            values = read_json(self.path / "status.json")
            if values is None:
                raise ValueError("status.json is missing" if self.path.is_dir() else f"there is no such folder in {self.path.parent}")
            status = status_from_json(self.run_id, values)
        except ValueError as error:
            return RunStatus(self.run_id, "unreadable", error=f"Run {self.run_id} cannot be read: {error}.")
        if not status.live and status.state != "interrupted":
            return status
        judgement = self._judged(status)
        if judgement.live or not status.live:
            return judgement
        # Its process is gone now, but may have written its last word between our two looks.
        try:
            status = status_from_json(self.run_id, read_json(self.path / "status.json") or values)
        except ValueError:
            return judgement
        return self._judged(status)

    def _judged(self, status: RunStatus) -> RunStatus:
        launch = self.launch_record()
        if launch and job_of(launch):
            return judged_in_slurm(status, self.path, launch, cancel_asked=self.cancel_asked())
        return judged(status, launch=launch, cancel_asked=self.cancel_asked())

    def launch_record(self) -> dict[str, object] | None:
        """`launch.json`: the process as its starter knows it, and its exit status once the starter saw it end."""
        try:
            return read_json(self.path / "launch.json")
        except ValueError:
            return None

    def cancel_asked(self) -> bool:
        return (self.path / "cancel").exists()

    def ask_cancel(self) -> bool:
        """Ask the run to stop, from any machine that sees the folder; its process looks several times a second.

        Returns:
            False when that had been asked before.

        Raises:
            RunError: the folder cannot be written to.
        """
        try:
            os.close(os.open(self.path / "cancel", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
        except FileExistsError:
            return False
        except OSError as error:
            raise RunError(sentences.cannot_write(self.path / "cancel", error)) from error
        return True

    def set_up_again(self, before: RunStatus, *, keep_launch: bool = False) -> None:
        """Put an ended run back to queued, so that its process can start once more; what it computed stays.

        Args:
            keep_launch: the launch that `launch.json` tells goes on: a job that SLURM starts again.

        Raises:
            RunError: the folder cannot be written to.
        """
        # A job that SLURM starts again counts as queued by now: its former part ended with its last sign of life all the same.
        earlier_s = dataclasses.replace(before, state="interrupted").duration_s()
        queued = RunStatus(self.run_id, "queued", created=before.created or utc_now(), set_up=utc_now(), earlier_s=earlier_s)
        try:
            for name in ("cancel", RECORD, *(() if keep_launch else ("launch.json",))):
                (self.path / name).unlink(missing_ok=True)
        except OSError as error:
            raise RunError(sentences.cannot_write(self.path / name, error)) from error
        write_json(self.path / "status.json", queued.to_json())


def _move_into_place(building: Path, runs_dir: Path, config: CaeConfig) -> RunFolder:
    for _ in range(100):
        folder = RunFolder(runs_dir / _new_run_id(config))
        write_json(building / "status.json", RunStatus(folder.run_id, "queued", created=utc_now()).to_json())
        if folder.path.exists():
            continue
        try:
            # Fails on a folder that is there already: run folders are never empty.
            building.rename(folder.path)
        except OSError as error:
            if folder.path.exists():
                continue
            raise RunError(sentences.cannot_create(runs_dir, error)) from error
        return folder
    raise RunError(f"{runs_dir}: no free name for a new run was found in 100 tries.")


def _new_run_id(config: CaeConfig) -> str:
    """Sortable by start (UTC, then 1/256 s) and unique: `20261129-193005-elpv-mono-ab12`."""
    now = time.time()
    slug = re.sub(r"[^a-z0-9]+", "-", Path(config.data).name.lower()).strip("-")[:24].strip("-") or "data"
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}-{slug}-{int(now % 1 * 256):02x}{secrets.token_hex(1)}"


def _with_absolute_data(config: CaeConfig) -> CaeConfig:
    if config.data in BUILT_IN_DATA or not config.data.strip():
        return config
    try:
        folder = Path(config.data).expanduser()
        if folder.is_absolute() or not folder.exists():
            return config
    except (OSError, RuntimeError, ValueError):  # a name too long, a locked parent, no such user: said when the pictures are read
        return config
    return config.model_copy(update={"data": str(folder.absolute())})
