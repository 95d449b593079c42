"""What the CPU can do: features as chips, cores and what limits them."""

from __future__ import annotations

import streamlit as st

from app.core.facts import CpuFacts, Presence
from app.ui import format as fmt

FEATURE_NAMES = {
    "sse4_2": "SSE4.2",
    "avx": "AVX",
    "avx2": "AVX2",
    "fma": "FMA",
    "avx512f": "AVX-512F",
    "avx512_vnni": "AVX-512 VNNI",
    "avx512_bf16": "AVX-512 BF16",
    "amx_tile": "AMX",
}


def render(cpu: CpuFacts) -> None:
    """Draw the card."""
    st.subheader(cpu.name or f"Unknown {cpu.architecture} processor", anchor=False)
    with st.container(horizontal=True, gap="small"):
        for key, present in cpu.features.items():
            _chip(FEATURE_NAMES.get(key, key), present)
    columns = st.columns(4)
    columns[0].metric("Physical cores", _count(cpu.physical_cores))
    columns[1].metric("Logical cores", _count(cpu.logical_cores))
    columns[2].metric("Usable cores", _count(cpu.usable_cores), help=cpu.limited_by or "nothing limits this process to fewer")
    columns[3].metric(
        "Microarchitecture",
        cpu.microarchitecture or fmt.UNKNOWN,
        help=None if cpu.microarchitecture else "not in the table of known families",
    )
    limit = f"Limited: {cpu.limited_by}. " if cpu.limited_by else ""
    st.caption(limit + "TensorFlow's wheel is not compiled for AVX2: oneDNN picks the instruction set at run time. " + " ".join(cpu.notes))


def _chip(name: str, present: Presence) -> None:
    if present is None:
        st.badge(name, icon=":material/question_mark:", color="orange", help="unknown: the system does not tell")
    elif present:
        st.badge(name, icon=":material/check:", color="blue", help="present")
    else:
        st.badge(name, icon=":material/close:", color="gray", help="absent")


def _count(value: int | None) -> str:
    return fmt.UNKNOWN if value is None else str(value)
