"""Fake pynvml driven by the case.json beside it. Not the real bindings; the names are NVML's."""

import json
import time
from pathlib import Path

_case = json.loads((Path(__file__).parent / "case.json").read_text("utf-8"))
__version__ = "12.0.0-fake"
nvmlMemory_v2 = 0x02000028  # noqa: N816
calls = []
_started = 0

_ERRORS = {
    "Uninitialized": (1, "Uninitialized"),
    "InvalidArgument": (2, "Invalid Argument"),
    "NotSupported": (3, "Not Supported"),
    "NoPermission": (4, "Insufficient Permissions"),
    "NotFound": (6, "Not Found"),
    "DriverNotLoaded": (9, "Driver Not Loaded"),
    "Timeout": (10, "Timeout"),
    "LibraryNotFound": (12, "NVML Shared Library Not Found"),
    "FunctionNotFound": (13, "Function Not Found"),
    "GpuIsLost": (15, "GPU is lost"),
    "ResetRequired": (16, "GPU requires reset"),
    "OperatingSystem": (17, "The operating system has blocked the request."),
    "LibRmVersionMismatch": (18, "RM has detected an NVML/RM version mismatch."),
    "Unknown": (999, "Unknown Error"),
}


class NVMLError(Exception):
    value = 999
    message = "Unknown Error"

    def __str__(self):
        return self.message


for _name, (_value, _message) in _ERRORS.items():
    _kind = type(f"NVMLError_{_name}", (NVMLError,), {"value": _value, "message": _message})
    globals()[_kind.__name__] = _kind


class _Record:
    def __init__(self, **values):
        self.__dict__.update(values)


def _raise(name):
    raise globals()[f"NVMLError_{name}"]


def _need():
    if _started == 0:
        _raise("Uninitialized")


def _of(handle):
    _need()
    gpu = _case["gpus"][handle[0]]
    return gpu if len(handle) == 1 else gpu["mig"][handle[1]]


def _text(value):
    return value.encode() if _case.get("bytes_names") else value


def nvmlInit():  # noqa: N802
    global _started
    calls.append("init")
    time.sleep(_case.get("init_hang_s", 0))
    if _case.get("init_error"):
        _raise(_case["init_error"])
    _started += 1


def nvmlShutdown():  # noqa: N802
    global _started
    calls.append("shutdown")
    _need()
    _started -= 1


def nvmlDeviceGetCount():  # noqa: N802
    _need()
    return len(_case["gpus"])


def nvmlDeviceGetHandleByIndex(index):  # noqa: N802
    handle = (index,)
    if _of(handle).get("handle_error"):
        _raise(_of(handle)["handle_error"])
    return handle


def nvmlDeviceGetName(handle):  # noqa: N802
    gpu = _of(handle)
    if "name_bytes_hex" in gpu:
        return bytes.fromhex(gpu["name_bytes_hex"]).decode()  # raises UnicodeDecodeError like the real wrapper
    return _text(gpu["name"])


def nvmlDeviceGetUUID(handle):  # noqa: N802
    return _text(_of(handle)["uuid"])


def nvmlDeviceGetMemoryInfo(handle, version=None):  # noqa: N802
    gpu = _of(handle)
    if gpu.get("mem_error"):
        _raise(gpu["mem_error"])
    if version is None:
        return _Record(total=gpu["total"], free=gpu["free"], used=gpu["total"] - gpu["free"])
    if gpu.get("mem_v2_error"):
        _raise(gpu["mem_v2_error"])
    reserved = gpu.get("reserved", 0)
    return _Record(version=version, total=gpu["total"], reserved=reserved, free=gpu["free"], used=gpu["total"] - gpu["free"] - reserved)


def nvmlDeviceGetPciInfo(handle):  # noqa: N802
    return _Record(busId=_text(_of(handle).get("bus", "00000000:01:00.0")))


def nvmlSystemGetDriverVersion():  # noqa: N802
    _need()
    return _text(_case.get("driver", "550.54.14"))


def nvmlSystemGetCudaDriverVersion():  # noqa: N802
    _need()
    return _case.get("cuda", 12040)


def nvmlDeviceGetCudaComputeCapability(handle):  # noqa: N802
    return tuple(_of(handle).get("cc", (8, 6)))


def nvmlDeviceGetMigMode(handle):  # noqa: N802
    if "mig" not in _of(handle):
        _raise("NotSupported")
    return [1, 1]


def nvmlDeviceGetMaxMigDeviceCount(handle):  # noqa: N802
    return 7 if "mig" in _of(handle) else 0


def nvmlDeviceGetMigDeviceHandleByIndex(handle, number):  # noqa: N802
    if number >= len(_of(handle)["mig"]):
        _raise("NotFound")
    return (handle[0], number)


def nvmlDeviceGetGpuInstanceId(handle):  # noqa: N802
    return _of(handle)["instance"][0]


def nvmlDeviceGetComputeInstanceId(handle):  # noqa: N802
    return _of(handle)["instance"][1]
