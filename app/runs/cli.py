"""`python -m app.main runs list|show|cancel|resume|delete|restore [RUN]`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.core.errors import OptionError
from app.runs.folder import RunFolder, default_runs_dir

_WIDTHS = {"run_id": 0, "state": 11, "phase": 9, "device": 6, "epochs": 6, "train/s": 8, "score/s": 8, "AUROC": 6, "name": 0}


def add_runs_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add the command `runs`; `run_command` carries it out."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "runs",
        help="list, show, cancel, resume, delete and restore runs",
        description="What became of the runs, and what shall become of them.",
    )
    parser.add_argument(
        "action",
        choices=tuple(_ACTIONS),
        help="a second cancel kills; resume goes on after the last whole epoch; delete moves to a bin, restore brings back",
    )
    parser.add_argument("run", nargs="?", metavar="RUN", help="id of a run, the beginning of one that is unique, or the path of its folder")
    parser.add_argument(
        "--runs-dir", type=Path, default=None, metavar="DIR", help="where run folders are (default: TWOPATH_RUNS_DIR, else runs)"
    )
    parser.add_argument(
        "--launcher",
        choices=("local", "slurm"),
        default=None,
        help="resume only: where the run goes on (default: where it was carried out)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def run_command(args: argparse.Namespace) -> int:
    """Carry out one of the actions and print its answer. Raises AppError with a sentence for whatever does not work."""
    if args.action == "list" and args.run:
        raise OptionError(f"RUN: runs list takes no run, got {args.run!r}; runs show RUN shows one.")
    if args.action != "list" and not args.run:
        raise OptionError(f"RUN: runs {args.action} expects the id of a run; runs list shows them.")
    if args.launcher and args.action != "resume":
        raise OptionError(f"--launcher: expected runs resume before it, got runs {args.action}.")
    _ACTIONS[args.action](args, args.runs_dir or default_runs_dir())
    return 0


def _list(args: argparse.Namespace, runs_dir: Path) -> None:
    from app.runs.table import list_json

    rows = list_json(runs_dir)
    if args.json:
        _print_json(rows)
        return
    if not rows:
        print(f"No runs in {runs_dir}.")
        return
    widths = _WIDTHS if not any(row["slurm_job"] for row in rows) else {**_WIDTHS, "SLURM": 0, "name": 24}
    widths = {**widths, "run_id": max(len(row["run_id"]) for row in rows)}
    print("  ".join(title.ljust(width) for title, width in widths.items()).rstrip())
    for row in rows:
        cells = {
            "run_id": row["run_id"],
            "state": row["state"],
            "phase": row["phase"],
            "device": row["selected_device"],
            "epochs": row["epochs"],
            "train/s": _figure(row["train_images_per_s"], "{:.1f}"),
            "score/s": _figure(row["score_images_per_s"], "{:.1f}"),
            "AUROC": _figure(row["metrics"]["image_auroc"], "{:.3f}"),
            "name": row["name"] or "",
            "SLURM": f"{row['slurm_job']} {row['slurm_state'] or 'no longer known'}" if row["slurm_job"] else "",
        }
        print("  ".join(str("–" if cells[title] is None else cells[title]).ljust(width) for title, width in widths.items()).rstrip())


def _show(args: argparse.Namespace, runs_dir: Path) -> None:
    from app.runs.table import run_json
    from app.runs.trackers_record import read_record

    folder = _find(args, runs_dir)
    status = folder.status()
    record = read_record(folder.path)
    logged = {"mlflow": record.trouble or record.url or record.mlflow_run_id} if record else {}
    values = {**run_json(folder), **logged, "status": status.to_json(), "config": _config(folder)}
    if args.json:
        _print_json(values)
        return
    for name, value in values.items():
        if name not in ("status", "config", "metrics") and value not in (None, "", []):
            print(f"{name:<20} {value}")
    for name, value in values["metrics"].items():
        print(f"{name:<20} {_figure(value, '{:.4f}') if isinstance(value, float) else '–' if value is None else value}")


def _cancel(args: argparse.Namespace, runs_dir: Path) -> None:
    from app.runs.launch import cancel_run

    folder = _find(args, runs_dir)
    _answer(args, folder, cancel_run(folder))


def _resume(args: argparse.Namespace, runs_dir: Path) -> None:
    from app.runs.launch import resume_run
    from app.runs.slurm_state import job_of

    folder = _find(args, runs_dir)
    resume_run(folder, launcher=args.launcher)
    job_id = job_of(folder.launch_record())
    where = f"as SLURM job {job_id}" if job_id else "in the background"
    _answer(args, folder, f"Run {folder.run_id} goes on {where}; runs show {folder.run_id} tells how far it is.")


def _delete(args: argparse.Namespace, runs_dir: Path) -> None:
    from app.runs.keeping import delete_run

    folder = delete_run(_find(args, runs_dir))
    _answer(args, folder, f"Moved run {folder.run_id} to {folder.path.parent}; runs restore {folder.run_id} brings it back.")


def _restore(args: argparse.Namespace, runs_dir: Path) -> None:
    from app.runs.keeping import find_run, restore_run

    folder = restore_run(find_run(runs_dir, args.run, deleted=True))
    _answer(args, folder, f"Run {folder.run_id} is back in {folder.path.parent}.")


def _find(args: argparse.Namespace, runs_dir: Path) -> RunFolder:
    return resolve_run(runs_dir, args.run)


def resolve_run(runs_dir: Path, text: str) -> RunFolder:
    """The run that `text` names: its id, the beginning of only one id in `runs_dir`, or the path of a run folder anywhere.

    Raises:
        OptionError: none or several fit.
    """
    from app.runs.keeping import find_run, is_run_folder

    path = Path(text)
    # A bare name is an id first: a folder of that name in the current folder must not come before the run.
    if (path.name != text or text in (".", "..")) and is_run_folder(path):
        return RunFolder(path.resolve())
    try:
        return find_run(runs_dir, text)
    except OptionError:
        if text and is_run_folder(path):
            return RunFolder(path.resolve())
        raise


def _config(folder: RunFolder) -> dict[str, Any] | None:
    try:
        return folder.config().model_dump(mode="json")
    except OptionError:
        return None


def _answer(args: argparse.Namespace, folder: RunFolder, sentence: str) -> None:
    if args.json:
        _print_json({"run_id": folder.run_id, "run_folder": str(folder.path), "state": folder.status().state, "message": sentence})
    else:
        print(sentence)


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def _figure(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)


_ACTIONS: dict[str, Callable[[argparse.Namespace, Path], None]] = {
    "list": _list,
    "show": _show,
    "cancel": _cancel,
    "resume": _resume,
    "delete": _delete,
    "restore": _restore,
}
