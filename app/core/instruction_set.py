"""Which instructions oneDNN will use on a processor, and what the user's variables make of that. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from app.core.cpu_text import is_x86
from app.core.facts import CpuFacts
from app.core.reasons import AVX512_THROUGH_ONEDNN, CAPPED, ONEDNN_OFF, PATH_AVX2, PATH_CPU, WARN_NO_AVX
from app.core.tf_settings import onednn_wanted

ISA_CAPS = {
    "SSE41": "SSE4.1",
    "AVX": "AVX",
    "AVX2": "AVX2",
    "AVX2_VNNI": "AVX2",
    "AVX2_VNNI_2": "AVX2",
}
"""What ONEDNN_MAX_CPU_ISA caps the instruction set at; wider values cap nothing below AVX-512."""
ISA_VARIABLES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
"""The first that is set counts."""
_ORDER = ("SSE4.1", "AVX", "AVX2", "AVX-512")
_BY_FEATURE = (("avx512f", "AVX-512"), ("avx2", "AVX2"), ("avx", "AVX"), ("sse4_2", "SSE4.1"))


def widest(cpu: CpuFacts, cap: str = "") -> str | None:
    """The widest set that oneDNN uses on `cpu` under the value `cap` of ONEDNN_MAX_CPU_ISA; `None` where it cannot be told."""
    found = next((name for key, name in _BY_FEATURE if cpu.features.get(key)), None)
    limit = ISA_CAPS.get(cap.upper())
    return found if found is None or limit is None else min(found, limit, key=_ORDER.index)


def cap_in(variables: Mapping[str, str]) -> tuple[str, str]:
    """(name, value) of the variable that caps the instruction set; two empty texts where none is set."""
    return next(((name, variables[name]) for name in ISA_VARIABLES if variables.get(name)), ("", ""))


def path_sentences(cpu: CpuFacts) -> str:
    """The end of a reason that ends on the CPU: AVX2 is named only where it is used, and what the user's variables take away."""
    switch = cpu.variables.get("TF_ENABLE_ONEDNN_OPTS")
    if onednn_wanted(switch) is False:
        return f"{PATH_CPU} {ONEDNN_OFF.format(value=switch)}"
    name, value = cap_in(cpu.variables)
    used = widest(cpu, value)
    path = PATH_AVX2 if cpu.avx2 and used in ("AVX2", "AVX-512") else PATH_CPU
    if used != widest(cpu):
        return f"{path} {CAPPED.format(name=name, value=value, isa=used)}"
    return f"{path} {AVX512_THROUGH_ONEDNN}" if used == "AVX-512" and cpu.avx2 else path


def without_avx(cpu: CpuFacts) -> tuple[str, ...]:
    """The warning that TensorFlow cannot start, where that is certain."""
    if not is_x86(cpu.architecture) or cpu.avx is not False:
        return ()
    return (WARN_NO_AVX,)
