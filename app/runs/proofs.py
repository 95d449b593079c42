"""Proofs: `device --verify` as a process, its answer kept in a folder beside the runs, so that every page and every restart sees it.

`proofs/<id>/`: `request.json` what was asked, and by which process · `verification.json` the answer, whole or absent · `log.txt`.
"""

from __future__ import annotations

import dataclasses
import secrets
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from app.core.errors import RunError
from app.runs.detached import start_detached
from app.runs.files import read_json, write_json
from app.runs.processes import ProcessMark, is_alive, mark
from app.runs.sentences import cannot_create

PROOFS_DIR = "proofs"
ANSWER = "verification.json"
STOPPED = "The proof stopped without an answer. Its log ({log}) says: {said}"


@dataclass(frozen=True)
class Proof:
    """One proof as a reader sees it now."""

    folder: Path
    state: Literal["running", "finished", "failed"]
    started: float
    """Seconds since 1970."""
    min_vram_mib: int
    device: str
    answer: dict[str, Any] | None = None
    """What `device --verify --json` printed."""
    error: str | None = None


def start_proof(runs_dir: Path, *, min_vram_mib: int, device: str, program: Sequence[str] | None = None) -> Proof:
    """Start a proof, or return the one that is going on: two at once would only slow each other.

    Args:
        program: replaces `python -m app.main`; `device --verify` with its options is added.

    Raises:
        RunError: its folder cannot be made or its process cannot be started.
    """
    going_on = newest_proof(runs_dir)
    if going_on is not None and going_on.state == "running":
        return going_on
    now = time.time()
    # Sortable to the microsecond: the newest one is found by its name.
    name = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}-{int(now % 1 * 1e6):06d}-{secrets.token_hex(2)}"
    folder = Path(runs_dir).absolute() / PROOFS_DIR / name
    options = ["device", "--verify", "--min-vram-mib", str(min_vram_mib), "--device", device, "--save", str(folder / ANSWER)]
    try:
        folder.mkdir(parents=True)
        process = start_detached([*(program or (sys.executable, "-m", "app.main")), *options], folder / "log.txt")
    except OSError as error:
        raise RunError(cannot_create(folder, error)) from error
    known = mark(process.pid)
    request = {
        "started": time.time(),
        "min_vram_mib": min_vram_mib,
        "device": device,
        "process": dataclasses.asdict(known) if known else None,
    }
    write_json(folder / "request.json", request)
    threading.Thread(target=process.wait, name=f"reap-{process.pid}", daemon=True).start()
    return read_proof(folder)


def newest_proof(runs_dir: Path) -> Proof | None:
    """The proof started last, `None` when there is none."""
    try:
        folders = sorted((child for child in (Path(runs_dir) / PROOFS_DIR).iterdir() if (child / "request.json").exists()), reverse=True)
    except OSError:
        return None
    return read_proof(folders[0]) if folders else None


def read_proof(folder: Path) -> Proof:
    """A proof as of now. Never raises: what cannot be read counts as failed, with the reason."""
    request, trouble = _read(folder / "request.json")
    process = request.get("process")
    alive = is_alive(ProcessMark(**process)) if isinstance(process, dict) else False
    answer, broken = _read(folder / ANSWER)
    about = (float(request.get("started") or 0.0), int(request.get("min_vram_mib") or 0), str(request.get("device") or "auto"))
    if answer:
        return Proof(folder, "finished", *about, answer=answer)
    if alive is not False and not trouble:
        return Proof(folder, "running", *about)
    said = trouble or broken or _last_line(folder / "log.txt")
    return Proof(folder, "failed", *about, error=STOPPED.format(log=folder / "log.txt", said=said))


def _read(path: Path) -> tuple[dict[str, Any], str | None]:
    try:
        return read_json(path) or {}, None
    except ValueError as error:
        return {}, str(error)


def _last_line(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1] if lines else "nothing."
