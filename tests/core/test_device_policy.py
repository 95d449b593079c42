"""The decision as a function of facts: threshold, ties, forced choices, questions, wording."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded_machines import environment_of

from app.core.decided import decided_profile
from app.core.device_policy import DEFAULT_MIN_VRAM_MIB, Decision, after_start, cpu_path, decide, decision_json
from app.core.errors import OptionError
from app.core.facts import CpuFacts, Gpu, GpuFacts
from app.core.gpu_figures import sick
from app.core.gpu_probe import with_environment
from app.core.reasons import AVX512_THROUGH_ONEDNN, PATH_AVX2, PATH_CPU, REASONS, WARN_FORCED, WARN_NO_AVX
from app.core.tf_build import TensorFlowBuild

AVX2 = CpuFacts(name="Test CPU", architecture="x86_64", features={"avx": True, "avx2": True}, logical_cores=12, usable_cores=12)
PLAIN = CpuFacts(name="Test CPU", architecture="aarch64", features={"avx": False, "avx2": False})
WIDE: dict[str, bool | None] = {"avx": True, "avx2": True, "avx512f": True}
UUIDS = [f"GPU-{n:08x}-1111-2222-3333-44444444444{n}" for n in range(4)]


def gpu(free: int | None, index: int = 0, name: str = "NVIDIA A30", **more: Any) -> Gpu:
    return Gpu(index=index, uuid=UUIDS[index], name=name, total_mib=24576, free_mib=free, logical_index=index, **more)


def facts(*gpus: Gpu, **more: Any) -> GpuFacts:
    return GpuFacts(gpus=gpus, source="nvml", **{"driver_version": "550.54.14", "system": "Linux", **more})


@pytest.mark.parametrize(
    ("free", "device"),
    [(None, "cpu"), (400, "cpu"), (3200, "gpu"), (2400, "gpu"), (1500, "cpu"), (887, "cpu")],
    ids=["ci-runner or intel-laptop", "busy-workstation", "workstation", "shared-server", "busy-server", "live-example"],
)
def test_the_seven_known_situations(free: int | None, device: str) -> None:
    there = facts() if free is None else facts(gpu(free))
    assert decide(there, AVX2).selected_device == device


def test_the_live_example_word_for_word() -> None:
    decision = decide(facts(replace(gpu(887, name="Quadro T2000"), total_mib=4096)), AVX2)
    assert decision.reason == "GPU 'Quadro T2000' has only 887 MiB free (< threshold 2048 MiB). Using AVX2 CPU path."


@pytest.mark.parametrize(("free", "threshold", "device"), [(2048, 2048, "gpu"), (2047, 2048, "cpu"), (0, 0, "gpu"), (0, 1, "cpu")])
def test_equal_is_enough(free: int, threshold: int, device: str) -> None:
    decision = decide(facts(gpu(free)), AVX2, threshold)
    key = "gpu" if device == "gpu" else "too little"
    assert decision.selected_device == device
    assert decision.reason.startswith(REASONS[key].format(gpu="'NVIDIA A30'", free=free, threshold=threshold))


def test_most_free_memory_wins_and_of_equals_the_first() -> None:
    chosen = decide(facts(gpu(900, 0), gpu(24000, 1), gpu(24000, 2), gpu(20000, 3)), AVX2).gpu
    assert chosen is not None
    assert chosen.index == 1


def test_memory_of_several_gpus_is_never_summed() -> None:
    decision = decide(facts(gpu(1500, 0), gpu(1600, 1)), AVX2)
    assert decision.selected_device == "cpu"
    assert decision.reason.startswith(REASONS["too little"].format(gpu="1 'NVIDIA A30'", free=1600, threshold=2048))


def test_unknown_memory_is_never_enough() -> None:
    decision = decide(facts(gpu(None)), AVX2, 0)
    assert decision.selected_device == "cpu"
    assert decision.reason == f"{REASONS['memory unknown'].format(gpu=repr('NVIDIA A30'), forced='--device 0')} {PATH_AVX2}"


@pytest.mark.parametrize(
    ("cpu", "words"),
    [(AVX2, PATH_AVX2), (PLAIN, PATH_CPU), (replace(AVX2, features={"avx2": None}), PATH_CPU), (replace(AVX2, features={}), PATH_CPU)],
)
def test_avx2_is_named_only_where_it_is(cpu: CpuFacts, words: str) -> None:
    assert decide(facts(), cpu).reason.endswith(words)
    assert decide(facts(), cpu, device="cpu").reason.startswith(f"{REASONS['forced cpu']} {words}")


@pytest.mark.parametrize(
    ("features", "variables", "label", "words"),
    [
        (WIDE, {}, "AVX-512 through oneDNN", f"{PATH_AVX2} {AVX512_THROUGH_ONEDNN}"),
        (WIDE, {"TF_ENABLE_ONEDNN_OPTS": "1"}, "AVX-512 through oneDNN", f"{PATH_AVX2} {AVX512_THROUGH_ONEDNN}"),
        (WIDE, {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}, "AVX-512 through oneDNN", f"{PATH_AVX2} {AVX512_THROUGH_ONEDNN}"),
        (WIDE, {"ONEDNN_MAX_CPU_ISA": "AVX3"}, "AVX-512 through oneDNN", f"{PATH_AVX2} {AVX512_THROUGH_ONEDNN}"),
        (
            WIDE,
            {"ONEDNN_MAX_CPU_ISA": "avx2"},
            "AVX2 through oneDNN",
            f"{PATH_AVX2} ONEDNN_MAX_CPU_ISA=avx2 (set by the user) keeps oneDNN at AVX2.",
        ),
        (
            WIDE,
            {"ONEDNN_MAX_CPU_ISA": "AVX"},
            "AVX through oneDNN",
            f"{PATH_CPU} ONEDNN_MAX_CPU_ISA=AVX (set by the user) keeps oneDNN at AVX.",
        ),
        (AVX2.features, {"ONEDNN_MAX_CPU_ISA": "AVX2"}, "AVX2 through oneDNN", PATH_AVX2),
        (
            AVX2.features,
            {"DNNL_MAX_CPU_ISA": "SSE41"},
            "SSE4.1 through oneDNN",
            f"{PATH_CPU} DNNL_MAX_CPU_ISA=SSE41 (set by the user) keeps oneDNN at SSE4.1.",
        ),
        (
            AVX2.features,
            {"TF_ENABLE_ONEDNN_OPTS": "0"},
            "oneDNN off",
            f"{PATH_CPU} oneDNN is off (TF_ENABLE_ONEDNN_OPTS=0, set by the user).",
        ),
        ({"avx": True, "avx2": False}, {}, "AVX through oneDNN", PATH_CPU),
    ],
)
def test_the_reason_and_the_label_say_the_same_instructions(
    features: dict[str, bool | None], variables: dict[str, str], label: str, words: str
) -> None:
    cpu = replace(AVX2, features=features, variables=variables)
    decision = decide(facts(), cpu)
    assert decision.reason == f"{REASONS['no gpu']} {words}"
    assert decided_profile(decision, facts(), cpu, TensorFlowBuild(True), variables).path == f"CPU · {label}"
    assert decision.reason.endswith(cpu_path(cpu))


@pytest.mark.parametrize(
    ("cpu", "warned"),
    [
        (replace(AVX2, features={"avx": False, "avx2": False}), True),
        (replace(AVX2, features={"avx": None}), False),
        (replace(AVX2, features={"avx": True, "avx2": False}), False),
        (AVX2, False),
        (PLAIN, False),
    ],
)
def test_a_cpu_without_avx_is_warned_of(cpu: CpuFacts, warned: bool) -> None:
    """On each path, since TensorFlow cannot even be imported; what is decided stays as it is."""
    for there in (facts(), facts(gpu(20000, compute_capability=(12, 0)))):
        for device in ("auto", "cpu", "gpu"):
            decision = decide(there, cpu, device=device)
            assert (WARN_NO_AVX in decision.warnings) == warned
            assert decision.selected_device == decide(there, AVX2, device=device).selected_device
            assert (WARN_NO_AVX in decision_json(decision, there, cpu)["warnings"]) == warned
            report = decided_profile(decision, there, cpu, TensorFlowBuild(True), {}).report()
            assert (" ".join(WARN_NO_AVX.split()[:6]) in report) == warned


@pytest.mark.parametrize(
    ("there", "reason"),
    [
        (facts(), REASONS["no gpu"]),
        (facts(no_gpu_because="nvidia-smi printed nothing."), REASONS["no gpu because"].format(because="nvidia-smi printed nothing.")),
        (facts(gpu(20000), system="Windows"), REASONS["windows"]),
        (facts(gpu(20000), system="Darwin"), REASONS["macos"]),
        (facts(gpu(20000, visible=False)), REASONS["hidden plainly"]),
        (facts(gpu(20000), driver_version="367.35"), REASONS["driver too old"].format(driver="367.35", needed="525.60.13")),
        (facts(gpu(20000), driver_version="525.60.12"), REASONS["driver too old"].format(driver="525.60.12", needed="525.60.13")),
        (
            facts(gpu(20000, compute_capability=(5, 2))),
            REASONS["gpu too old"].format(gpu="'NVIDIA A30'", capability="5.2", needed="6.0"),
        ),
        (facts(replace(gpu(20000), mig="parent")), REASONS["no slice"].format(gpu="'NVIDIA A30'")),
    ],
)
def test_every_obstacle_gives_the_cpu_and_its_own_reason(there: GpuFacts, reason: str) -> None:
    decision = decide(there, AVX2)
    assert (decision.selected_device, decision.gpu, decision.reason) == ("cpu", None, f"{reason} {PATH_AVX2}")
    assert decide(there, AVX2, 0).selected_device == "cpu"


@pytest.mark.parametrize("driver", ["525.60.13", "535.161", "550.54.14", "525.85", "580.126.09", None, "", "[N/A]"])
def test_a_driver_that_is_new_enough_or_unknown_does_not_stand_in_the_way(driver: str | None) -> None:
    assert decide(facts(gpu(20000), driver_version=driver), AVX2).selected_device == "gpu"


@pytest.mark.parametrize(("build_has_gpu", "device"), [(False, "cpu"), (True, "gpu"), (None, "gpu")])
def test_a_build_without_gpu_support(build_has_gpu: bool | None, device: str) -> None:
    decision = decide(facts(gpu(20000)), AVX2, build_has_gpu=build_has_gpu)
    assert decision.selected_device == device
    assert ("no GPU support" in decision.reason) == (device == "cpu")
    assert ("build" in [question.key for question in decision.chart]) == (build_has_gpu is not None)


def test_only_visible_gpus_compete() -> None:
    three = facts(gpu(100, 0), gpu(24000, 1), gpu(20000, 2))
    decision = decide(with_environment(three, environment_of("A31-reorder")), AVX2)
    assert decision.gpu is not None
    assert (decision.gpu.index, decision.gpu.logical_index) == (2, 0)
    hidden = decide(with_environment(three, environment_of("A31-range")), AVX2)
    assert hidden.selected_device == "cpu"
    assert hidden.reason.startswith("CUDA_VISIBLE_DEVICES=7 hides every GPU")


def test_a_newer_gpu_than_the_build_is_used_with_a_warning() -> None:
    decision = decide(facts(gpu(20000, compute_capability=(12, 0))), AVX2)
    assert decision.selected_device == "gpu"
    assert "12.0" in decision.warnings[0]
    assert decide(facts(gpu(20000, compute_capability=(9, 0))), AVX2).warnings == ()


@pytest.mark.parametrize(
    ("device", "index"),
    [("gpu", 1), ("GPU", 1), ("0", 0), ("2", 2), (UUIDS[2], 2), ("GPU-00000002", 2), ("gpu-00000000", 0), (" 0 ", 0)],
)
def test_a_forced_gpu(device: str, index: int) -> None:
    there = facts(gpu(100, 0), gpu(24000, 1), gpu(20000, 2))
    decision = decide(there, AVX2, device=device)
    auto = decide(there, AVX2)
    assert decision.selected_device == "gpu"
    assert decision.gpu == there.gpus[index]
    assert decision.forced == device.strip()
    assert decision.auto_would_say == auto.reason
    assert decision.reason == f"{REASONS['forced gpu'].format(gpu=f'{index} {chr(39)}NVIDIA A30{chr(39)}')} Auto would say: {auto.reason}"


def test_a_forced_gpu_warns_of_what_auto_minds() -> None:
    there = facts(gpu(100))
    decision = decide(there, AVX2, device="gpu")
    why = REASONS["too little"].format(gpu="'NVIDIA A30'", free=100, threshold=2048)
    assert decision.warnings == (WARN_FORCED.format(gpu="'NVIDIA A30'", why=why),)
    assert decide(facts(gpu(None)), AVX2, device="gpu").selected_device == "gpu"


def test_forced_cpu_says_what_auto_would_say() -> None:
    decision = decide(facts(gpu(20000)), AVX2, device="cpu")
    assert (decision.selected_device, decision.gpu, decision.forced) == ("cpu", None, "cpu")
    assert decision.auto_would_say == decide(facts(gpu(20000)), AVX2).reason


@pytest.mark.parametrize(
    ("device", "words"),
    [("7", "No GPU matches '7'"), ("GPU-9", "No GPU matches"), ("GPU-0000000", "more than one"), ("1", "hidden by CUDA_VISIBLE_DEVICES")],
)
def test_a_forced_gpu_that_cannot_be(device: str, words: str) -> None:
    there = with_environment(facts(gpu(20000, 0), gpu(20000, 1)), {"CUDA_VISIBLE_DEVICES": "0"})
    decision = decide(there, AVX2, device=device)
    assert (decision.selected_device, decision.gpu, decision.forced) == ("cpu", None, device)
    assert words in decision.reason


@pytest.mark.parametrize("device", ["gpu", "0", UUIDS[0]])
def test_a_forced_gpu_that_this_build_cannot_use(device: str) -> None:
    decision = decide(facts(gpu(20000)), AVX2, device=device, build_has_gpu=False)
    build = REASONS["build"].format(gpu="'NVIDIA A30'")
    vain = REASONS["forced in vain"].format(device=device)
    assert (decision.selected_device, decision.gpu, decision.forced) == ("cpu", None, device)
    assert decision.reason == f"{vain} {build} {PATH_AVX2} Auto would say the same."
    blind = decide(facts(device_node=True), AVX2, device="gpu", build_has_gpu=False)
    assert blind.selected_device == "cpu"
    assert "no GPU support" in blind.reason


@pytest.mark.parametrize("device", ["auto", "gpu", "0"])
def test_what_became_of_a_gpu_that_failed(device: str) -> None:
    decided = decide(facts(gpu(20000)), AVX2, device=device)
    ended = after_start(decided, "CUDA libraries are missing", AVX2)
    chosen = "chosen" if device == "auto" else "forced"
    assert (ended.selected_device, ended.gpu) == ("cpu", None)
    assert ended.reason == f"GPU 'NVIDIA A30' was {chosen}, but CUDA libraries are missing. {PATH_AVX2}"
    check_way(ended)
    assert ended.table == decided.table


@pytest.mark.parametrize("there", [facts(), facts(gpu(20000), system="Windows"), facts(gpu(20000, visible=False))])
def test_forcing_a_gpu_in_vain(there: GpuFacts) -> None:
    decision = decide(there, AVX2, device="gpu")
    assert decision.selected_device == "cpu"
    assert decision.chart[1].answer in decision.reason
    assert decision.reason.startswith(REASONS["forced in vain"].format(device="gpu"))
    assert decision.reason.count(PATH_AVX2) == 1


def test_a_forced_parent_means_its_best_slice() -> None:
    parent = replace(gpu(None), mig="parent")
    slices = [replace(gpu(free), uuid=f"MIG-{free}", mig="1g.5gb", mig_parent_uuid=UUIDS[0], total_mib=4864) for free in (100, 4860)]
    for device in ("0", UUIDS[0], "gpu", "MIG-4860"):
        assert decide(facts(parent, *slices), AVX2, device=device).gpu == slices[1]
    assert decide(facts(parent, *slices), AVX2, device="MIG-100").gpu == slices[0]


def test_a_divided_gpu_is_not_told_to_lack_the_slices_it_has() -> None:
    parent = replace(gpu(None), mig="parent")
    piece = replace(gpu(4860), uuid="MIG-a", mig="1g.5gb", mig_parent_uuid=UUIDS[0])
    answers = {
        key: next(question.answer for question in decide(there, AVX2).table if question.about_uuid == parent.uuid)
        for key, there in (("with", facts(parent, piece)), ("without", facts(parent)))
    }
    assert answers == {
        "with": REASONS["divided"].format(gpu="'NVIDIA A30'"),
        "without": REASONS["no slice"].format(gpu="'NVIDIA A30'"),
    }


@pytest.mark.parametrize("device", ["tpu", "cuda:0", "-1", "1.5", "gpu0", "²", "GPU"[:2]])
def test_another_word_is_a_bad_option(device: str) -> None:
    with pytest.raises(OptionError, match="expected auto, cpu, gpu"):
        decide(facts(gpu(20000)), AVX2, device=device)


def check_chart(there: GpuFacts, **options: Any) -> None:
    """The chart leads to the device, and the table has every GPU."""
    decision = decide(there, AVX2, **options)
    check_way(decision)
    assert [question.about_gpu for question in decision.table] == sorted(found.index for found in there.gpus)


def check_way(decision: Decision) -> None:
    """The taken branches lead from the first question to the selected device."""
    chart = {question.key: question for question in decision.chart}
    at = "forced"
    for _ in range(len(chart) + 1):
        question = chart[at]
        assert question.answer
        assert question.branch is not None
        at = question.yes_leads_to if question.branch == "yes" else question.no_leads_to
        if at not in chart:
            break
    assert at == decision.selected_device
    reached = [question.branch is not None for question in decision.chart]
    assert reached == sorted(reached, reverse=True)


@pytest.mark.parametrize(
    "options",
    [{}, {"device": "cpu"}, {"device": "gpu"}, {"device": "7"}, {"min_vram_mib": 30000}, {"build_has_gpu": False}],
)
def test_the_chart_leads_to_the_device(options: dict[str, Any]) -> None:
    parent = replace(gpu(None), mig="parent")
    for there in (
        facts(),
        facts(gpu(100)),
        facts(gpu(20000)),
        facts(gpu(20000, visible=False)),
        facts(gpu(None)),
        facts(gpu(20000), system="Windows"),
        facts(gpu(20000), driver_version="1.2"),
        facts(parent),
        facts(parent, replace(gpu(4860), uuid="MIG-a", mig="1g.5gb")),
        facts(gpu(None, 0), gpu(100, 1), gpu(20000, 2)),
    ):
        check_chart(there, **options)


def test_the_table_says_for_each_gpu_why() -> None:
    decision = decide(facts(gpu(100, 0), gpu(24000, 1), gpu(20000, 2), gpu(None, 3)), AVX2)
    assert [question.branch for question in decision.table] == ["no", "yes", "yes", "no"]
    assert "100 MiB" in decision.table[0].answer
    assert "Another one" in decision.table[2].answer
    assert "unknown" in decision.table[3].answer
    assert "--device 3 tries it anyway" in decision.table[3].answer


def test_a_lost_gpu_is_left_out_in_the_table_too() -> None:
    lost = Gpu(1, UUIDS[1], "NVIDIA A30", problem=sick(Gpu(1, None, "NVIDIA A30"), "GPU is lost", "handle"))
    decision = decide(facts(gpu(20000, 0), lost), AVX2)
    assert decision.table[1].answer == lost.problem
    assert "left out" in decision.table[1].answer
    forced = decide(facts(gpu(None, 0), lost), AVX2, device="gpu")
    assert forced.gpu is not None
    assert forced.gpu.index == 0


def test_the_json_has_the_promised_keys() -> None:
    there = facts(gpu(20000, compute_capability=(8, 0)), problems=("a sentence.",))
    decision = decide(there, AVX2)
    said = json.loads(json.dumps(decision_json(decision, there, AVX2), allow_nan=False))
    assert {"selected_device", "reason", "min_vram_mib", "gpu", "gpus", "gpu_source", "problems", "cpu", "questions"} <= set(said)
    assert {"index", "uuid", "name", "total_mib", "free_mib", "unified_memory", "mig", "visible", "problem"} <= set(said["gpus"][0])
    assert {"name", "features", "avx2", "physical_cores", "logical_cores", "usable_cores", "limited_by"} <= set(said["cpu"])
    assert (said["gpu"]["index"], said["gpu_source"], said["problems"], said["min_vram_mib"]) == (0, "nvml", ["a sentence."], 2048)
    assert said["cpu"]["avx2"] is True
    assert decision_json(decide(facts(), PLAIN), facts(), PLAIN)["gpu"] is None


GPUS = st.lists(
    st.builds(
        gpu,
        free=st.none() | st.integers(0, 90000),
        index=st.integers(0, 3),
        visible=st.booleans(),
        unified_memory=st.booleans(),
        mig=st.sampled_from([None, None, "parent", "1g.5gb"]),
        compute_capability=st.sampled_from([None, (5, 2), (8, 6), (12, 0)]),
    ),
    max_size=4,
)


@given(
    GPUS, st.integers(0, 90000), st.sampled_from(["auto", "cpu", "gpu", "0", "3", "GPU-0", UUIDS[1]]), st.sampled_from([None, True, False])
)
def test_any_machine_gets_an_answer(gpus: list[Gpu], threshold: int, device: str, build: bool | None) -> None:
    there = facts(*gpus, system_memory_free_mib=5000)
    decision = decide(there, AVX2, threshold, device=device, build_has_gpu=build)
    assert decision.reason.endswith(".")
    assert (decision.gpu is None) == (decision.selected_device == "cpu")
    if decision.gpu is not None:
        assert decision.gpu.visible
        assert decision.gpu.mig != "parent"
    json.dumps(decision_json(decision, there, AVX2), allow_nan=False)


@given(GPUS, st.integers(0, 90000), st.integers(0, 5000))
def test_a_lower_threshold_never_takes_the_gpu_away(gpus: list[Gpu], threshold: int, less: int) -> None:
    there = facts(*gpus, system_memory_free_mib=5000)
    if decide(there, AVX2, threshold).selected_device == "gpu":
        assert decide(there, AVX2, max(0, threshold - less)).selected_device == "gpu"


def test_the_default_threshold() -> None:
    assert DEFAULT_MIN_VRAM_MIB == decide(facts(), AVX2).min_vram_mib == 2048
