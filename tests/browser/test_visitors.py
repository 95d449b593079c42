"""Several visitors, and a dashboard that is killed: real server, real browser, real processes; only the network is a small pipeline."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from dashboard_server import Server, press_until, running_dashboard, start_server, stop_server
from playwright.sync_api import Browser, Locator, Page, expect

from app.runs.folder import RunFolder, load_history
from app.runs.keeping import delete_run, run_folders
from app.runs.launch import cancel_run

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

SCRIPT = "tests/browser/fake_dashboard.py"
LONG = {"FAKE_RUN": json.dumps({"epochs": 100_000, "batch_s": 0.02})}
CAE = "/?tab=Keras+CAE"
QUICK, RECOMMENDED = "The recommended recipe with few steps", "Standardised pictures, half of them masked"


@pytest.fixture
def _no_run_stays(tmp_path: Path) -> Iterator[None]:
    yield
    for run in run_folders(tmp_path / "runs"):
        pid = run.status().pid
        if pid and run.status().live:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)


@pytest.fixture
def other(browser: Browser) -> Iterator[Page]:
    """Another visitor: a browser context shares nothing with the first one's."""
    context = browser.new_context(viewport={"width": 1280, "height": 1000})
    opened = context.new_page()
    opened.set_default_timeout(60_000)
    yield opened
    context.close()


def _badge(page: Page, state: str) -> Locator:
    return page.get_by_text(re.compile(rf"^\w+ {state}$")).first


def _start(page: Page, server: Server) -> None:
    page.goto(f"{server.url}{CAE}")
    page.get_by_text("Quick", exact=True).click()
    expect(page.get_by_text(QUICK)).to_be_visible()
    page.get_by_role("button", name="Train and score").click()
    expect(page.get_by_role("button", name="Cancel")).to_be_visible()


def _the_run(folder: Path) -> RunFolder:
    (run,) = run_folders(folder / "runs")
    return run


@pytest.mark.usefixtures("_no_run_stays")
def test_two_visitors_share_the_runs_and_nothing_else(page: Page, other: Page, tmp_path: Path) -> None:
    with running_dashboard(LONG, tmp_path, script=SCRIPT) as server:
        other.goto(f"{server.url}{CAE}")
        expect(other.get_by_text("No runs yet")).to_be_visible()
        _start(page, server)
        page.get_by_role("tab", name="Compare").click()
        page.get_by_placeholder("words in names, notes").fill("only for me")
        expect(page.get_by_text("0 fit the filter")).to_be_visible()

        # The other sees the run at the next look, with its own options, and its own filter.
        other.get_by_role("tab", name="Compare").click()
        expect(other.get_by_text("1 run · 1 ticked")).to_be_visible()
        expect(other.get_by_placeholder("words in names, notes")).to_have_value("")
        other.get_by_role("tab", name="Keras CAE").click()
        expect(other.get_by_role("button", name="Cancel")).to_be_visible()
        expect(other.get_by_text(RECOMMENDED)).to_be_visible()
        expect(other.get_by_text(QUICK)).to_have_count(0)
        assert "preset=" not in other.url

        # What one does to the run, both see; the first without touching the page.
        page.get_by_role("tab", name="Keras CAE").click()
        expect(page.get_by_role("button", name="Cancel")).to_be_visible()
        expect(page.get_by_text(QUICK)).to_be_visible()
        other.get_by_role("button", name="Cancel").click()
        for visitor in (page, other):
            expect(_badge(visitor, "cancelled")).to_be_visible()
        assert _the_run(tmp_path).status().state == "cancelled"
        other.get_by_role("button", name="Resume").click()
        for visitor in (other, page):
            expect(visitor.get_by_role("button", name="Cancel")).to_be_visible()
        cancel_run(_the_run(tmp_path))
        for visitor in (page, other):
            expect(_badge(visitor, "cancelled")).to_be_visible()
        delete_run(_the_run(tmp_path))
        for visitor in (page, other):
            expect(visitor.get_by_text("No runs yet")).to_be_visible()


@pytest.mark.usefixtures("_no_run_stays")
def test_a_second_start_during_a_run_waits_its_turn_and_stop_keeps_the_model_so_far(page: Page, tmp_path: Path) -> None:
    with running_dashboard(LONG, tmp_path, script=SCRIPT) as server:
        _start(page, server)
        first = _the_run(tmp_path)
        expect(page.get_by_text("epoch 3").first).to_be_attached()
        # What is moved meanwhile is for the next run; this one goes on with its own copy.
        page.get_by_role("tab", name="Device").click()
        press_until(page.get_by_role("slider").first, 2304)
        page.get_by_role("tab", name="Keras CAE").click()
        expect(page.get_by_text("2304 MiB free VRAM")).to_be_visible()
        expect(page.get_by_role("button", name="Cancel")).to_be_visible()
        page.get_by_role("button", name="Train and score").click()
        expect(page.get_by_text(f"Waiting for run {first.run_id} on CPU")).to_be_visible()
        (second,) = (run for run in run_folders(tmp_path / "runs") if run.run_id != first.run_id)
        assert (first.status().state, second.status().state) == ("running", "queued")
        assert (first.config().min_vram_mib, second.config().min_vram_mib) == (2048, 2304)

        # Cancelled in the queue it has computed nothing; what is half typed when that redraws the page stays.
        page.get_by_text("All options").click()
        page.locator(".st-key-cae_all_options summary", has_text="Training").click()
        epochs, rate = (page.get_by_label(label, exact=True).first for label in ("Epochs", "Learning rate"))
        epochs.fill("77")
        rate.fill("0.0031")
        cancel_run(second)
        expect(_badge(page, "cancelled")).to_be_visible()
        expect(page.get_by_text("All options · 1 changed")).to_be_visible()
        expect(rate).to_have_value("0.0031")
        expect(epochs).to_have_value("77")

        # The one that runs keeps what it has.
        page.goto(f"{server.url}{CAE}&run={first.run_id}")
        page.get_by_role("button", name="Cancel").click()
        expect(_badge(page, "cancelled")).to_be_visible()
        expect(page.get_by_text(re.compile("Usable: figures of")).first).to_be_visible()
    assert len(load_history(first.path)) >= 3
    assert len(load_history(second.path)) == 0


@pytest.mark.usefixtures("_no_run_stays")
def test_a_run_goes_on_while_its_dashboard_is_killed_and_is_found_again(page: Page, tmp_path: Path) -> None:
    first = start_server(tmp_path, LONG, script=SCRIPT)
    try:
        _start(page, first)
        expect(page.get_by_text("epoch 2").first).to_be_attached()
    finally:
        os.killpg(first.process.pid, signal.SIGKILL)  # the server and whatever else shares its group; a run does not
        first.process.wait()
    run = _the_run(tmp_path)
    epochs = len(load_history(run.path))
    end = time.monotonic() + 30
    while len(load_history(run.path)) < epochs + 3:
        assert time.monotonic() < end, "the run stands still"
        time.sleep(0.05)
    assert run.status().state == "running"

    again = start_server(tmp_path, LONG, port=int(first.url.rpartition(":")[2]), script=SCRIPT)
    try:
        page.reload()
        expect(page.get_by_text(QUICK)).to_be_visible()
        cancel = page.get_by_role("button", name="Cancel")
        expect(cancel).to_be_visible()
        cancel.click()
        expect(_badge(page, "cancelled")).to_be_visible()
        expect(page.get_by_role("button", name="Resume")).to_be_visible()
    finally:
        stop_server(again)
    assert _the_run(tmp_path).status().state == "cancelled"
