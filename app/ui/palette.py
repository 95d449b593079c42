"""One visual language: two colours for the two paths, and a colour-blind-safe colour for each run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

GPU_GREEN = "#11aa77"
CPU_BLUE = "#1177aa"
FAINT = "#8a97a3"
GOOD = "#56B4E9"
DEFECTIVE = "#D55E00"
THRESHOLD = "#CC79A7"

OKABE_ITO = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#B8A800", "#6F6F6F")
"""Okabe and Ito (2008), with yellow darkened and black greyed so that both stand out on a white and on a dark page."""

DASHES = ("solid", "dash", "dot", "dashdot")

BadgeColour = Literal["green", "blue", "gray"]


def path_colour(selected_device: str | None) -> str:
    """The colour of a path in charts, the flow chart and bars."""
    return {"gpu": GPU_GREEN, "cpu": CPU_BLUE}.get(selected_device or "", FAINT)


def path_badge(selected_device: str | None) -> BadgeColour:
    """The same two colours under the names that Streamlit's theme gives them."""
    colours: dict[str, BadgeColour] = {"gpu": "green", "cpu": "blue"}
    return colours.get(selected_device or "", "gray")


@dataclass(frozen=True)
class RunStyle:
    """How a run is drawn on every chart."""

    colour: str
    dash: str


def run_styles(all_run_ids: Iterable[str]) -> dict[str, RunStyle]:
    """A style for each run, by its place among *all* runs (ids sort by time), not among those just selected.

    So a run looks the same on every chart and in every selection, and neighbours in time never look alike; after eight
    runs the colours come round again with another dash.
    """
    count = len(OKABE_ITO)
    return {
        run_id: RunStyle(OKABE_ITO[place % count], DASHES[place // count % len(DASHES)]) for place, run_id in enumerate(sorted(all_run_ids))
    }
