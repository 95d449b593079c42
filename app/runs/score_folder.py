"""Scorings of new pictures as folders: one writer, many readers, like runs. They live in `scored/` of the run whose model they use.

`request.json` what was asked · `status.json` as a run's: state, phase, progress, process, error · `scores.csv` · `maps.npz` ·
`heatmaps/` one picture each, at the size of the original · `previews/` the originals, small, to be shown · `result.json` all figures,
written last · `profile.json` which path and why · `log.txt` · `launch.json` who started the process · `cancel` please stop · `uploads/`
what a visitor sent, removed as soon as the scoring is over.
"""

from __future__ import annotations

import contextlib
import functools
import re
import secrets
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from app.cae.folders import relative_to
from app.core.errors import OptionError, RunError
from app.runs.detached import start_detached
from app.runs.files import RESERVE, read_json, write_bytes, write_json
from app.runs.folder import RunFolder
from app.runs.processes import mark
from app.runs.sentences import cannot_write
from app.runs.status import RunStatus, utc_now

SCORED_DIR = "scored"
UPLOADS = "uploads"
HEAT_MAPS = "heatmaps"
PREVIEWS = "previews"
OWN_FILES = (
    *("request.json", "status.json", "scores.csv", "maps.npz", "result.json", "profile.json", "log.txt", "launch.json", "cancel"),
    RESERVE,
)
OWN_FOLDERS = (UPLOADS, HEAT_MAPS, PREVIEWS)
"""All that a scoring writes."""
MODEL, CALIBRATION = "model.keras", "scoring.npz"
NEEDED = (MODEL, CALIBRATION)
"""What a run must have left for its model to score."""

NOT_USABLE = "run {run_id}: expected one with {needed}, as a finished run leaves them, got one that is {state} and has no {missing}."
CANNOT_CREATE = "{path}: a folder for the scores cannot be made there ({why}). Choose another with --out."
TAKEN = "--out: expected a new or an empty folder, got {path}, which holds something."
STILL_GOING = "scoring {name}: it is {state}; cancel it first."
NOT_STARTED = "scoring {name}: its process cannot be started ({why}): {program}."


@dataclass(frozen=True)
class Scoring:
    """One scoring as a reader sees it now."""

    folder: RunFolder
    status: RunStatus
    request: dict[str, Any] = field(default_factory=dict)
    result: dict[str, Any] | None = None
    """`result.json`; `None` until everything is written."""

    @property
    def name(self) -> str:
        return self.folder.run_id

    @property
    def uploaded(self) -> bool:
        """Whether the pictures were uploaded, so that their files are gone."""
        return bool(self.request.get("names"))

    @property
    def source(self) -> str:
        """Where the pictures came from, in words."""
        paths = self.request.get("pictures") or []
        if self.uploaded:
            return "upload"
        return str(paths[0]) + (f" and {len(paths) - 1} more" if len(paths) > 1 else "") if paths else "unknown"


@dataclass(frozen=True)
class Upload:
    """A file that a visitor sent."""

    name: str
    content: bytes


def refuse_unusable(run: RunFolder) -> None:
    """Raises RunError when the run has left no model and calibration to score with."""
    missing = [name for name in NEEDED if not (run.path / name).is_file()]
    if missing:
        needed, lacking = " and ".join(NEEDED), " and no ".join(missing)
        raise RunError(NOT_USABLE.format(run_id=run.run_id, needed=needed, state=run.status().state, missing=lacking))


def new_folder(run: RunFolder) -> Path:
    """A name for a new scoring, sortable by start (UTC, to the millisecond); nothing is made yet."""
    now = time.time()
    stamp = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}-{int(now % 1 * 1000):03d}{secrets.token_hex(2)}"
    return run.path / SCORED_DIR / stamp


def set_up(folder: Path, request: dict[str, Any]) -> RunFolder:
    """Make the folder of a scoring, state queued.

    Raises:
        RunError: it cannot be made.
        OptionError: it holds something already.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        taken = any(folder.iterdir())
    except OSError as error:
        raise RunError(CANNOT_CREATE.format(path=folder, why=error.strerror or error)) from error
    if taken:
        raise OptionError(TAKEN.format(path=folder))
    place = RunFolder(folder)
    write_json(place.path / "request.json", request)
    write_json(place.path / "status.json", RunStatus(place.run_id, "queued", created=utc_now()).to_json())
    return place


def is_set_up(folder: Path) -> bool:
    """Whether the folder waits for its process."""
    status = RunFolder(folder).status()
    return (folder / "request.json").is_file() and status.pid is None and status.state in ("queued", "cancelled", "interrupted")


def start_scoring(
    run: RunFolder,
    pictures: Path | Sequence[Upload],
    *,
    device: str = "auto",
    min_vram_mib: int | None = None,
    program: Sequence[str] | None = None,
) -> RunFolder:
    """Score pictures in a process that goes on whatever becomes of this one. Returns at once; it may wait in the device's line.

    Args:
        pictures: a file or folder on this machine, or what a visitor uploaded.
        program: replaces `python -m app.main score`; the run, the pictures and the options are added.

    Raises:
        RunError: the run is not usable, the folder cannot be made, or the process cannot be started.
    """
    refuse_unusable(run)
    path = new_folder(run)
    names = {} if isinstance(pictures, Path) else _stored_names(pictures)
    source = pictures if isinstance(pictures, Path) else path / UPLOADS
    place = set_up(
        path,
        {"run_id": run.run_id, "pictures": [relative_to(source, None)], "device": device, "min_vram_mib": min_vram_mib, "names": names},
    )
    try:
        if not isinstance(pictures, Path):
            _store(pictures, list(names), place)
        _start(place, run, source, device, min_vram_mib, program)
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise
    return place


def _stored_names(uploads: Sequence[Upload]) -> dict[str, str]:
    """What each upload is called on disk, made of its number and its suffix only, and how the visitor calls it."""
    names = {}
    for number, upload in enumerate(uploads, 1):
        suffix = re.sub(r"[^a-z0-9.]", "", Path(upload.name).suffix.casefold())[:8]
        names[f"{number:04d}{suffix}"] = upload.name
    return names


def _store(uploads: Sequence[Upload], stored: Sequence[str], place: RunFolder) -> None:
    folder = place.path / UPLOADS
    try:
        folder.mkdir()
    except OSError as error:
        raise RunError(cannot_write(folder, error)) from error
    for upload, name in zip(uploads, stored, strict=True):
        write_bytes(folder / name, upload.content)


def _start(place: RunFolder, run: RunFolder, source: Path, device: str, min_vram_mib: int | None, program: Sequence[str] | None) -> None:
    options = ["--out", str(place.path), "--device", device, *(["--min-vram-mib", str(min_vram_mib)] if min_vram_mib is not None else [])]
    command = [*(program or (sys.executable, "-m", "app.main", "score")), *options, "--", str(run.path), str(source)]
    try:
        process = start_detached(command, place.path / "log.txt")
    except OSError as error:
        raise RunError(NOT_STARTED.format(name=place.run_id, why=error.strerror or error, program=command[0])) from error
    known = mark(process.pid)
    record: dict[str, Any] = {"pid": process.pid, "returncode": None}
    record |= {"pid_started": known.started, "pid_token": known.token, "host": known.host} if known else {}

    def note(returncode: int | None) -> None:
        with contextlib.suppress(RunError):  # a help for readers, not a need
            write_json(place.path / "launch.json", {**record, "returncode": returncode})

    def see_it_end() -> None:
        """Take the exit status, so that no zombie stays; a killed process cannot say itself what killed it."""
        returncode = process.wait()
        if returncode and place.path.is_dir():
            note(returncode)
        forget_uploads(read_scoring(place.path))

    note(None)
    threading.Thread(target=see_it_end, name=f"reap-{process.pid}", daemon=True).start()


def read_scoring(folder: Path) -> Scoring:
    """A scoring as of now. Never raises: a folder that does not tell gives the state *unreadable* and a sentence in `status.error`."""
    place = RunFolder(folder)
    status = place.status()
    request, result = _read(place.path / "request.json"), _read(place.path / "result.json")
    if status.state == "finished" and not _is_whole(result):
        status = replace(status, state="unreadable", error=f"Scoring {place.run_id} cannot be read: result.json is missing or damaged.")
        result = {}
    return Scoring(place, status, request, result or None)


def _is_whole(result: dict[str, Any]) -> bool:
    pictures = result.get("pictures")
    keys = ("path", "score", "verdict", "width", "height")
    return isinstance(pictures, list) and all(isinstance(row, dict) and all(key in row for key in keys) for row in pictures)


def _read(path: Path) -> dict[str, Any]:
    try:
        stamp = path.stat()
    except OSError:
        return {}
    return _read_once(path, stamp.st_mtime_ns, stamp.st_ino)


@functools.lru_cache(maxsize=128)
def _read_once(path: Path, stamp: int, inode: int) -> dict[str, Any]:
    """From memory while the file is as it was: pages list all scorings at every draw."""
    del stamp, inode
    try:
        return read_json(path) or {}
    except ValueError:
        return {}


def list_scorings(run: RunFolder) -> list[Scoring]:
    """All scorings with the model of this run, newest first."""
    try:
        children = sorted((child for child in (run.path / SCORED_DIR).iterdir() if not child.name.startswith(".")), reverse=True)
    except OSError:
        return []
    return [read_scoring(child) for child in children if (child / "request.json").is_file()]


def find_scoring(run: RunFolder, name: str) -> Scoring | None:
    """The scoring of that name; `None` when there is none. A name is no path."""
    folder = run.path / SCORED_DIR / name
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name) or not (folder / "request.json").is_file():
        return None
    return read_scoring(folder)


def remove_scoring(scoring: Scoring) -> None:
    """Remove an ended scoring with all its files.

    Raises:
        RunError: it goes on, or its folder cannot be removed.
    """
    if scoring.status.live:
        raise RunError(STILL_GOING.format(name=scoring.name, state=scoring.status.state))
    gone = scoring.folder.path.with_name(f".gone-{scoring.name}")
    try:
        scoring.folder.path.rename(gone)  # so that no reader sees half of it
        shutil.rmtree(gone)
    except FileNotFoundError:
        return
    except OSError as error:
        raise RunError(cannot_write(scoring.folder.path, error)) from error


def forget_uploads(scoring: Scoring) -> None:
    """Remove what a visitor sent once nobody reads it any more, whoever ended the process. Never raises."""
    if not scoring.status.live:
        shutil.rmtree(scoring.folder.path / UPLOADS, ignore_errors=True)
