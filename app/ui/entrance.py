"""Who may enter: everybody while nothing is configured (the server then listens on this machine only), else who has logged in.

The login is Streamlit's own (OpenID Connect, `[auth]` in secrets.toml). Whatever is wrong with its configuration closes the door and
never opens it. See docs/serving.md.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import streamlit as st
from streamlit.errors import StreamlitAuthError

from app.ui.format import escaped

ALLOWED = "TWOPATH_ALLOWED_EMAILS"
LOG_IN = "entrance_log_in"
LOG_OUT = "entrance_log_out"

WELCOME = "This dashboard asks who you are. Log in to see it."
NO_AUTHLIB = "A login is configured, but the packages it needs are not installed. Install the extra auth: pip install 'twopath[auth]'."
UNREADABLE = "secrets.toml cannot be read, so nobody is let in. The log of the server tells what is wrong with it."
NO_SECTION = "secrets.toml: expected a section [auth] with the settings of a login, got something else. Nobody is let in."
LIST_MISPLACED = "secrets.toml: expected TWOPATH_ALLOWED_EMAILS above the first section, got it inside a section. Nobody is let in."
LIST_ODD = "TWOPATH_ALLOWED_EMAILS: expected one text with addresses separated by commas, got something else. Nobody is let in."
BROKEN = "The login is not configured completely, so nobody is let in: {why}"
NOT_LISTED = "You are logged in as {who}, who is not on the list of those who may enter (TWOPATH_ALLOWED_EMAILS)."
NOT_VERIFIED = "You are logged in as {who}, but your provider says that this address is not verified."
OPEN_TO_ALL = (
    "Everybody who can reach this machine can use this dashboard: it listens on {address} and asks for no login. docs/serving.md says how "
    "to have one."
)


def render() -> None:
    """Draw what stands before the pages, and end the script here for visitors who may not see them."""
    trouble, auth = _auth_section()
    if trouble:
        _closed(trouble)
    if auth is None:
        address = open_address(st.get_option("server.address"))
        if address:
            st.warning(OPEN_TO_ALL.format(address=address), icon=":material/public:")
        return
    # Authlib talks to the provider through one of these, and asks for it only when somebody logs in.
    if importlib.util.find_spec("authlib") is None or not any(map(importlib.util.find_spec, ("httpx", "httpx2"))):
        _closed(NO_AUTHLIB)
    if not st.user.get("is_logged_in", False):
        _ask(auth)
    listed = _listed(auth)
    # What a provider says about somebody is text, never markup.
    who = escaped(str(st.user.get("email") or st.user.get("name") or "somebody unknown"))
    if listed and is_unverified(st.user.get("email_verified")):
        _refuse(NOT_VERIFIED.format(who=who))
    if listed and not is_allowed(str(st.user.get("email") or ""), listed):
        _refuse(NOT_LISTED.format(who=who))
    with st.container(horizontal=True, horizontal_alignment="right", vertical_alignment="center"):
        st.caption(who, width="content")
        st.button("Log out", key=LOG_OUT, type="tertiary", on_click=st.logout)


def open_address(address: str | None) -> str | None:
    """The address as words where a server on it can be reached from other machines; `None` where only this machine reaches it."""
    name = (address or "").strip()
    if not name:
        return "all addresses of this machine"
    if name.lower() in ("localhost", "localhost.localdomain"):
        return None
    try:
        return None if ipaddress.ip_address(name.strip("[]")).is_loopback else name
    except ValueError:  # a host name
        return name


def allowed_emails(text: str) -> frozenset[str]:
    """Addresses, and domains that begin with `@`, separated by commas or spaces; empty means everybody with a login."""
    return frozenset(text.replace(",", " ").lower().split())


def is_allowed(email: str, listed: Iterable[str]) -> bool:
    """Whether the address, or its whole domain, is on the list."""
    address = email.strip().lower()
    _, at, domain = address.rpartition("@")
    return bool(at) and (address in listed or f"@{domain}" in listed)


def is_unverified(said: Any) -> bool:
    """Whether a provider's claim `email_verified` says no; some send it as text. A provider that does not say is believed."""
    return said is not None and str(said).strip().lower() not in ("true", "1")


def _listed(auth: Mapping[str, Any]) -> frozenset[str]:
    """Who may enter. Ends the script where a list is there that would not be looked at, and so would let everybody in."""
    # Streamlit makes a variable of a text at the top of secrets.toml, and of nothing else.
    if any(ALLOWED in section for section in (*st.secrets.values(), *auth.values()) if isinstance(section, Mapping)):
        _closed(LIST_MISPLACED)
    text = st.secrets.get(ALLOWED, os.environ.get(ALLOWED, ""))
    found = allowed_emails(text) if isinstance(text, str) else frozenset()
    if not found and text != "":
        _closed(LIST_ODD)
    return found


def providers(auth: Mapping[str, Any]) -> list[str | None]:
    """Names of the configured providers; `None` is the one without a name."""
    named: list[str | None] = [name for name, value in auth.items() if isinstance(value, Mapping) and "client_id" in value]
    return named if "client_id" not in auth else [None, *named]


def _auth_section() -> tuple[str | None, Mapping[str, Any] | None]:
    """(what is wrong, the section); both `None` where no login is configured."""
    # Streamlit takes a file that it cannot read for none at all, which would leave the door open.
    if not st.secrets.load_if_toml_exists():
        there = [path for path in st.get_option("secrets.files") if Path(path).exists()]
        return (UNREADABLE if there else None), None
    if "auth" not in st.secrets:
        return None, None
    auth = st.secrets["auth"]
    return (None, auth) if isinstance(auth, Mapping) else (NO_SECTION, None)


def _ask(auth: Mapping[str, Any]) -> None:
    """The login in place of the pages; ends the script."""
    st.title("Twopath", anchor=False)
    st.write(WELCOME)
    names = providers(auth)
    if not names:
        st.error(BROKEN.format(why="client_id is missing."))
    for name in names:
        label = "Log in" if name is None else f"Log in with {name}"
        if st.button(label, key=f"{LOG_IN}_{name or 'default'}", type="primary", icon=":material/login:"):
            try:
                st.login(name)
            except StreamlitAuthError as error:
                st.error(BROKEN.format(why=escaped(" ".join(str(error).split()))))
    st.stop()


def _refuse(sentence: str) -> None:
    st.title("Twopath", anchor=False)
    st.error(sentence, icon=":material/block:")
    st.button("Log out", key=LOG_OUT, on_click=st.logout)
    st.stop()


def _closed(sentence: str) -> None:
    st.title("Twopath", anchor=False)
    st.error(sentence, icon=":material/lock:")
    st.stop()
