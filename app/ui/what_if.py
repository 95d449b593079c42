"""*What if this were …*: the same decision, by the same code, on machines that are not at hand. Plainly labelled simulated."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from app.core.decided import decided_profile
from app.core.device_policy import after_start
from app.core.facts import Presence
from app.core.machines import Machine, described_machine, simulated_machines
from app.core.tf_build import TensorFlowBuild
from app.core.words import counted
from app.ui import charts_device as charts
from app.ui import device_decided, state
from app.ui.format import escaped

MACHINE = "what_if"
OWN = "own"
OWN_GPUS, OWN_TOTAL, OWN_FREE = "what_if_gpus", "what_if_total", "what_if_free"
OWN_CORES, OWN_ISA, OWN_BUILD = "what_if_cores", "what_if_isa", "what_if_build"
OWN_NUMBERS = {OWN_GPUS: (0, 4, 1), OWN_TOTAL: (1024, 81920, 8192), OWN_FREE: (0, 81920, 3072), OWN_CORES: (1, 128, 8)}
"""Lowest, highest, and where the slider begins."""
_BASE = ("sse4_2",)
_AVX2 = (*_BASE, "avx", "avx2", "fma")
INSTRUCTIONS = {"AVX-512": (*_AVX2, "avx512f", "avx512_vnni"), "AVX2": _AVX2, "AVX": (*_BASE, "avx"), "none of them": _BASE}
"""Choices of instruction set, with the features of a CPU whose best it is."""
USUAL_ISA = "AVX2"
BUILDS = {True: "gpu", False: "cpu"}


def render() -> None:
    """Draw the section: choose or describe a machine on the left, its verdict and flow chart beside it."""
    machines = {machine.key: machine for machine in simulated_machines()}
    labels = {**{key: machine.label for key, machine in machines.items()}, OWN: "A machine of your own"}
    left, right = st.columns([2, 3], gap="large")
    with left:
        key = st.selectbox(
            "What if this were …", list(labels), format_func=labels.__getitem__, key=MACHINE, required=True, bind="query-params", index=0
        )
        machine = _described() if key == OWN else machines[str(key)]
        st.markdown(escaped(machine.story))
        st.caption(f"Decided at ≥ {state.min_vram_mib()} MiB free, the threshold set above. {_cpu_words(machine)}")
        if any(gpu.total_mib for gpu in machine.gpu.gpus):
            st.plotly_chart(
                charts.memory_bars(machine.gpu.gpus, state.min_vram_mib()),
                key="what_if_bars",
                alt="Used and free VRAM of the simulated GPUs",
            )
    with right:
        _decision(machine)


def _decision(machine: Machine) -> None:
    decision = machine.decide(state.min_vram_mib())  # a path forced for this machine is not forced for that one
    build = TensorFlowBuild(installed=True, has_gpu=machine.build_has_gpu)
    with st.container(horizontal=True, gap="small"):
        st.badge("simulated", icon=":material/science:", color="orange")
    happens = machine.what_happens(decision)
    if happens:
        decision = after_start(decision, happens, machine.cpu)
    device_decided.verdict(decision, decided_profile(decision, machine.gpu, machine.cpu, build, {}).path)
    if happens:
        st.warning(
            f"Decided: GPU. Read back: CPU, because {escaped(happens)}. A run's profile says both.",
            icon=":material/sync_problem:",
        )
    for problem in machine.gpu.problems:
        st.warning(escaped(problem), icon=":material/build:")
    device_decided.how(decision, machine.gpu)


def _described() -> Machine:
    gpus = _number("GPUs", OWN_GPUS)
    total = _number("VRAM of each, MiB", OWN_TOTAL, step=1024, disabled=not gpus)
    free = _number("Free on the first, MiB (each further one has half of that)", OWN_FREE, step=64, disabled=not gpus, highest=total)
    cores = _number("Usable cores", OWN_CORES)
    linked = st.query_params.get(OWN_ISA)
    st.session_state.setdefault(OWN_ISA, linked if linked in INSTRUCTIONS else USUAL_ISA)
    best = st.selectbox("Best instruction set of the CPU", list(INSTRUCTIONS), key=OWN_ISA, required=True, persist_state="session")
    st.session_state.setdefault(OWN_BUILD, st.query_params.get(OWN_BUILD) != BUILDS[False])
    build = st.toggle("The installed TensorFlow can use GPUs", key=OWN_BUILD, persist_state="session")
    state.keep_in_url(OWN_ISA, best, USUAL_ISA)
    state.keep_in_url(OWN_BUILD, BUILDS[build], BUILDS[True])
    machine = described_machine(free, total, gpus, cores, best == USUAL_ISA, build)
    features: dict[str, Presence] = {name: name in INSTRUCTIONS[best] for name in machine.cpu.features}
    return replace(machine, cpu=replace(machine.cpu, features=features))


def _number(label: str, key: str, *, step: int = 1, disabled: bool = False, highest: int | None = None) -> int:
    """A slider whose value stands in the URL; `highest` where it ends earlier than usual, which takes its value along."""
    low, high, usual = OWN_NUMBERS[key]
    high = high if highest is None else highest
    asked = str(st.session_state.get(key, st.query_params.get(key, usual)))
    value = int(asked) if asked.isdecimal() and len(asked) <= len(str(high)) + 1 else usual
    state.hold(key, max(low, min(high, value)), high)
    chosen = st.slider(label, low, high, step=step, key=key, persist_state="session", disabled=disabled)
    state.keep_in_url(key, str(chosen), str(usual))
    return chosen


def _cpu_words(machine: Machine) -> str:
    cpu = machine.cpu
    limited = f" ({cpu.limited_by})" if cpu.limited_by else ""
    return escaped(f"CPU: {cpu.name}, {counted(cpu.usable_cores, 'usable core')}{limited}.")
