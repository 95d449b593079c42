"""TensorFlow's words → kind and sentence. Texts of public reports; C07, C10 and C11 as recorded files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.tf_failures import driver_too_old, failure_sentence, is_harmless, last_telling_line, translate_tf_failure

LOGS = Path(__file__).resolve().parent.parent / "data" / "tf_logs"


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("Status: CUDA driver version is insufficient for CUDA runtime version", "driver_too_old", "driver 367.35 is"),
        ("kernel version 535.161.0 does not match DSO version 550.54.14 -- cannot find working devices", "driver_mismatch", "reboot"),
        ("UnimplementedError: DNN library is not found.", "cudnn_mismatch", "cuDNN mismatch"),
        ("Could not create cudnn handle: CUDNN_STATUS_ALLOC_FAILED", "out_of_memory", "not enough free VRAM"),
        ("failed to create cublas handle: CUBLAS_STATUS_NOT_INITIALIZED", "out_of_memory", "not enough free VRAM"),
        ("ResourceExhaustedError: OOM when allocating tensor with shape[16,64,64,32]", "out_of_memory", "not enough free VRAM"),
        ("failed call to cuDevicePrimaryCtxRetain: CUDA_ERROR_OUT_OF_MEMORY: out of memory", "out_of_memory", "not enough free VRAM"),
        ("InternalError: no kernel image is available for execution on the device", "gpu_too_new", "GPU too new"),
        ("'cuLaunchKernel' failed with 'CUDA_ERROR_INVALID_HANDLE'", "gpu_too_new", "GPU too new"),
        ("Could not load dynamic library 'libcudnn.so.8'; dlerror: cannot open shared object file", "library_missing", "libcudnn.so.8"),
        ("Cannot dlopen some GPU libraries. Please make sure the missing libraries mentioned above", "library_missing", "Cannot dlopen"),
        ("failed call to cuInit: UNKNOWN ERROR (303)", "driver_missing", "CUDA finds no usable device"),
        ("ValueError: Memory growth cannot differ between GPU devices", "growth_refused", "memory growth was refused"),
        ("RuntimeError: Physical devices cannot be modified after being initialized", "already_initialised", "already initialised"),
        ("Ignoring visible gpu device (name: GTX 680) with Cuda compute capability 3.0. The minimum required Cuda capability is 3.5.",
         "gpu_ignored", "compute capability 3.0 is below 3.5"),
    ],
)  # fmt: skip
def test_known_words(text: str, kind: str, words: str) -> None:
    found, sentence = translate_tf_failure(text, driver="367.35")
    assert found == kind
    assert words in sentence


@pytest.mark.parametrize(
    ("case", "kind", "sentence"),
    [
        (
            "C07",
            "cudnn_mismatch",
            "cuDNN mismatch: library 8.0.5 is loaded, this TensorFlow was built for 8.6.0; install the matching cuDNN",
        ),
        (
            "C10",
            "gpu_ignored",
            "TensorFlow ignores this GPU: it has 3 multiprocessors, 8 are asked for (TF_MIN_GPU_MULTIPROCESSOR_COUNT changes that)",
        ),
        ("C11", "gpu_too_new", "GPU too new for this TensorFlow build (compute capability 12.0): install a newer TensorFlow"),
    ],
)
def test_recorded_logs(case: str, kind: str, sentence: str) -> None:
    assert translate_tf_failure((LOGS / f"{case}-stderr.txt").read_text(encoding="utf-8")) == (kind, sentence)


def test_the_cause_comes_before_what_follows_from_it() -> None:
    text = "CUDA driver version is insufficient for CUDA runtime version\nno CUDA-capable device is detected\nDNN library is not found"
    assert translate_tf_failure(text)[0] == "driver_too_old"
    assert translate_tf_failure("jit-compiled from PTX, which could take 30 minutes\nCUDNN_STATUS_ALLOC_FAILED")[0] == "out_of_memory"


def test_a_missing_tensorrt_is_no_cause() -> None:
    assert translate_tf_failure("Could not load dynamic library 'libnvinfer.so.7'; dlerror: no such file")[0] == "unknown"


BANNERS = """WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795981311.087692 port.cc:153] oneDNN custom operations are on. You may see slightly different numerical results
I0000 00:00:1795980809.117049 cpu_feature_guard.cc:227] This TensorFlow binary is optimized to use available CPU instructions in
To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow with the appropriate compiler flags.
"""


def test_start_up_banners_are_no_errors() -> None:
    """B17: recorded from tensorflow-cpu 2.21.0, which prints the first ones whatever its log level."""
    assert all(is_harmless(line) for line in BANNERS.splitlines())
    assert translate_tf_failure(BANNERS) == ("unknown", "TensorFlow gave no cause")
    assert last_telling_line(f"{BANNERS}E gpu.cc: something broke\n    @ 0x7fa819754d73  tsl::Thread()") == "E gpu.cc: something broke"


def test_unknown_words_are_quoted() -> None:
    assert translate_tf_failure("E gpu.cc: something new") == ("unknown", "TensorFlow said: E gpu.cc: something new")


@pytest.mark.parametrize(
    ("driver", "cuda", "old"),
    [
        ("367.35", "12.5.1", True),
        ("525.60.13", "12.5.1", False),
        ("525.60.11", "12.5.1", True),
        ("550.54.14", "13.0", True),
        ("450.80.02", "11.8", False),
        ("470.57", None, True),
        (None, "12.5.1", False),
        ("garbage", "12.5.1", False),
    ],
)
def test_drivers_too_old_for_cuda(driver: str | None, cuda: str | None, old: bool) -> None:
    assert driver_too_old(driver, cuda) is old


def test_what_the_app_sees_itself() -> None:
    assert failure_sentence("time_limit", limit="60") == "the first convolution did not end within 60 s"
    assert failure_sentence("process_died", signal="SIGABRT") == "a test process died on it (SIGABRT)"


@given(st.text(max_size=200))
def test_no_text_makes_the_translation_raise(text: str) -> None:
    kind, sentence = translate_tf_failure(text, driver=text[:10])
    assert kind
    assert sentence
