"""`python -m app.main bench`: measure every path of this machine, or list them."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from app.core.errors import OptionError
from app.runs.bench_options import CHANNELS, BenchOptions, make_options

CANCELLED_STATUS = 130
"""As a cancelled run has it."""

_METAVARS = {"points": "A,B,…", "channels": "|".join(CHANNELS)}
_DESCRIPTION = (
    "The same training steps and scoring of the autoencoder on each GPU and, on the CPU, with each instruction set, without oneDNN, and "
    "with other thread counts; each point a process of its own, in interleaved rounds. It waits for runs and lets none compute beside it."
)
_LIST_ALONE = "--list: expected no --out beside it, since nothing is measured."


def add_bench_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add the command `bench`; `bench_command` carries it out."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "bench",
        help="measure the same training steps and scoring on every path of this machine",
        description=_DESCRIPTION,
    )
    for item in fields(BenchOptions):
        if "help" in item.metadata:
            default = "all" if item.name == "points" else item.default
            parser.add_argument(
                f"--{item.name.replace('_', '-')}",
                dest=item.name,
                default=None,
                metavar=_METAVARS.get(item.name, "N"),
                help=f"{item.metadata['help']} (default: {default})",
            )
    parser.add_argument("--list", action="store_true", help="show the points, and why some do not exist here, without measuring")
    parser.add_argument("--out", type=Path, default=None, metavar="DIR", help="folder for the result (default: bench/ in the runs folder)")
    parser.add_argument(
        "--runs-dir", type=Path, default=None, metavar="DIR", help="where run folders are (default: TWOPATH_RUNS_DIR, else runs)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def bench_command(args: argparse.Namespace) -> int:
    """Measure (or list) and print; 0, or 130 when cancelled. Raises AppError with a sentence for whatever does not work."""
    from app.runs.bench_folder import BenchFolder
    from app.runs.bench_worker import carry_out
    from app.runs.bench_writer import terminal_echo
    from app.runs.folder import default_runs_dir

    options = make_options({item.name: getattr(args, item.name, None) for item in fields(BenchOptions)})
    if args.list:
        return _list(args, options)
    folder = BenchFolder(args.out) if args.out is not None else BenchFolder.new(args.runs_dir or default_runs_dir())
    result = carry_out(folder, options, echo=terminal_echo())
    if args.json:
        _print_json({**result.to_json(), "folder": str(folder.path)})
    else:
        from app.runs.bench_table import to_text

        print(f"{to_text(result)}\n\nSaved in {folder.path}")
    return CANCELLED_STATUS if result.state == "cancelled" else 0


def _list(args: argparse.Namespace, options: BenchOptions) -> int:
    from app.runs.bench_table import plan_text
    from app.runs.bench_worker import plan_here

    if args.out is not None:
        raise OptionError(_LIST_ALONE)
    plan = plan_here(options)
    if args.json:
        _print_json(asdict(plan))
    else:
        print(plan_text(plan))
    return 0


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))
