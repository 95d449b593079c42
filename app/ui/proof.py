"""*Prove it*: what TensorFlow really ran, read back by processes started for the purpose (`device --verify`)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pandas as pd
import streamlit as st

from app.core.device_policy import Decision, Question, after_start
from app.core.errors import AppError
from app.core.facts import CpuFacts
from app.core.kernel_evidence import threads_in_words
from app.runs.bench_folder import list_benches
from app.runs.proofs import Proof, newest_proof, start_proof
from app.ui import format as fmt
from app.ui import state
from app.ui.flow_chart import flow_chart, flow_chart_in_words
from app.ui.format import escaped
from app.ui.fragments import fragment
from app.ui.palette import path_badge

START = "proof_start"
SAID = "_proof_said"
POLL_S = 1.0
MEASURING = "*Measure* is at work, and nothing else may compute beside it. This can be started once it has ended."
YES_NO = {True: "yes", False: "no", None: "not known"}


def render() -> None:
    """Draw the section: the button, then the newest proof, also one that another visitor started."""
    proof = newest_proof(state.runs_dir())
    running = proof is not None and proof.state == "running"
    measuring = not running and _measuring()
    words, button = st.columns([4, 1], vertical_alignment="center")
    words.markdown(
        "Brings TensorFlow up in a process of its own, as a run would, and reads back what it really used: devices, threads, and from "
        "oneDNN's own lines the kernels and the instruction set. Then tries the ways to set threads, each in another process. "
        "Takes about half a minute."
    )
    button.button(
        "Prove it",
        key=START,
        type="primary",
        icon=":material/verified:",
        width="stretch",
        disabled=running or measuring,
        on_click=_start,
    )
    if said := st.session_state.pop(SAID, None):
        st.error(escaped(said), icon=":material/error:")
    if measuring:
        fragment(_while_measuring, run_every=POLL_S)()
    if proof is None:
        st.caption("Nothing has been proven here yet.")
    elif running:
        fragment(_while_running, run_every=POLL_S)()
    else:
        _ended(proof)


def _measuring() -> bool:
    return any(bench.status.live for bench in list_benches(state.runs_dir()))


def _while_measuring() -> None:
    if not _measuring():
        st.rerun()
    st.info(MEASURING, icon=":material/hourglass_top:")


def _start() -> None:
    if _measuring():  # started by another visitor since this page was drawn
        return
    try:
        start_proof(state.runs_dir(), min_vram_mib=state.min_vram_mib(), device=state.forced_device())
    except AppError as error:
        st.session_state[SAID] = str(error)


def _while_running() -> None:
    proof = newest_proof(state.runs_dir())
    if proof is None or proof.state != "running":
        st.rerun()
    else:
        st.info(f"Reading back since {fmt.duration(time.time() - proof.started)} …", icon=":material/hourglass_top:")


def _ended(proof: Proof) -> None:
    when = time.strftime("%d %b %H:%M:%S", time.localtime(proof.started))
    st.caption(f"Proven {when}, decided at ≥ {proof.min_vram_mib} MiB free, path {proof.device}.")
    if proof.answer is None:
        st.error(escaped(proof.error or "The proof gave no answer."), icon=":material/error:")
        return
    verification = dict(proof.answer.get("verification") or {})
    for problem in verification.get("problems") or ():
        st.warning(escaped(str(problem)), icon=":material/build:")
    profile = verification.get("profile")
    if not profile:
        return
    _verdict(profile)
    st.markdown("**Report**")
    st.code(verification.get("report") or "", language=None)
    _kernels(profile)
    _settings(profile)
    _ways(verification.get("ways") or (), verification.get("notes") or ())


def _verdict(profile: dict[str, Any]) -> None:
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.badge(str(profile["path"]), color=path_badge(profile["selected_device"]), icon=":material/verified:")
        st.markdown(escaped(str(profile["reason"])), width="stretch")
    if profile.get("happened"):
        decided = (profile.get("decision") or {}).get("reason", "")
        st.warning(
            escaped(f"Decided before TensorFlow was asked: {decided} What happened: {profile['happened']}"), icon=":material/sync_problem:"
        )
    _chart(profile)
    devices, first, threads = st.columns(3)
    devices.metric("Logical devices", ", ".join(_short(name) for name in profile.get("logical_devices") or ()) or fmt.UNKNOWN)
    took = profile.get("first_op_ms")
    first.metric(
        "First convolution ran on",
        _short(profile.get("first_op_device") or fmt.UNKNOWN),
        help=f"in {took:.0f} ms" if took is not None else None,
    )
    threads.metric("Threads intra-op / inter-op", f"{_known(profile.get('intra_op_threads'))} / {_known(profile.get('inter_op_threads'))}")


def _chart(profile: dict[str, Any]) -> None:
    """The way from the first question to what TensorFlow then did."""
    decided, happened = profile.get("decision") or {}, profile.get("happened")
    if not decided.get("questions"):
        return
    questions = tuple(Question(**question) for question in decided["questions"])
    decision = Decision(decided["selected_device"], None, decided["reason"], decided["min_vram_mib"], questions, decided["forced"])
    if happened:
        decision = after_start(decision, str(happened), CpuFacts(None, ""))
    with st.expander("How it was decided, and what became of it", icon=":material/account_tree:"):
        st.graphviz_chart(flow_chart(decision, st.context.theme.type or "light"), width="content", alt=flow_chart_in_words(decision))


def _kernels(profile: dict[str, Any]) -> None:
    evidence = profile.get("evidence") or {}
    st.markdown("**Kernels that ran**, by oneDNN's own report")
    kernels = evidence.get("kernels") or ()
    if not kernels:
        st.caption("oneDNN reported none: the work ran on the GPU, or oneDNN's operations are off.")
        return
    rows = [
        {"primitive": k["primitive"], "implementation": k["implementation"] or fmt.UNKNOWN, "runs": k["count"], "ms": k["total_ms"]}
        for k in kernels
    ]
    st.dataframe(
        pd.DataFrame(rows),
        hide_index=True,
        width="stretch",
        key="proof_kernels",
        column_config={"ms": st.column_config.NumberColumn("time, ms", format="%.2f")},
        alt="Kernels that ran, with their count and time",
    )
    st.caption(
        f"{escaped(str(evidence.get('version') or 'oneDNN'))}: {escaped(str(evidence.get('isa') or 'unknown instruction set'))}, "
        f"{threads_in_words(evidence)}, {escaped(str(evidence.get('runtime') or 'unknown'))} runtime."
    )


def _settings(profile: dict[str, Any]) -> None:
    st.markdown("**Variables**: who set them, and whether this TensorFlow goes by them")
    rows = [
        {
            "variable": setting["name"],
            "value": setting["value"] or "(empty)",
            "set by": setting["set_by"],
            "honoured": YES_NO[setting["honoured"]] if applied else "not applied",
            "how that is known": escaped(setting["how_known"]),
            "what it changes": escaped(" ".join(text for text in (setting["changes"], setting["note"]) if text)),
        }
        for applied, settings in ((True, profile["settings"]), (False, profile["not_applied"]))
        for setting in settings
    ]
    st.table(pd.DataFrame(rows).set_index("variable"))


def _ways(ways: Sequence[dict[str, Any]], notes: Sequence[str]) -> None:
    if not ways:
        return
    st.markdown("**Ways to set threads**, each in a process of its own and read back")
    rows = [
        {
            "way": escaped(way["name"]),
            "asked, intra / inter": str(way["asked_intra_op"])
            if way["key"] == "omp"
            else f"{way['asked_intra_op']} / {way['asked_inter_op']}",
            "oneDNN uses": _known(way["onednn_threads"]),
            "inter-op pool": _known(way["compute_threads"]),
            "getter says": f"{_known(way['getter_intra_op'])} / {_known(way['getter_inter_op'])}",
            "takes effect": YES_NO[way["effective"]],
        }
        for way in ways
    ]
    st.table(pd.DataFrame(rows).set_index("way"))
    st.caption(" ".join(escaped(note) for note in notes))


def _short(device: str) -> str:
    """`CPU:0` of `/job:localhost/replica:0/task:0/device:CPU:0`."""
    return device.rpartition("device:")[2]


def _known(value: object) -> str:
    return fmt.UNKNOWN if value is None else str(value)
