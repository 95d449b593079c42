"""`mlflow.json` of a run folder: where the run is logged, how far, and what went wrong. Written by the companion process only."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from app.runs.files import read_json, write_json

FILE_NAME = "mlflow.json"


@dataclass
class MlflowRecord:
    """Unknown is `None`."""

    tracking_uri: str
    """Without user name and password."""
    pid: int | None = None
    """The run's process that is logged; a resumed run has another one."""
    experiment_id: str | None = None
    mlflow_run_id: str | None = None
    url: str | None = None
    """Of the run's page, where the tracking URI is a server."""
    epochs: int = 0
    """Logged so far."""
    contact: bool | None = None
    """Whether the server has answered; `None` while it was not asked to the end."""
    ended: bool = False
    """Whether the companion has done all it will do for this process of the run."""
    trouble: str | None = None
    """What could not be logged and why, a sentence; `None` when everything could."""

    def write(self, folder: Path) -> None:
        """Raises RunError where the folder cannot be written to."""
        write_json(folder / FILE_NAME, asdict(self))


def read_record(folder: Path) -> MlflowRecord | None:
    """What `mlflow.json` tells; `None` when there is no such file or it is damaged."""
    try:
        values: dict[str, Any] = read_json(folder / FILE_NAME) or {}
    except ValueError:
        return None
    known = {item.name: values[item.name] for item in fields(MlflowRecord) if item.name in values}
    if not isinstance(known.get("tracking_uri"), str) or not isinstance(known.get("epochs", 0), int):
        return None
    return MlflowRecord(**known)


def without_secrets(text: str) -> str:
    """`text` without the user names and passwords of URIs in it."""
    return re.sub(r"(\w+://)[^/?#\s]*@", r"\1", text)
