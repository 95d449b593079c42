"""What tests of the pages share beside their fixtures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from streamlit.testing.v1 import AppTest

ROOT = Path(__file__).resolve().parents[2]


def open_page(tab: str, session: Mapping[str, object] | None = None, **query: str) -> AppTest:
    """The dashboard at `tab`, drawn once; `session` is what its visitor has chosen before."""
    app = AppTest.from_file(str(ROOT / "app/dashboard.py"), default_timeout=30)
    for key, value in (session or {}).items():
        app.session_state[key] = value
    for name, value in {"tab": tab, **query}.items():
        app.query_params[name] = value
    app.run()
    assert not app.exception, app.exception
    return app


def words(app: AppTest) -> str:
    """Every sentence on the page, without Markdown's backslashes and with plain spaces."""
    kinds = (app.subheader, app.markdown, app.caption, app.info, app.warning, app.error)
    return "\n".join(str(element.value) for kind in kinds for element in kind).replace("\\", "").replace("\u00a0", " ")
