"""Names of microarchitectures by the numbers a processor tells. Data; what is not listed stays unknown.

Sources: Intel's family/model list (Linux, arch/x86/include/asm/intel-family.h), AMD's (WikiChip, Linux arch/x86/kernel/cpu/amd.c),
ARM's part numbers (Linux, arch/arm64/include/asm/cputype.h; util-linux, lscpu-arm.c).
"""

from __future__ import annotations

_INTEL = {
    "Nehalem": (26, 30, 31, 46),
    "Westmere": (37, 44, 47),
    "Sandy Bridge": (42, 45),
    "Ivy Bridge": (58, 62),
    "Haswell": (60, 63, 69, 70),
    "Broadwell": (61, 71, 79, 86),
    "Skylake": (78, 94),
    "Cannon Lake": (102,),
    "Comet Lake": (165, 166),
    "Kaby Lake / Coffee Lake": (142, 158),
    "Ice Lake": (106, 108, 125, 126),
    "Tiger Lake": (140, 141),
    "Rocket Lake": (167,),
    "Sapphire Rapids": (143,),
    "Emerald Rapids": (207,),
    "Granite Rapids": (173, 174),
    "Sierra Forest": (175,),
    "Alder Lake": (151, 154),
    "Alder Lake-N": (190,),
    "Raptor Lake": (183, 186, 191),
    "Meteor Lake": (170, 172),
    "Arrow Lake": (181, 197, 198),
    "Lunar Lake": (189,),
    "Panther Lake": (204,),
    "Wildcat Lake": (213,),
    "Bartlett Lake": (215,),
    "Clearwater Forest": (221,),
    "Goldmont": (92, 95),
    "Goldmont Plus": (122,),
    "Tremont": (134, 138, 150, 156),
    "Silvermont": (55, 74, 77, 90, 93),
    "Airmont": (76,),
    "Knights Landing": (87,),
    "Knights Mill": (133,),
}
_INTEL_MODELS = {model: name for name, models in _INTEL.items() for model in models}

_HYBRID_INTEL = frozenset((151, 154, 183, 186, 191, 170, 172, 181, 197, 198, 189, 138, 204, 213))
"""Models of family 6 with performance and efficiency cores."""
_HYBRID_AMD = ((25, 0x78, 0x7F), (26, 0x20, 0x2F), (26, 0x60, 0x6F))
"""(family, first model, last model) with full and with dense cores (Zen 4 and 4c, Zen 5 and 5c): Phoenix 2, Strix Point, Krackan Point."""

_AMD = (
    (15, 0, 0xFF, "K8"),
    (16, 0, 0xFF, "K10"),
    (20, 0, 0xFF, "Bobcat"),
    (21, 0x00, 0x01, "Bulldozer"),
    (21, 0x02, 0x1F, "Piledriver"),
    (21, 0x30, 0x3F, "Steamroller"),
    (21, 0x60, 0x7F, "Excavator"),
    (22, 0, 0xFF, "Jaguar / Puma"),
    (23, 0x00, 0x07, "Zen"),
    (23, 0x08, 0x08, "Zen+"),
    (23, 0x11, 0x17, "Zen"),
    (23, 0x18, 0x18, "Zen+"),
    (23, 0x20, 0x20, "Zen"),
    (23, 0x30, 0xFF, "Zen 2"),
    (25, 0x00, 0x0F, "Zen 3"),
    (25, 0x10, 0x1F, "Zen 4"),
    (25, 0x20, 0x5F, "Zen 3"),
    (25, 0x60, 0xAF, "Zen 4"),
    (26, 0, 0xFF, "Zen 5"),
)
"""(family, first model, last model, name)."""

ARM_PARTS = {
    ("0x41", "0xd03"): "Cortex-A53",
    ("0x41", "0xd04"): "Cortex-A35",
    ("0x41", "0xd05"): "Cortex-A55",
    ("0x41", "0xd07"): "Cortex-A57",
    ("0x41", "0xd08"): "Cortex-A72",
    ("0x41", "0xd09"): "Cortex-A73",
    ("0x41", "0xd0a"): "Cortex-A75",
    ("0x41", "0xd0b"): "Cortex-A76",
    ("0x41", "0xd0c"): "Neoverse N1",
    ("0x41", "0xd0d"): "Cortex-A77",
    ("0x41", "0xd40"): "Neoverse V1",
    ("0x41", "0xd41"): "Cortex-A78",
    ("0x41", "0xd42"): "Cortex-A78AE",
    ("0x41", "0xd44"): "Cortex-X1",
    ("0x41", "0xd46"): "Cortex-A510",
    ("0x41", "0xd47"): "Cortex-A710",
    ("0x41", "0xd48"): "Cortex-X2",
    ("0x41", "0xd49"): "Neoverse N2",
    ("0x41", "0xd4d"): "Cortex-A715",
    ("0x41", "0xd4e"): "Cortex-X3",
    ("0x41", "0xd4f"): "Neoverse V2",
    ("0x41", "0xd80"): "Cortex-A520",
    ("0x41", "0xd81"): "Cortex-A720",
    ("0x41", "0xd82"): "Cortex-X4",
    ("0x41", "0xd83"): "Neoverse V3AE",
    ("0x41", "0xd84"): "Neoverse V3",
    ("0x41", "0xd85"): "Cortex-X925",
    ("0x41", "0xd87"): "Cortex-A725",
    ("0x41", "0xd8e"): "Neoverse N3",
    ("0x4e", "0x003"): "NVIDIA Denver 2",
    ("0x4e", "0x004"): "NVIDIA Carmel",
    ("0x46", "0x001"): "Fujitsu A64FX",
    ("0x43", "0x0af"): "ThunderX2",
    ("0x48", "0xd01"): "Kunpeng 920",
    ("0x61", "0x022"): "Apple Icestorm",
    ("0x61", "0x023"): "Apple Firestorm",
    ("0x61", "0x032"): "Apple Blizzard",
    ("0x61", "0x033"): "Apple Avalanche",
    ("0xc0", "0xac3"): "Ampere-1",
    ("0xc0", "0xac4"): "Ampere-1A",
}
"""(implementer, part) as /proc/cpuinfo writes them."""


def hybrid_kinds(vendor: str, family: int, model: int) -> str | None:
    """Which kinds of cores a processor mixes, in words; `None` for one whose cores are alike or that is not listed."""
    if vendor == "GenuineIntel" and family == 6 and model in _HYBRID_INTEL:
        return "performance and efficiency cores"
    if vendor == "AuthenticAMD" and any(of == family and low <= model <= high for of, low, high in _HYBRID_AMD):
        name = x86_microarchitecture(vendor, family, model, None)
        return f"{name} and {name}c cores"
    return None


def x86_microarchitecture(vendor: str, family: int, model: int, stepping: int | None) -> str | None:
    """The name for a CPUID family and model; `None` when it is not listed."""
    if vendor == "GenuineIntel" and family == 6:
        if model == 85:  # three server generations share the model number and differ by stepping
            if stepping is None or stepping <= 4:
                return "Skylake-SP"
            return "Cooper Lake" if stepping >= 10 else "Cascade Lake"
        return _INTEL_MODELS.get(model)
    if vendor in ("AuthenticAMD", "HygonGenuine"):
        if vendor == "HygonGenuine" and family == 24:
            return "Hygon Dhyana (Zen)"
        return next((name for of, low, high, name in _AMD if of == family and low <= model <= high), None)
    return None
