"""Asking TensorFlow itself: what it lists, where a convolution ran, what is in force. The one door through which it is imported.

Every function takes the imported module, so that nothing here decides when TensorFlow starts.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy

_TASKS = Path("/proc/self/task")


@dataclass(frozen=True)
class FirstOp:
    """A convolution that really ran."""

    device: str
    """TensorFlow's full name of the device: `/job:localhost/replica:0/task:0/device:GPU:0`."""
    ms: float


class FirstOpError(Exception):
    """The first convolution failed, gave a wrong result or did not end in time; the message holds TensorFlow's own words."""


def import_tensorflow() -> Any:
    """The module `tensorflow`, imported now."""
    import tensorflow

    return tensorflow


def is_initialised(tf: Any) -> bool:
    """Whether TensorFlow's devices and threads can no longer be set, because something has run already.

    Public calls only: a thread setting that differs from the present one is refused after the start.
    """
    threads = tf.config.threading
    present = threads.get_intra_op_parallelism_threads()
    try:
        threads.set_intra_op_parallelism_threads(present + 1)
        threads.set_intra_op_parallelism_threads(present)
    except RuntimeError:
        return True
    return False


def is_built_with_gpu(tf: Any) -> bool | None:
    """Whether this build can use NVIDIA GPUs at all; `None` when it does not tell."""
    try:
        return bool(tf.test.is_built_with_cuda())
    except (AttributeError, RuntimeError):
        return None


def cuda_version(tf: Any) -> str | None:
    """The CUDA version this build was made for."""
    with contextlib.suppress(AttributeError, RuntimeError, TypeError):
        found = tf.sysconfig.get_build_info().get("cuda_version")
        return str(found) if found else None
    return None


def is_onednn_on(tf: Any) -> bool | None:
    """TensorFlow's own flag for its oneDNN operations; `None` where this version does not tell it."""
    del tf  # imported, which is what the flag needs
    try:
        from tensorflow.python.util import _pywrap_util_port as port

        return bool(port.IsMklEnabled())
    except (ImportError, AttributeError):
        return None


POOL_LIMIT_S = 1.0
"""A thread names itself after it has started, so that right after the start some of the pool still bear the process's name."""


def compute_threads(expected: int | None = None, limit_s: float = POOL_LIMIT_S) -> int | None:
    """Threads of this process that TensorFlow named `tf_Compute`: the pool that runs operations side by side. Linux only.

    Waits at most `limit_s` for `expected` of them; without an expectation, until two looks in a row agree.
    """
    deadline = time.monotonic() + limit_s
    before, found = None, _count_compute_threads()
    while (found is None or found < expected) if expected is not None else found != before:
        if time.monotonic() >= deadline or not _TASKS.is_dir():
            break
        time.sleep(0.02)
        before, found = found, _count_compute_threads()
    return found


def _count_compute_threads() -> int | None:
    try:
        tasks = list(_TASKS.iterdir())
    except OSError:
        return None
    names = []
    for task in tasks:
        with contextlib.suppress(OSError):  # a thread that ended meanwhile
            names.append((task / "comm").read_text(encoding="utf-8", errors="replace").strip())
    return names.count("tf_Compute") or None


def device_names(tf: Any) -> tuple[str, ...]:
    """TensorFlow's logical devices: `/device:CPU:0`, `/device:GPU:0` …; asking starts TensorFlow."""
    return tuple(str(device.name) for device in tf.config.list_logical_devices())


def first_convolution(tf: Any, device: str, limit_s: float) -> FirstOp:
    """Runs one small convolution on `device` and checks its result.

    Args:
        device: `/CPU:0`, `/GPU:0` …
        limit_s: a GPU newer than the build compiles its kernels first, which may take half an hour.

    Raises:
        FirstOpError: it failed, was wrong, or did not end in time.
    """
    outcome: list[FirstOp | BaseException] = []

    def work() -> None:
        try:
            outcome.append(_convolve(tf, device))
        except BaseException as error:  # noqa: BLE001 - TensorFlow's errors form a tree of its own; this thread hands them on
            outcome.append(error)

    # A daemon: a convolution that hangs inside the driver can be left behind, not stopped.
    thread = threading.Thread(target=work, name="first convolution", daemon=True)
    thread.start()
    thread.join(limit_s)
    if not outcome:
        raise FirstOpError(f"the first convolution did not end within {limit_s:g} s")
    if isinstance(outcome[0], FirstOp):
        return outcome[0]
    raise FirstOpError(f"{type(outcome[0]).__name__}: {outcome[0]}") from outcome[0]


def _convolve(tf: Any, device: str) -> FirstOp:
    started = time.perf_counter()
    with tf.device(device):
        # (1, 16, 16, 4) with (3, 3, 4, 8), no padding: 14 · 14 · 8 values, each the sum of 36 ones.
        result = tf.nn.conv2d(tf.ones((1, 16, 16, 4)), tf.ones((3, 3, 4, 8)), strides=1, padding="VALID")
        total = float(tf.reduce_sum(result))
    if total != 14 * 14 * 8 * 36:
        raise FirstOpError(f"the first convolution gave {total}, expected {14 * 14 * 8 * 36}")
    return FirstOp(str(result.device), (time.perf_counter() - started) * 1000)


def training_convolutions(tf: Any, device: str) -> None:
    """One convolution of the autoencoder's second layer, forward and backward, large enough for oneDNN's own kernels."""
    with tf.device(device):
        pictures, filters = tf.ones((8, 64, 64, 32)), tf.ones((4, 4, 32, 64))
        with tf.GradientTape() as tape:
            tape.watch([pictures, filters])
            loss = tf.reduce_mean(tf.nn.conv2d(pictures, filters, strides=2, padding="SAME"))
        tape.gradient(loss, [pictures, filters])


def session_convolution(tf: Any, intra_op: int, inter_op: int) -> None:
    """A convolution in a session of TensorFlow 1, which carries its thread numbers in its own configuration."""
    old = tf.compat.v1
    with tf.Graph().as_default():
        pictures = old.placeholder(tf.float32, (8, 64, 64, 32))
        filters = old.placeholder(tf.float32, (4, 4, 32, 64))
        result = tf.nn.conv2d(pictures, filters, strides=2, padding="SAME")
        options = old.ConfigProto(intra_op_parallelism_threads=intra_op, inter_op_parallelism_threads=inter_op)
        with old.Session(config=options) as session:
            session.run(result.op, {pictures: numpy.ones((8, 64, 64, 32)), filters: numpy.ones((4, 4, 32, 64))})


def refused(call: Callable[[], object]) -> str | None:
    """Runs a setting of TensorFlow; the reason when it refuses (already started, differing memory growth), else `None`."""
    try:
        call()
    except (RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return None
