"""Which GPUs a run takes where there are several: those of other runs last, and as many as it asked for. Pure."""

from __future__ import annotations

import pytest

from app.core.device_policy import decide
from app.core.facts import CpuFacts, Gpu, GpuFacts
from app.core.several_gpus import with_more_gpus

CPU = CpuFacts("A CPU", "x86_64", {"avx": True, "avx2": True})


def machine(*free_mib: int, mig: str | None = None) -> GpuFacts:
    return GpuFacts(tuple(Gpu(n, f"GPU-{n}", "Card", 16000, mib, mig=mig) for n, mib in enumerate(free_mib)))


def test_a_gpu_of_another_run_comes_last() -> None:
    facts = machine(9000, 5000, 7000)
    assert decide(facts, CPU).gpu == facts.gpus[0]
    decision = decide(facts, CPU, held=["GPU-0"])
    assert decision.gpu == facts.gpus[2]
    assert decision.reason == "GPU 2 'Card' has 7000 MiB free (≥ threshold 2048 MiB)."
    answers = [question.answer for question in decision.table]
    assert answers[0].endswith("It is left to another run.")
    assert answers[1].endswith("Another one has more, or comes first.")


def test_a_held_gpu_is_waited_for_where_no_other_passes() -> None:
    assert decide(machine(9000, 500), CPU, held=["GPU-0"]).gpu == machine(9000, 500).gpus[0]


def test_a_gpu_is_known_by_its_index_where_it_has_no_uuid() -> None:
    facts = GpuFacts((Gpu(0, None, "Card", 16000, 9000), Gpu(1, None, "Card", 16000, 8000)))
    assert [gpu.key for gpu in facts.gpus] == ["gpu-0", "gpu-1"]
    assert decide(facts, CPU, held=["gpu-0"]).gpu == facts.gpus[1]


def test_forcing_the_gpu_avoids_other_runs_too_and_naming_one_does_not() -> None:
    facts = machine(9000, 8000)
    assert decide(facts, CPU, device="gpu", held=["GPU-0"]).gpu == facts.gpus[1]
    assert decide(facts, CPU, device="0", held=["GPU-0"]).gpu == facts.gpus[0]


@pytest.mark.parametrize(
    ("free", "wanted", "chosen", "reason"),
    [
        ((9000, 8000), 1, [0], "GPU 0 'Card' has 9000 MiB free (≥ threshold 2048 MiB)."),
        ((9000, 8000), 2, [0, 1], "GPUs 0 'Card' and 1 'Card' have 9000 and 8000 MiB free (each ≥ threshold 2048 MiB)."),
        ((3000, 500, 9000), 2, [2, 0], "GPUs 0 'Card' and 2 'Card' have 3000 and 9000 MiB free (each ≥ threshold 2048 MiB)."),
        (
            (9000, 8000, 7000),
            3,
            [0, 1, 2],
            "GPUs 0 'Card', 1 'Card' and 2 'Card' have 9000, 8000 and 7000 MiB free (each ≥ threshold 2048 MiB).",
        ),
        (
            (9000, 500),
            2,
            [0],
            "2 GPUs were asked for, 1 can be used: GPU 0 'Card' has 9000 MiB free (≥ threshold 2048 MiB).",
        ),
        (
            (9000, 8000, 100),
            4,
            [0, 1],
            "4 GPUs were asked for, 2 can be used: GPUs 0 'Card' and 1 'Card' have 9000 and 8000 MiB free (each ≥ threshold 2048 MiB).",
        ),
    ],
)
def test_as_many_as_asked_for_and_as_pass(free: tuple[int, ...], wanted: int, chosen: list[int], reason: str) -> None:
    facts = machine(*free)
    decision = with_more_gpus(decide(facts, CPU), facts, wanted)
    assert decision.gpu is not None
    assert [gpu.index for gpu in (decision.gpu, *decision.more_gpus)] == chosen
    assert decision.reason == reason


def test_others_gpus_are_taken_last_for_a_run_over_several_too() -> None:
    facts = machine(9000, 8000, 3000)
    decision = with_more_gpus(decide(facts, CPU, held=["GPU-1"]), facts, 2, held=["GPU-1"])
    assert [gpu.index for gpu in decision.more_gpus] == [2]


def test_one_named_gpu_one_slice_and_the_cpu_stay_alone() -> None:
    facts = machine(9000, 8000)
    named = with_more_gpus(decide(facts, CPU, device="1"), facts, 2)
    assert (named.more_gpus, named.reason[:65]) == ((), "2 GPUs were asked for, but one is named; only that one is used. G")
    sliced = machine(9000, 8000, mig="3g.20gb")
    assert "one MIG slice only" in with_more_gpus(decide(sliced, CPU), sliced, 2).reason
    none = machine(100, 100)
    assert with_more_gpus(decide(none, CPU), none, 2) == decide(none, CPU)
