"""What goes wrong between a process and its GPUs: every kind once, with its sentence (cause and cure).

NVML and nvidia-smi report the same troubles in different words (an exception class, an exit status, a line of text); both
are mapped here, so that the sentence a user reads does not depend on who noticed. Sentences are templates; tests format
the same ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

SENTENCES = {
    "mismatch": "{source} reports a driver/library version mismatch: the NVIDIA driver was upgraded while the old module is still "
    "loaded; reboot or reload the driver module.",
    "driver": "{source} is there, but the NVIDIA driver is not running; load it (modprobe nvidia), or reinstall it for the running kernel.",
    "unknown": "{source} could not reach the GPU (NVML says: {detail}); in a container, restart it (a reload of the host's daemon takes "
    "GPU access away), else look into dmesg for Xid messages or reboot.",
    "library": "{source} is there, but not NVML, the NVIDIA driver's library ({detail}); reinstall the driver, or start the container with "
    "the driver capability 'utility'.",
    "lost": "{source} says that a GPU has fallen off the bus ({detail}); reboot the machine, and check power and seating if it recurs.",
    "reset": "{source} says that a GPU needs a reset ({detail}); reset it (nvidia-smi --gpu-reset as root, with no process on it), "
    "or reboot the machine.",
    "permission": "{source} was refused access to the NVIDIA driver ({detail}); ask for permission on /dev/nvidia*.",
    "hanging": "{source} timed out and has not answered since {since}; it is not asked again before it does; a wedged driver "
    "needs a reboot.",
    "timeout": "{source} timed out after {seconds:g} s; enabling persistence mode (nvidia-smi -pm 1) makes the driver answer faster, "
    "a wedged driver needs a reboot.",
    "none": "{source} says that no supported GPU is there ({detail}); GPUs handed to a virtual machine or bound to another driver "
    "do not count.",
    "failed": "{source} failed with exit status {status} ({detail}); run it in a shell to see what is wrong.",
    "not executable": "{source} at {path} is not executable; make it so (chmod +x) or take it off PATH.",
    "bad format": "{source} at {path} cannot be started ({detail}); it is not a program for this machine, reinstall the driver's tools.",
    "header only": "{source} printed a header and no GPU; run it in a shell to see what is wrong.",
    "empty": "{source} printed nothing; run it in a shell to see what is wrong.",
    "garbage": "{source} printed something that is not a table of GPUs ('{detail}'); see which program of that name is first on PATH.",
    "module": "the Python module pynvml cannot be used ({detail}); install the distribution nvidia-ml-py.",
    "nvml absent": "NVML, the NVIDIA driver's library, is not installed.",
    "smi absent": "there is no nvidia-smi on PATH or in the usual places.",
    "no tools": "no nvidia-smi and no NVML: VRAM cannot be checked.",
    "no tools, device there": "no nvidia-smi and no NVML: VRAM cannot be checked, although a device file of an NVIDIA GPU is there; start "
    "the container with the driver capability 'utility', or try the GPU with --device gpu.",
}
"""By kind, the most telling first: where NVML and nvidia-smi report different ones, the earlier names the cause."""

_RANK = {kind: rank for rank, kind in enumerate(SENTENCES)}
CALM = frozenset({"nvml absent", "smi absent", "no tools", "module"})
"""Kinds that a machine without an NVIDIA GPU shows: no reason for an alarm."""


@dataclass(frozen=True)
class Trouble:
    """Why a source gave no GPU."""

    kind: str
    sentence: str

    @property
    def rank(self) -> int:
        return _RANK[self.kind]


def trouble(kind: str, source: str, **values: object) -> Trouble:
    """The sentence of `kind`, filled in. `detail` is made printable and short."""
    if "detail" in values:
        values["detail"] = printable(str(values["detail"])) or "no message"
    return Trouble(kind, SENTENCES[kind].format(source=source, **values))


def printable(text: str, limit: int = 120) -> str:
    """`text` on one line, without control and replacement characters, at most `limit` characters."""
    kept = "".join(c if c.isprintable() and c != "\N{REPLACEMENT CHARACTER}" else " " for c in text)
    kept = " ".join(kept.split()).rstrip(". ")
    return kept if len(kept) <= limit else kept[: limit - 1] + "…"


# NVML's return codes (nvml.h), which nvidia-smi also uses as its exit status (its manual, section RETURN VALUE).
_BY_CODE = {4: "permission", 9: "driver", 12: "nvml absent", 15: "lost", 16: "reset", 18: "mismatch", 999: "unknown", 6: "none"}

_BY_TEXT = (
    (re.compile(r"version mismatch", re.IGNORECASE), "mismatch"),
    (re.compile(r"communicate with the NVIDIA driver|driver (is )?not loaded", re.IGNORECASE), "driver"),
    (re.compile(r"no supported GPUs? w|no devices were found|no supported devices", re.IGNORECASE), "none"),
    (re.compile(r"insufficient permissions|no permission", re.IGNORECASE), "permission"),
    (re.compile(r"GPU is lost|fallen off the bus", re.IGNORECASE), "lost"),
    (re.compile(r"requires? (a )?reset|reset required|needs? (a )?reset", re.IGNORECASE), "reset"),
    (re.compile(r"NVML shared library not found|couldn't find libnvidia-ml", re.IGNORECASE), "nvml absent"),
    (re.compile(r"failed to initialize NVML|unknown error", re.IGNORECASE), "unknown"),
)


def kind_of_code(code: int) -> str | None:
    """The kind that an NVML return code or an nvidia-smi exit status stands for."""
    return _BY_CODE.get(code)


def kind_of_text(text: str) -> str | None:
    """The kind that a message of NVML or nvidia-smi stands for, in English; other languages are known by their code only."""
    return next((kind for pattern, kind in _BY_TEXT if pattern.search(text)), None)
