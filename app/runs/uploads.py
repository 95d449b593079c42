"""Unpacked uploads: kept as long as a run refers to them, and for some days without one, then removed."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from app.runs.keeping import BIN

KEPT_DAYS = 7
"""Days since an upload was last chosen in a page, after which it goes if no run refers to it."""
_GONE = ".gone-"
_OURS = re.compile(r"(\.gone-)?[0-9a-f]{16}")
"""How unpacked uploads are called: after their content. Nothing else is ever removed, whoever put it there."""


def touch_upload(folder: Path) -> None:
    """Note that `folder`, which lies in uploads/<name>/, is in use today. Never raises."""
    with contextlib.suppress(OSError):
        os.utime(folder.parent)


def remove_unused_uploads(runs_dir: Path, uploads: Path, *, days: float = KEPT_DAYS, now: float | None = None) -> list[str]:
    """Remove unpacked uploads that nobody has chosen for `days` and that no run in `runs_dir` or in its bin was asked to read.

    Where a run or the folder of runs cannot be read, nothing is removed: it might refer to any of them. Never raises.

    Args:
        uploads: holds one folder for each upload, named after its content.
        now: seconds since 1970; default: the clock.

    Returns:
        Names of what was removed.
    """
    before = (time.time() if now is None else now) - days * 86_400
    try:
        old = [child for child in sorted(uploads.iterdir()) if _OURS.fullmatch(child.name) and _is_old(child, before)]
        asked_for = list(_configurations(runs_dir)) if old else []
    except OSError:
        return []
    removed = []
    for folder in old:
        if not folder.name.startswith(_GONE) and any(folder.name.encode() in text for text in asked_for):
            continue
        with contextlib.suppress(OSError):
            gone = folder if folder.name.startswith(_GONE) else folder.with_name(f"{_GONE}{folder.name}")
            folder.rename(gone)  # at once, so that nobody starts on half of it
            shutil.rmtree(gone)
            removed.append(folder.name)
    return removed


def _configurations(runs_dir: Path) -> Iterator[bytes]:
    """`config.json` of every run, as it stands: a damaged one still names its pictures. Raises OSError where one cannot be read."""
    bin_ = runs_dir / BIN
    for folder in (*runs_dir.iterdir(), *(bin_.iterdir() if bin_.exists() else ())):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            yield (folder / "config.json").read_bytes()


def _is_old(folder: Path, before: float) -> bool:
    return folder.is_dir() and not folder.is_symlink() and folder.stat().st_mtime < before
