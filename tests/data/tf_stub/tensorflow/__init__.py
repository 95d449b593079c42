"""Stands in for TensorFlow with GPUs: put `tests/data/tf_stub` first on PYTHONPATH.

`STUB_TF` holds its script as JSON; `STUB_TF_CALLS` names a file to which every call is added as a line of JSON. Like the real one it
refuses settings after the start, and memory growth that differs between visible GPUs.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
import types
from pathlib import Path

_script = json.loads(os.environ.get("STUB_TF", "{}"))
__version__ = _script.get("version", "2.99.0")
float32 = "float32"


def _note(call, **values):
    if path := os.environ.get("STUB_TF_CALLS"):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"call": call, "pid": os.getpid(), **values}) + "\n")


def _say(key):
    if key in _script:
        os.write(2, (_script[key].rstrip("\n") + "\n").encode())


_NAMES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "TF_CPP_MIN_LOG_LEVEL", "TF_NUM_INTRAOP_THREADS", "TF_ENABLE_ONEDNN_OPTS")
_note("import", environ={name: os.environ.get(name) for name in _NAMES}, first_program=" ".join(sys.argv[:1]))
_say("stderr_on_import")
if _script.get("import_signal"):
    os.kill(os.getpid(), getattr(signal, _script["import_signal"]))


class OpError(Exception):
    pass


class _Errors(types.SimpleNamespace):
    def __getattr__(self, name):
        kind = type(name, (OpError,), {})
        setattr(self, name, kind)
        return kind


errors = _Errors(OpError=OpError)


class _Device:
    def __init__(self, name, device_type):
        self.name, self.device_type = name, device_type


class _State:
    started = False
    place = "/CPU:0"
    intra = inter = 0


_growth = {}


def _physical_count():
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not _script.get("built_with_cuda", True) or visible in ("-1", ""):
        return 0
    count = _script.get("gpus", 1)
    return min(count, len(visible.split(","))) if visible is not None and not _script.get("ignores_visibility") else count


_gpus = [_Device(f"/physical_device:GPU:{n}", "GPU") for n in range(_physical_count())]
_cpus = [_Device("/physical_device:CPU:0", "CPU")]
_visible = {"GPU": list(_gpus), "CPU": list(_cpus)}


def _start():
    if not _State.started:
        growths = {_growth.get(gpu.name, False) for gpu in _visible["GPU"]}
        if len(growths) > 1:
            raise ValueError("Memory growth cannot differ between GPU devices")
        _say("stderr_on_start")
        _State.started = True


def _not_started(what):
    if _State.started:
        raise RuntimeError(f"{what} cannot be modified after being initialized")


class _Threading:
    def get_intra_op_parallelism_threads(self):
        return _State.intra

    def get_inter_op_parallelism_threads(self):
        return _State.inter

    def set_intra_op_parallelism_threads(self, count):
        _not_started("Intra op parallelism")
        _State.intra = count

    def set_inter_op_parallelism_threads(self, count):
        _not_started("Inter op parallelism")
        _State.inter = count


class _Experimental:
    def set_memory_growth(self, device, on):
        _note("set_memory_growth", device=device.name, on=on)
        if "growth_error" in _script:
            raise ValueError(_script["growth_error"])
        _not_started("Physical devices")
        _growth[device.name] = on


class _Config:
    threading = _Threading()
    experimental = _Experimental()

    def list_physical_devices(self, kind=None):
        _say("stderr_on_list")
        return list(_gpus) if kind == "GPU" else [*_cpus, *_gpus]

    def get_visible_devices(self, kind=None):
        return list(_visible[kind])

    def set_visible_devices(self, devices, kind=None):
        _note("set_visible_devices", devices=[device.name for device in devices], kind=kind)
        if [d.name for d in devices] != [d.name for d in _visible[kind]]:
            _not_started("Visible devices")
        _visible[kind] = list(devices)

    def list_logical_devices(self, kind=None):
        _start()
        count = min(_script.get("logical_gpus", len(_visible["GPU"])), len(_visible["GPU"]))
        logical = [_Device("/device:CPU:0", "CPU"), *(_Device(f"/device:GPU:{n}", "GPU") for n in range(count))]
        return [device for device in logical if kind in (None, device.device_type)]


config = _Config()
test = types.SimpleNamespace(is_built_with_cuda=lambda: _script.get("built_with_cuda", True))
sysconfig = types.SimpleNamespace(get_build_info=lambda: {"cuda_version": _script.get("cuda_version", "12.5.1")})


@contextlib.contextmanager
def device(name):
    before, _State.place = _State.place, name
    try:
        yield
    finally:
        _State.place = before


class _Tensor:
    def __init__(self, value, place):
        self.value, self.device = value, f"/job:localhost/replica:0/task:0/device:{place.lstrip('/')}"

    def __float__(self):
        return float(self.value)


def ones(shape):
    return shape


def _conv2d(pictures, filters, strides, padding):
    _start()
    _note("conv2d", place=_State.place)
    on_gpu = "GPU" in _State.place
    here = _script.get("fails_in", "everywhere") == "everywhere" or (_script["fails_in"] == "main") == (
        not sys.argv[0].endswith("tf_child.py")
    )
    if on_gpu and here and _script.get("fails_on", _State.place) == _State.place:
        _say("stderr_on_op")
        time.sleep(_script.get("op_seconds", 0))
        if "op_signal" in _script:
            os.kill(os.getpid(), getattr(signal, _script["op_signal"]))
        if "op_error" in _script:
            kind, text = _script["op_error"]
            raise getattr(errors, kind)(text)
    place = "/CPU:0" if on_gpu and _script.get("op_runs_on_cpu") else _State.place
    (_, height, width, _), (kernel_height, kernel_width, channels, outputs) = pictures, filters
    values = (height - kernel_height + 1) * (width - kernel_width + 1) * outputs
    return _Tensor(values * kernel_height * kernel_width * channels, place)


nn = types.SimpleNamespace(conv2d=_conv2d)


def reduce_sum(tensor):
    return tensor
