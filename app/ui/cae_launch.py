"""Where a run is carried out: on this machine, or as a job of SLURM with what it asks for."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app.core.errors import AppError
from app.runs.slurm_options import SlurmSettings, make_settings, options_text
from app.runs.slurm_queue import slurm_missing
from app.ui.format import escaped

LAUNCHER = "cae_launcher"
LAUNCHERS = {"local": "this machine", "slurm": "SLURM"}
_PLACEHOLDERS = {
    "partition": "the cluster's default",
    "gpus": "none",
    "cpus": "the cluster's default",
    "memory": "the cluster's default",
    "time": "the cluster's default",
    "account": "your default",
    "extra": "qos=long exclusive",
}


def key(name: str) -> str:
    """Session key of a setting's field."""
    return f"cae_slurm_{name}"


def render() -> None:
    """Draw the choice, and the settings where SLURM is chosen. Where no job can be submitted the choice says why."""
    missing = slurm_missing()
    st.session_state.setdefault(LAUNCHER, "local")
    if missing:
        st.session_state[LAUNCHER] = "local"
    st.selectbox(
        "Launcher",
        list(LAUNCHERS),
        format_func=lambda name: f"Launcher: {LAUNCHERS[name]}",
        key=LAUNCHER,
        persist_state="session",
        label_visibility="collapsed",
        disabled=missing is not None,
        help=f"SLURM cannot be chosen: {missing}" if missing else "Where the run is carried out: docs/cluster.md.",
    )
    if on_slurm():
        with st.expander("SLURM settings", key="cae_slurm_settings", icon=":material/dns:", expanded=True):
            _fields()


def on_slurm() -> bool:
    return st.session_state.get(LAUNCHER) == "slurm"


def settings() -> SlurmSettings | None:
    """The settings as the fields show them; `None` for this machine.

    Raises:
        OptionError: a field holds what SLURM could not take.
    """
    if not on_slurm():
        return None
    # A field that somebody emptied is empty: the environment has given it a start already.
    return make_settings({name: st.session_state.get(key(name)) for name in SlurmSettings.model_fields})


def problem() -> str | None:
    """What is wrong with the settings; `None` when they can be submitted."""
    try:
        settings()
    except AppError as error:
        return str(error)
    return None


def _fields() -> None:
    left, right = st.columns(2, gap="small")
    for number, (name, field) in enumerate(SlurmSettings.model_fields.items()):
        extra: Any = field.json_schema_extra
        column = st if name == "extra" else right if number % 2 else left
        st.session_state.setdefault(key(name), _from_environment(name))
        column.text_input(
            extra["label"],
            key=key(name),
            persist_state="session",
            placeholder=_PLACEHOLDERS[name],
            help=escaped(str(field.description)),
        )


def _from_environment(name: str) -> str:
    """What the environment gives, for a start."""
    try:
        value = getattr(make_settings({}), name)
    except AppError:  # said under the fields
        return ""
    return options_text(value) if isinstance(value, dict) else "" if value is None else str(value)
