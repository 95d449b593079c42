"""`steps.csv`: whole, joined over a resume, thinned when long, and no harm when the folder does not take it."""

from __future__ import annotations

import csv
import itertools
from pathlib import Path
from typing import Any

import pytest

from app.core.errors import RunError
from app.runs import steps
from app.runs.steps import StepLog, read_steps


def epoch(number: int, first: int, count: int, loss: float = 0.5) -> list[dict[str, Any]]:
    return [{"step": first + place, "epoch": number, "seconds": float(first + place), "loss": loss} for place in range(count)]


def test_what_was_added_is_read(tmp_path: Path) -> None:
    log = StepLog(tmp_path)
    log.add(epoch(1, 1, 4))
    log.add(epoch(2, 5, 4))
    log.save()
    assert [row["step"] for row in read_steps(tmp_path / "steps.csv")] == list(range(1, 9))
    with (tmp_path / "steps.csv").open(newline="") as file:
        assert next(csv.reader(file)) == ["step", "epoch", "seconds", "loss"]


def test_a_resumed_run_goes_on_and_replaces_what_it_repeats(tmp_path: Path) -> None:
    before = StepLog(tmp_path)
    before.add(epoch(1, 1, 4))
    before.add(epoch(2, 5, 4))
    before.save()
    after = StepLog(tmp_path)
    after.add(epoch(2, 5, 3, loss=0.25))
    after.save()
    assert [(row["step"], row["loss"]) for row in read_steps(tmp_path / "steps.csv")] == [
        *((step, 0.5) for step in (1, 2, 3, 4)),
        *((step, 0.25) for step in (5, 6, 7)),
    ]


def test_a_long_training_is_thinned_evenly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "MOST_ROWS", 100)
    log = StepLog(tmp_path)
    for number in range(50):
        log.add(epoch(number + 1, number * 10 + 1, 10))
    log.save()
    kept = [row["step"] for row in read_steps(tmp_path / "steps.csv")]
    assert 50 <= len(kept) <= 100
    assert {after - before for before, after in itertools.pairwise(kept)} == {8}
    assert kept[-1] > 490


def test_a_damaged_file_is_begun_anew(tmp_path: Path) -> None:
    (tmp_path / "steps.csv").write_bytes(b"step,epoch\n\xff,1\n")
    log = StepLog(tmp_path)
    log.add(epoch(3, 21, 2))
    log.save()
    assert [row["step"] for row in read_steps(tmp_path / "steps.csv")] == [21, 22]


def test_a_folder_that_is_gone_is_said_and_what_is_known_is_kept(tmp_path: Path) -> None:
    log = StepLog(tmp_path / "gone")
    with pytest.raises(RunError, match=r"steps\.csv"):
        log.add(epoch(1, 1, 2))
    (tmp_path / "gone").mkdir()
    log.save()
    assert len(read_steps(tmp_path / "gone" / "steps.csv")) == 2
