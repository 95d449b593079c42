"""The login with a real server, a real browser and a real OpenID Connect exchange with a provider on loopback."""

from __future__ import annotations

from pathlib import Path

import pytest
from dashboard_server import free_port, running_dashboard
from playwright.sync_api import Page, expect

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


def test_a_visitor_logs_in_a_stranger_stays_out_and_nothing_is_shown_before(page: Page, tmp_path: Path) -> None:
    pytest.importorskip("authlib", reason="the extra auth is not installed")
    from oidc_provider import CLIENT_ID, oidc_provider

    port = free_port()
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    with oidc_provider() as provider:
        secrets = tmp_path / "secrets.toml"
        secrets.write_text(
            f'TWOPATH_ALLOWED_EMAILS = "ada@example.org"\n[auth]\nredirect_uri = "http://localhost:{port}/oauth2callback"\n'
            f'cookie_secret = "long enough to be one, and random"\nclient_id = "{CLIENT_ID}"\nclient_secret = "x"\n'
            f'server_metadata_url = "{provider.url}/.well-known/openid-configuration"\n'
        )
        with running_dashboard({"STREAMLIT_SECRETS_FILES": str(secrets)}, tmp_path, port) as server:
            page.goto(f"{server.url}/?tab=Compare")
            log_in = page.get_by_role("button", name="Log in")
            expect(log_in).to_be_visible()
            expect(page.get_by_role("tab")).to_have_count(0)

            log_in.click()
            expect(page.get_by_role("tab", name="Device")).to_be_visible()
            expect(page.get_by_text("ada@example.org")).to_be_visible()
            page.get_by_role("button", name="Log out").click()
            expect(log_in).to_be_visible()
            expect(page.get_by_role("tab")).to_have_count(0)

            provider.person = {"sub": "2", "name": "Eve", "email": "eve@example.com"}
            log_in.click()
            expect(page.get_by_text("You are logged in as eve@example.com, who is not on the list")).to_be_visible()
            expect(page.get_by_role("tab")).to_have_count(0)
            assert provider.logins == 2

            # A file that cannot be read is no open door.
            secrets.write_text("[auth\n")
        with running_dashboard({"STREAMLIT_SECRETS_FILES": str(secrets)}, tmp_path, port) as server:
            page.goto(server.url)
            expect(page.get_by_text("secrets.toml cannot be read, so nobody is let in")).to_be_visible()
            expect(page.get_by_role("tab")).to_have_count(0)
        assert requests
        assert all(
            url.startswith((f"http://localhost:{port}", f"ws://localhost:{port}", provider.url, "data:", "blob:")) for url in requests
        )


def test_a_dashboard_served_to_all_without_a_login_says_so(page: Page, tmp_path: Path) -> None:
    with running_dashboard({"STREAMLIT_SERVER_ADDRESS": "0.0.0.0"}, tmp_path) as server:
        page.goto(server.url)
        expect(page.get_by_text("it listens on 0.0.0.0 and asks for no login")).to_be_visible()
        expect(page.get_by_role("tab", name="Device")).to_be_visible()


def test_no_tab_asks_anybody_but_the_dashboard(page: Page, tmp_path: Path) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("websocket", lambda socket: asked.append(socket.url))
    with running_dashboard(folder=tmp_path) as server:
        for tab, shown in (("Device", "How it was decided"), ("Keras CAE", "2 Options"), ("Compare", "No runs yet")):
            page.goto(f"{server.url}/?tab={tab.replace(' ', '+')}")
            expect(page.get_by_text(shown).first).to_be_visible()
            page.wait_for_load_state("networkidle")
        own = server.url.removeprefix("http")
        assert any(url.startswith(f"ws{own}") for url in asked)
        assert [url for url in asked if not url.startswith((f"http{own}", f"ws{own}", "data:", "blob:"))] == []
