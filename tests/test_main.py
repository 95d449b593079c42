"""The command line as a real process: what it prints where, and its exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_machine import smi_environment

ROOT = Path(__file__).resolve().parent.parent


def _run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "app.main", *arguments]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120)


def _device(*arguments: str, **environment: str) -> dict[str, Any]:
    done = _run("device", "--json", *arguments, **environment)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_device_json_holds_what_others_rely_on(tmp_path: Path) -> None:
    answer = _device(**smi_environment(tmp_path, "A00"))
    assert {"selected_device", "reason", "min_vram_mib", "gpu", "gpus", "gpu_source", "problems", "cpu", "questions"} <= set(answer)
    assert {"index", "uuid", "name", "total_mib", "free_mib", "unified_memory", "mig", "visible", "problem"} <= set(answer["gpus"][0])
    assert {"name", "features", "avx2", "physical_cores", "logical_cores", "usable_cores", "limited_by"} <= set(answer["cpu"])
    assert (answer["selected_device"], answer["gpu"]["free_mib"], answer["gpu_source"]) == ("gpu", 15900, "nvidia-smi")


@pytest.mark.parametrize(("threshold", "device"), [("887", "gpu"), ("888", "cpu")])
def test_the_threshold_decides_and_equal_is_enough(threshold: str, device: str, tmp_path: Path) -> None:
    answer = _device("--min-vram-mib", threshold, **smi_environment(tmp_path, "A00-low"))
    assert answer["selected_device"] == device
    assert answer["min_vram_mib"] == int(threshold)
    assert "887" in answer["reason"]


def test_device_without_json_prints_the_report(tmp_path: Path) -> None:
    done = _run("device", **smi_environment(tmp_path, "A00-low"))
    lines = done.stdout.splitlines()
    assert lines[0] == lines[2] == lines[-1] == "=" * 60
    assert lines[1] == "TensorFlow Device Configuration"
    assert any(line.startswith("  VRAM free/total : 887 / ") for line in lines)
    assert any(line == "  Selected device : CPU" for line in lines)


def test_device_imports_no_tensorflow(tmp_path: Path) -> None:
    # A tensorflow that cannot be imported stands in front: touching it would end the command.
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow/__init__.py").write_text("raise SystemExit('TensorFlow was imported')", encoding="utf-8")
    assert _device(PYTHONPATH=str(tmp_path))["selected_device"] == "cpu"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["device", "--min-vram-mib", "-1"], ["min_vram_mib", "-1"]),
        (["device", "--min-vram-mib", "two"], ["min_vram_mib", "two"]),
        (["device", "--device", "tpu"], ["--device", "tpu"]),
        (["device", "--nonsense"], ["--nonsense"]),
        (["nonsense"], ["nonsense"]),
        ([], ["device"]),
        (["cae", "--epochs", "0"], ["epochs", "0"]),
        (["cae", "--epochs", "many"], ["epochs", "many"]),
        (["cae", "--image-size", "50"], ["image_size", "50"]),
        (["cae", "--preset", "best"], ["preset", "best"]),
        (["cae", "--mask-patch", "24"], ["mask_patch", "24"]),
        (["cae", "--learning-rate", "nan"], ["learning_rate", "a finite number", "nan"]),
        (["cae", "--data", "synthetic", "--device", "7x"], ["--device: expected auto, cpu, gpu", "got '7x'"]),
        (["cae", "--data", ""], ["data: expected elpv-mono", "got nothing"]),
        (["cae", "--data", "synthetic:nosuch"], ["synthetic:nosuch: expected a texture out of weave", "got 'nosuch'"]),
    ],
)
def test_a_bad_option_is_one_sentence_and_status_2(arguments: list[str], words: list[str], tmp_path: Path) -> None:
    done = _run(*arguments)
    assert done.returncode == 2, done
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert all(word in done.stderr for word in words), done.stderr
    assert not (tmp_path / "runs").exists(), "a bad option must leave no run folder"


def test_a_folder_that_is_not_there_is_one_sentence_and_no_traceback(tmp_path: Path) -> None:
    missing = tmp_path / "no pictures here"
    for command in (("cae", "--json"), ("sweep", "--set", "seed=0,1")):
        done = _run(*command, "--data", str(missing), "--runs-dir", str(tmp_path / "runs"))
        assert done.returncode == 2
        assert done.stderr.startswith(f"{missing}: not a dataset folder, there is no such folder; expected ")
        assert len(done.stderr.strip().splitlines()) == 1
        assert not (tmp_path / "runs").exists(), "a mistyped name leaves no failed run behind"


def test_help_names_every_option_with_its_default() -> None:
    from app.cae.config import CaeConfig

    text = " ".join(_run("cae", "--help").stdout.split())
    for name in CaeConfig.model_fields:
        assert f"--{name.replace('_', '-')} " in text


def test_output_into_a_closed_pipe_is_quiet() -> None:
    command = f"{sys.executable} -m app.main device --json | head -c 1 > /dev/null"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""


@pytest.mark.parametrize("name", ["x" * 300, "a\u0000b".replace("\u0000", "\x01"), "~nobody-of-that-name/pictures", " "])
def test_an_odd_data_folder_is_one_sentence(name: str) -> None:
    done = _run("cae", "--data", name)
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr + done.stdout
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_a_full_disk_behind_standard_output_is_one_sentence() -> None:
    command = f"{sys.executable} -m app.main device --json > /dev/full"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "No space left" in done.stderr


def test_a_gpu_that_the_installed_build_cannot_use_is_warned_of(tmp_path: Path) -> None:
    from app.core.tf_build import tensorflow_build

    if tensorflow_build().has_gpu is not False:
        pytest.skip("the installed TensorFlow has GPU support")
    answer = _device(**smi_environment(tmp_path, "A00"))
    assert answer["selected_device"] == "gpu"
    assert any("no GPU support" in warning for warning in answer["warnings"])


def test_a_package_called_app_in_the_current_folder_is_not_mistaken_for_ours(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app/__init__.py").write_text("raise SystemExit('the wrong app')", encoding="utf-8")
    code = (
        "import app.core.tf_trial as t, os, json\n"
        f"os.chdir({str(tmp_path)!r})\n"
        "trial = t.run_trial({'action': 'nothing'}, dict(os.environ), 60)\n"
        "print(json.dumps(trial.errors))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert "the wrong app" not in done.stdout
    assert done.returncode == 0, done.stderr


@pytest.mark.tensorflow
def test_a_run_tells_its_progress_and_its_end_on_standard_output(tmp_path: Path) -> None:
    options = ["--data", "synthetic:weave,train=12,good=4,defective=4", "--image-size", "64", "--base-filters", "4", "--epochs", "1"]
    done = _run("cae", *options)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert any(line.startswith("training") for line in lines)
    run_id = next(line for line in lines if line.startswith("Run ")).split()[1]
    assert (tmp_path / "runs" / run_id / "metrics.json").exists()
    assert any(line.startswith("image AUROC ") for line in lines)


def test_a_place_that_cannot_be_saved_to_is_said_before_the_work() -> None:
    done = _run("device", "--verify", "--save", "/nonexistent/answer.json")
    assert done.returncode == 2
    assert "--save" in done.stderr
    assert "/nonexistent/answer.json" in done.stderr
