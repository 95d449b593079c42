"""What the pages share: keys of the session state, the threshold in force, the live sampler, the folder of runs.

The threshold, the forced path, the live panel's rhythm and the open tab live in the URL, so that a link or a reload shows the same page.
Before its widget was drawn for the first time a value has no entry in the session state; then the URL is asked.
"""

from __future__ import annotations

import os
from pathlib import Path

import streamlit as st

from app.core.cpu_probe import cpu_facts
from app.core.decided import decided_profile
from app.core.device_policy import DEFAULT_MIN_VRAM_MIB, Decision, decide
from app.core.device_word import refuse_meaningless_device
from app.core.errors import OptionError
from app.core.facts import CpuFacts, GpuFacts
from app.core.gpu_trouble import SENTENCES
from app.core.live import LiveSampler, Sample
from app.core.tf_build import TensorFlowBuild, tensorflow_build
from app.runs.folder import RunFolder, default_runs_dir
from app.ui.format import shortened

TAB = "tab"
MIN_VRAM_MIB = "min_vram_mib"
FORCED_DEVICE = "device"
REFRESH_S = "refresh_s"
SELECTED_RUN = "run"
COMPARED_RUNS = "runs"
_DRAWN_RUN = "_drawn_run"

UPLOADS_FOLDER = ".uploads"
"""Below the folder of runs, hidden from the list of runs: what was uploaded must be there as long as a run may read it."""

TABS = ("Device", "Keras CAE", "Compare")
FORCED_CHOICES = ("auto", "cpu", "gpu")
LARGEST_WITHOUT_GPU_MIB = 8192
REFRESH_CHOICES: dict[str, float | None] = {"1 s": 1.0, "2 s": 2.0, "5 s": 5.0, "paused": None}
"""Rhythms of the live panel, seconds; `None` while paused."""
USUAL_REFRESH = "1 s"
LONGEST_WORD = 80
"""Of a device in a link, characters: the longest name that CUDA takes has fewer."""
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


def gpu_status_unknown(facts: GpuFacts) -> bool:
    """Whether no GPU is known only because nobody could tell: a probe that hangs, gave up or failed. That is no *no*."""
    nothing_there = SENTENCES["none"].partition("}")[2].partition(" (")[0]  # the one trouble that is an answer
    certain = any(nothing_there in sentence for sentence in (*facts.problems, facts.no_gpu_because or ""))
    return not facts.gpus and not certain and (facts is STILL_LOOKING or facts.device_node or bool(facts.problems))


def min_vram_mib() -> int:
    """The threshold in force for this visitor, MiB; a link that names none that can be is as good as none."""
    return _threshold(st.session_state.get(MIN_VRAM_MIB, st.query_params.get(MIN_VRAM_MIB)))[0]


def forced_device() -> str:
    """`auto`, `cpu`, `gpu`, or one GPU by index or UUID, as chosen on the Device tab or named in the link."""
    return _device(st.session_state.get(FORCED_DEVICE) or st.query_params.get(FORCED_DEVICE))[0]


def refresh_choice() -> str:
    """The live panel's rhythm, one of `REFRESH_CHOICES`."""
    asked = str(st.session_state.get(REFRESH_S) or st.query_params.get(REFRESH_S) or "")
    return next((name for name in REFRESH_CHOICES if asked in (name, name.removesuffix(" s"))), USUAL_REFRESH)


def device_in_words(device: str) -> str:
    """`auto`, `CPU`, `GPU 2`: a choice of path, asking no machine."""
    if device in FORCED_CHOICES:
        return {"auto": "auto"}.get(device, device.upper())
    return f"GPU {device}" if device.isdecimal() else shortened(device, 16)


def remember_link() -> None:
    """Keep what is wrong with the link, for `said_of_link`. Call before anything is drawn: each run rewrites the URL."""
    for key, read in ((MIN_VRAM_MIB, _threshold), (FORCED_DEVICE, _device)):
        if key in st.session_state or f"_link_{key}" in st.session_state:
            continue
        value, wrong = read(st.query_params.get(key))
        st.session_state[f"_link_{key}"] = (value, wrong)


def said_of_link(key: str, drawn: object) -> str | None:
    """One sentence where the link named a value that cannot be, as long as the visitor has not chosen another.

    Args:
        key: of the widget.
        drawn: value that the widget is going to show.
    """
    value: object
    wrong: str | None
    value, wrong = st.session_state.get(f"_link_{key}", (None, None))
    if wrong is None and key == MIN_VRAM_MIB and isinstance(value, int) and isinstance(drawn, int) and drawn < value:
        wrong = f"The link asks for a threshold of {value} MiB, more than the slider offers here; {drawn} MiB is used."
        st.session_state[f"_link_{key}"] = (drawn, wrong)
    elif wrong is not None and value != drawn:
        st.session_state[f"_link_{key}"] = (None, None)
        return None
    return wrong


def _threshold(asked: object) -> tuple[int, str | None]:
    """(threshold in MiB, what is wrong with `asked`)."""
    if asked is None or isinstance(asked, int):
        return (DEFAULT_MIN_VRAM_MIB if asked is None else asked), None
    word = str(asked).strip()
    if word.isdecimal() and len(word) <= len("999999999"):
        return int(word), None
    said = f"The link asks for a threshold of '{shortened(word, 24)}' MiB; expected a whole number from 0"
    return DEFAULT_MIN_VRAM_MIB, f"{said}, so {DEFAULT_MIN_VRAM_MIB} MiB is used."


def _device(asked: object) -> tuple[str, str | None]:
    """(word for a device, what is wrong with `asked`)."""
    word = str(asked or "auto").strip()
    if word.lower() in FORCED_CHOICES:
        return word.lower(), None
    try:
        if len(word) <= LONGEST_WORD:
            refuse_meaningless_device(word)
            return word or "auto", None
    except OptionError:
        pass
    said = f"The link asks for the path '{shortened(word, 24)}'; expected auto, cpu, gpu, or the index or UUID of a GPU, so auto decides."
    return "auto", said


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
    """Keep threshold, forced path and the live panel's rhythm in the URL, on every tab.

    Streamlit's own binding takes a parameter out of the URL when its widget is not drawn: a reload on another tab, during a training say,
    would then decide by the default again.
    """
    keep_in_url(MIN_VRAM_MIB, str(min_vram_mib()), str(DEFAULT_MIN_VRAM_MIB))
    keep_in_url(FORCED_DEVICE, forced_device(), "auto")
    keep_in_url(REFRESH_S, refresh_choice().removesuffix(" s"), USUAL_REFRESH.removesuffix(" s"))


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


def keep_drawn_run(folder: RunFolder | None, run_state: str = "") -> None:
    """Remember which ended run the page shows, and in which state: resumed or deleted by somebody else it is drawn anew."""
    st.session_state[_DRAWN_RUN] = None if folder is None else (folder, run_state)


def drawn_run_changed() -> bool:
    """Whether the ended run that the page shows is in another state by now, or gone."""
    drawn = st.session_state.get(_DRAWN_RUN)
    return drawn is not None and drawn[0].status().state != drawn[1]


def runs_dir() -> Path:
    return default_runs_dir()


def data_root() -> Path:
    """Folder that typed paths must stay inside: TWOPATH_DATA_ROOT, else the home folder of who started the dashboard."""
    return Path(os.environ.get("TWOPATH_DATA_ROOT") or Path.home())
