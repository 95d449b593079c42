"""Catching what is written to a file descriptor behind Python's back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.core.tf_log import catch_descriptor

ROOT = Path(__file__).resolve().parent.parent.parent


def test_what_c_code_writes_is_caught_and_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    with catch_descriptor(2) as log:
        os.write(2, b"E gpu.cc: broken\n")
        assert log.text == "E gpu.cc: broken\n"
        os.write(2, b"I port.cc:153] oneDNN custom operations are on. You may see\n")
    assert log.text.count("\n") == 2
    assert capfd.readouterr().err == "E gpu.cc: broken\n"


def test_nothing_is_passed_on_when_asked_not_to(capfd: pytest.CaptureFixture[str]) -> None:
    with catch_descriptor(1, pass_on=False) as log:
        os.write(1, b"onednn_verbose,v1,info\n")
    assert log.text == "onednn_verbose,v1,info\n"
    assert capfd.readouterr().out == ""


def test_text_before_and_after_an_error_is_kept(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        with catch_descriptor(2):
            os.write(2, b"said \xff before\n")
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        fail()
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "said \ufffd before\nafter\n"


def test_a_closed_descriptor_is_no_trouble() -> None:
    code = (
        "import os; from app.core.tf_log import catch_descriptor\nos.close(2)\nwith catch_descriptor(2) as log: pass\nprint(repr(log.text))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "''"
