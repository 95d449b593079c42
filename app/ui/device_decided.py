"""A decision on the page: its verdict, its flow chart, its table of GPUs. For this machine and for simulated ones alike."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from app.core.device_policy import Decision, Question
from app.core.facts import GpuFacts
from app.ui import charts_device as charts
from app.ui import format as fmt
from app.ui import state
from app.ui.flow_chart import flow_chart, flow_chart_in_words
from app.ui.format import escaped
from app.ui.palette import path_badge


def verdict(decision: Decision, path: str) -> None:
    """The path in its colour, the reason beside it, the decision's own warnings below."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.badge(path, color=path_badge(decision.selected_device))
        st.markdown(escaped(decision.reason), width="stretch")
    for warning in decision.warnings:
        st.warning(escaped(warning), icon=":material/warning:")


def by_memory_alone(decision: Decision, path: str) -> None:
    """Below the verdict, whose reason says that this build has no GPU support: what the same machine would take with one that has."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.badge(path, color=path_badge(decision.selected_device), icon=":material/call_split:")
        st.markdown(f"after `make app TF=gpu`: {escaped(decision.reason)}", width="stretch")


def how(decision: Decision, facts: GpuFacts, machine: Decision | None = None) -> None:
    """The questions as a flow chart with the taken branch marked, and each GPU with its answer.

    `machine` is the decision whose table is shown, where the chart's own ends on the build and says nothing about memory.
    """
    unknown = state.gpu_status_unknown(facts)
    st.graphviz_chart(
        flow_chart(decision, st.context.theme.type or "light", gpu_unknown=unknown),
        width="content",
        alt=flow_chart_in_words(decision, gpu_unknown=unknown),
    )
    shown = machine or decision
    if shown.table:
        chosen = "chosen" if decision.gpu == shown.gpu else "would be chosen"
        # A static table wraps its sentences; a data frame would cut them off.
        st.table(pd.DataFrame([_table_row(question, shown, facts, chosen) for question in shown.table]).set_index("GPU"))
    if facts.visibility_note:
        st.caption(escaped(facts.visibility_note))


def _table_row(question: Question, decision: Decision, facts: GpuFacts, in_words: str) -> dict[str, str]:
    gpu = next((found for found in facts.gpus if found.index == question.about_gpu and found.uuid == question.about_uuid), None)
    chosen = gpu is not None and decision.gpu is not None and (gpu.index, gpu.uuid) == (decision.gpu.index, decision.gpu.uuid)
    return {
        "GPU": charts.gpu_label(gpu) if gpu else str(question.about_gpu),
        "usable": in_words if chosen else question.branch or fmt.UNKNOWN,
        "why": escaped(question.answer.replace("(< ", "(<\u00a0").replace("(≥ ", "(≥\u00a0")),
    }
