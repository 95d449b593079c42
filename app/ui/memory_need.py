"""What the chosen autoencoder needs in VRAM, beside the threshold: need, suggested threshold, largest batch that fits each GPU."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from app.cae.config import CaeConfig, make_config
from app.core.errors import AppError
from app.core.facts import Gpu
from app.core.memory_plan import MIB, MemoryPlan, plan_memory
from app.ui import cae_form
from app.ui import charts_device as charts
from app.ui import format as fmt
from app.ui.palette import GPU_GREEN, OKABE_ITO

MAX_BATCH = 512
"""The largest batch that the options allow."""
SMALLEST_SHOWN_MIB = 0.05
"""Layers below that (BatchNorm's few numbers) would only be empty rows."""


def chosen_plan() -> MemoryPlan | None:
    """The plan for the options as they stand on the Keras CAE tab; colour pictures when the channels are left to the data."""
    try:
        config = make_config(cae_form.values())
    except AppError:
        return None
    return plan_of(config)


def plan_of(config: CaeConfig) -> MemoryPlan:
    """The memory plan of a configuration; `auto` counts as what needs more: colour, and a centred network."""
    return plan_memory(
        image_size=config.image_size,
        channels=1 if config.channels == "grey" else 3,
        base_filters=config.base_filters,
        latent_dim=config.latent_dim,
        batch_size=config.batch_size,
        precision=config.precision,
        centre=config.centre != "no",
        optimizer=config.optimizer,
    )


def beside_the_slider() -> None:
    """Need and suggestion in one line."""
    plan = chosen_plan()
    if plan is None:
        st.caption("The options on the Keras CAE tab do not fit together, so their need is unknown.")
        return
    st.caption(
        f"The autoencoder chosen on the Keras CAE tab needs about **{fmt.mib(plan.need_mib)}** to train (batch {plan.batch_size}); "
        f"suggested threshold **{fmt.mib(plan.suggested_threshold_mib)}**."
    )


def render(gpus: Sequence[Gpu]) -> None:
    """The section: parts of the need, layers, and what fits each GPU."""
    plan = chosen_plan()
    if plan is None:
        st.info("The options on the Keras CAE tab do not fit together; correct them there to see what they need.")
        return
    need, suggested, parameters, picture = st.columns(4)
    need.metric("Need while training", fmt.mib(plan.need_mib), help="peak, at the batch size chosen on the Keras CAE tab")
    suggested.metric(
        "Suggested threshold", fmt.mib(plan.suggested_threshold_mib), help="need with a tenth of headroom, rounded up to 64 MiB"
    )
    parameters.metric("Parameters", f"{plan.parameters:,}".replace(",", "\u202f"))
    picture.metric("Each picture of a batch", fmt.mib(plan.per_picture_mib))
    left, right = st.columns(2, gap="large")
    left.plotly_chart(parts_bars(plan), key="need_parts", alt="; ".join(f"{name} {mib:.0f} MiB" for name, mib in plan.parts))
    right.plotly_chart(layer_bars(plan), key="need_layers", alt="Memory of each layer for one batch and its weights, MiB")
    rows = [
        {"GPU": charts.gpu_label(gpu), "free": fmt.mib(gpu.free_mib), "largest batch that fits": fitting_batch(plan, gpu)} for gpu in gpus
    ]
    if rows:
        st.dataframe(pd.DataFrame(rows), hide_index=True, width="stretch", key="need_fits", alt="Largest batch that fits each GPU")
    st.caption(
        "Analytic, from the shapes of the layers; a test compares parameters and shapes with the model that Keras builds. "
        "The framework context is an upper estimate."
    )


def parts_bars(plan: MemoryPlan) -> go.Figure:
    """One bar a part of the need, MiB."""
    names, values = [name for name, _ in plan.parts], [mib for _, mib in plan.parts]
    figure = go.Figure(
        go.Bar(y=names, x=values, orientation="h", marker_color=GPU_GREEN, hovertemplate="%{y}: %{x:.1f} MiB<extra></extra>")
    )
    return _laid_out(figure, "MiB")


def layer_bars(plan: MemoryPlan) -> go.Figure:
    """Activations of one batch and weights of each layer that has either, MiB."""
    shown = [layer for layer in plan.layers if layer.kept or layer.parameters * 4 / MIB >= SMALLEST_SHOWN_MIB]
    figure = go.Figure()
    names = [layer.name for layer in shown]
    kept = [layer.activation_bytes * plan.batch_size / MIB if layer.kept else 0.0 for layer in shown]
    weights = [layer.parameters * 4 / MIB for layer in shown]
    for name, values, colour in (("activations of a batch", kept, GPU_GREEN), ("weights", weights, OKABE_ITO[1])):
        figure.add_bar(
            y=names,
            x=values,
            orientation="h",
            name=name,
            marker_color=colour,
            hovertemplate="%{y}: %{x:.2f} MiB<extra>" + name + "</extra>",
        )
    figure.update_layout(barmode="stack", yaxis={"dtick": 1})
    return _laid_out(figure, "MiB, by layer", height=460)


def fitting_batch(plan: MemoryPlan, gpu: Gpu) -> str:
    """The largest batch that fits the GPU's free memory, in words."""
    if gpu.mig == "parent":
        return "none: divided by MIG, only its slices compute"
    if gpu.free_mib is None:
        return fmt.UNKNOWN
    largest = plan.largest_batch(gpu.free_mib)
    if largest < 1:
        return "none"
    return f"{largest}" if largest <= MAX_BATCH else f"{MAX_BATCH} (the largest allowed)"


def _laid_out(figure: go.Figure, title: str, height: int = 300) -> go.Figure:
    figure.update_layout(
        height=height,
        margin={"l": 0, "r": 8, "t": 28, "b": 0},
        xaxis={"title": title},
        yaxis_autorange="reversed",
        yaxis_automargin=True,
        **charts.common_layout(),
    )
    return figure
