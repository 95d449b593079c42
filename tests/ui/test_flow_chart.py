"""The flow chart marks the way that was taken, and nothing else."""

from __future__ import annotations

import re

import pytest

from app.core.device_policy import Decision, after_start, decide
from app.core.facts import CpuFacts, Gpu, GpuFacts
from app.ui.flow_chart import flow_chart, flow_chart_in_words
from app.ui.palette import CPU_BLUE, GPU_GREEN

CPU = CpuFacts(name="A CPU", architecture="x86_64", features={"avx": True, "avx2": True}, usable_cores=2)


def _facts(free_mib: int) -> GpuFacts:
    return GpuFacts(
        gpus=(Gpu(index=0, uuid="GPU-a", name='NVIDIA "A" <x>', total_mib=4096, free_mib=free_mib, logical_index=0),), source="nvml"
    )


def _taken(source: str) -> list[tuple[str, str]]:
    return re.findall(r"(\w+) -> (\w+) \[label=\" \w+ \", color=\"#1", source)


def _filled(source: str) -> list[str]:
    return re.findall(r"(\w+) \[label=\"[^\"]*\", style=\"rounded,filled\"", source)


@pytest.mark.parametrize("theme", ["light", "dark", "something else"])
def test_enough_memory_leads_down_the_column_to_the_gpu(theme: str) -> None:
    decision = decide(_facts(3200), CPU, 2048)
    source = flow_chart(decision, theme)
    taken = _taken(source)
    assert len(taken) == len(decision.chart)
    assert taken[-1][1] == "gpu"
    assert _filled(source) == ["gpu"]
    assert GPU_GREEN in source
    assert CPU_BLUE not in source


def test_too_little_memory_leaves_the_column_at_the_last_question() -> None:
    source = flow_chart(decide(_facts(887), CPU, 2048))
    assert _taken(source)[-1] == ("q_enough", "leave_q_enough")
    assert _filled(source) == ["leave_q_enough"]
    assert GPU_GREEN not in source


def test_no_gpu_leaves_at_the_first_question_and_what_follows_is_faint() -> None:
    source = flow_chart(decide(GpuFacts(), CPU, 2048))
    assert [start for start, _ in _taken(source)] == ["q_forced", "q_present"]


def test_where_nobody_could_tell_the_first_question_is_answered_by_unknown() -> None:
    decision = decide(GpuFacts(problems=("nvidia-smi timed out after 5 s.",)), CPU, 2048)
    source = flow_chart(decision, gpu_unknown=True)
    assert 'q_present -> leave_q_present [label=" unknown "' in source
    assert _taken(source) == _taken(flow_chart(decision))
    assert "Is there an NVIDIA GPU? unknown" in flow_chart_in_words(decision, gpu_unknown=True)


def test_a_forced_cpu_leads_straight_to_it() -> None:
    source = flow_chart(decide(_facts(3200), CPU, 2048, device="cpu"))
    assert _taken(source) == [("q_forced", "leave_q_forced")]
    assert _filled(source) == ["leave_q_forced"]
    assert 'leave_q_forced [label="CPU path"' in source


@pytest.mark.parametrize(
    ("device", "build_has_gpu", "end", "because"),
    [
        ("gpu", True, "gpu", "yes"),
        ("0", None, "gpu", "yes"),
        ("7", True, "leave_q_usable", "No GPU matches"),
        ("GPU-zzz", True, "leave_q_usable", "No GPU matches"),
        ("gpu", False, "leave_q_usable", "no GPU support"),
    ],
)
def test_a_forced_gpu_answers_whether_it_can_be_used(device: str, build_has_gpu: bool | None, end: str, because: str) -> None:
    decision = decide(_facts(887), CPU, 2048, device=device, build_has_gpu=build_has_gpu)
    source = flow_chart(decision)
    assert _taken(source) == [("q_forced", "q_usable"), ("q_usable", end)]
    assert _filled(source) == [end]
    tooltip = re.search(r'q_usable \[label="[^"]*", tooltip="([^"]*)"', source)
    assert tooltip
    assert because in tooltip[1].replace("\\n", " ")


@pytest.mark.parametrize("device", ["auto", "gpu"])
def test_a_gpu_that_then_failed_ends_on_the_cpu(device: str) -> None:
    decided = decide(_facts(3200), CPU, 2048, device=device)
    source = flow_chart(after_start(decided, "CUDA libraries are missing", CPU))
    taken = _taken(source)
    assert taken[-1] == ("q_ran", "leave_q_ran")
    assert [end for _, end in taken[:-1]] == [start for start, _ in taken[1:]]
    assert _filled(source) == ["leave_q_ran"]
    assert GPU_GREEN not in source


def test_every_name_in_an_edge_is_a_node_and_quotes_are_harmless() -> None:
    source = flow_chart(decide(_facts(887), CPU, 2048))
    nodes = set(re.findall(r"^(\w+) \[label=", source, re.M))
    assert {name for edge in re.findall(r"(\w+) -> (\w+)", source) for name in edge} <= nodes
    assert source.count('"') % 2 == 0


def test_the_way_in_words() -> None:
    decision: Decision = decide(_facts(887), CPU, 2048)
    words = flow_chart_in_words(decision)
    assert words.endswith("so CPU path")
    assert "2048 MiB free? no" in words
