"""What nvidia-smi printed → rows of GPUs. Pure, and never raises, whatever the text."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from app.core.facts import Gpu
from app.core.gpu_figures import RawMemory, clean_name, describe, settle_memory, sick, usable_uuid, without_uuid
from app.core.gpu_trouble import printable

FIELDS: tuple[str, ...] = (
    "index",
    "uuid",
    "pci.bus_id",
    "driver_version",
    "memory.total",
    "memory.free",
    "memory.used",
    "memory.reserved",
    "utilization.gpu",
    "temperature.gpu",
    "power.draw",
    "compute_cap",
    "mig.mode.current",
    "name",
)
"""Asked in this order: `index` first tells where a row starts, `name` last may hold commas without shifting a column."""
SMALL_FIELDS: tuple[str, ...] = ("index", "uuid", "driver_version", "memory.total", "memory.free", "name")
"""What every driver since 2012 answers; asked when the long list is refused without naming the field."""

MAX_LINE = 2000
MAX_LINES = 5000
"""What is longer is no table of GPUs; the rest is not read."""

MALFORMED = "nvidia-smi printed a row that does not fit ('{row}'); it is left out."
MESSAGE = "nvidia-smi says '{row}'; the complete rows that it printed are used."

_NUMBER = re.compile(r"^\+?([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*(KiB|MiB|GiB|TiB|MB|GB|%|W|C)?$")
_FACTOR = {"KiB": 1 / 1024, "GiB": 1024.0, "GB": 1024.0, "TiB": 1024.0**2}
_MARKER = re.compile(
    r"^\[.*\]$|^(n/?a|unknown.*|not supported|not available|err!?|error|function not found|gpu is lost|insufficient permissions|none|-+)$",
    re.IGNORECASE,
)
_BEFORE_NAME = re.compile(rf"{_MARKER.pattern}|^(enabled|disabled)$", re.IGNORECASE)
"""What stands in the column before the name and is no beginning of a name."""
_UNSUPPORTED = re.compile(r"^\[?\s*(n/?a|not supported|not available)\s*\]?$", re.IGNORECASE)
_OTHER_COLUMN = re.compile(r"^((GPU|MIG)-[0-9A-Za-z/-]+|[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]|[0-9]+(\.[0-9]+){2,})$")
"""What stands in columns before the memory and never in them: a UUID, a PCI bus id, a driver version of three parts."""
_UUID = re.compile(r"^(GPU|MIG)-[0-9A-Za-z/-]+$")
HANDLE_ERROR = re.compile(r"unable to determine the device handle for gpu\s*([0-9A-Fa-f:.]{1,20})", re.IGNORECASE)
_MESSAGE = re.compile(r"unable to determine the device handle|^(warning|error|failed)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Table:
    """The GPUs of one output. `driver_version` and `mig_enabled` (physical indices) come from the rows too."""

    gpus: tuple[Gpu, ...] = ()
    driver_version: str | None = None
    mig_enabled: frozenset[int] = frozenset()
    problems: tuple[str, ...] = ()
    header_only: bool = False


def number(cell: str) -> float | None:
    """`15900`, `15900.5`, `15900 MiB` → a finite number (MiB for memory); anything else → `None`."""
    match = _NUMBER.match(cell.strip())
    if not match:
        return None
    value = float(match[1]) * _FACTOR.get(match[2] or "", 1.0)
    return value if math.isfinite(value) else None


def parse_table(text: str, fields: tuple[str, ...] = FIELDS) -> Table:
    """Rows of `fields` as `--format=csv,noheader,nounits` prints them; units, CRLF, decimals and a newline in a row are tolerated.

    Rows of `name, memory.total, memory.free` are understood too: wrappers and old tools answer so whatever is asked.
    A row that fits neither is left out with a sentence, and never shifts or renumbers the others.
    """
    text = text.replace("\N{ZERO WIDTH NO-BREAK SPACE}", "")  # a byte order mark, as Windows' redirections write it
    lines = [line.strip()[:MAX_LINE] for line in re.split(r"[\r\n]+", text, maxsplit=MAX_LINES)[:MAX_LINES]]
    body = [line for line in lines if line and "memory.total" not in line]
    gpus: dict[int, Gpu] = {}
    problems: list[str] = []
    drivers: list[str] = []
    mig: set[int] = set()
    place = 0
    for record in _records(body, fields):
        cells = _fit(record, fields)
        gpu, sentence = _gpu_of(cells, place) if cells is not None else _short_or_sick(record, place)
        unnamed = None if gpu is None or cells is None or "uuid" not in cells else without_uuid(gpu, cells["uuid"])
        if gpu is not None and gpu.index in gpus:
            gpu, sentence = None, MALFORMED.format(row=printable(record, 80))
        if gpu is not None:
            gpus[gpu.index] = gpu
            mig.update({gpu.index} if cells is not None and cells.get("mig.mode.current", "").lower() == "enabled" else ())
        drivers.extend([cells["driver_version"]] if cells is not None and _is_version(cells.get("driver_version", "")) else [])
        problems.extend(text for text in (sentence, None if gpu is None or gpu.problem else unnamed) if text)
        place += gpu is not None or ("," in record and not _MESSAGE.search(record))
    return Table(
        gpus=tuple(gpus[index] for index in sorted(gpus)),
        driver_version=drivers[0] if drivers else None,
        mig_enabled=frozenset(mig),
        problems=tuple(problems),
        header_only=not body and any("memory.total" in line for line in lines),
    )


def _is_version(cell: str) -> bool:
    return re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,4}){1,3}", cell.strip()) is not None


def _records(lines: list[str], fields: tuple[str, ...]) -> list[str]:
    """Lines, with those put together that belong to one row: a stray newline inside a cell tears a row apart."""
    records: list[str] = []
    for line in lines:
        if records and not _starts(line, fields) and _goes_on(records[-1], line, fields):
            records[-1] = f"{records[-1]} {line}"
        else:
            records.append(line)
    return records


def _starts(line: str, fields: tuple[str, ...]) -> bool:
    """Whether a line is a row or a message of its own."""
    return _fit(line, fields) is not None or _split_short(line) is not None or _MESSAGE.search(line) is not None


def _goes_on(record: str, line: str, fields: tuple[str, ...]) -> bool:
    """Whether `line` is the rest of `record`: of a row still short of cells, or of a name at the end of a whole row."""
    if len(record) > MAX_LINE or _MESSAGE.search(record):
        return False
    if _fit(record, fields) is not None:
        return "," not in line
    return _split_short(record) is None and record.count(",") + line.count(",") < len(fields)


def _fit(record: str, fields: tuple[str, ...]) -> dict[str, str] | None:
    """The cells by field; `None` when the record is not a row of `fields`. A name at the end keeps its commas."""
    cells = [cell.strip() for cell in record.split(",", len(fields) - 1 if fields[-1] == "name" else -1)]
    if len(cells) != len(fields):
        return None
    row = dict(zip(fields, cells, strict=True))
    if "index" in row and not re.fullmatch(r"[0-9]{1,4}", row["index"]):
        return None
    measured = [row[field] for field in ("memory.total", "memory.free", "memory.used") if field in row]
    shifted = any(_OTHER_COLUMN.match(cell) for cell in measured)
    return None if shifted or _shifted_behind(row) else row


def _shifted_behind(row: dict[str, str]) -> bool:
    """Whether a comma inside a figure (`15,900`) moved the cells behind it: then they hold what belongs to their neighbours.

    The last cell, the name, then holds one more comma, and begins with what belongs before it. An odd figure in a row whose
    name has no comma is odd, and nothing more.
    """
    first, comma, _ = row.get("name", "").partition(",")
    if not comma:
        return False
    capability = row.get("compute_cap")
    signs = [] if capability is None else [number(capability) is not None and _capability(capability) is None]
    signs += [number(row["mig.mode.current"]) is not None] if "mig.mode.current" in row else []
    return number(first) is not None or _BEFORE_NAME.match(first.strip()) is not None or (bool(signs) and all(signs))


def _split_short(record: str) -> tuple[int | None, str, str, str] | None:
    """(index, name, total, free) of a row in the short form, read from the right; `None` when it cannot be told apart."""
    parts = [part.strip() for part in record.rsplit(",", 2)]
    if len(parts) != 3 or not all(number(part) is not None or _MARKER.match(part) for part in parts[1:]):
        return None
    index, name = None, parts[0]
    if match := re.match(r"([0-9]{1,4})\s*,\s*(?=\S)", name):
        index, name = int(match[1]), name[match.end() :]
    tail = name.rsplit(",", 1)[-1].strip()
    if not name or number(tail) is not None or (_MARKER.match(tail) and tail != name) or _UUID.match(name.split(",", 1)[0].strip()):
        return None  # a third figure before the two: which is which cannot be known
    return index, name, parts[1], parts[2]


def _short_or_sick(record: str, place: int) -> tuple[Gpu | None, str | None]:
    """The GPU of a row in the short form, or of one that tells at least which GPU is not well."""
    split = _split_short(record)
    if split is not None:
        index, name, total, free = split
        index = place if index is None else index
        return settle_memory(
            Gpu(index=index, uuid=None, name=clean_name(name, index)), _memory({"memory.total": total, "memory.free": free})
        )
    if error := HANDLE_ERROR.search(record):
        gpu = Gpu(index=place, uuid=None, name=clean_name(None, place), pci_bus_id=error[1].strip(":"))
        sentence = sick(gpu, printable(record), "handle")
    elif row := re.match(r"([0-9]{1,3})\s*,\s*((?:GPU|MIG)-[0-9A-Za-z-]+)?", record):
        gpu = Gpu(index=int(row[1]), uuid=row[2], name=clean_name(None, int(row[1])))
        sentence = MALFORMED.format(row=printable(record, 120))
    elif _MESSAGE.search(record) or "," not in record:
        return None, MESSAGE.format(row=printable(record))
    else:
        return None, MALFORMED.format(row=printable(record, 80))
    return replace(gpu, problem=sentence), sentence


def _gpu_of(cells: dict[str, str], place: int) -> tuple[Gpu, str | None]:
    index = int(cells["index"]) if "index" in cells else place
    uuid = cells.get("uuid", "")
    bus = cells.get("pci.bus_id", "")
    gpu = Gpu(
        index=index,
        uuid=usable_uuid(uuid),
        name=clean_name(cells.get("name"), index),
        pci_bus_id=bus if re.fullmatch(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]", bus) else None,
        compute_capability=_capability(cells.get("compute_cap", "")),
        utilisation_percent=_bounded(cells.get("utilization.gpu", ""), 100),
        temperature_c=_bounded(cells.get("temperature.gpu", ""), 200),
        power_w=number(cells.get("power.draw", "")),
    )
    return settle_memory(gpu, _memory(cells))


def _memory(cells: dict[str, str]) -> RawMemory:
    told = {field: number(cells.get(field, "")) for field in ("memory.total", "memory.free", "memory.used", "memory.reserved")}
    said = next((cells[field] for field in ("memory.free", "memory.total") if field in cells and told[field] is None), None)
    return RawMemory(
        told["memory.total"],
        told["memory.free"],
        told["memory.used"],
        told["memory.reserved"],
        said=said,
        unsupported=said is not None and _UNSUPPORTED.match(said) is not None,
    )


def _capability(cell: str) -> tuple[int, int] | None:
    match = re.fullmatch(r"([0-9]{1,2})\.([0-9])", cell.strip())
    return (int(match[1]), int(match[2])) if match else None


def _bounded(cell: str, high: int) -> int | None:
    value = number(cell)
    return int(value) if value is not None and value <= high else None


_SLICE_LINE = re.compile(r"^\s*MIG\s+(\S+)\s+Device\s+([0-9]+):\s*\(UUID:\s*(MIG-[^)\s]+)\)")
_GPU_LINE = re.compile(r"^\s*GPU\s+([0-9]{1,4}):")
SLICE_UNKNOWN = "{gpu}: nvidia-smi does not tell the free memory of a MIG slice, NVML would; --device with its UUID tries it anyway."


def parse_slices(text: str, parents: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """The MIG slices that `nvidia-smi -L` lists under their GPUs. Their free memory stays unknown."""
    by_index = {gpu.index: gpu for gpu in parents}
    parent: Gpu | None = None
    slices: list[Gpu] = []
    for line in text.splitlines():
        if match := _GPU_LINE.match(line):
            parent = by_index.get(int(match[1]))
        elif parent is not None and (match := _SLICE_LINE.match(line)):
            name = f"{parent.name} MIG {match[1]}"
            found = Gpu(index=parent.index, uuid=match[3], name=name, mig=match[1], mig_parent_uuid=parent.uuid)
            found = replace(found, pci_bus_id=parent.pci_bus_id, compute_capability=parent.compute_capability)
            slices.append(replace(found, problem=SLICE_UNKNOWN.format(gpu=describe(found))))
    return tuple(slices)
