"""The head of a run: its state, the path it takes and why; and what people can do with a run that has ended."""

from __future__ import annotations

import streamlit as st

from app.cae.config import CaeConfig
from app.core.errors import AppError
from app.runs.folder import RunFolder, RunStatus
from app.runs.launch import RESUMABLE
from app.ui import cae_data, cae_form, cae_start
from app.ui.cae_text import STATES, config_line, escaped
from app.ui.palette import path_badge

RESUME = "cae_resume"
AGAIN = "cae_again"
USE_OPTIONS = "cae_use_options"


def render(folder: RunFolder, status: RunStatus) -> None:
    """State and path as badges, the reason, and what was asked for."""
    colour, icon = STATES[status.state]
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.badge(status.state, color=colour, icon=icon)
        if status.path:
            st.badge(status.path, color=path_badge(status.selected_device), icon=":material/alt_route:")
        elif status.live:
            st.badge("path not decided yet", color="gray")
        if status.reason:
            st.markdown(escaped(status.reason), width="stretch")
    config = config_of(folder)
    if config is not None:
        st.caption(escaped(config_line(config, status)))
    for warning in status.warnings:
        st.warning(escaped(warning), icon=":material/warning:")


def config_of(folder: RunFolder) -> CaeConfig | None:
    """What the run was asked to do; `None` when its folder does not tell."""
    try:
        return folder.config()
    except AppError:
        return None


def actions(folder: RunFolder, status: RunStatus) -> None:
    """Buttons of a run that has ended: the same again, or its options into the form on the left."""
    config = config_of(folder)
    if config is None:
        return
    with st.container(horizontal=True):
        if status.state in RESUMABLE:
            st.button(
                "Resume",
                key=RESUME,
                type="primary",
                icon=":material/resume:",
                on_click=cae_start.resume,
                args=(folder,),
                help="Goes on in the same folder after the last whole epoch; the curve is joined.",
            )
        st.button(
            "Start the same again",
            key=AGAIN,
            icon=":material/replay:",
            on_click=cae_start.start,
            args=(config.model_dump(),),
            help="A new run with the same pictures, options and seed; this one stays as it is.",
        )
        st.button(
            "Use its options",
            key=USE_OPTIONS,
            icon=":material/content_copy:",
            on_click=_use,
            args=(config,),
            help="Fills the form on the left with the pictures and options of this run.",
        )


def _use(config: CaeConfig) -> None:
    cae_data.take_over(config.data)
    cae_form.take_over(config)
