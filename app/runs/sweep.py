"""A sweep: data sets × options × paths, one run each. Local runs take turns on their device, SLURM jobs in the cluster's queue."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.cae.config import CaeConfig, make_config
from app.core.errors import AppError, OptionError
from app.runs.folder import RunFolder
from app.runs.launch import start_run
from app.runs.slurm_options import SlurmSettings

MOST_RUNS = 500
MOST_LOCAL_RUNS = 64
"""Every local run that waits is a process; so many fit into the memory of a laptop."""
TAG = "sweep"


@dataclass(frozen=True)
class Cell:
    """One run of a sweep."""

    options: dict[str, Any]
    """The options that were given, as text."""
    varied: dict[str, str]
    """Those that differ between the runs of the sweep."""
    config: CaeConfig

    @property
    def name(self) -> str | None:
        """For people: what differs from the other runs."""
        return " · ".join(f"{name} {_short(name, value)}" for name, value in self.varied.items()) or None


@dataclass(frozen=True)
class Started:
    """What became of a cell: a run folder, or why there is none."""

    cell: Cell
    run: RunFolder | None
    error: str | None = None


def expand(axes: Mapping[str, Sequence[str]]) -> list[Cell]:
    """Every combination of the values, the last axis fastest; combinations that mean the same come once.

    Args:
        axes: values of options of `CaeConfig` by name.

    Raises:
        OptionError: an option does not exist, has no values, a value does not fit, or there are too many combinations.
    """
    for name, values in axes.items():
        if name not in CaeConfig.model_fields:
            raise OptionError(f"--set: expected an option of cae (see cae --help), got {name!r}.")
        if not values or not all(str(value).strip() for value in values):
            raise OptionError(f"--set {name}: expected one or more values, separated by commas, got {','.join(values)!r}.")
    count = 1
    for values in axes.values():
        count *= len(values)
    if count > MOST_RUNS:
        raise OptionError(f"sweep: expected at most {MOST_RUNS} runs, got {count}.")
    cells: dict[CaeConfig, Cell] = {}
    for combination in itertools.product(*axes.values()):
        options = dict(zip(axes, combination, strict=True))
        config = make_config(options)
        varied = {name: value for name, value in options.items() if len(set(axes[name])) > 1}
        cells.setdefault(config, Cell(options, varied, config))
    return list(cells.values())


def new_tag() -> str:
    """By which the runs of one sweep are found again, in Compare for example: `sweep-1129-2240-3f`."""
    return f"{TAG}-{time.strftime('%m%d-%H%M')}-{secrets.token_hex(1)}"


def start_sweep(
    cells: Sequence[Cell],
    runs_dir: Path,
    *,
    tag: str,
    slurm: SlurmSettings | None = None,
    max_parallel: int | None = None,
    program: Sequence[str] | None = None,
) -> Iterator[Started]:
    """Start the runs one after the other and tell each at once. After the first that cannot be started the others are not tried.

    Args:
        tag: added to the notes of every run.
        slurm: submit them as jobs; default: processes on this machine, which take turns on their device.
        max_parallel: at most so many of the jobs run at once. Jobs of one name and user run one after the other (SLURM's dependency
            `singleton`), so the jobs share that many names.
        program: as for `start_run`.

    Raises:
        OptionError: more runs than this machine should hold as waiting processes.
    """
    if slurm is None and len(cells) > MOST_LOCAL_RUNS:
        raise OptionError(f"sweep: expected at most {MOST_LOCAL_RUNS} runs on one machine, got {len(cells)}. Use --launcher slurm.")
    stopped: str | None = None
    for number, cell in enumerate(cells):
        if stopped is not None:
            yield Started(cell, None, stopped)
            continue
        one_of = f"twopath-{tag}-{number % max_parallel}" if max_parallel else None
        try:
            run = start_run(cell.config, runs_dir, name=cell.name, program=program, slurm=slurm, tags=(tag,), one_of=one_of)
        except AppError as error:
            stopped = "Not started, since one before could not be."
            yield Started(cell, None, str(error))
            continue
        yield Started(cell, run)


def _short(name: str, value: str) -> str:
    return Path(value).name or value if name == "data" else value
