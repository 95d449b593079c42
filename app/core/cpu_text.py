"""What the system says about its processor → values. Pure parsers of /proc/cpuinfo and macOS' sysctl; they never raise."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from app.core.facts import Presence
from app.core.microarchitecture import ARM_PARTS, hybrid_kinds, x86_microarchitecture

FEATURES = ("sse4_2", "avx", "avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile")
"""The instruction sets that decide which kernels oneDNN picks, in the order shown; names as the kernel writes them."""

SOME_ONLY = "Only some processors have {feature} ({some} of {all}): it counts as absent, since a thread may run on any of them."
HETEROGENEOUS = "The cores are of different kinds ({kinds}): equally large pieces of work wait for the slowest."
MAC_NAMES = {
    "sse4_2": ("SSE4.2",),
    "avx": ("AVX1.0", "AVX"),
    "avx2": ("AVX2",),
    "fma": ("FMA",),
    "avx512f": ("AVX512F",),
    "avx512_vnni": ("AVX512VNNI", "AVX512_VNNI"),
    "avx512_bf16": ("AVX512BF16", "AVX512_BF16"),
    "amx_tile": ("AMX_TILE",),
}
"""What macOS calls them in `machdep.cpu.features` and `machdep.cpu.leaf7_features`."""

X86 = frozenset({"x86_64", "amd64", "i386", "i486", "i586", "i686", "x86"})


@dataclass(frozen=True)
class CpuText:
    """What one source tells; `None` is unknown."""

    name: str | None = None
    architecture: str | None = None
    features: dict[str, Presence] = field(default_factory=lambda: dict.fromkeys(FEATURES))
    microarchitecture: str | None = None
    processors: int | None = None
    physical_cores: int | None = None
    hypervisor: bool | None = None
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def is_x86(architecture: str) -> bool:
    return architecture.lower() in X86


def no_x86_features() -> dict[str, Presence]:
    """Of an architecture that has none of them, whatever its own vector units are."""
    return dict.fromkeys(FEATURES, False)


def parse_cpuinfo(text: str) -> CpuText:
    """/proc/cpuinfo of x86, ARM or POWER. A feature is present when its whole word stands on every processor's own flags line."""
    blocks = _processors(text)
    if not blocks:
        return CpuText()
    architecture = _architecture(text, blocks)
    features, problems = _features(blocks, architecture)
    first = blocks[0]
    flags = [_words(block, "flags") for block in blocks]
    return CpuText(
        name=_name(blocks, text),
        architecture=architecture,
        features=features,
        microarchitecture=_microarchitecture(blocks),
        processors=len(blocks),
        physical_cores=_physical(blocks),
        hypervisor=("hypervisor" in (flags[0] or ())) if "flags" in first else None,
        notes=_kinds(blocks),
        problems=problems,
    )


def _processors(text: str) -> list[dict[str, str]]:
    """One table per processor. What stands before the first or is no `key : value` belongs to none."""
    blocks: list[dict[str, str]] = []
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        key = key.strip().lower()
        if not colon:
            continue
        if key == "processor" and value.strip().isdecimal():
            blocks.append({})
        elif blocks:
            blocks[-1].setdefault(key, value.strip())
    return blocks


def _words(block: dict[str, str], key: str) -> frozenset[str] | None:
    return frozenset(block[key].lower().split()) if key in block else None


def _architecture(text: str, blocks: list[dict[str, str]]) -> str | None:
    """What the file itself shows, for a recorded machine may be another than the one that reads it."""
    first = blocks[0]
    if "flags" in first or "vendor_id" in first:
        return "x86_64"
    if "cpu implementer" in first:
        return "aarch64" if first.get("cpu architecture", "8") in ("8", "AArch64") else "armv7l"
    if "power" in first.get("cpu", "").lower() or re.search(r"^platform\s*:\s*(PowerNV|pSeries)", text, re.MULTILINE):
        return "ppc64le"
    if "isa" in first and first["isa"].startswith("rv"):
        return "riscv64"
    return None


def _features(blocks: list[dict[str, str]], architecture: str | None) -> tuple[dict[str, Presence], tuple[str, ...]]:
    if architecture is not None and not is_x86(architecture):
        return no_x86_features(), ()
    flags = [_words(block, "flags") for block in blocks]
    told = [words for words in flags if words is not None]
    features: dict[str, Presence] = {}
    problems: list[str] = []
    for feature in FEATURES:
        having = sum(feature in words for words in told)
        if 0 < having < len(told):
            problems.append(SOME_ONLY.format(feature=feature, some=having, all=len(told)))
        if having < len(told):
            features[feature] = False
        else:
            features[feature] = True if told and len(told) == len(flags) else None
    return features, tuple(problems)


def _name(blocks: list[dict[str, str]], text: str) -> str | None:
    for key in ("model name", "cpu", "cpu model", "hardware"):
        if name := blocks[0].get(key):
            return " ".join(name.split())
    if hardware := re.search(r"^(?:Hardware|Model)\s*:\s*(.+)$", text, re.MULTILINE):
        return " ".join(hardware[1].split())
    parts = list(dict.fromkeys(part for block in blocks if (part := _arm_part(block))))
    return "ARM " + " + ".join(parts) if parts else None


def _arm_part(block: dict[str, str]) -> str | None:
    implementer, part = block.get("cpu implementer"), block.get("cpu part")
    if implementer is None or part is None:
        return None
    return ARM_PARTS.get((implementer.lower(), part.lower()), f"part {part}")


def _microarchitecture(blocks: list[dict[str, str]]) -> str | None:
    first = blocks[0]
    if "cpu implementer" in first:
        known = dict.fromkeys(part for block in blocks if (part := _arm_part(block)) and not part.startswith("part "))
        return " + ".join(known) or None
    signature = _signature(first)
    if signature is None:
        return None
    stepping = first.get("stepping", "")
    return x86_microarchitecture(*signature, int(stepping) if re.fullmatch("[0-9]{1,5}", stepping) else None)


def _signature(block: dict[str, str]) -> tuple[str, int, int] | None:
    """(vendor, family, model) of an x86 processor."""
    family, model = block.get("cpu family", ""), block.get("model", "")
    if not (re.fullmatch("[0-9]{1,5}", family) and re.fullmatch("[0-9]{1,5}", model)):
        return None
    return block.get("vendor_id", ""), int(family), int(model)


def _physical(blocks: list[dict[str, str]]) -> int | None:
    """Distinct (socket, core) pairs; `None` unless every processor tells both."""
    pairs = {(block.get("physical id"), block.get("core id")) for block in blocks}
    return None if any(None in pair for pair in pairs) else len(pairs)


def _kinds(blocks: list[dict[str, str]]) -> tuple[str, ...]:
    parts = list(dict.fromkeys(part for block in blocks if (part := _arm_part(block))))
    if len(parts) > 1:
        return (HETEROGENEOUS.format(kinds=", ".join(parts)),)
    signature = _signature(blocks[0])
    virtual = "hypervisor" in (_words(blocks[0], "flags") or ())
    kinds = None if signature is None or virtual else hybrid_kinds(*signature)
    return () if kinds is None else (HETEROGENEOUS.format(kinds=kinds),)


def parse_sysctl(text: str) -> CpuText:
    """The lines `name: value` of macOS' `sysctl machdep.cpu hw`. AVX2 stands in a second list, `leaf7_features`."""
    values = {key.strip(): value.strip() for key, colon, value in (line.partition(":") for line in text.splitlines()) if colon}
    brand = values.get("machdep.cpu.brand_string") or None
    apple = values.get("hw.optional.arm64") == "1" or (brand or "").startswith("Apple ")
    words: set[str] | None = None
    lists = ("machdep.cpu.features", "machdep.cpu.leaf7_features")
    if any(key in values for key in lists):
        words = {word for key in lists for word in values.get(key, "").upper().split()}
    features: dict[str, Presence] = dict.fromkeys(FEATURES)
    if words is not None:
        features = {key: any(name in words for name in names) for key, names in MAC_NAMES.items()}
    for key, name in (("avx", "avx1_0"), ("avx2", "avx2_0"), ("avx512f", "avx512f"), ("fma", "fma")):
        if values.get(f"hw.optional.{name}") == "1":
            features[key] = True
    levels = [values.get(f"hw.perflevel{level}.physicalcpu") for level in (0, 1)]
    kinds = (HETEROGENEOUS.format(kinds="performance and efficiency cores"),) if all(levels) and "0" not in levels else ()
    return CpuText(
        name=brand,
        architecture="arm64" if apple else "x86_64" if words is not None else None,
        features=no_x86_features() if apple else features,
        processors=_count(values.get("hw.logicalcpu") or values.get("hw.ncpu") or values.get("machdep.cpu.thread_count")),
        physical_cores=_count(values.get("hw.physicalcpu") or values.get("machdep.cpu.core_count")),
        notes=kinds,
    )


def _count(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch("[1-9][0-9]{0,4}", text) else None
