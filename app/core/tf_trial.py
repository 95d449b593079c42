"""Trying TensorFlow in a process of its own before this one depends on it.

A GPU that hangs, aborts the process or keeps VRAM after a failure then ends a child, and this process can still take the CPU
path cleanly, because it has not touched CUDA yet. The child is `python -m app.core.tf_child`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import app
from app.core.facts import Gpu
from app.core.tf_build import TensorFlowBuild
from app.core.tf_failures import failure_sentence, translate_tf_failure
from app.core.tf_gpu import GpuFailure

CHILD_MODULE = "app.core.tf_child"
MARK = "@twopath "
"""Begins the child's own lines on its standard output, beside oneDNN's."""
_WINDOWS_ILLEGAL_INSTRUCTION = 0xC000001D


@dataclass(frozen=True)
class Trial:
    """How a child ended and what it said."""

    steps: tuple[dict[str, Any], ...]
    """The child's own lines: each has `step`, the last one tells how far it came."""
    output: str
    errors: str
    """Its standard error: TensorFlow's log."""
    status: int | None
    """Exit status, negative for a signal; `None` when it was ended at its time limit."""
    limit_s: float
    seconds: float

    def step(self, name: str) -> dict[str, Any] | None:
        """The child's line of that name, `None` when it did not come that far."""
        return next((step for step in self.steps if step.get("step") == name), None)

    @property
    def signal_name(self) -> str | None:
        """The signal the child died by: `SIGILL`, `SIGABRT` …; `None` when it ended by itself."""
        if self.status == _WINDOWS_ILLEGAL_INSTRUCTION:
            return "SIGILL"
        if self.status is None or self.status >= 0:
            return None
        try:
            return signal.Signals(-self.status).name
        except ValueError:
            return f"signal {-self.status}"


def run_trial(request: Mapping[str, Any], environ: Mapping[str, str], limit_s: float) -> Trial:
    """Runs one child to its end or its limit; whatever it started is ended with it. Never raises for what the child does."""
    started = time.perf_counter()
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            [sys.executable, "-m", CHILD_MODULE, json.dumps(dict(request))],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            env=dict(environ),
            # `python -m` finds packages in the current folder first: it must be the one that holds this very package.
            cwd=Path(app.__file__).resolve().parents[1] if app.__file__ else None,
            start_new_session=True,
        )
        try:
            status: int | None = child.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            if child.poll() is None:
                _end(child)
        texts = []
        for file in (output, errors):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace"))
    return Trial(_steps(texts[0]), texts[0], texts[1], status, limit_s, time.perf_counter() - started)


def _end(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(5)  # a process stuck inside the driver cannot be ended before the driver returns


def _steps(output: str) -> tuple[dict[str, Any], ...]:
    found = []
    for line in output.splitlines():
        if line.startswith(MARK):
            with contextlib.suppress(ValueError):  # cut when the child died
                found.append(json.loads(line.removeprefix(MARK)))
    return tuple(step for step in found if isinstance(step, dict))


def trial_environment(environ: Mapping[str, str], build: TensorFlowBuild) -> dict[str, str]:
    """The environment of a child that tells everything: the same TensorFlow as here, its log level open.

    Only the child's log level is opened; what the user has set in this process stays.
    """
    first = [str(build.folder.parent)] if build.folder else []
    folders = [*first, *filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))]
    result = {**environ, "TF_CPP_MIN_LOG_LEVEL": "0"}
    if folders:
        result["PYTHONPATH"] = os.pathsep.join(folders)
    return result


def judge_gpu_trial(trial: Trial, driver: str | None) -> GpuFailure | None:
    """Why the GPU cannot be used, from a child that tried; `None` when its convolution ran there."""
    if trial.step("done") is not None and trial.status == 0:
        return None
    if (failed := trial.step("failed")) is not None:
        return GpuFailure(failed["kind"], failed["sentence"])
    kind, sentence = translate_tf_failure(trial.errors, driver=driver)
    if trial.status is None:
        if kind == "gpu_too_new":
            return GpuFailure(kind, f"{sentence} (the first convolution did not end within {trial.limit_s:g} s)")
        what = "time_limit" if trial.step("imported") else "import_limit"
        return GpuFailure("time_limit", failure_sentence(what, limit=f"{trial.limit_s:g}"))
    died = failure_sentence("process_died", signal=trial.signal_name or f"exit status {trial.status}")
    return GpuFailure("process_died" if kind == "unknown" else kind, died if kind == "unknown" else f"{sentence}; {died}")


def gpu_request(gpu: Gpu | None, driver: str | None, limit_s: float) -> dict[str, Any]:
    """What the child needs to try a GPU."""
    return {
        "action": "gpu",
        "driver": driver,
        "limit_s": limit_s,
        "logical_index": gpu.logical_index if gpu else None,
        "name": gpu.name if gpu else None,
    }
