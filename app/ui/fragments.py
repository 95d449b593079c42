"""Parts of a page that refresh by themselves, held so that a page under load stays whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec

import streamlit as st

P = ParamSpec("P")


def fragment(draw: Callable[P, None], run_every: float | None = None) -> Callable[P, None]:
    """`st.fragment` in a container of its own, which the page's run draws and not the fragment.

    When a refresh begins before the browser got all of the page's run (a busy machine), Streamlit 1.67 drops what that run drew for the
    fragment, since it is drawn again. Without the container its place among its neighbours is dropped too: the browser moves them up, finds
    no place for what comes next ("Cannot set a node at a delta path"), and shows a white page.
    """

    def drawn(*args: P.args, **kwargs: P.kwargs) -> None:
        with st.container():
            st.fragment(draw, run_every=run_every)(*args, **kwargs)

    return drawn
