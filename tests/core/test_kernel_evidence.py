"""oneDNN's verbose lines, recorded from real processes (tests/data/onednn) and quoted for machines not at hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.kernel_evidence import Kernel, KernelEvidence, parse_onednn_verbose, short_instruction_set, threads_in_words

RECORDED = Path(__file__).resolve().parent.parent / "data" / "onednn"


def recorded(name: str) -> KernelEvidence:
    return parse_onednn_verbose((RECORDED / f"{name}.txt").read_text(encoding="utf-8"))


def implementations(evidence: KernelEvidence) -> set[str]:
    return {kernel.implementation for kernel in evidence.convolutions}


@pytest.mark.parametrize(
    ("name", "threads", "isa", "short", "kernels"),
    [
        ("avx2", 2, "Intel AVX2", "AVX2", {"brg_conv_fwd:avx2", "brgconv_strided:avx2", "jit:avx2"}),
        ("avx", 2, "Intel AVX", "AVX", {"jit:avx", "x64:gemm:jit"}),
        ("sse41", 2, "Intel SSE4.1", "SSE4.1", {"jit:sse41", "x64:gemm:jit"}),
        ("threads7", 7, "Intel AVX2", "AVX2", {"brg_conv_fwd:avx2", "brgconv_strided:avx2", "jit:avx2"}),
        ("omp7", 2, "Intel AVX2", "AVX2", {"brg_conv_fwd:avx2", "brgconv_strided:avx2", "jit:avx2"}),
    ],
)
def test_recorded_processes(name: str, threads: int, isa: str, short: str, kernels: set[str]) -> None:
    evidence = recorded(name)
    assert (evidence.version, evidence.runtime, evidence.threads) == ("oneDNN v3.7.3", "threadpool", threads)
    assert (evidence.isa, evidence.instruction_set) == (isa, short)
    assert implementations(evidence) == kernels
    assert evidence.onednn_convolutions is True


def test_with_onednn_off_convolutions_are_eigens_on_onednns_matrix_multiplication() -> None:
    evidence = recorded("eigen")
    assert evidence.onednn_convolutions is False
    assert {kernel.primitive for kernel in evidence.kernels} == {"gemm_api"}
    assert evidence.instruction_set == "AVX2"  # oneDNN's matrix multiplication still uses it
    assert evidence.sentence == "Convolutions ran in Eigen, on oneDNN's matrix multiplication (gemm_api); AVX2, TensorFlow's own threads."


def test_times_and_counts_are_added_up_and_ordered() -> None:
    line = "onednn_verbose,v1,primitive,exec,cpu,{0},{1},forward_training,,,,x,{2}\n"
    text = line.format("convolution", "jit:avx2", 1.5) + line.format("reorder", "jit:uni", 9) + line.format("convolution", "jit:avx2", 2.5)
    assert parse_onednn_verbose(text).kernels == (Kernel("reorder", "jit:uni", 1, 9.0), Kernel("convolution", "jit:avx2", 2, 4.0))


@pytest.mark.parametrize(
    "line",
    [
        "dnnl_verbose,exec,cpu,convolution,jit:avx512_core,forward_training,src_f32,,alg:convolution_direct,mb1,0.5",
        "onednn_verbose,exec,cpu,convolution,jit:avx512_core,forward_training,src_f32,,alg:convolution_direct,mb1,0.5",
        "onednn_verbose,primitive,exec,cpu,convolution,jit:avx512_core,forward_training,src_f32,,,mb1,0.5",
        "onednn_verbose,v1,primitive,exec,cpu,convolution,jit:avx512_core,forward_training,src:f32,,,mb1,0.5",
        "onednn_verbose,v1,123.75,primitive,exec,cpu,convolution,jit:avx512_core,forward_training,src:f32,,,mb1,0.5",
    ],
)
def test_every_versions_form_of_the_line(line: str) -> None:
    assert parse_onednn_verbose(line).kernels == (Kernel("convolution", "jit:avx512_core", 1, 0.5),)


def test_openmp_runtime_and_avx512_of_another_machine() -> None:
    isa = "Intel AVX-512 with Intel DL Boost and bfloat16 support"
    text = f"onednn_verbose,info,cpu,runtime:OpenMP,nthr:16\nonednn_verbose,info,cpu,isa:{isa}\n"
    evidence = parse_onednn_verbose(text)
    assert (evidence.runtime, evidence.threads, evidence.instruction_set) == ("OpenMP", 16, "AVX-512")
    assert evidence.onednn_convolutions is None
    assert evidence.sentence == "oneDNN reported no kernel."


@pytest.mark.parametrize(
    ("isa", "short"),
    [
        ("Intel AVX-512 with AVX512BW, AVX512VL, and AVX512DQ extensions", "AVX-512"),
        (
            "Intel AVX-512 with float16, Intel DL Boost and bfloat16 support and Intel AMX with bfloat16 and 8-bit integer support",
            "AVX-512 with AMX",
        ),
        ("Intel AVX2 with Intel DL Boost", "AVX2"),
        ("AArch64 (with Advanced SIMD & floating-point)", "Advanced SIMD"),
        ("AArch64 SVE (256 bits)", "SVE"),
        ("Generic", "Generic"),
    ],
)
def test_short_names_of_instruction_sets(isa: str, short: str) -> None:
    assert short_instruction_set(isa) == short


def test_other_output_and_cut_lines_are_passed_over() -> None:
    text = "Epoch 1/3\nonednn_verbose,v1,primitive,exec,cpu,convolution,jit:avx2,forw\nonednn_verbose\nonednn_verbose,v1,primitive,exec"
    assert parse_onednn_verbose(text) == KernelEvidence()


@given(st.lists(st.text(alphabet="onednn_verbose,v1infexcpu:\n 0.5", max_size=80)).map("\n".join))
def test_no_text_makes_the_parser_raise(text: str) -> None:
    evidence = parse_onednn_verbose(text)
    assert all(kernel.count > 0 for kernel in evidence.kernels)


def test_the_threads_of_convolutions_outside_onednn_are_not_those_that_onednn_counts() -> None:
    inside = {"threads": 2, "kernels": [{"primitive": "convolution"}]}
    assert threads_in_words(inside) == "2 threads"
    assert threads_in_words({**inside, "threads": 1}) == "1 thread"
    assert threads_in_words({"threads": 2, "kernels": [{"primitive": "matmul"}]}) == "TensorFlow's own threads"
