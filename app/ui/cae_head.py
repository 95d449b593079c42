"""The head of a run: its state, the path it takes and why; and what people can do with a run that has ended."""

from __future__ import annotations

import streamlit as st

from app.cae.config import CaeConfig
from app.core.errors import AppError
from app.core.words import counted
from app.runs.data_there import missing_data
from app.runs.folder import RunFolder, RunStatus, load_dataset_summary
from app.runs.launch import RESUMABLE
from app.runs.slurm_state import job_of
from app.runs.trackers_record import read_record
from app.ui import cae_data, cae_form, cae_launch, cae_start
from app.ui.cae_text import STATES, config_line
from app.ui.format import escaped
from app.ui.palette import path_badge

PROBLEMS_SHOWN = 20
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
        if (job_id := job_of(folder.launch_record())) is not None:
            st.badge(f"SLURM job {job_id}{f' on {status.host}' if status.host else ''}", color="gray", icon=":material/dns:")
        if status.reason:
            st.markdown(escaped(status.reason), width="stretch")
    config = config_of(folder)
    if config is not None:
        st.caption(escaped(config_line(config, status)))
    record = read_record(folder.path)
    if record is not None and (record.url or "").startswith(("http://", "https://")):
        st.link_button("In MLflow", str(record.url), type="tertiary", icon=":material/open_in_new:", help=record.trouble or str(record.url))
    for warning in status.warnings:
        st.warning(escaped(warning), icon=":material/warning:")
    problems = (load_dataset_summary(folder.path) or {}).get("problems") or ()
    if problems:
        with st.expander(f"{counted(len(problems), 'problem')} with the pictures", icon=":material/broken_image:", key="cae_data_problems"):
            for sentence in problems[:PROBLEMS_SHOWN]:
                st.caption(escaped(str(sentence)))
            if len(problems) > PROBLEMS_SHOWN:
                st.caption(f"and {len(problems) - PROBLEMS_SHOWN} more, in dataset.json of the run")


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
    missing = missing_data(config.data)
    # A job of SLURM runs on a node, which may see folders that this machine does not.
    resumable = status.state in RESUMABLE and (missing is None or job_of(folder.launch_record()) is not None)
    startable = missing is None or cae_launch.on_slurm()
    with st.container(horizontal=True):
        if resumable:
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
            disabled=not startable,
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
    if missing and not (resumable and startable):
        what = "resumed or started again" if status.state in RESUMABLE else "started again"
        st.caption(f":material/folder_off: It cannot be {what}, since its pictures are gone: {escaped(missing)}")


def _use(config: CaeConfig) -> None:
    cae_data.take_over(config.data)
    cae_form.take_over(config)
