"""The profile's report, label and JSON, for machines that are not here."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from recorded_machines import environment_of

from app.core.decided import decided_json, decided_profile
from app.core.device_policy import decide
from app.core.facts import CpuFacts, Gpu, GpuFacts
from app.core.kernel_evidence import Kernel, KernelEvidence
from app.core.profile import HardwareProfile, expected_instruction_set
from app.core.tf_build import TensorFlowBuild
from app.core.tf_settings import Setting

T2000 = Gpu(0, "GPU-1", "Quadro T2000", total_mib=4096, free_mib=887, used_mib=3209, logical_index=0)
TWELVE_CORES = CpuFacts("Intel Core i7-9850H", "x86_64", {"sse4_2": True, "avx": True, "avx2": True}, usable_cores=12, logical_cores=12)

T2000_REPORT = """\
============================================================
TensorFlow Device Configuration
============================================================
  CUDA available  : True
  GPU             : Quadro T2000
  VRAM free/total : 887 / 4096 MiB
  CPU cores       : 12
  AVX2 (256-bit)  : True
  Selected device : CPU
  Reason          : GPU 'Quadro T2000' has only 887 MiB free
                    (< threshold 2048 MiB). Using AVX2 CPU path.
  Applied settings:
    • TF_ENABLE_ONEDNN_OPTS=1
    • OMP_NUM_THREADS=4 (set by the user) (not read by TensorFlow)
============================================================"""


def t2000_profile() -> HardwareProfile:
    facts = GpuFacts((T2000,), "nvml")
    decision = decide(facts, TWELVE_CORES)
    settings = (Setting("TF_ENABLE_ONEDNN_OPTS", "1", "app"), Setting("OMP_NUM_THREADS", "4", "user", honoured=False))
    return HardwareProfile(
        "cpu", decision.reason, decision=decision, gpu_facts=facts, cpu=TWELVE_CORES, cuda_available=True, settings=settings, onednn=True
    )


def test_report_of_the_live_example_word_for_word() -> None:
    assert t2000_profile().report() == T2000_REPORT


def test_report_where_nothing_is_known() -> None:
    text = HardwareProfile("cpu", "No NVIDIA GPU found.").report()
    assert (
        "  CUDA available  : unknown\n  GPU             : none\n  VRAM free/total : –\n  CPU cores       : –\n  AVX2 (256-bit)  : unknown\n"
        in text
    )


def test_report_says_what_was_decided_and_what_happened() -> None:
    facts = GpuFacts((replace(T2000, free_mib=3200),), "nvml")
    decision = decide(facts, TWELVE_CORES)
    profile = HardwareProfile(
        "cpu", "GPU 'Quadro T2000' was chosen, but x.", decision=decision, happened="x", gpu_facts=facts, warnings=("look here",)
    )
    text = profile.report()
    assert "  Selected device : CPU" in text
    assert "  Decided before  : GPU 'Quadro T2000' has 3200 MiB free" in text
    assert "  Warnings:\n    • look here" in text


def test_report_of_unified_memory_and_of_limited_cores() -> None:
    gb10 = Gpu(0, "GPU-2", "NVIDIA GB10", unified_memory=True)
    cpu = replace(TWELVE_CORES, usable_cores=4, limited_by="4 of 12, container limit")
    text = HardwareProfile("cpu", "r", gpu_facts=GpuFacts((gb10,)), cpu=cpu).report()
    assert "  VRAM free/total : unknown / shared with system RAM" in text
    assert "  CPU cores       : 4 of 12, container limit" in text


def test_report_of_several_gpus_names_the_one_nearest_to_being_chosen() -> None:
    facts = GpuFacts((replace(T2000, free_mib=100), replace(T2000, index=1, name="RTX A4000", free_mib=1500, total_mib=16376)))
    text = HardwareProfile("cpu", "r", gpu_facts=facts).report()
    assert "  GPU             : RTX A4000 (index 1, 1 more)" in text
    assert "  VRAM free/total : 1500 / 16376 MiB" in text


@pytest.mark.parametrize(
    ("profile", "label"),
    [
        (HardwareProfile("gpu", "r", gpu=Gpu(0, None, "NVIDIA RTX A4000")), "GPU · NVIDIA RTX A4000"),
        (HardwareProfile("cpu", "r", cpu=TWELVE_CORES, onednn=True), "CPU · AVX2 through oneDNN"),
        (HardwareProfile("cpu", "r", cpu=TWELVE_CORES, onednn=False), "CPU · oneDNN off"),
        (HardwareProfile("cpu", "r", cpu=CpuFacts(None, "aarch64"), onednn=True), "CPU · oneDNN"),
        (HardwareProfile("cpu", "r", cpu=TWELVE_CORES, onednn=True, evidence=KernelEvidence(isa="Intel AVX")), "CPU · AVX through oneDNN"),
    ],
)
def test_label_of_the_path(profile: HardwareProfile, label: str) -> None:
    assert profile.path == label


@pytest.mark.parametrize(
    ("features", "cap", "expected"),
    [
        ({"avx512f": True, "avx2": True, "avx": True}, None, "AVX-512"),
        ({"avx512f": True, "avx2": True, "avx": True}, "AVX2", "AVX2"),
        ({"avx512f": True, "avx2": True, "avx": True}, "sse41", "SSE4.1"),
        ({"avx2": True, "avx": True}, "AVX512_CORE", "AVX2"),
        ({"avx": True, "sse4_2": True}, None, "AVX"),
        ({"avx2": None}, None, None),
    ],
)
def test_expected_instruction_set(features: dict[str, bool | None], cap: str | None, expected: str | None) -> None:
    settings = (Setting("ONEDNN_MAX_CPU_ISA", cap, "user"),) if cap else ()
    assert expected_instruction_set(CpuFacts(None, "x86_64", features), settings) == expected


def test_evidence_judges_the_settings() -> None:
    profile = replace(
        t2000_profile(),
        intra_op_threads=12,
        settings=(
            Setting("TF_NUM_INTRAOP_THREADS", "12", "app"),
            Setting("OMP_NUM_THREADS", "12", "app"),
            Setting("TF_ENABLE_ONEDNN_OPTS", "1", "app"),
            Setting("ONEDNN_MAX_CPU_ISA", "AVX", "user"),
            Setting("TF_CPP_MIN_LOG_LEVEL", "2", "app", honoured=True),
        ),
    )
    evidence = KernelEvidence("oneDNN v3.7.3", "threadpool", 2, "Intel AVX", (Kernel("convolution", "jit:avx", 3, 1.0),))
    judged = {setting.name: setting.honoured for setting in profile.with_evidence(evidence).settings}
    assert judged == {
        "TF_NUM_INTRAOP_THREADS": False,
        "OMP_NUM_THREADS": False,
        "TF_ENABLE_ONEDNN_OPTS": True,
        "ONEDNN_MAX_CPU_ISA": True,
        "TF_CPP_MIN_LOG_LEVEL": True,
    }
    openmp = replace(evidence, runtime="OpenMP")
    assert {s.name: s.honoured for s in profile.with_evidence(openmp).settings}["OMP_NUM_THREADS"] is True


GEMM = Kernel("gemm_api", "", 3, 1.0)
CONVOLUTION = Kernel("convolution", "jit:avx2", 3, 1.0)


@pytest.mark.parametrize(
    ("kernel", "threads", "intra", "honoured", "known"),
    [
        (CONVOLUTION, 7, 7, True, "read back: oneDNN reports 7 threads"),
        (CONVOLUTION, 2, 7, False, "read back: oneDNN reports 2 threads"),
        (CONVOLUTION, 12, 1, None, "oneDNN reports 12 threads, as many as the machine has: no evidence either way"),
        (GEMM, 2, 7, True, "oneDNN's own count is no evidence"),
        (GEMM, 12, 1, True, "oneDNN's own count is no evidence"),
        (CONVOLUTION, None, 7, True, "measured"),
    ],
)
def test_only_onednns_own_convolutions_judge_the_threads(
    kernel: Kernel, threads: int | None, intra: int, honoured: bool | None, known: str
) -> None:
    asked = Setting("TF_NUM_INTRAOP_THREADS", str(intra), "user", honoured=True, how_known="measured")
    profile = replace(t2000_profile(), intra_op_threads=intra, settings=(asked,))
    found = profile.with_evidence(KernelEvidence("oneDNN v3.7.3", "threadpool", threads, "Intel AVX2", (kernel,)))
    assert (found.settings[0].honoured, known in found.settings[0].how_known) == (honoured, True)
    assert kernel is not GEMM or f"{threads} threads" not in found.report()


@pytest.mark.parametrize(
    "environ",
    [
        {"CUDA_VISIBLE_DEVICES": "-1"},
        {"CUDA_VISIBLE_DEVICES": ""},
        {"CUDA_VISIBLE_DEVICES": "GPU-dead", "TF_ENABLE_ONEDNN_OPTS": "0"},
        {"OMP_NUM_THREADS": "all", "TF_NUM_INTRAOP_THREADS": "7", "TF_XLA_FLAGS": "--x", "HOME": "/nowhere"},
        {},
    ],
)
def test_the_users_variables_are_listed_before_a_run(environ: dict[str, str]) -> None:
    decision, build = decide(GpuFacts(), TWELVE_CORES), TensorFlowBuild(True)
    listed = {name: value for name, value in environ.items() if name != "HOME"}
    report = decided_profile(decision, GpuFacts(), TWELVE_CORES, build, environ).report()
    assert [line for line in report.splitlines() if "(set by the user)" in line and "•" in line] != [] or not listed
    assert all(f"• {name}={value} (set by the user)" in report for name, value in listed.items())
    assert "HOME" not in report
    said = json.loads(json.dumps(decided_json(decision, GpuFacts(), TWELVE_CORES, build, environ)))["settings"]
    assert {setting["name"]: setting["value"] for setting in said} == listed
    assert {setting["set_by"] for setting in said} <= {"user"}


def test_json_is_plain_and_whole() -> None:
    profile = t2000_profile().with_evidence(KernelEvidence(kernels=(Kernel("convolution", "jit:avx2", 1, 1.0),)))
    values = json.loads(json.dumps(profile.to_json()))
    assert values["selected_device"] == "cpu"
    assert values["path"] == "CPU · AVX2 through oneDNN"
    assert values["kernels"] == ["jit:avx2"]
    assert values["settings"][0]["name"] == "TF_ENABLE_ONEDNN_OPTS"
    assert values["decision"]["min_vram_mib"] == 2048
    assert values["gpu_facts"]["gpus"][0]["free_mib"] == 887


@pytest.mark.parametrize(
    ("name", "odd"), [("B13-all", 1), ("B13-empty", 1), ("B13-list", 1), ("B13-neg", 1), ("B13-space", 0), ("B14-threads", 2)]
)
def test_odd_variables_are_told_of_before_tensorflow_starts(name: str, odd: int) -> None:
    environ = environment_of(name)
    profile = decided_profile(decide(GpuFacts(), TWELVE_CORES), GpuFacts(), TWELVE_CORES, TensorFlowBuild(True), environ)
    assert len(profile.warnings) == odd
    assert all("(set by the user): " in warning and warning.split("=")[0] in environ for warning in profile.warnings)
    assert all(warning in " ".join(profile.report().split()) for warning in (" ".join(text.split()) for text in profile.warnings))
