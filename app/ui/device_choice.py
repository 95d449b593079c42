"""The forced path on the Device tab: auto, CPU, GPU, and where there are several GPUs each of them."""

from __future__ import annotations

from collections.abc import Sequence

from streamlit.delta_generator import DeltaGenerator

from app.core.facts import Gpu
from app.ui import charts_device as charts
from app.ui import state
from app.ui.format import shortened

HELP = "auto decides by the threshold; CPU, GPU and one GPU by its name force a path for runs started from this page."


def render(place: DeltaGenerator) -> str:
    """Draw the choice and return the word it stands at. A GPU that the link names stays chosen also where nobody knows it."""
    labels = choices(_gpus())
    word = _as_offered(state.forced_device())
    labels.setdefault(word, state.device_in_words(word))
    state.hold(state.FORCED_DEVICE, word, tuple(labels.items()))
    if len(labels) == len(state.FORCED_CHOICES):
        place.segmented_control(
            "Path",
            list(labels),
            key=state.FORCED_DEVICE,
            format_func=labels.__getitem__,
            required=True,
            persist_state="session",
            help=HELP,
        )
    else:
        place.selectbox(
            "Path",
            list(labels),
            key=state.FORCED_DEVICE,
            format_func=labels.__getitem__,
            required=True,
            persist_state="session",
            help=HELP,
        )
    return word


def choices(gpus: Sequence[Gpu]) -> dict[str, str]:
    """Label by the word that the command line takes: `{"auto": "auto", "cpu": "CPU", "gpu": "GPU", "1": "GPU 1 · RTX A4000"}`.

    GPUs are offered where there are several that this process sees. A GPU divided by MIG is offered as its slices.
    """
    labels = {name: state.device_in_words(name) for name in state.FORCED_CHOICES}
    offered = [gpu for gpu in gpus if gpu.visible and gpu.mig != "parent"]
    if len(offered) < 2:
        return labels
    names = [shortened(charts.gpu_label(gpu), charts.LONGEST_LABEL) for gpu in offered]
    for gpu, name in zip(offered, names, strict=True):
        # The widget knows its value by the label, so slices of one profile must not look alike.
        labels[word_of(gpu, gpus)] = name if names.count(name) == 1 else f"{name} · {(gpu.uuid or '')[:12]}"
    return labels


def word_of(gpu: Gpu, gpus: Sequence[Gpu]) -> str:
    """The index, which people know; the UUID where the index would mean another or several."""
    alone = sum(other.index == gpu.index for other in gpus) == 1
    return str(gpu.index) if alone or not gpu.uuid else gpu.uuid


def _gpus() -> Sequence[Gpu]:
    """Those of the last good look, where the driver has stopped answering: the choice must not change for that."""
    if found := state.gpu().gpus:
        return found
    last = state.sampler().last_with_gpus()
    return last.gpu.gpus if last else ()


def _as_offered(word: str) -> str:
    """The offered word for the GPU that `word` means: a link may name it by UUID, or by the beginning of it."""
    if word in state.FORCED_CHOICES:
        return word
    gpu = state.decision().gpu
    return word_of(gpu, state.gpu().gpus) if gpu else word
