"""`python -m app.main sweep`: the table of runs, and starting them."""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

from app.core.errors import OptionError
from app.runs.data_there import refuse_meaningless_data, refuse_missing_data
from app.runs.folder import default_runs_dir
from app.runs.slurm_cli import submitted
from app.runs.slurm_options import add_slurm_options, settings_from
from app.runs.sweep import Cell, Started, expand, new_tag, start_sweep

_DESCRIPTION = "Starts one run for every combination of data sets, options and paths, tagged so that Compare finds them together."
_LEFT_OUT = "Left out: {count} that would repeat another run of the sweep."


def add_sweep_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add the command `sweep`; `sweep_command` carries it out."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "sweep", help="one run for every combination of options", description=_DESCRIPTION
    )
    parser.add_argument("--data", action="append", default=None, metavar="DATA", help="a data set or folder; give it again for more")
    parser.add_argument(
        "--set",
        dest="sets",
        action="append",
        default=[],
        metavar="OPTION=A,B",
        help="values of an option of cae (latent_dim=64,128); give it again for more options",
    )
    parser.add_argument("--device", default=None, metavar="cpu,gpu", help="paths: auto, cpu, gpu, separated by commas")
    parser.add_argument("--tag", default=None, metavar="TAG", help="in the notes of every run (default: sweep- and the time)")
    parser.add_argument("--max-parallel", default=None, metavar="N", help="with --launcher slurm: at most so many jobs at once")
    parser.add_argument("--dry-run", action="store_true", help="only print the table of runs")
    parser.add_argument(
        "--runs-dir", type=Path, default=None, metavar="DIR", help="where run folders are made (default: TWOPATH_RUNS_DIR, else runs)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_slurm_options(parser)
    return parser


def sweep_command(args: argparse.Namespace) -> int:
    """Exit status 0 when every run was started, 1 when one could not be.

    Raises:
        OptionError: an option or setting does not fit; then nothing is started.
    """
    axes = axes_of(args)
    cells = expand(axes)
    settings, most = settings_from(args), _max_parallel(args)
    tag = new_tag() if args.tag is None else args.tag.strip()
    if not tag:
        raise OptionError("--tag: expected a word, got nothing.")
    # Nodes of a cluster may see folders that this machine does not.
    check = refuse_missing_data if settings is None else refuse_meaningless_data
    for data in dict.fromkeys(cell.config.data for cell in cells):
        check(data)
    if left_out := math.prod(map(len, axes.values())) - len(cells):
        print(_LEFT_OUT.format(count=f"{left_out} combination{'s' if left_out > 1 else ''}"), file=sys.stderr)
    if not args.json:
        print_table(cells)
    if args.dry_run:
        if args.json:
            _print_json({"tag": None, "runs": [{"name": cell.name, "options": cell.options} for cell in cells]})
        return 0
    started = []
    for one in start_sweep(cells, args.runs_dir or default_runs_dir(), tag=tag, slurm=settings, max_parallel=most):
        started.append(one)
        if not args.json:
            _tell(one, len(started), len(cells))
    if args.json:
        _print_json({"tag": tag, "runs": [_as_json(one) for one in started]})
    else:
        print(f"Tagged {tag}: in Compare, filter by this tag.")
    return 1 if any(one.error for one in started) else 0


def axes_of(args: argparse.Namespace) -> dict[str, list[str]]:
    """The values of each option, in the order given; data sets first, paths last.

    Raises:
        OptionError: a `--set` without values, or an option given twice.
    """
    axes: dict[str, list[str]] = {"data": list(args.data)} if args.data else {}
    for text in args.sets:
        name, equals, values = text.partition("=")
        name = name.strip().lstrip("-").replace("-", "_")
        if not equals:
            raise OptionError(f"--set: expected OPTION=A,B, got {text!r}.")
        if name in axes:
            raise OptionError(f"--set {name}: expected every option once, got it twice.")
        axes[name] = [value.strip() for value in values.split(",")]
    if args.device is not None:
        if "device" in axes:
            raise OptionError("--device: expected the paths once, got them also as --set device.")
        axes["device"] = [value.strip() for value in args.device.split(",")]
    return axes


def print_table(cells: list[Cell]) -> None:
    """One line a run: what differs; what is the same for all comes first, once."""
    same = {name: value for name, value in cells[0].options.items() if name not in cells[0].varied}
    print(
        f"{len(cells)} run{'s' if len(cells) != 1 else ''}"
        + (f", all with {', '.join(f'{k} {v}' for k, v in same.items())}" if same else "")
    )
    names = list(cells[0].varied)
    if not names:
        return
    width = {name: max(len(name), *(len(cell.varied[name]) for cell in cells)) for name in names}
    print("  ".join([f"{'#':>3}", *(name.ljust(width[name]) for name in names)]).rstrip())
    for number, cell in enumerate(cells, 1):
        print("  ".join([f"{number:>3}", *(cell.varied[name].ljust(width[name]) for name in names)]).rstrip())


def _tell(one: Started, number: int, count: int) -> None:
    if one.run is None:
        print(f"{number} of {count}: {one.error}", file=sys.stderr)
        return
    told = submitted(one.run)
    job = f" as SLURM job {told['slurm_job']}" if told["slurm_job"] else ""
    print(f"{number} of {count}: run {one.run.run_id}{job}", flush=True)


def _as_json(one: Started) -> dict[str, Any]:
    told = submitted(one.run) if one.run else {"run_id": None, "run_folder": None, "state": None, "launcher": None, "slurm_job": None}
    return {**told, "name": one.cell.name, "options": one.cell.options, "error": one.error}


def _max_parallel(args: argparse.Namespace) -> int | None:
    if args.max_parallel is None:
        return None
    if not re.fullmatch(r"[1-9]\d{0,3}", args.max_parallel):
        raise OptionError(f"--max-parallel: expected a number from 1 to 9999, got {args.max_parallel!r}.")
    if args.launcher != "slurm":
        raise OptionError("--max-parallel: expected --launcher slurm beside it; runs on this machine take turns on their device.")
    return int(args.max_parallel)


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))
