"""Which kernels oneDNN really ran, read from its own verbose lines (pure).

oneDNN writes them to the process's standard output when `ONEDNN_VERBOSE=1` stood in the environment before its first
primitive. The forms differ by version: `onednn_verbose,exec,cpu,…` (before 3.1), `onednn_verbose,primitive,exec,cpu,…`,
`onednn_verbose,v1,primitive,exec,cpu,…` (since 3.4), `dnnl_verbose,…` (1.x); so fields are found by name, not by position.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from app.core.words import counted

_PREFIXES = ("onednn_verbose", "dnnl_verbose")

_INSTRUCTION_SETS = (
    ("AVX10", "AVX10"),
    ("AMX", "AVX-512 with AMX"),
    ("AVX-512", "AVX-512"),
    ("AVX2", "AVX2"),
    ("AVX", "AVX"),
    ("SSE4.1", "SSE4.1"),
    ("SVE", "SVE"),
    ("AArch64", "Advanced SIMD"),
)
"""What oneDNN's `isa:` text contains, widest first, and the short name shown for it."""

CONVOLUTIONS = ("convolution", "deconvolution")
"""Primitives that compute a convolution, forward and backward."""
MATRIX_MULTIPLICATION = "gemm_api"
"""oneDNN's plain matrix multiplication, which Eigen's convolution calls when TensorFlow's oneDNN operations are off."""


@dataclass(frozen=True)
class Kernel:
    """One implementation of one primitive, over all its executions."""

    primitive: str
    """As oneDNN calls it: `convolution`, `reorder`, `matmul`, `gemm_api` …"""
    implementation: str
    """As oneDNN calls it: `brg_conv_fwd:avx2`, `jit:sse41` …; empty where oneDNN names none."""
    count: int
    total_ms: float


@dataclass(frozen=True)
class KernelEvidence:
    """What the verbose lines of one process say. `None` and empty mean: not said."""

    version: str | None = None
    runtime: str | None = None
    """`threadpool`: TensorFlow's own threads; `OpenMP`: those of `OMP_NUM_THREADS`."""
    threads: int | None = None
    isa: str | None = None
    """The instruction set in oneDNN's own words."""
    kernels: tuple[Kernel, ...] = ()
    """Most time first."""

    @property
    def instruction_set(self) -> str | None:
        """Short name of the instruction set: `AVX-512`, `AVX2`, `AVX`, `SSE4.1` …"""
        return short_instruction_set(self.isa) if self.isa else None

    @property
    def convolutions(self) -> tuple[Kernel, ...]:
        """The kernels that computed convolutions, forward and backward."""
        return tuple(kernel for kernel in self.kernels if kernel.primitive in CONVOLUTIONS)

    @property
    def onednn_convolutions(self) -> bool | None:
        """True: convolutions ran in oneDNN. False: in Eigen, on oneDNN's matrix multiplication. `None`: no kernel was seen."""
        if not self.kernels:
            return None
        return bool(self.convolutions)

    @property
    def sentence(self) -> str:
        """What was seen, as one sentence."""
        if not self.kernels:
            return "oneDNN reported no kernel."
        isa = self.instruction_set or "unknown instruction set"
        if self.convolutions:
            names = ", ".join(dict.fromkeys(kernel.implementation for kernel in self.convolutions))
            where = f"{isa}, {counted(self.threads, 'thread')} ({self.runtime or 'unknown'} runtime)"
            return f"Convolutions ran in oneDNN: {names}; {where}."
        # The number of threads that oneDNN reports then is the machine's, not that of the pool which Eigen uses (measured).
        return f"Convolutions ran in Eigen, on oneDNN's matrix multiplication ({MATRIX_MULTIPLICATION}); {isa}, TensorFlow's own threads."


def short_instruction_set(isa: str) -> str:
    """`"Intel AVX-512 with Intel DL Boost and bfloat16 support"` → `"AVX-512"`; an unknown text is returned as it is."""
    return next((short for word, short in _INSTRUCTION_SETS if word.lower() in isa.lower()), isa)


def parse_onednn_verbose(text: str) -> KernelEvidence:
    """The evidence in a process's standard output; lines of other origin and broken lines are passed over. Never raises."""
    information: dict[str, str] = {}
    totals: dict[tuple[str, str], tuple[int, float]] = {}
    for fields in _verbose_lines(text):
        if "exec" in fields[:5]:
            _count(fields[fields.index("exec") + 1 :], totals)
        elif "info" in fields[:3]:
            _note(fields, information)
    kernels = [Kernel(primitive, name, count, round(ms, 3)) for (primitive, name), (count, ms) in totals.items()]
    threads = information.get("nthr", "")
    return KernelEvidence(
        version=information.get("version"),
        runtime=information.get("runtime"),
        threads=int(threads) if threads.isdecimal() else None,
        isa=information.get("isa"),
        kernels=tuple(sorted(kernels, key=lambda kernel: -kernel.total_ms)),
    )


def _verbose_lines(text: str) -> Iterator[list[str]]:
    for line in text.splitlines():
        fields = line.strip().split(",")
        if fields[0] in _PREFIXES:
            yield fields[1:]


def _count(fields: list[str], totals: dict[tuple[str, str], tuple[int, float]]) -> None:
    """`fields` from the engine on: engine, primitive, implementation, …, milliseconds."""
    if len(fields) < 4 or fields[0] != "cpu":
        return
    try:
        ms = float(fields[-1])
    except ValueError:  # the line was cut when the process ended
        return
    count, total = totals.get((fields[1], fields[2]), (0, 0.0))
    totals[fields[1], fields[2]] = (count + 1, total + ms)


def _note(fields: list[str], information: dict[str, str]) -> None:
    rest = fields[fields.index("info") + 1 :]
    if rest and rest[0].startswith(("oneDNN v", "DNNL v")):
        information.setdefault("version", rest[0].split("(")[0].strip())
    if rest and rest[0] == "cpu":  # the line about GPUs says runtime:none
        for field in rest[1:]:
            name, colon, value = field.partition(":")
            if colon:
                information.setdefault(name, value.strip())


def threads_in_words(evidence: dict[str, Any]) -> str:
    """`2 threads`; what oneDNN counts where no convolution ran in it says nothing about those that did run (measured)."""
    by_onednn = any(kernel["primitive"] in CONVOLUTIONS for kernel in evidence.get("kernels", ()))
    return counted(evidence.get("threads"), "thread") if by_onednn else "TensorFlow's own threads"
