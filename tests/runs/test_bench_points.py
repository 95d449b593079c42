"""Which points a machine has, which it lacks and why, and which are one and the same."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from app.core.cpu_probe import cpu_facts
from app.core.errors import OptionError
from app.core.facts import CpuFacts, Gpu, GpuFacts
from app.runs.bench_options import BenchOptions, make_options
from app.runs.bench_points import BenchPlan, BenchPoint, build_plan, thread_counts
from app.runs.bench_sentences import HOLDS, NOT_HERE, REPLACES, SETS_THREADS, VERBOSE

MACHINES = Path(__file__).resolve().parents[1] / "data" / "machines"
NO_GPU = GpuFacts(no_gpu_because="no nvidia-smi and no NVML.", system="Linux")
BIG = Gpu(0, "GPU-big", "NVIDIA RTX A4000", 16376, 12000, 4376)
SMALL = Gpu(1, "GPU-small", "Quadro T2000", 4096, 887, 3209)


def cpu_of(machine: str, cores: int = 2) -> CpuFacts:
    text = MACHINES / "cpuinfo" / f"{machine}.txt"
    facts = cpu_facts(cpuinfo=text, cgroup_root=MACHINES / "cgroup" / "nothing", environ={}, logical=cores, affinity=range(cores))
    return dataclasses.replace(facts, usable_cores=cores)


def plan_of(
    cpu: CpuFacts, gpu: GpuFacts = NO_GPU, environ: dict[str, str] | None = None, points: str | None = None, **more: Any
) -> BenchPlan:
    return build_plan(cpu, gpu, environ or {}, make_options({"points": points}), **more)


def by_name(plan: BenchPlan) -> dict[str, BenchPoint]:
    return {point.name: point for point in plan.points}


def measured(plan: BenchPlan) -> list[str]:
    return [point.name for point in plan.measured]


def test_a_processor_with_avx512_has_every_path_and_measures_none_twice() -> None:
    plan = plan_of(cpu_of("zen4"))
    points = by_name(plan)
    assert measured(plan) == ["cpu", "avx2", "avx", "sse41", "onednn-off", "inter-1", "intra-1"]
    assert {name: point.same_as for name, point in points.items() if point.same_as} == {
        "avx512": "cpu",
        "inter-auto": "cpu",
        "intra-2": "cpu",
    }
    assert points["avx2"].environment == {"ONEDNN_MAX_CPU_ISA": "AVX2"}
    assert points["avx512"].environment == {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}
    assert points["sse41"].environment == {"ONEDNN_MAX_CPU_ISA": "SSE41"}
    assert points["onednn-off"].environment == {"TF_ENABLE_ONEDNN_OPTS": "0"}
    assert points["inter-1"].inter_op_threads == 1
    assert points["intra-1"].intra_op_threads == 1
    assert points["cpu"].chosen
    assert (points["gpu"].available, points["gpu"].why_not) == (False, "No usable NVIDIA GPU: no nvidia-smi and no NVML.")


@pytest.mark.parametrize(
    ("machine", "lacking", "widest"),
    [
        ("B00", ["avx512"], "avx2"),
        ("sandy-bridge", ["avx512", "avx2"], "avx"),
        ("alder-lake", ["avx512"], "avx2"),
        ("cascade-lake", [], "avx512"),
    ],
)
def test_what_a_processor_lacks_is_not_available_with_the_reason(machine: str, lacking: list[str], widest: str) -> None:
    cpu = cpu_of(machine)
    points = by_name(plan_of(cpu))
    labels = {"avx512": "AVX-512", "avx2": "AVX2"}
    assert [point.name for point in points.values() if not point.available and point.name != "gpu"] == lacking
    for name in lacking:
        assert points[name].why_not == NOT_HERE["no isa"].format(cpu=cpu.name, name=labels[name])
    assert points[widest].same_as == "cpu"


def test_a_processor_that_is_no_x86_has_no_instruction_sets_to_choose_from() -> None:
    cpu = cpu_of("graviton3")
    points = by_name(plan_of(cpu))
    assert [name for name, point in points.items() if point.group == "instructions" and point.available] == []
    assert points["avx2"].why_not == NOT_HERE["not x86"].format(cpu=cpu.name, architecture="aarch64", name="AVX2")
    assert points["onednn-off"].available
    assert points["cpu"].available


def test_a_processor_without_avx_can_measure_nothing() -> None:
    plan = plan_of(cpu_of("B05"))
    assert plan.measured == ()
    assert by_name(plan)["cpu"].why_not == NOT_HERE["no avx"]
    assert "no AVX2" in str(by_name(plan)["avx2"].why_not)


def test_where_the_features_are_unknown_every_set_is_tried_and_none_is_taken_for_another() -> None:
    cpu = dataclasses.replace(cpu_of("B01-empty"), architecture="x86_64")
    assert cpu.avx2 is None
    assert set(measured(plan_of(cpu))) >= {"cpu", "avx512", "avx2", "avx", "sse41"}


def test_each_gpu_is_a_point_and_one_that_is_full_says_so() -> None:
    plan = plan_of(cpu_of("zen4"), GpuFacts((BIG, SMALL), "nvml", system="Linux"))
    points = by_name(plan)
    assert measured(plan)[:2] == ["gpu-0", "cpu"]
    assert (points["gpu-0"].device, points["gpu-0"].label, points["gpu-0"].chosen) == ("GPU-big", "GPU 0 · NVIDIA RTX A4000", True)
    assert not points["cpu"].chosen
    assert "887 MiB free (< threshold 2048 MiB)" in str(points["gpu-1"].why_not)


def test_a_build_without_gpu_support_makes_every_gpu_unavailable() -> None:
    plan = plan_of(cpu_of("zen4"), GpuFacts((BIG,), "nvml", system="Linux"), build_has_gpu=False)
    (gpu,) = (point for point in plan.points if point.group == "gpu")
    assert not gpu.available
    assert "no GPU support" in str(gpu.why_not)


def test_slices_stand_for_the_gpu_that_they_divide() -> None:
    parent = Gpu(0, "GPU-p", "NVIDIA A100", 40960, 30000, 10960, mig="parent")
    slices = tuple(Gpu(0, f"MIG-{n}", "NVIDIA A100", 4864, 4800, 64, mig="1g.5gb", mig_parent_uuid="GPU-p") for n in "ab")
    points = [
        point for point in plan_of(cpu_of("zen4"), GpuFacts((parent, *slices), "nvml", system="Linux")).points if point.group == "gpu"
    ]
    assert [(point.name, point.device, point.label) for point in points] == [
        ("gpu-0.1", "MIG-a", "GPU 0 · NVIDIA A100 1g.5gb"),
        ("gpu-0.2", "MIG-b", "GPU 0 · NVIDIA A100 1g.5gb"),
    ]


def test_what_the_user_has_set_holds_for_all_points_but_those_that_are_about_it() -> None:
    environ = {"ONEDNN_MAX_CPU_ISA": "avx2", "TF_ENABLE_ONEDNN_OPTS": "1", "ONEDNN_VERBOSE": "1"}
    plan = plan_of(cpu_of("zen4"), environ=environ)
    points = by_name(plan)
    assert (points["avx2"].same_as, points["avx512"].same_as) == ("cpu", None)
    replaces = REPLACES.format(name="ONEDNN_MAX_CPU_ISA", value="avx2", new="AVX512_CORE")
    assert points["avx512"].notes == (replaces,)
    assert points["inter-1"].environment == {}
    assert VERBOSE.format(name="ONEDNN_VERBOSE") in plan.notes
    assert HOLDS.format(name="ONEDNN_MAX_CPU_ISA", value="avx2") in plan.notes


@pytest.mark.parametrize("value", ["AVX512_CORE_BF16", "ALL", "nonsense"])
def test_a_cap_that_caps_nothing_changes_no_point(value: str) -> None:
    assert by_name(plan_of(cpu_of("zen4"), environ={"ONEDNN_MAX_CPU_ISA": value}))["avx512"].same_as == "cpu"


def test_the_older_name_of_the_cap_counts_too() -> None:
    assert by_name(plan_of(cpu_of("zen4"), environ={"DNNL_MAX_CPU_ISA": "AVX2_VNNI"}))["avx2"].same_as == "cpu"


def test_onednn_switched_off_by_the_user_is_what_a_run_would_do() -> None:
    points = by_name(plan_of(cpu_of("zen4"), environ={"TF_ENABLE_ONEDNN_OPTS": "0"}))
    assert points["onednn-off"].same_as == "cpu"
    assert points["avx512"].same_as is None
    assert points["avx512"].environment == {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "TF_ENABLE_ONEDNN_OPTS": "1"}


def test_threads_of_the_user_hold_and_points_about_threads_go_through_the_option() -> None:
    points = by_name(plan_of(cpu_of("zen4"), environ={"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "2"}))
    assert (points["intra-1"].same_as, points["inter-auto"].same_as, points["intra-2"].same_as) == ("cpu", "cpu", None)
    assert points["intra-2"].environment == {}
    assert points["intra-2"].notes == (SETS_THREADS.format(name="TF_NUM_INTRAOP_THREADS", value="1", new=2),)
    assert points["intra-1"].notes == ()


def test_on_one_core_all_thread_points_are_the_same() -> None:
    points = by_name(plan_of(cpu_of("zen4", cores=1)))
    assert {points[name].same_as for name in ("inter-1", "inter-auto", "intra-1")} == {"cpu"}


@pytest.mark.parametrize(
    ("cores", "counts"), [(1, [1]), (2, [1, 2]), (8, [*range(1, 9)]), (12, [1, 2, 4, 8, 12]), (64, [1, 2, 4, 8, 16, 32, 64])]
)
def test_thread_counts(cores: int, counts: list[int]) -> None:
    assert thread_counts(cores) == counts


def test_points_are_chosen_by_name_and_by_group_and_shared_only_with_chosen_ones() -> None:
    cpu = cpu_of("zen4")
    assert [point.name for point in plan_of(cpu, points="avx512, INTER-OP").points] == ["avx512", "inter-1", "inter-auto"]
    assert by_name(plan_of(cpu, points="avx512,inter-op"))["avx512"].same_as is None
    assert by_name(plan_of(cpu, points="avx512,inter-op"))["inter-auto"].same_as == "avx512"
    with pytest.raises(OptionError, match=r"points: expected some of gpu, cpu, avx512.*got 'avx3'"):
        plan_of(cpu, points="avx3")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"rounds": "0"}, "rounds: expected a whole number from 1 to 50, got '0'"),
        ({"steps": "2.5"}, "steps: expected a whole number"),
        ({"steps": True}, "steps: expected a whole number"),
        ({"limit_s": "inf"}, "limit_s: expected a whole number"),
        ({"image_size": 100}, "image_size: .*multiple of 16"),
        ({"channels": "blue"}, "channels: expected grey or colour, got 'blue'"),
        ({"points": ","}, "points: expected names"),
        ({"points": 3}, "points: expected names"),
        ({"speed": 3}, "speed: the benchmark has no such option"),
    ],
)
def test_options_are_checked(values: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        make_options(values)


def test_options_survive_the_command_line() -> None:
    options = make_options({"rounds": "5", "points": "cpu,avx2", "channels": "colour", "steps": None})
    assert options == BenchOptions(rounds=5, points=("cpu", "avx2"), channels="colour")
    assert options.arguments() == ["--rounds", "5", "--points", "cpu,avx2", "--channels", "colour"]
