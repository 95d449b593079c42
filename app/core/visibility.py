"""Which GPUs CUDA shows to a process, and at which position: CUDA_VISIBLE_DEVICES by CUDA's own rules. Pure.

The rules are those of the CUDA programming guide (environment variables) and of the MIG user guide (device enumeration), in
the details as `torch.cuda._parse_visible_devices` found them out: numbers are read like `strtoul` reads them (`1gpu` is
1), the first entry says whether the list holds numbers or UUIDs, an invalid entry hides itself and all that follow, an entry
given twice leaves no device at all. NVIDIA_VISIBLE_DEVICES belongs to the container runtime and means nothing here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from app.core.facts import Gpu
from app.core.gpu_trouble import printable
from app.core.words import counted

VARIABLE = "CUDA_VISIBLE_DEVICES"
ORDER_VARIABLE = "CUDA_DEVICE_ORDER"

ALL_HIDDEN = "{setting} hides every GPU from this process: {why}."
SOME_SHOWN = "{setting} shows {shown} of {total} to this process: {which}{why}."
FASTEST_FIRST = (
    "GPUs of different kinds are numbered fastest first by CUDA, not by PCI bus as here, so a number in {variable} may mean another GPU; "
    "set CUDA_DEVICE_ORDER=PCI_BUS_ID or name the GPU by UUID."
)
SLICE_UNKNOWN = "{name}: the size and the free memory of this MIG slice are unknown; --device with its UUID tries it anyway."


@dataclass(frozen=True)
class Visibility:
    """`gpus` with `visible` and `logical_index` filled in, and what the variable does, as one sentence."""

    gpus: tuple[Gpu, ...]
    note: str | None = None


@dataclass(frozen=True)
class _Shown:
    """The chosen positions in `gpus`, in CUDA's order, and why it ended there."""

    places: tuple[int, ...] = ()
    why: str = ""


def apply_visibility(gpus: tuple[Gpu, ...], environ: Mapping[str, str]) -> Visibility:
    """What a process started with `environ` sees of `gpus` (physical order, each MIG parent followed by its slices).

    Without the variable every GPU can be chosen (by its UUID); `logical_index` tells what CUDA shows by itself, which with
    MIG is one slice only.
    """
    value = environ.get(VARIABLE)
    order_note = _order_note(gpus, environ, value)
    if value is None:
        return Visibility(_number(gpus, _default_order(gpus), hide=False), order_note)
    gpus = _with_legacy_slices(gpus, value)
    shown = _select(gpus, value)
    setting = f"{VARIABLE}={printable(value, 100)}" if value.strip() else f"{VARIABLE} (set, but empty)"
    if not gpus:
        return Visibility(gpus, None)
    if not shown.places:
        return Visibility(_number(gpus, (), hide=True), ALL_HIDDEN.format(setting=setting, why=shown.why or "it names none"))
    which = ", ".join(f"{_named(gpus, place)} as {logical}" for logical, place in enumerate(shown.places))
    why = f"; {shown.why}" if shown.why else ""
    note = SOME_SHOWN.format(setting=setting, shown=len(shown.places), total=_counted(gpus), which=which, why=why)
    return Visibility(_number(gpus, shown.places, hide=True), f"{note} {order_note}" if order_note else note)


def _number(gpus: tuple[Gpu, ...], places: tuple[int, ...], *, hide: bool) -> tuple[Gpu, ...]:
    logical = {place: number for number, place in enumerate(places)}
    parents = {gpus[place].mig_parent_uuid for place in places if gpus[place].mig_parent_uuid}
    shown = [not hide or place in logical or (gpu.mig == "parent" and gpu.uuid in parents) for place, gpu in enumerate(gpus)]
    return tuple(replace(gpu, visible=shown[place], logical_index=logical.get(place)) for place, gpu in enumerate(gpus))


def _named(gpus: tuple[Gpu, ...], place: int) -> str:
    """`GPU 0`, or for a slice its profile too; where the GPU has several of that profile, also the beginning of the UUID."""
    gpu = gpus[place]
    if gpu.mig in (None, "parent"):
        return f"GPU {gpu.index}"
    profile = gpu.mig if gpu.mig != "slice" else gpu.name.rpartition("MIG ")[2]
    alike = sum(other.index == gpu.index and other.mig == gpu.mig for other in gpus) > 1
    return f"GPU {gpu.index} MIG {profile}" + (f" ({gpu.uuid[:12]}…)" if alike and gpu.uuid else "")


def _counted(gpus: tuple[Gpu, ...]) -> str:
    """What can be computed on: `4 GPUs`, or `3 GPUs and MIG slices`."""
    total = sum(gpu.mig != "parent" for gpu in gpus)
    slices = sum(gpu.mig not in (None, "parent") for gpu in gpus)
    return counted(total, "MIG slice") if slices == total else f"{total} GPUs and MIG slices" if slices else counted(total, "GPU")


def _default_order(gpus: tuple[Gpu, ...]) -> tuple[int, ...]:
    """MIG user guide: only one compute instance is enumerated, and beside it no GPU without MIG."""
    slices = [place for place, gpu in enumerate(gpus) if gpu.mig not in (None, "parent")]
    return tuple(slices[:1]) if slices else tuple(place for place, gpu in enumerate(gpus) if gpu.mig is None)


def _select(gpus: tuple[Gpu, ...], value: str) -> _Shown:
    entries = value.split(",")
    kind = next((kind for kind in ("GPU-", "MIG-") if value.lstrip().startswith(kind)), None)
    places: list[int] = []
    slice_taken = False
    for entry in (text.strip() for text in entries):
        place, why = _by_uuid(gpus, entry, kind) if kind else _by_number(gpus, entry)
        if place is None:
            return _Shown(tuple(places), why + (", which ends the list" if places else ""))
        if place in places:
            return _Shown((), f"it names {_named(gpus, place)} twice, after which CUDA shows no device")
        if gpus[place].mig is not None and slice_taken:
            return _Shown(tuple(places), "CUDA shows one MIG slice to a process, the first named")
        slice_taken = slice_taken or gpus[place].mig is not None
        places.append(place)
    return _Shown(tuple(places))


def _by_number(gpus: tuple[Gpu, ...], entry: str) -> tuple[int | None, str]:
    match = re.match(r"[+-]?[0-9]+", entry)
    if not match:
        return None, f"'{printable(entry, 60)}' is no number" if entry else "an empty entry"
    wanted = int(match[0][:12])
    if wanted < 0:
        return None, f"{wanted} hides what follows"
    boards = [place for place, gpu in enumerate(gpus) if gpu.mig in (None, "parent")]
    if wanted >= len(boards):
        return None, f"there is no GPU {wanted}"
    return _first_slice(gpus, boards[wanted])


def _by_uuid(gpus: tuple[Gpu, ...], entry: str, kind: str) -> tuple[int | None, str]:
    if not entry.startswith(kind):
        return None, f"'{printable(entry, 60)}' is no {kind}… like the first entry"
    found = [place for place, gpu in enumerate(gpus) if gpu.uuid is not None and gpu.uuid.lower().startswith(entry.lower())]
    if legacy := _legacy(entry):
        found = [place for place, gpu in enumerate(gpus) if _is_instance(gpu, legacy) or gpu.uuid == entry]
    if len(found) != 1:
        return None, f"{printable(entry, 60)} " + ("is the beginning of more than one UUID" if found else "is not here")
    return _first_slice(gpus, found[0])


def _first_slice(gpus: tuple[Gpu, ...], place: int) -> tuple[int | None, str]:
    """The GPU itself, or the first slice of one that is divided: CUDA computes on slices only."""
    gpu = gpus[place]
    if gpu.mig != "parent":
        return place, ""
    slices = [at for at, other in enumerate(gpus) if other.mig not in (None, "parent") and other.index == gpu.index]
    return (slices[0], "") if slices else (None, f"GPU {gpu.index} is divided by MIG and has no slice")


def _legacy(entry: str) -> tuple[str, int, int] | None:
    """The form of drivers before R470: `MIG-GPU-<uuid>/<GPU instance>/<compute instance>`."""
    match = re.fullmatch(r"MIG-(GPU-[0-9A-Za-z-]+)/([0-9]{1,4})/([0-9]{1,4})", entry.strip())
    return (match[1], int(match[2]), int(match[3])) if match else None


def _is_instance(gpu: Gpu, legacy: tuple[str, int, int]) -> bool:
    return gpu.mig_parent_uuid is not None and gpu.mig_parent_uuid.lower() == legacy[0].lower() and gpu.mig_instance == legacy[1:]


def _with_legacy_slices(gpus: tuple[Gpu, ...], value: str) -> tuple[Gpu, ...]:
    """Slices that the variable names in the legacy form and that no probe listed, put behind their GPU, their size unknown."""
    result = list(gpus)
    for entry in value.split(","):
        legacy = _legacy(entry)
        if legacy is None or any(_is_instance(gpu, legacy) for gpu in result):
            continue
        parent = next((at for at, gpu in enumerate(result) if gpu.uuid is not None and gpu.uuid.lower() == legacy[0].lower()), None)
        if parent is None or any(gpu.uuid == entry.strip() for gpu in result):
            continue
        board = result[parent]
        name = f"{board.name} MIG {legacy[1]}/{legacy[2]}"
        found = Gpu(index=board.index, uuid=entry.strip(), name=name, mig="slice", mig_parent_uuid=board.uuid, mig_instance=legacy[1:])
        found = replace(found, compute_capability=board.compute_capability, problem=SLICE_UNKNOWN.format(name=name))
        result[parent] = replace(board, mig="parent")
        result.insert(parent + 1, found)
    return tuple(result)


def _order_note(gpus: tuple[Gpu, ...], environ: Mapping[str, str], value: str | None) -> str | None:
    """Numbers mean CUDA's own order, which differs from the PCI order only where the GPUs differ."""
    by_number = value is not None and re.match(r"\s*\+?[0-9]", value) is not None
    kinds = {gpu.name for gpu in gpus if gpu.mig in (None, "parent")}
    if by_number and len(kinds) > 1 and environ.get(ORDER_VARIABLE, "").strip() != "PCI_BUS_ID":
        return FASTEST_FIRST.format(variable=VARIABLE)
    return None
