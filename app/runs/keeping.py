"""Keeping house: finding a run, naming and annotating it, moving it to the bin and back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from app.core.errors import OptionError, RunError
from app.runs import sentences
from app.runs.files import read_json, write_json
from app.runs.folder import RunFolder

BIN = ".bin"
_RUN_FILES = ("config.json", "status.json")


def run_folders(runs_dir: Path) -> list[RunFolder]:
    """Every run in `runs_dir`, oldest first. A folder with neither config.json nor status.json is somebody else's; hidden ones too."""
    try:
        children = sorted(child for child in Path(runs_dir).iterdir() if not child.name.startswith("."))
    except OSError:
        return []
    return [RunFolder(child) for child in children if is_run_folder(child)]


def is_run_folder(folder: Path) -> bool:
    """Whether `folder` holds a run; never raises."""
    try:
        return any((folder / name).exists() for name in _RUN_FILES)
    except (OSError, ValueError):
        return False


def deleted_runs(runs_dir: Path) -> list[RunFolder]:
    """Every run in the bin, oldest first."""
    return run_folders(Path(runs_dir) / BIN)


def find_run(runs_dir: Path, text: str, *, deleted: bool = False) -> RunFolder:
    """The run whose id is `text` or the only one whose id begins with it.

    Raises:
        OptionError: none or several fit.
    """
    place = Path(runs_dir) / BIN if deleted else Path(runs_dir)
    folders = run_folders(place)
    exact = [folder for folder in folders if folder.run_id == text]
    found = exact or [folder for folder in folders if text and folder.run_id.startswith(text)]
    if len(found) == 1:
        return found[0]
    where = f"in the bin of {runs_dir}" if deleted else f"in {runs_dir}"
    if not found:
        raise OptionError(f"RUN: expected the id of a run {where} or its beginning, got {text!r}, which fits none of {len(folders)}.")
    some = ", ".join(folder.run_id for folder in found[:3]) + (" …" if len(found) > 3 else ".")
    raise OptionError(f"RUN: expected the beginning of one run's id {where}, got {text!r}, which fits {len(found)}: {some}")


def read_notes(folder: Path) -> dict[str, Any]:
    """`name`, `note` and `tags` as people gave them; missing ones are None or empty. Never raises."""
    try:
        values = read_json(Path(folder) / "notes.json") or {}
    except ValueError:
        values = {}
    name, note, tags = values.get("name"), values.get("note"), values.get("tags")
    return {
        "name": name if isinstance(name, str) and name else None,
        "note": note if isinstance(note, str) else "",
        "tags": [str(tag) for tag in tags] if isinstance(tags, list) else [],
    }


def annotate_run(folder: RunFolder, *, name: str | None = None, note: str | None = None, tags: Iterable[str] | None = None) -> None:
    """Change what is given, keep the rest; an empty name takes the name away.

    Raises:
        RunError: the folder cannot be written to.
    """
    values = read_notes(folder.path)
    given = {"name": name, "note": note, "tags": None if tags is None else list(dict.fromkeys(tag.strip() for tag in tags if tag.strip()))}
    write_json(folder.path / "notes.json", {**values, **{key: value for key, value in given.items() if value is not None}})


def rename_run(folder: RunFolder, name: str) -> None:
    """Give the run a name for people. Its id and folder stay. Raises RunError as `annotate_run` does."""
    annotate_run(folder, name=name.strip())


def delete_run(folder: RunFolder) -> RunFolder:
    """Move an ended run to the bin beside it. Nothing is erased.

    Raises:
        RunError: the run is queued or running, in the bin already, or the folder cannot be moved.
    """
    if folder.path.parent.name == BIN:  # named by its path
        raise RunError(f"run {folder.run_id}: it is in the bin already.")
    status = folder.status()
    if status.live:
        raise RunError(sentences.LIVE.format(run_id=folder.run_id, state=status.state))
    return _move(folder, folder.path.parent / BIN)


def restore_run(folder: RunFolder) -> RunFolder:
    """Move a run from the bin back to where it was.

    Raises:
        RunError: it is not in the bin, a run of that id is there already, or the folder cannot be moved.
    """
    if folder.path.parent.name != BIN:
        raise RunError(f"run {folder.run_id}: expected a run in the bin, got one in {folder.path.parent}.")
    return _move(folder, folder.path.parent.parent)


def _move(folder: RunFolder, place: Path) -> RunFolder:
    target = place / folder.run_id
    try:
        folder.path.stat()
        place.mkdir(exist_ok=True)
        if target.exists():
            raise RunError(f"run {folder.run_id}: there is one of that id in {place} already.")
        folder.path.rename(target)
    except FileNotFoundError:
        raise RunError(f"run {folder.run_id}: it is no longer in {folder.path.parent}.") from None
    except OSError as error:
        raise RunError(sentences.cannot_write(target, error)) from error
    if folder.path.parent.name == BIN:
        with contextlib.suppress(OSError):
            folder.path.parent.rmdir()
    return RunFolder(target)
