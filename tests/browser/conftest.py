"""Browser tests need a Chromium on the machine: locally they are skipped without one, in CI that is a failure."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from dashboard_server import Server, chromium, find_chromium, running_dashboard
from playwright.sync_api import Browser, Page, expect

# The first chart of each kind loads its library; a shared machine may need long for that.
expect.set_options(timeout=60_000)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if find_chromium() is None:
        if os.environ.get("CI"):
            pytest.fail("CI needs a Chromium: apt-get install chromium.")
        pytest.skip("no Chromium found on PATH (Debian: apt-get install chromium)")
    with chromium() as started:
        yield started


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1280, "height": 1000})
    opened = context.new_page()
    opened.set_default_timeout(60_000)
    yield opened
    context.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A dashboard of its own; what it printed is shown when a test fails."""
    with running_dashboard(folder=tmp_path) as started:
        yield started
        print(started.output())
