"""`python -m app.main score RUN PICTURE…`: new pictures through the model of a run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from app.cae.config import make_config
from app.core.device_policy import DEFAULT_MIN_VRAM_MIB
from app.core.words import counted
from app.runs.score_worker import Ended

_DESCRIPTION = (
    "Scores pictures with the model, calibration and threshold of a run, on the path that is decided now. Writes scores.csv, a heat map "
    "for each picture at its own size, maps.npz and result.json."
)


def add_score_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add the command `score`; `score` carries it out."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "score", help="score new pictures with the model of a run", description=_DESCRIPTION
    )
    parser.add_argument("run", metavar="RUN", help="id of a run, the beginning of one that is unique, or the path of its folder")
    parser.add_argument("pictures", metavar="PICTURE", nargs="+", type=Path, help="picture files, or folders of them")
    parser.add_argument(
        "--runs-dir", type=Path, default=None, metavar="DIR", help="where run folders are (default: TWOPATH_RUNS_DIR, else runs)"
    )
    parser.add_argument(
        "--out", type=Path, default=None, metavar="DIR", help="new or empty folder for the results (default: one in scored/ of the run)"
    )
    parser.add_argument(
        "--device", default="auto", metavar="auto|cpu|gpu|UUID|INDEX", help="force a path or one GPU (default: %(default)s)"
    )
    parser.add_argument(
        "--min-vram-mib", default=str(DEFAULT_MIN_VRAM_MIB), metavar="N", help="free VRAM needed, MiB (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def score(args: argparse.Namespace) -> Ended:
    """Carry the command out.

    Raises:
        AppError: with a sentence for whatever does not work.
    """
    from app.runs.bench_writer import terminal_echo
    from app.runs.cli import resolve_run
    from app.runs.folder import default_runs_dir
    from app.runs.score_folder import new_folder
    from app.runs.score_worker import carry_out, to_stderr

    config = make_config({"device": args.device, "min_vram_mib": args.min_vram_mib})
    run = resolve_run(args.runs_dir or default_runs_dir(), args.run)
    folder = args.out.absolute() if args.out is not None else new_folder(run)
    return carry_out(folder, run, args.pictures, config, echo=terminal_echo(), problem=to_stderr)


def in_words(result: dict[str, Any]) -> str:
    """A result for people: a line a picture, then how many, how fast, on which path and why."""
    lines = [
        f"{row['verdict']:<9}  score {row['score']:>9.4g}  threshold {row['threshold']:.4g}  {row['path']}" for row in result["pictures"]
    ]
    lines += result["notes"]
    left_out = len(result["problems"])
    lines.append(
        f"{counted(result['count'], 'picture')} scored, {result['defective']} called defective, {result['good']} good"
        + (f"; {left_out} left out, see above." if left_out else ".")
    )
    speed = result["images_per_s"]
    rate = f"{speed:.3g} images/s" if speed is not None else f"images/s not measured: {result['not_available']['images_per_s']}"
    lines += [f"{result['path']}: {result['reason']}", rate, f"Written to {result['folder']}"]
    return "\n".join(lines)
