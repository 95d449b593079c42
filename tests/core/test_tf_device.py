"""`configure_tensorflow` with the installed TensorFlow, in processes of their own: what is said is what is read back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recorded_machines import environment_of

from app.core.errors import DeviceError
from app.core.tf_build import TensorFlowBuild, tensorflow_build
from app.core.tf_device import has_avx2

ROOT = Path(__file__).resolve().parent.parent.parent

PRELUDE = """
import importlib, json, os, sys
from app.core import tf_device
def show(profile, **more):
    print(json.dumps({"profile": profile.to_json(), "report": profile.report(), **more}))
"""

Process = Callable[..., dict[str, Any]]


@pytest.fixture
def process(bare_environ: dict[str, str]) -> Process:
    """Runs code with the real TensorFlow; a machine without GPU tools unless a fake is put in."""

    def run(code: str, **env: str) -> dict[str, Any]:
        environ = {**{name: value for name, value in os.environ.items() if name != "PYTHONPATH"}, **bare_environ, **env}
        done = subprocess.run([sys.executable, "-c", PRELUDE + code], env=environ, cwd=ROOT, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr[-3000:]
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return {**answer, "stderr": done.stderr}

    return run


def by_name(settings: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {setting["name"]: setting for setting in settings}


@pytest.mark.tensorflow
def test_cpu_path_read_back_cached_and_surviving_a_hot_reload(process: Process) -> None:
    """E07, C02 and B17 in one process."""
    answer = process("""
first = tf_device.configure_tensorflow()
again = tf_device.configure_tensorflow()
importlib.reload(tf_device)
reloaded = tf_device.configure_tensorflow()
for name in [name for name in sys.modules if name.startswith("app.")]:
    del sys.modules[name]
from app.core import tf_device as fresh
other = fresh.configure_tensorflow(500, device="cpu")
left = {name: fresh.user_environment().get(name) for name in ("TF_ENABLE_ONEDNN_OPTS", "CUDA_VISIBLE_DEVICES", "PATH")}
version = sys.modules["tensorflow"].__version__
show(first, same=first is again, reloaded=reloaded is first, other=other.to_json(), left=left, tensorflow=version)
""")
    profile, cores = answer["profile"], len(os.sched_getaffinity(0))
    assert answer["same"]
    assert answer["reloaded"]
    assert answer["other"]["selected_device"] == "cpu"
    (warning,) = answer["other"]["warnings"][len(profile["warnings"]) :]
    assert "threshold 2048 MiB" in warning
    assert "threshold 500 MiB" in warning
    assert "restart needed to change device" in warning

    assert profile["selected_device"] == "cpu"
    assert profile["logical_devices"] == ["/device:CPU:0"]
    assert profile["first_op_device"].endswith("/device:CPU:0")
    assert profile["tensorflow_version"] == answer["tensorflow"]
    assert profile["onednn"] is True
    assert profile["intra_op_threads"] == profile["cpu"]["usable_cores"]
    assert 1 <= profile["intra_op_threads"] <= cores
    settings = by_name(profile["settings"])
    assert settings["TF_ENABLE_ONEDNN_OPTS"]["honoured"] is True
    assert settings["TF_NUM_INTEROP_THREADS"]["honoured"] is True
    assert settings["OMP_NUM_THREADS"]["honoured"] is False
    assert profile["not_applied"] == []
    # The banners TensorFlow prints whatever its log level are not passed on as errors.
    assert "oneDNN custom operations" not in answer["stderr"]
    assert "rebuild TensorFlow" not in answer["stderr"]
    # A child shall decide for itself, so it does not inherit what the app set here.
    assert answer["left"]["TF_ENABLE_ONEDNN_OPTS"] is None
    assert answer["left"]["CUDA_VISIBLE_DEVICES"] is None
    assert answer["left"]["PATH"]


@pytest.mark.tensorflow
def test_tensorflow_started_by_somebody_else(process: Process) -> None:
    """B14: threads and switches come too late; only what took effect is listed."""
    answer = process(
        """
import tensorflow as tf
tf.constant(1) + 1
show(tf_device.configure_tensorflow(intra_op_threads=1), environ={name: os.environ.get(name) for name in ("TF_NUM_INTEROP_THREADS",)})
""",
        TF_CPP_MIN_LOG_LEVEL="1",
    )
    profile = answer["profile"]
    assert profile["selected_device"] == "cpu"
    assert profile["decision"]["selected_device"] == "cpu"
    assert "TensorFlow was already initialised, thread settings not applied." in profile["warnings"]
    assert set(by_name(profile["settings"])) == {"TF_CPP_MIN_LOG_LEVEL"}
    assert by_name(profile["settings"])["TF_CPP_MIN_LOG_LEVEL"]["set_by"] == "user"
    assert "TF_NUM_INTRAOP_THREADS" in by_name(profile["not_applied"])
    assert profile["intra_op_threads"] is None
    assert answer["environ"]["TF_NUM_INTEROP_THREADS"] is None
    assert "  Not applied:\n" in answer["report"]


@pytest.mark.tensorflow
def test_odd_values_of_the_user_neither_crash_nor_pass_as_applied(process: Process) -> None:
    """B13, B14: a negative intra-op number makes a bare TensorFlow abort the process."""
    odd = {**environment_of("B13-all"), "TF_NUM_INTRAOP_THREADS": "-1", "TF_NUM_INTEROP_THREADS": "xyz", "TF_ENABLE_ONEDNN_OPTS": "2"}
    answer = process(
        """
profile = tf_device.configure_tensorflow(intra_op_threads=3, inter_op_threads=1)
threading = sys.modules["tensorflow"].config.threading
getters = [threading.get_intra_op_parallelism_threads(), threading.get_inter_op_parallelism_threads()]
show(profile, environ=dict(os.environ), getters=getters)
""",
        **odd,
    )
    profile = answer["profile"]
    assert {name: answer["environ"][name] for name in odd} == odd
    assert answer["getters"] == [3, 1]
    assert (profile["intra_op_threads"], profile["inter_op_threads"]) == (3, 1)
    assert set(by_name(profile["not_applied"])) == set(odd)
    for name in odd:
        assert any(warning.startswith(f"{name}={odd[name]} (set by the user): ") for warning in profile["warnings"])


@pytest.mark.tensorflow
def test_build_without_gpu_support_beside_a_free_gpu(process: Process, make_nvml: Callable[[str], Path]) -> None:
    """C04, with the GPU forced: what cannot be is not tried, and is said."""
    if tensorflow_build().has_gpu is not False:
        pytest.skip("the installed TensorFlow has GPU support")
    answer = process("show(tf_device.configure_tensorflow(device='gpu'))", PYTHONPATH=str(make_nvml("A00-nvml")))
    profile = answer["profile"]
    assert (profile["selected_device"], profile["decision"]["selected_device"], profile["happened"]) == ("cpu", "cpu", None)
    assert profile["reason"].startswith("A GPU is forced (gpu), but it cannot be used.")
    assert "this TensorFlow build has no GPU support" in profile["reason"]
    assert profile["cuda_available"] is False
    assert "  GPU             : NVIDIA RTX A4000\n  VRAM free/total : 15900 / 16376 MiB\n" in answer["report"]


def test_build_is_known_without_importing_tensorflow() -> None:
    code = "import sys; from app.core.tf_build import tensorflow_build as b; print(b().installed, b().has_gpu, 'tensorflow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    installed, has_gpu, imported = done.stdout.split()
    assert installed == "True"
    assert has_gpu in ("True", "False")
    assert imported == "False"


def test_build_of_a_tensorflow_that_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "tests" / "data" / "tf_stub")
    build = tensorflow_build()
    assert build.installed
    assert build.has_gpu is None
    assert build.folder == ROOT / "tests" / "data" / "tf_stub" / "tensorflow"


def test_no_tensorflow_at_all_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    from app.core import tf_device

    monkeypatch.setattr(tf_device, "tensorflow_build", lambda: TensorFlowBuild(installed=False))
    monkeypatch.delitem(sys.modules, "_twopath_tensorflow_state", raising=False)
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    with pytest.raises(DeviceError, match="TensorFlow is not installed in this environment: install the extra cpu or gpu"):
        tf_device.configure_tensorflow(device="cpu")


def test_has_avx2_answers_without_tensorflow() -> None:
    assert has_avx2() in (True, False, None)
    assert "tensorflow" not in sys.modules
