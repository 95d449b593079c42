"""What TensorFlow's own words mean when a GPU does not work, as a kind and a sentence with the cure (pure).

The texts are those of public reports and of TensorFlow's sources; the recorded ones lie in tests/data/tf_logs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from app.core.device_policy import MIN_DRIVER

FailureKind = Literal[
    "driver_too_old",
    "driver_mismatch",
    "driver_missing",
    "cudnn_mismatch",
    "library_missing",
    "gpu_too_new",
    "gpu_ignored",
    "out_of_memory",
    "growth_refused",
    "already_initialised",
    "no_gpu_build",
    "time_limit",
    "process_died",
    "gpu_lost",
    "unknown",
]


@dataclass(frozen=True)
class _Rule:
    kind: FailureKind
    pattern: re.Pattern[str]
    sentence: str


def _rule(kind: FailureKind, pattern: str, sentence: str) -> _Rule:
    return _Rule(kind, re.compile(pattern, re.IGNORECASE), sentence)


_RULES = (
    _rule(
        "no_gpu_build",
        r"this TensorFlow build has no GPU support",
        "this TensorFlow build has no GPU support: install tensorflow[and-cuda]",
    ),
    _rule(
        "driver_too_old",
        r"driver version is insufficient|cudaErrorInsufficientDriver"
        r"|CUDA_ERROR_UNSUPPORTED_PTX_VERSION|PTX was compiled with an unsupported toolchain"
        r"|forward compatibility was attempted on non supported HW",
        "driver {driver}is too old for this TensorFlow: update the NVIDIA driver",
    ),
    _rule(
        "driver_mismatch",
        r"kernel version .{0,60} does not match DSO version|CUDA_ERROR_SYSTEM_DRIVER_MISMATCH|driver/library version mismatch",
        "driver and library versions differ: reboot or reload the driver module",
    ),
    _rule(
        "cudnn_mismatch",
        r"Loaded runtime CuDNN library: (?P<loaded>[\d.]+) but source was compiled with: (?P<compiled>[\d.]+\d)",
        "cuDNN mismatch: library {loaded} is loaded, this TensorFlow was built for {compiled}; install the matching cuDNN",
    ),
    _rule(
        "out_of_memory",
        r"CUD(NN|A|BLAS)_STATUS_ALLOC_FAILED|CUDNN_STATUS_INTERNAL_ERROR_.*ALLOC|CUBLAS_STATUS_NOT_INITIALIZED|CUDNN_STATUS_NOT_INITIALIZED"
        r"|CUDA_ERROR_OUT_OF_MEMORY|ResourceExhausted|OOM when allocating|out of memory",
        "probably not enough free VRAM, another process may have taken it after the probe",
    ),
    _rule(
        "gpu_too_new",
        r"not built with CUDA kernel binaries compatible with compute capability (?P<capability>\d+\.\d+)"
        r"|CUDA_ERROR_INVALID_PTX|CUDA_ERROR_INVALID_HANDLE|CUDA_ERROR_NO_BINARY_FOR_GPU"
        r"|no kernel image is available|jit-compiled from PTX",
        "GPU too new for this TensorFlow build{capability}: install a newer TensorFlow",
    ),
    _rule(
        "gpu_ignored",
        r"Ignoring visible gpu device .*?with core count: (?P<cores>\d+)\. The minimum required count is (?P<least>\d+)",
        "TensorFlow ignores this GPU: it has {cores} multiprocessors, {least} are asked for (TF_MIN_GPU_MULTIPROCESSOR_COUNT changes that)",
    ),
    _rule(
        "gpu_ignored",
        r"Ignoring visible gpu device .*?with Cuda compute capability (?P<found>[\d.]+\d)\."
        r" The minimum required Cuda capability is (?P<least>[\d.]+\d)",
        "TensorFlow ignores this GPU: its compute capability {found} is below {least}",
    ),
    _rule("gpu_ignored", r"Ignoring visible gpu device", "TensorFlow ignores this GPU"),
    _rule(
        "library_missing",
        r"Could not (?:dlopen|load dynamic) library '?(?P<library>(?!libnvinfer)[\w.+-]+)",
        "library {library} is missing: install tensorflow[and-cuda], or the CUDA libraries it names",
    ),
    _rule(
        "library_missing",
        r"Cannot dlopen some GPU libraries|libcud\w+(\.so)?[\w.]*: cannot open shared object",
        "CUDA libraries are missing (TensorFlow: “Cannot dlopen some GPU libraries”): install tensorflow[and-cuda]",
    ),
    _rule(
        "driver_missing",
        r"CUDA_ERROR_NO_DEVICE|no CUDA-capable device is detected|kernel driver does not appear to be running"
        r"|CUDA_ERROR_UNKNOWN|cuInit: .*\(303\)|Could not find cuda drivers",
        "CUDA finds no usable device: check that the NVIDIA driver is loaded and that this process may use it",
    ),
    _rule(
        "cudnn_mismatch",
        r"DNN library is not found|No DNN in stream executor|CUDNN_STATUS_(VERSION_MISMATCH|ARCH_MISMATCH|SUBLIBRARY_\w+)"
        r"|Could not create cudnn handle|no algorithm worked",
        "cuDNN mismatch: the first convolution found no working cuDNN; install the cuDNN this TensorFlow was built for",
    ),
    _rule(
        "growth_refused",
        r"memory growth|Cannot set memory growth",
        "memory growth was refused, so TensorFlow would take the whole VRAM",
    ),
    _rule(
        "already_initialised",
        r"cannot be (modified|set).{0,40} after .{0,20}initiali[sz]|after being initiali[sz]ed|must be set at program startup",
        "TensorFlow was already initialised in this process",
    ),
    _rule(
        "gpu_lost",
        r"GPU is lost|CUDA_ERROR_ILLEGAL_ADDRESS|CUDA_ERROR_LAUNCH_FAILED|Xid",
        "the GPU failed while it computed: see the kernel log (dmesg)",
    ),
)
"""Tried in this order: the cause before what follows from it (an old driver also leads to “no device”)."""

_SENTENCES = {
    "no_gpu_build": "this TensorFlow build has no GPU support: install tensorflow[and-cuda]",
    "import_limit": "importing TensorFlow did not end within {limit} s",
    "time_limit": "the first convolution did not end within {limit} s",
    "process_died": "a test process died on it ({signal})",
}


def translate_tf_failure(text: str, *, driver: str | None = None) -> tuple[FailureKind, str]:
    """The kind of a failure and its sentence, from an exception's text and TensorFlow's log lines together.

    Args:
        text: everything TensorFlow said; several lines are welcome.
        driver: version of the NVIDIA driver, named when it is the cause.

    Returns:
        `("unknown", …)` with the last telling line when no rule fits, `("unknown", "TensorFlow gave no cause")` for an empty text.
    """
    for rule in _RULES:
        if found := rule.pattern.search(text):
            return rule.kind, _fill(rule.sentence, found.groupdict(), driver)
    line = last_telling_line(text)
    return "unknown", f"TensorFlow said: {line}" if line else "TensorFlow gave no cause"


def failure_sentence(kind: str, **values: object) -> str:
    """The sentence of a failure that the app sees itself: a time limit, a death by signal, a build without GPU support."""
    return _SENTENCES[kind].format(**values)


def _fill(sentence: str, groups: dict[str, str | None], driver: str | None) -> str:
    capability = f" (compute capability {groups['capability']})" if groups.get("capability") else ""
    return sentence.format(**{**groups, "driver": f"{driver} " if driver else "", "capability": capability})


_LEAST_DRIVER = {11: (450, 80, 2), 12: MIN_DRIVER, 13: (580, 0)}
"""Oldest Linux driver for each CUDA major version (NVIDIA, "CUDA Compatibility", minor-version compatibility)."""


def driver_too_old(driver: str | None, cuda_version: str | None) -> bool:
    """Whether the driver cannot run this TensorFlow's CUDA; False when either version is unreadable.

    `cuda_version`: as TensorFlow's build information tells it; unknown counts as 12, the oldest that TensorFlow 2.16 and newer use.
    """
    found = tuple(int(part) for part in re.findall(r"\d+", driver or ""))
    major = re.match(r"\d+", cuda_version or "12")
    return bool(found and major) and found < _LEAST_DRIVER.get(int(major[0]) if major else 0, (0,))


_HARMLESS = re.compile(
    r"oneDNN custom operations are on|All log messages before absl|cpu_feature_guard|cpu_feature_guard\.cc|"
    r"optimized to use available CPU instructions|To enable the following instructions|rebuild TensorFlow with the appropriate|"
    r"Unable to register cu\w+ factory|Attempting to register factory for plugin|computation placer already registered",
    re.IGNORECASE,
)
"""Start-up banners that users read as errors. TensorFlow prints some before its own log level is in force."""


def is_harmless(line: str) -> bool:
    """A start-up banner that says nothing about trouble (oneDNN's rounding, “rebuild TensorFlow” for more instructions)."""
    return not line.strip() or bool(_HARMLESS.search(line))


def last_telling_line(text: str) -> str | None:
    """The last line that is neither a banner nor part of a stack trace, cut to a readable length."""
    lines = [line.strip() for line in text.splitlines() if not is_harmless(line) and not line.startswith((" ", "\t", "@", "***"))]
    return lines[-1][:300] if lines else None
