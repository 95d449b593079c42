"""Who may enter, with Streamlit's own login configured and without. The login itself is in tests/browser/test_login.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from app.ui import entrance

pytest.importorskip("authlib", reason="the extra auth is not installed")

ROOT = Path(__file__).resolve().parents[2]
AUTH = {
    "redirect_uri": "http://localhost:8501/oauth2callback",
    "cookie_secret": "a secret that is long enough",
    "client_id": "twopath",
    "client_secret": "x",
    "server_metadata_url": "http://localhost:1/.well-known/openid-configuration",
}
pytestmark = pytest.mark.usefixtures("runs_dir")


def _dashboard(*, auth: object = AUTH, user: dict[str, object] | None = None, **secrets: object) -> AppTest:
    app = AppTest.from_file(str(ROOT / "app/dashboard.py"), default_timeout=30)
    if auth is not None:
        app.secrets["auth"] = auth
    for name, value in secrets.items():
        app.secrets[name] = value
    app.user = {"is_logged_in": False} if user is None else {"is_logged_in": True, **user}
    app.run()
    assert not app.exception, app.exception
    return app


def _sees_pages(app: AppTest) -> bool:
    return bool(app.tabs)


def _errors(app: AppTest) -> list[str]:
    return [str(error.value) for error in app.error]


def test_with_a_login_configured_a_visitor_sees_nothing_but_the_login() -> None:
    app = _dashboard()
    assert not _sees_pages(app)
    assert [button.label for button in app.button] == ["Log in"]
    shown = [str(element.value) for element in (*app.markdown, *app.caption)]
    assert shown == [entrance.WELCOME]
    assert not app.get("plotly_chart")


@pytest.mark.parametrize("tab", ["Device", "Keras CAE", "Compare"])
def test_no_link_leads_past_the_login(tab: str) -> None:
    app = AppTest.from_file(str(ROOT / "app/dashboard.py"), default_timeout=30)
    app.secrets["auth"] = AUTH
    app.user = {"is_logged_in": False}
    app.query_params["tab"] = tab
    app.run()
    assert not _sees_pages(app)
    assert not app.dataframe


def test_who_has_logged_in_sees_everything_and_may_leave() -> None:
    app = _dashboard(user={"email": "ada@example.org"})
    assert _sees_pages(app)
    assert "ada@example.org" in [str(caption.value).replace("\\", "") for caption in app.caption]
    app.button(key=entrance.LOG_OUT).click().run()
    assert not _sees_pages(app)


def test_without_a_login_all_works_and_nothing_is_said_on_localhost() -> None:
    app = _dashboard(auth=None)
    assert _sees_pages(app)
    assert not [warning for warning in app.warning if "asks for no login" in str(warning.value)]


@pytest.mark.parametrize(
    ("listed", "user", "enters"),
    [
        ("ada@example.org, @uni.example", {"email": "Ada@Example.org"}, True),
        ("ada@example.org, @uni.example", {"email": "someone@uni.example", "email_verified": True}, True),
        ("ada@example.org, @uni.example", {"email": "someone@not-uni.example"}, False),
        ("ada@example.org", {"email": "ada@example.org.evil.example"}, False),
        ("ada@example.org", {"email": "ada@example.org", "email_verified": False}, False),
        ("ada@example.org", {"email": "ada@example.org", "email_verified": "false"}, False),
        ("ada@example.org", {"email": "ada@example.org", "email_verified": "true"}, True),
        ("ada@example.org", {"name": "Ada"}, False),
        ("", {"name": "Ada"}, True),
    ],
)
def test_the_list_of_those_who_may_enter(monkeypatch: pytest.MonkeyPatch, listed: str, user: dict[str, object], enters: bool) -> None:
    monkeypatch.setenv("TWOPATH_ALLOWED_EMAILS", listed)
    app = _dashboard(user=user)
    assert _sees_pages(app) is enters
    if not enters:
        assert "You are logged in as" in _errors(app)[0]
        assert [button.label for button in app.button] == ["Log out"]


@pytest.mark.parametrize(
    ("auth", "secrets", "says"),
    [
        (AUTH, {entrance.ALLOWED: ["ada@example.org"]}, entrance.LIST_ODD),
        (AUTH, {entrance.ALLOWED: ", "}, entrance.LIST_ODD),
        ({**AUTH, entrance.ALLOWED: "ada@example.org"}, {}, entrance.LIST_MISPLACED),
        (AUTH, {"server": {entrance.ALLOWED: "ada@example.org"}}, entrance.LIST_MISPLACED),
    ],
)
def test_a_list_that_would_not_be_looked_at_closes_the_door(auth: object, secrets: dict[str, object], says: str) -> None:
    app = _dashboard(auth=auth, user={"email": "somebody@else.example"}, **secrets)
    assert _errors(app) == [says]
    assert not _sees_pages(app)


def test_what_is_wrong_with_the_login_closes_the_door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _errors(_dashboard(auth="yes")) == [entrance.NO_SECTION]
    incomplete = _dashboard(auth={"redirect_uri": AUTH["redirect_uri"], "cookie_secret": "x"})
    assert _errors(incomplete) == [entrance.BROKEN.format(why="client_id is missing.")]
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *_: None)
    missing = _dashboard()
    assert _errors(missing) == [entrance.NO_AUTHLIB]
    assert not any(map(_sees_pages, (incomplete, missing)))


def test_several_providers_have_a_button_each() -> None:
    app = _dashboard(auth={**{key: AUTH[key] for key in ("redirect_uri", "cookie_secret")}, "keycloak": AUTH, "google": AUTH})
    assert [button.label for button in app.button] == ["Log in with keycloak", "Log in with google"]


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("localhost", None),
        ("127.0.0.1", None),
        ("127.1.2.3", None),
        ("::1", None),
        ("[::1]", None),
        ("0.0.0.0", "0.0.0.0"),
        ("::", "::"),
        ("192.168.1.7", "192.168.1.7"),
        ("gpu-server", "gpu-server"),
        ("", "all addresses of this machine"),
        (None, "all addresses of this machine"),
    ],
)
def test_addresses_that_others_can_reach(address: str | None, said: str | None) -> None:
    assert entrance.open_address(address) == said
