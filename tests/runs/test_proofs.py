"""Proofs: a process, its answer in a folder, one at a time, and a clear word when it died."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from app.core.errors import RunError
from app.runs.proofs import ANSWER, Proof, newest_proof, read_proof, start_proof

ANSWERS = """
import json, pathlib, sys, time
path = pathlib.Path(sys.argv[sys.argv.index("--save") + 1])
time.sleep(0.3)
path.write_text(json.dumps({"selected_device": "cpu", "arguments": sys.argv[1:]}))
"""


def _wait(runs_dir: Path) -> Proof:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        proof = newest_proof(runs_dir)
        assert proof is not None
        if proof.state != "running":
            return proof
        time.sleep(0.05)
    raise AssertionError("the proof did not end")


def _program(folder: Path, code: str) -> list[str]:
    script = folder / "fake_main.py"
    script.write_text(code, encoding="utf-8")
    return [sys.executable, str(script)]


def test_a_proof_runs_as_a_process_and_its_answer_is_found_again(tmp_path: Path) -> None:
    proof = start_proof(tmp_path, min_vram_mib=512, device="cpu", program=_program(tmp_path, ANSWERS))
    assert proof.state == "running"
    assert newest_proof(tmp_path) is not None
    ended = _wait(tmp_path)
    assert ended.state == "finished"
    assert (ended.min_vram_mib, ended.device) == (512, "cpu")
    assert ended.answer is not None
    assert ended.answer["arguments"][:6] == ["device", "--verify", "--min-vram-mib", "512", "--device", "cpu"]


def test_a_second_start_joins_the_proof_that_is_going_on(tmp_path: Path) -> None:
    first = start_proof(tmp_path, min_vram_mib=1, device="auto", program=_program(tmp_path, ANSWERS))
    second = start_proof(tmp_path, min_vram_mib=2, device="auto", program=_program(tmp_path, ANSWERS))
    assert second.folder == first.folder
    _wait(tmp_path)
    third = start_proof(tmp_path, min_vram_mib=3, device="auto", program=_program(tmp_path, ANSWERS))
    assert third.folder != first.folder
    assert _wait(tmp_path).min_vram_mib == 3


def test_a_proof_that_dies_says_what_its_log_said(tmp_path: Path) -> None:
    start_proof(
        tmp_path, min_vram_mib=1, device="auto", program=_program(tmp_path, "raise SystemExit('TensorFlow could not be configured here.')")
    )
    ended = _wait(tmp_path)
    assert ended.state == "failed"
    assert ended.error is not None
    assert ended.error.endswith("says: TensorFlow could not be configured here.")


def test_a_broken_answer_is_a_failure_and_not_an_exception(tmp_path: Path) -> None:
    folder = tmp_path / "proofs" / "20260101-000000-aaaa"
    folder.mkdir(parents=True)
    (folder / "request.json").write_text(json.dumps({"started": 1.0, "min_vram_mib": 1, "device": "auto"}), encoding="utf-8")
    (folder / ANSWER).write_text("{", encoding="utf-8")
    proof = read_proof(folder)
    assert proof.state == "failed"
    assert ANSWER in (proof.error or "")


def test_no_proof_yet(tmp_path: Path) -> None:
    assert newest_proof(tmp_path) is None


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "proofs").write_text("a file in the way", encoding="utf-8")
    with pytest.raises(RunError, match="proofs"):
        start_proof(tmp_path, min_vram_mib=1, device="auto", program=_program(tmp_path, ANSWERS))
