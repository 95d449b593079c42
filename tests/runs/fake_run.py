"""A run's process with a small pipeline in place of the real one: `python fake_run.py RUN_FOLDER`.

The environment variable FAKE_RUN holds what to do, as JSON; see `Script`. Everything but the network is real: process, signals,
queue, files.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from app.cae.config import CaeConfig
from app.core.errors import AppError
from app.core.profile import HardwareProfile
from app.runs.queue import Line
from app.runs.reporter import FolderReporter
from app.runs.worker import run_in_folder


@dataclass
class Result:
    """The fields of `CaeResult` that are written down. The real one's module takes a second to import, in each of many processes;
    tests within one process put the real one in place of it (`make_result`)."""

    config: CaeConfig
    profile: HardwareProfile
    state: str
    history: list[dict[str, float]] = field(default_factory=list)
    best_epoch: int | None = None
    batch_size: int | None = None
    train_images_per_s: float | None = None
    score_images_per_s: float | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    scores: Any = None
    maps: Any = None
    inputs: Any = None
    reconstructions: Any = None
    masks: Any = None
    has_mask: Any = None
    calibration: Any = None
    model: Any = None


make_result: Callable[[CaeConfig, HardwareProfile, str], Any] = Result


@dataclass
class Script:
    """What the fake pipeline does."""

    epochs: int = 3
    first_epoch: int = 1
    batch_s: float = 0.01
    """Each epoch is five batches of this long."""
    reading_s: float = 0.0
    scoring_s: float = 0.0
    fail: str | None = None
    """`Class:text` to raise after the first epoch."""
    deaf: bool = False
    """Never asks whether it was cancelled."""
    pictures: int = 4
    note_line: bool = False
    """Write down who stands in the CPU's line while this run computes."""


def fake_pipeline(config: CaeConfig, *, reporter: FolderReporter, work_dir: Path) -> Any:
    script = Script(**json.loads(os.environ.get("FAKE_RUN", "{}")))

    def asked() -> bool:
        return not script.deaf and reporter.cancelled()

    def spend(seconds: float) -> bool:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not asked():
            time.sleep(0.01)
        return asked()

    profile = HardwareProfile("cpu", "Because the test says so.", onednn=True)
    result = make_result(config, profile, "cancelled")
    reporter.profile(profile)
    if script.note_line:
        (work_dir / "line.json").write_text(json.dumps([asdict(ticket) for ticket in Line("cpu").tickets()]))
    reporter.phase("reading", 0, script.pictures)
    if spend(script.reading_s):
        return result
    reporter.phase("reading", script.pictures, script.pictures)
    reporter.dataset({"name": config.data, "epochs": script.epochs, "problems": ["a.png: cannot be read."]})
    for epoch in range(script.first_epoch, script.epochs + 1):
        for batch in range(5):
            if spend(script.batch_s):
                return fill(result, script)
            reporter.phase("training", 5 * (epoch - 1) + batch + 1, 5 * script.epochs)
        result.history.append(
            {"epoch": epoch, "step": 5 * epoch, "seconds": 0.1 * epoch, "loss": 1 / epoch, "val_loss": 2 / epoch, "images_per_s": 90.0}
        )
        reporter.epoch(result.history[-1])
        if script.fail:
            raise_(script.fail)
    reporter.phase("scoring", 0, 10)
    if spend(script.scoring_s):
        return fill(result, script)
    reporter.warning("One mask has another size.")
    result.state = "finished"
    result.metrics = {"image_auroc": 0.75, "image_ap": np.float32(0.5), "not_available": {"pixel_auroc": "No masks."}}
    return fill(result, script)


def fill(result: Any, script: Script) -> Any:
    """Pictures, maps and figures as a model might have made them."""
    result.train_images_per_s, result.score_images_per_s, result.batch_size = 100.0, 400.0, 8
    if not script.pictures:
        return result
    import pandas as pd  # here, since most processes of these tests end before

    n = script.pictures
    result.scores = pd.DataFrame(
        {"path": [f"{i}.png" for i in range(n)], "split": "test", "label": 0, "defect": "NA", "score": 0.5, "verdict": "good"}
    )
    result.maps = np.zeros((n, 8, 8), np.float32)
    result.inputs = result.reconstructions = np.zeros((n, 8, 8, 1), np.uint8)
    result.masks, result.has_mask = np.zeros((n, 8, 8), np.uint8), np.zeros(n, bool)
    return result


def raise_(what: str) -> None:
    kind, _, text = what.partition(":")
    if kind == "AppError":
        raise AppError(text)
    if kind == "OSError":
        raise OSError(int(text), os.strerror(int(text)), "/somewhere/file.bin")
    if kind == "ResourceExhaustedError":
        raise type(kind, (Exception,), {})(text)
    raise {"MemoryError": MemoryError, "ValueError": ValueError}[kind](text)


if __name__ == "__main__":
    try:
        sys.exit(run_in_folder(Path(sys.argv[1]), pipeline=fake_pipeline))
    except AppError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_status)
