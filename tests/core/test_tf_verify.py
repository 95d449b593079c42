"""The proof: what ran, read from oneDNN's own lines, and the ways to set threads side by side."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.core.cpu_probe import cpu_facts
from app.core.tf_trial import Trial, judge_gpu_trial, run_trial
from app.core.tf_verify import ThreadWay, Verification, collect_evidence, render_verification, told_way


@pytest.mark.tensorflow
def test_evidence_of_this_machine(monkeypatch: pytest.MonkeyPatch, bare_environ: dict[str, str]) -> None:
    monkeypatch.setenv("PATH", bare_environ["PATH"])
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX")
    verification = collect_evidence(timeout_s=240)
    assert verification.problems == ()
    assert "tensorflow" not in sys.modules
    profile = verification.profile
    assert profile is not None
    assert profile["path"] == "CPU · AVX through oneDNN"
    assert "jit:avx" in profile["kernels"]
    settings = {setting["name"]: setting for setting in profile["settings"]}
    assert settings["ONEDNN_MAX_CPU_ISA"]["set_by"] == "user"
    assert settings["ONEDNN_MAX_CPU_ISA"]["honoured"] is True
    assert settings["TF_NUM_INTRAOP_THREADS"]["honoured"] is True
    assert settings["OMP_NUM_THREADS"]["honoured"] is False
    assert "ONEDNN_VERBOSE" not in settings

    asked = max(cpu_facts().usable_cores, cpu_facts().logical_cores or 0, os.cpu_count() or 1) + 1
    given = {way.key: way for way in verification.ways}
    for key in ("environment", "config", "session"):
        assert (given[key].onednn_threads, given[key].effective) == (asked, True)
        assert given[key].compute_threads == asked + 1
    assert given["environment"].getter_intra_op == 0
    assert (given["config"].getter_intra_op, given["config"].getter_inter_op) == (asked, asked + 1)
    assert given["omp"].effective is False
    assert given["omp"].runtime == "threadpool"

    assert json.loads(json.dumps(verification.to_json()))["ways"][0]["key"] == "environment"
    text = render_verification(verification)
    assert text.startswith("=" * 60)
    assert "OMP_NUM_THREADS" in text
    assert "jit:avx" in text


def test_a_process_that_does_not_end_is_told_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    verification = collect_evidence(timeout_s=0.2)
    assert verification.profile is None
    assert verification.problems == ("TensorFlow could not be configured: the process did not end within 0.2 s",)
    assert "TensorFlow was not configured." in render_verification(verification)


def test_the_sentence_of_a_refusal_comes_through(monkeypatch: pytest.MonkeyPatch, make_python_path: Callable[[str], Path]) -> None:
    monkeypatch.setenv("PYTHONPATH", str(make_python_path("no AVX here")))
    verification = collect_evidence(timeout_s=60)
    assert verification.problems == ("no AVX here",)


@pytest.fixture
def make_python_path(tmp_path: Path) -> Callable[[str], Path]:
    """A folder whose sitecustomize makes `configure_tensorflow` refuse with a sentence."""

    def make(sentence: str) -> Path:
        code = f"""
import app.core.tf_device as device
from app.core.errors import DeviceError
def refuse(**_):
    raise DeviceError({sentence!r})
device.configure_tensorflow = refuse
"""
        (tmp_path / "sitecustomize.py").write_text(code, encoding="utf-8")
        return tmp_path

    return make


def trial(**values: Any) -> Trial:
    return Trial(**{"steps": (), "output": "", "errors": "", "status": 0, "limit_s": 60.0, "seconds": 1.0, **values})


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        (trial(steps=({"step": "importing"},), status=None), "time_limit"),
        (
            trial(steps=({"step": "importing"}, {"step": "imported"}), status=None, errors="CUDA kernels will be jit-compiled from PTX"),
            "gpu_too_new",
        ),
        (trial(status=-6), "process_died"),
        (trial(status=-11, errors="CUDA_ERROR_OUT_OF_MEMORY"), "out_of_memory"),
        (trial(status=1, errors="ImportError: broken"), "process_died"),
        (trial(steps=({"step": "done"},), status=-9), "process_died"),
    ],
)
def test_how_a_trial_ended_says_why(found: Trial, kind: str) -> None:
    failure = judge_gpu_trial(found, None)
    assert failure is not None
    assert failure.kind == kind


def test_a_trial_that_ran_has_no_failure() -> None:
    assert judge_gpu_trial(trial(steps=({"step": "done"},)), None) is None


OFF = "onednn_verbose,v1,primitive,exec,cpu,gemm_api,,undef,src:f32::blocked:ab::f0,,,m:64n:64k:64,0.5"
ON = "onednn_verbose,v1,primitive,exec,cpu,convolution,jit:avx2,forward_training,src:f32::blocked:acdb::f0,,,mb8,0.5"


@pytest.mark.parametrize(
    ("key", "kernel", "reported", "getter", "uses", "effective"),
    [
        ("environment", ON, 3, 0, 3, True),
        ("environment", ON, 2, 0, 2, False),
        ("omp", ON, 2, 0, 2, False),
        ("environment", OFF, 2, 0, None, None),
        ("omp", OFF, 2, 0, None, None),
        ("config", OFF, 2, 3, None, True),
        ("config", OFF, 2, 0, None, False),
    ],
)
def test_with_onednn_off_its_count_judges_no_way(
    key: str, kernel: str, reported: int, getter: int, uses: int | None, effective: bool | None
) -> None:
    output = f"onednn_verbose,v1,info,cpu,runtime:threadpool,nthr:{reported}\n{kernel}\n"
    step = {"step": "threads", "getter_intra": getter, "getter_inter": 0, "compute_threads": 4}
    way = told_way(key, "a way", (3, 4), trial(output=output, steps=(step,)))
    assert (way.onednn_threads, way.effective, way.asked_intra_op) == (uses, effective, 3)


def test_signals_have_names_on_every_system() -> None:
    assert trial(status=-4).signal_name == "SIGILL"
    assert trial(status=0xC000001D).signal_name == "SIGILL"
    assert trial(status=1).signal_name is None
    assert trial(status=None).signal_name is None


def test_an_unknown_request_ends_the_child_with_a_status_and_not_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    found = run_trial({"action": "nothing"}, os.environ, 60)
    assert found.status == 1
    assert found.steps == ()
    assert "KeyError" in found.errors


def test_text_shows_what_is_unknown_as_a_dash() -> None:
    way = ThreadWay("config", "tf.config.threading", 3, 4, problem="no answer: killed")
    profile = {"settings": [], "not_applied": [], "evidence": None}
    text = render_verification(Verification(profile, "REPORT", (way,), ("tf.config.threading: no answer: killed",)))
    assert "tf.config.threading  3 / 4  –" in text
    assert "none reported" in text
    assert "  • tf.config.threading: no answer: killed" in text
