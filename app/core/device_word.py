"""Which words name a device at all. Whether this machine has such a device is for `device_policy`, which needs its facts."""

from __future__ import annotations

from app.core.errors import OptionError


def refuse_meaningless_device(device: str) -> None:
    """Raises OptionError unless `device` is auto (or empty), cpu, gpu, the index of a GPU or (the beginning of) a UUID. Asks no machine."""
    word = device.strip()
    if word.lower() in ("", "auto", "cpu", "gpu") or word.isdecimal() or word.upper().startswith(("GPU-", "MIG-")):
        return
    raise OptionError(f"--device: expected auto, cpu, gpu, the index of a GPU or its UUID (GPU-… or MIG-…), got '{word}'.")
