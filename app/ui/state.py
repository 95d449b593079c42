"""What the pages share: keys of the session state, the threshold in force, the live sampler, the folder of runs.

The threshold, the forced path and the open tab live in the URL, so that a link or a reload shows the same page. Before its widget was
drawn for the first time a value has no entry in the session state; then the URL is asked.
"""

from __future__ import annotations

import os
from pathlib import Path

import streamlit as st

from app.core.cpu_probe import cpu_facts
from app.core.decided import decided_profile
from app.core.device_policy import DEFAULT_MIN_VRAM_MIB, Decision, decide
from app.core.facts import CpuFacts, GpuFacts
from app.core.live import LiveSampler, Sample
from app.core.tf_build import TensorFlowBuild, tensorflow_build
from app.runs.folder import default_runs_dir

TAB = "tab"
MIN_VRAM_MIB = "min_vram_mib"
FORCED_DEVICE = "device"
REFRESH_S = "refresh_s"
SELECTED_RUN = "run"
COMPARED_RUNS = "runs"

UPLOADS_FOLDER = ".uploads"
"""Below the folder of runs, hidden from the list of runs: what was uploaded must be there as long as a run may read it."""

TABS = ("Device", "Keras CAE", "Compare")
FORCED_CHOICES = ("auto", "cpu", "gpu")
LARGEST_WITHOUT_GPU_MIB = 8192
STILL_LOOKING = GpuFacts(no_gpu_because="the first look at the GPUs is still under way.")
"""What is known before the first look has ended."""


@st.cache_resource(show_spinner=False)
def sampler() -> LiveSampler:
    """One sampler for the process: facts about the machine are the same for every visitor."""
    return LiveSampler()


def sample(wait_s: float = 2.5) -> Sample | None:
    """The newest look at the machine; only the first page of a process may wait, and not for long."""
    return sampler().latest(wait_s=wait_s)


# A resource and not data: data is copied by pickling, which fails once a module has been reloaded under a running page.
@st.cache_resource(ttl=30, show_spinner=False)
def cpu() -> CpuFacts:
    return cpu_facts()


def gpu() -> GpuFacts:
    """GPU facts of the newest sample; no GPUs, with that reason, while the first probe is still under way."""
    newest = sample()
    return newest.gpu if newest else STILL_LOOKING


def largest_total_mib(facts: GpuFacts) -> int:
    """Upper end of the threshold slider: the largest total, rounded up to a whole GiB; it never shrinks in a session.

    A slider whose end moves would throw away its value; a GPU that vanishes for one probe must not do that.
    """
    totals = [item.total_mib for item in facts.gpus if item.total_mib]
    seen = int(st.session_state.get("_largest_total_mib", 0))
    if not totals:
        return seen or LARGEST_WITHOUT_GPU_MIB
    highest = max(seen, -(-max(totals) // 1024) * 1024)
    st.session_state["_largest_total_mib"] = highest
    return highest


def min_vram_mib() -> int:
    """The threshold in force for this visitor, MiB; a link that names none that can be is as good as none."""
    value = st.session_state.get(MIN_VRAM_MIB, st.query_params.get(MIN_VRAM_MIB))
    try:
        number = int(value) if value is not None else DEFAULT_MIN_VRAM_MIB
    except (TypeError, ValueError):
        return DEFAULT_MIN_VRAM_MIB
    return number if number >= 0 else DEFAULT_MIN_VRAM_MIB


def forced_device() -> str:
    """`auto`, `cpu` or `gpu`, as chosen on the Device tab."""
    value = st.session_state.get(FORCED_DEVICE) or st.query_params.get(FORCED_DEVICE)
    return value if value in FORCED_CHOICES else "auto"


@st.cache_resource(ttl=60, show_spinner=False)
def build() -> TensorFlowBuild:
    """The TensorFlow on disk, read from its files and not imported."""
    return tensorflow_build()


def decision() -> Decision:
    """The decision by the facts of the machine: what the Device tab explains."""
    return decide(gpu(), cpu(), min_vram_mib(), device=forced_device())


def run_decision(device: str | None = None) -> Decision:
    """What a run started from this page now would decide, the installed TensorFlow taken into account."""
    return decide(gpu(), cpu(), min_vram_mib(), device=device or forced_device(), build_has_gpu=build().has_gpu)


def path_label(decided: Decision) -> str:
    """`GPU · NVIDIA RTX A4000`, `CPU · AVX2 through oneDNN`: the same words that a run's profile uses."""
    return decided_profile(decided, gpu(), cpu(), build()).path


def into_url() -> None:
    """Keep threshold and forced path in the URL, on every tab.

    Streamlit's own binding takes a parameter out of the URL when its widget is not drawn: a reload on another tab, during a training say,
    would then decide by the default again.
    """
    for key, value, default in ((MIN_VRAM_MIB, min_vram_mib(), DEFAULT_MIN_VRAM_MIB), (FORCED_DEVICE, forced_device(), "auto")):
        keep_in_url(key, str(value), str(default))


def keep_in_url(key: str, value: str, default: str) -> None:
    """Put a choice into the URL, or take it out where it is the default: short links say what is special."""
    if value == default:
        st.query_params.pop(key, None)
    elif st.query_params.get(key) != value:
        st.query_params[key] = value


def hold(key: str, value: object, shape: object) -> None:
    """Give a widget its value where that is needed, and only there. Call just before the widget is drawn.

    A widget whose bounds, options or labels change is a new one to Streamlit and begins at its default, so it needs the value again. At any
    other run, what is written here would overtake in the browser what the visitor has moved the widget to since that run was asked for.

    Args:
        key: of the widget.
        value: it has.
        shape: all that is not always the same about the widget.
    """
    if key not in st.session_state or (st.session_state[key], st.session_state.get(f"_shape_{key}")) != (value, shape):
        st.session_state[key], st.session_state[f"_shape_{key}"] = value, shape


def runs_dir() -> Path:
    return default_runs_dir()


def data_root() -> Path:
    """Folder that typed paths must stay inside: TWOPATH_DATA_ROOT, else the home folder of who started the dashboard."""
    return Path(os.environ.get("TWOPATH_DATA_ROOT") or Path.home())
