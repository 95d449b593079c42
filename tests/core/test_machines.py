"""Simulated machines go through the same decision, and the known situations come out as documented."""

from __future__ import annotations

import dataclasses
import json

import pytest

from app.core.device_policy import decision_json
from app.core.machines import Machine, described_machine, simulated_machines

MACHINES = {machine.key: machine for machine in simulated_machines()}


@pytest.mark.parametrize(
    ("key", "device", "said"),
    [
        ("ci", "cpu", "no nvidia-smi"),
        ("laptop", "cpu", "no nvidia-smi"),
        ("ws-busy", "cpu", "400 MiB"),
        ("ws-some", "gpu", "3200 MiB"),
        ("shared-2400", "gpu", "2400 MiB"),
        ("server-1500", "cpu", "1500 MiB"),
        ("t2000", "cpu", "'Quadro T2000' has only 887 MiB free (< threshold 2048 MiB)"),
        ("four", "gpu", "GPU 3 'NVIDIA A30' has 20000 MiB"),
        ("mig", "gpu", "MIG 1g.5gb"),
        ("unified", "gpu", "system memory"),
        ("libraries", "gpu", "15900 MiB"),
        ("cpu-build", "cpu", "no GPU support"),
    ],
)
def test_each_machine_decides_at_the_usual_threshold(key: str, device: str, said: str) -> None:
    decision = MACHINES[key].decide(2048)
    assert decision.selected_device == device
    assert said in decision.reason


def test_the_lost_gpu_of_four_is_told_of_in_one_way() -> None:
    machine = MACHINES["four"]
    answer = machine.decide(2048).table[1].answer
    assert "'GPU is lost'" in answer
    assert "it is left out" in answer
    assert (answer,) == machine.gpu.problems


def test_the_list_above_is_complete() -> None:
    assert len(MACHINES) == len(simulated_machines()) == 12


def test_what_happens_is_told_only_where_the_gpu_was_decided_on() -> None:
    missing = MACHINES["libraries"]
    happens = missing.what_happens(missing.decide(2048))
    assert happens is not None
    assert "CUDA libraries are missing" in happens
    assert missing.what_happens(missing.decide(20000)) is None
    assert all(machine.what_happens(machine.decide(2048)) is None for key, machine in MACHINES.items() if key != "libraries")


def test_a_described_machine_follows_its_sliders() -> None:
    machine = described_machine(free_mib=3000, total_mib=8192, gpus=2, usable_cores=8, avx2=False, build_has_gpu=True)
    assert [gpu.free_mib for gpu in machine.gpu.gpus] == [3000, 1500]
    assert machine.decide(3000).selected_device == "gpu"
    assert machine.decide(3001).selected_device == "cpu"
    assert "AVX2" not in machine.decide(3001).reason
    none = described_machine(free_mib=9000, total_mib=8192, gpus=0, usable_cores=1, avx2=True, build_has_gpu=True)
    assert none.decide(0).selected_device == "cpu"


@pytest.mark.parametrize("machine", simulated_machines(), ids=lambda machine: machine.key)
def test_facts_are_such_as_a_probe_could_return(machine: Machine) -> None:
    for gpu in machine.gpu.gpus:
        if gpu.total_mib is not None and gpu.free_mib is not None:
            assert 0 <= gpu.free_mib <= gpu.total_mib
    assert machine.cpu.usable_cores <= (machine.cpu.logical_cores or 0)
    json.dumps(decision_json(machine.decide(2048), machine.gpu, machine.cpu))
    assert dataclasses.is_dataclass(machine)
