"""The GPU path, in real processes with fakes at both doors: `pynvml` before the driver, `tests/data/tf_stub` before TensorFlow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).resolve().parent.parent / "data"
ROOT = DATA.parent.parent

GPU_0 = {"name": "NVIDIA RTX A4000", "total": 17171480576, "free": 16672358400, "uuid": "GPU-00000000-1111-2222-3333-444444444440"}
GPU_1 = {
    **GPU_0,
    "name": "NVIDIA RTX A5000",
    "free": 17100000000,
    "uuid": "GPU-00000000-1111-2222-3333-444444444441",
    "bus": "00000000:02:00.0",
}

SCRIPT = """
import json, os, sys
from app.core import cpu_probe, tf_device, tf_start
tf_device.TRIAL_LIMIT_S = float(os.environ.get("LIMIT_S", "60"))
tf_start.FIRST_OP_LIMIT_S = float(os.environ.get("LIMIT_S", "60"))
request = json.loads(sys.argv[1])
if request.get("import_first"):
    import tensorflow
if request.get("start_first"):
    tensorflow.config.list_logical_devices()
arguments = request.get("arguments", {})
if "cpuinfo" in request:
    from pathlib import Path
    arguments["cpu"] = cpu_probe.cpu_facts(cpuinfo=Path(request["cpuinfo"]), machine="x86_64", system="Linux")
try:
    profile = tf_device.configure_tensorflow(**arguments)
except tf_device.DeviceError as error:
    print(json.dumps({"error": str(error), "imported": "tensorflow" in sys.modules}))
else:
    names = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "TF_CPP_MIN_LOG_LEVEL", "TF_NUM_INTRAOP_THREADS")
    environ = {name: os.environ.get(name) for name in names}
    print(json.dumps({"profile": profile.to_json(), "report": profile.report(), "environ": environ}))
"""


@dataclass(frozen=True)
class Outcome:
    profile: dict[str, Any]
    report: str
    environ: dict[str, str | None]
    calls: list[dict[str, Any]]
    """Calls of the stub in every process, in order."""
    errors: str
    raw: dict[str, Any]

    def main(self, call: str) -> list[dict[str, Any]]:
        """Calls made in the process under test, not in its trial."""
        last = self.calls[-1]["pid"]
        return [entry for entry in self.calls if entry["pid"] == last and entry["call"] == call]

    @property
    def processes(self) -> int:
        return len({entry["pid"] for entry in self.calls})


Configure = Callable[..., Outcome]


@pytest.fixture
def configure(tmp_path: Path, make_nvml: Callable[[dict[str, Any]], Path]) -> Configure:
    def run(
        stub: dict[str, Any], *, gpus: Sequence[dict[str, Any]] = (GPU_0,), env: dict[str, str] | None = None, **request: Any
    ) -> Outcome:
        door = make_nvml({"gpus": list(gpus), "driver": "550.54.14"})
        calls = tmp_path / "calls.jsonl"
        environ = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(door), str(DATA / "tf_stub")]),
            "PATH": str(tmp_path),
            "STUB_TF": json.dumps(stub),
            "STUB_TF_CALLS": str(calls),
            **(env or {}),
        }
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, json.dumps(request)], env=environ, cwd=ROOT, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout.splitlines()[-1])
        lines = calls.read_text(encoding="utf-8").splitlines() if calls.exists() else []
        return Outcome(
            answer.get("profile", {}),
            answer.get("report", ""),
            answer.get("environ", {}),
            [json.loads(line) for line in lines],
            done.stderr,
            answer,
        )

    return run


def test_gpu_path_is_pinned_by_uuid_before_the_import_and_verified(configure: Configure) -> None:
    done = configure({})
    assert done.profile["selected_device"] == "gpu"
    assert done.profile["happened"] is None
    assert done.profile["path"] == "GPU · NVIDIA RTX A4000"
    assert done.profile["tf_device_string"] == "/GPU:0"
    assert done.profile["first_op_device"].endswith("device:GPU:0")
    assert done.profile["memory_growth"] is True
    assert done.profile["cuda_available"] is True
    (imported,) = done.main("import")
    assert imported["environ"]["CUDA_VISIBLE_DEVICES"] == GPU_0["uuid"]
    assert imported["environ"]["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert done.processes == 2  # the trial's and its own
    order = [entry["call"] for entry in done.calls if entry["pid"] == done.calls[-1]["pid"]]
    assert order == ["import", "set_visible_devices", "set_memory_growth", "conv2d"]


def test_users_list_of_gpus_is_kept_and_narrowed_through_tensorflow(configure: Configure) -> None:
    """C01: the fuller GPU 0 stays out of it; growth is set on the chosen one, which alone is visible."""
    done = configure({"gpus": 2}, gpus=[GPU_0, GPU_1], env={"CUDA_VISIBLE_DEVICES": "0,1"})
    assert done.profile["selected_device"] == "gpu"
    assert done.profile["gpu"]["index"] == 1
    assert done.environ["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert [entry["devices"] for entry in done.main("set_visible_devices")] == [["/physical_device:GPU:1"]]
    assert [entry["device"] for entry in done.main("set_memory_growth")] == ["/physical_device:GPU:1"]
    shown = next(setting for setting in done.profile["settings"] if setting["name"] == "CUDA_VISIBLE_DEVICES")
    assert (shown["set_by"], shown["how_known"]) == ("user", "kept; tf.config.set_visible_devices narrows it to this one GPU")


def test_two_gpus_in_tensorflows_list_although_one_was_made_visible(configure: Configure) -> None:
    done = configure({"gpus": 2, "ignores_visibility": True}, gpus=[GPU_0, GPU_1])
    assert [entry["devices"] for entry in done.main("set_visible_devices")] == [["/physical_device:GPU:1"]]
    assert done.profile["selected_device"] == "gpu"


CUDNN_LOG = (DATA / "tf_logs" / "C07-stderr.txt").read_text(encoding="utf-8")
IGNORED_LOG = (DATA / "tf_logs" / "C10-stderr.txt").read_text(encoding="utf-8")
TOO_NEW_LOG = (DATA / "tf_logs" / "C11-stderr.txt").read_text(encoding="utf-8")

FAILURES = [
    pytest.param({"stderr_on_op": CUDNN_LOG, "op_error": ["UnimplementedError", "DNN library is not found."]}, "cuDNN mismatch", id="C07"),
    pytest.param({"op_error": ["InternalError", "handle: CUDNN_STATUS_ALLOC_FAILED"]}, "(free VRAM now: 15900 MiB)", id="C08"),
    pytest.param({"op_error": ["UnknownError", "CUBLAS_STATUS_NOT_INITIALIZED"]}, "not enough free VRAM", id="C08-unknown"),
    pytest.param({"op_signal": "SIGABRT"}, "a test process died on it (SIGABRT) (free VRAM now: 15900 MiB)", id="C08-abort"),
    pytest.param({"logical_gpus": 0, "stderr_on_start": IGNORED_LOG}, "TensorFlow ignores this GPU: it has 3 multiprocessors", id="C10"),
    pytest.param({"logical_gpus": 0}, "lists 'NVIDIA RTX A4000' but does not use it", id="C10-silent"),
    pytest.param({"stderr_on_op": TOO_NEW_LOG, "op_error": ["InternalError", "INVALID_PTX"]}, "GPU too new for this", id="C11"),
    pytest.param({"op_error": ["InternalError", "CUDA driver version is insufficient"]}, "driver 550.54.14 is too old", id="A32"),
    pytest.param({"gpus": 0}, "TensorFlow lists no GPU, and gives no cause", id="A32-nothing-listed"),
    pytest.param({"gpus": 0, "stderr_on_list": "Cannot dlopen some GPU libraries."}, "CUDA libraries are missing", id="missing-libraries"),
    pytest.param({"growth_error": "Memory growth cannot differ between GPU devices"}, "memory growth was refused", id="growth-refused"),
    pytest.param({"built_with_cuda": False}, "this TensorFlow build has no GPU support", id="C04"),
    pytest.param({"op_runs_on_cpu": True}, "ran on /job:localhost/replica:0/task:0/device:CPU:0 instead", id="runs-elsewhere"),
]  # fmt: skip


@pytest.mark.parametrize(("stub", "words"), FAILURES)
def test_a_gpu_that_does_not_work_means_cpu_with_the_true_cause(configure: Configure, stub: dict[str, Any], words: str) -> None:
    done = configure(stub)
    profile = done.profile
    assert profile["selected_device"] == "cpu"
    assert profile["tf_device_string"] == "/CPU:0"
    assert words in profile["reason"]
    assert profile["reason"].startswith("GPU 'NVIDIA RTX A4000' was chosen, but ")
    assert words in profile["happened"]
    assert profile["decision"]["selected_device"] == "gpu"
    assert profile["cuda_available"] is False
    # The process under test never touched the GPU: hidden before its import.
    (imported,) = done.main("import")
    assert imported["environ"]["CUDA_VISIBLE_DEVICES"] == "-1"
    assert profile["first_op_device"].endswith("device:CPU:0")
    assert "Decided before  : GPU 'NVIDIA RTX A4000' has" in done.report


@pytest.mark.parametrize(("log", "words"), [(TOO_NEW_LOG, "GPU too new"), ("", "the first convolution did not end within 4 s")])
def test_compiling_for_half_an_hour_ends_at_the_time_limit(configure: Configure, log: str, words: str) -> None:
    done = configure({"op_seconds": 1800, "stderr_on_op": log}, env={"LIMIT_S": "4"})
    assert done.profile["selected_device"] == "cpu"
    assert words in done.profile["reason"]


@pytest.mark.parametrize("failure", [{"op_error": ["InternalError", "CUDNN_STATUS_ALLOC_FAILED"]}, {"op_seconds": 60}])
def test_a_gpu_that_fails_only_in_this_process_leaves_the_cpu_by_name(configure: Configure, failure: dict[str, Any]) -> None:
    done = configure({**failure, "fails_in": "main"}, env={"LIMIT_S": "5"})
    assert done.profile["selected_device"] == "cpu"
    assert done.profile["tf_device_string"] == "/CPU:0"
    assert (
        "TensorFlow was already initialised with a GPU visible; enter tf.device('/CPU:0') to stay on the CPU." in done.profile["warnings"]
    )


def test_forced_cpu_hides_every_gpu_and_tries_none(configure: Configure) -> None:
    done = configure({}, arguments={"device": "cpu"})
    assert done.profile["selected_device"] == "cpu"
    assert done.processes == 1
    assert done.environ["CUDA_VISIBLE_DEVICES"] == "-1"
    assert done.main("set_visible_devices") == [{**done.main("set_visible_devices")[0], "devices": [], "kind": "GPU"}]


def test_cpu_path_hides_gpus_that_the_user_left_visible(configure: Configure) -> None:
    done = configure({}, arguments={"min_vram_mib": 100_000}, env={"CUDA_VISIBLE_DEVICES": "0"})
    assert done.environ["CUDA_VISIBLE_DEVICES"] == "0"
    assert done.profile["selected_device"] == "cpu"
    assert done.profile["logical_devices"] == ["/device:CPU:0"]


def test_tensorflow_imported_by_somebody_else_is_checked_here_without_a_trial(configure: Configure) -> None:
    done = configure({}, import_first=True)
    assert done.profile["selected_device"] == "gpu"
    assert done.processes == 1


def test_tensorflow_started_by_somebody_else_is_used_as_it_is(configure: Configure) -> None:
    """C02: nothing can be pinned any more; the profile says so and names the device."""
    done = configure({"gpus": 2}, gpus=[GPU_0, GPU_1], import_first=True, start_first=True)
    assert done.profile["selected_device"] == "gpu"
    assert done.profile["tf_device_string"] == "/GPU:1"
    assert "TensorFlow was already initialised, thread settings not applied." in done.profile["warnings"]
    assert done.profile["memory_growth"] is None
    assert {setting["name"] for setting in done.profile["settings"]} == set()
    assert "TF_NUM_INTRAOP_THREADS" in {setting["name"] for setting in done.profile["not_applied"]}
    assert done.environ["CUDA_VISIBLE_DEVICES"] is None


def test_no_avx_stops_before_tensorflow_is_imported(configure: Configure) -> None:
    done = configure({}, cpuinfo=str(DATA / "machines" / "cpuinfo" / "B05.txt"))
    assert done.raw["imported"] is False
    assert done.calls == []
    assert "'Common KVM processor' offers no AVX" in done.raw["error"]
    assert "set the CPU type to 'host'" in done.raw["error"]


def test_unknown_avx_is_tried_in_a_child_first(configure: Configure, tmp_path: Path) -> None:
    done = configure({"import_signal": "SIGILL"}, cpuinfo=str(tmp_path / "missing"))
    assert done.raw["imported"] is False
    assert done.raw["error"].startswith("Importing TensorFlow ended a test process with SIGILL.")
    assert "'host'" in done.raw["error"]


def test_unknown_avx_that_works_goes_on(configure: Configure, tmp_path: Path) -> None:
    done = configure({}, cpuinfo=str(tmp_path / "missing"), arguments={"device": "cpu"})
    assert done.profile["selected_device"] == "cpu"
    assert done.profile["cpu"]["features"].get("avx2") is None


def test_negative_threads_of_the_user_do_not_reach_the_trial(configure: Configure) -> None:
    """B14: TensorFlow would abort it (measured), and the GPU would be blamed."""
    done = configure({}, env={"TF_NUM_INTRAOP_THREADS": "-1"})
    trial = next(entry for entry in done.calls if entry["call"] == "import")
    assert int(trial["environ"]["TF_NUM_INTRAOP_THREADS"]) >= 1
    assert trial["environ"]["TF_CPP_MIN_LOG_LEVEL"] == "0"
    assert done.environ["TF_NUM_INTRAOP_THREADS"] == "-1"
    assert done.profile["selected_device"] == "gpu"


def test_memory_growth_that_the_user_forbids_is_not_claimed(configure: Configure) -> None:
    done = configure({}, env={"TF_FORCE_GPU_ALLOW_GROWTH": "false"})
    assert done.profile["selected_device"] == "gpu"
    assert done.profile["memory_growth"] is False
    assert any(warning.startswith("TF_FORCE_GPU_ALLOW_GROWTH=false (set by the user): It wins") for warning in done.profile["warnings"])


def test_several_gpus_are_pinned_together_and_each_computes_a_first_op(configure: Configure) -> None:
    done = configure({"gpus": 2}, gpus=[GPU_0, GPU_1], arguments={"gpus": 2})
    # The one with most free memory is the first, in the order of CUDA_VISIBLE_DEVICES.
    assert done.environ["CUDA_VISIBLE_DEVICES"] == f"{GPU_1['uuid']},{GPU_0['uuid']}"
    assert done.profile["strategy_devices"] == ["/GPU:0", "/GPU:1"]
    assert (done.profile["gpu"]["index"], [gpu["index"] for gpu in done.profile["more_gpus"]]) == (1, [0])
    assert done.profile["path"] == "GPU · 1 × NVIDIA RTX A5000 + 1 × NVIDIA RTX A4000"
    assert [entry["place"] for entry in done.main("conv2d")] == ["/GPU:0", "/GPU:1"]
    assert {entry["device"] for entry in done.main("set_memory_growth")} == {"/physical_device:GPU:0", "/physical_device:GPU:1"}


def test_a_further_gpu_that_fails_is_left_out_and_said(configure: Configure) -> None:
    stub = {"gpus": 2, "op_error": ["ResourceExhaustedError", "OOM when allocating"], "fails_on": "/GPU:1"}
    done = configure(stub, gpus=[GPU_0, GPU_1], arguments={"gpus": 2})
    assert done.profile["selected_device"] == "gpu"
    assert (done.profile["strategy_devices"], done.profile["more_gpus"]) == ([], [])
    assert " GPU 0 'NVIDIA RTX A4000' is left out of the training: " in done.profile["reason"]


def test_ones_own_gpu_is_taken_although_another_has_more_memory(configure: Configure) -> None:
    done = configure({"gpus": 2}, gpus=[GPU_0, GPU_1], arguments={"own": [GPU_0["uuid"]]})
    assert done.environ["CUDA_VISIBLE_DEVICES"] == GPU_0["uuid"]
    assert "GPU 0 'NVIDIA RTX A4000' has" in done.profile["reason"]
