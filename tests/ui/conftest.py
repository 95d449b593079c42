"""Each test of the pages is a dashboard of its own, with runs and pictures in temporary folders."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def runs_dir(tmp_path: Path) -> Path:
    """The folder of runs of the page under test (`tests/conftest.py` names it to the dashboard)."""
    folder = tmp_path / "runs"
    folder.mkdir()
    return folder


@pytest.fixture
def data_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that typed paths must stay inside."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("TWOPATH_DATA_ROOT", str(folder))
    return folder


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
