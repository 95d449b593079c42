"""Streamlit entry: page settings, the login where there is one, what is always on top, three tabs of which only the open one runs."""

from pathlib import Path

import streamlit as st

from app.ui import cae_tab, compare_tab, device_tab, entrance, header, state

# A picture of our own: Streamlit fetches the named icons of a page from the web.
ICON = Path(__file__).parent / "ui/icon.svg"

st.set_page_config(page_title="Twopath", page_icon=ICON, layout="wide", initial_sidebar_state="collapsed")

entrance.render()
header.render()
device, cae, compare = st.tabs(state.TABS, key=state.TAB, on_change="rerun", bind="query-params")
for tab, page in ((device, device_tab), (cae, cae_tab), (compare, compare_tab)):
    if tab.open:
        with tab:
            page.render()
state.into_url()
