"""*What if this were …*: the same decision, by the same code, on machines that are not at hand. Plainly labelled simulated."""

from __future__ import annotations

import streamlit as st

from app.core.decided import decided_profile
from app.core.device_policy import after_start
from app.core.machines import Machine, described_machine, simulated_machines
from app.core.tf_build import TensorFlowBuild
from app.ui import charts_device as charts
from app.ui import device_decided, state
from app.ui.format import escaped

MACHINE = "what_if"
OWN = "own"
OWN_GPUS, OWN_TOTAL, OWN_FREE = "what_if_gpus", "what_if_total", "what_if_free"
OWN_CORES, OWN_AVX2, OWN_BUILD = "what_if_cores", "what_if_avx2", "what_if_build"


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
    gpus = st.slider("GPUs", 0, 4, 1, key=OWN_GPUS, persist_state="session")
    total = st.slider("VRAM of each, MiB", 1024, 81920, 8192, step=1024, key=OWN_TOTAL, persist_state="session", disabled=not gpus)
    free = st.slider(
        "Free on the first, MiB (each further one has half of that)",
        0,
        81920,
        3072,
        step=64,
        key=OWN_FREE,
        persist_state="session",
        disabled=not gpus,
    )
    cores = st.slider("Usable cores", 1, 128, 8, key=OWN_CORES, persist_state="session")
    avx2 = st.toggle("The CPU has AVX2", True, key=OWN_AVX2, persist_state="session")
    build = st.toggle("The installed TensorFlow can use GPUs", True, key=OWN_BUILD, persist_state="session")
    return described_machine(free, total, gpus, cores, avx2, build)


def _cpu_words(machine: Machine) -> str:
    cpu = machine.cpu
    limited = f" ({cpu.limited_by})" if cpu.limited_by else ""
    return escaped(f"CPU: {cpu.name}, {cpu.usable_cores} usable cores{limited}.")
