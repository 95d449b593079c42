"""The main job, end to end, as a person does it: a real server, a real browser, real pictures, real training."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from dashboard_server import ROOT, Server, press_until, running_dashboard
from playwright.sync_api import Locator, Page, expect

pytestmark = [pytest.mark.browser, pytest.mark.tensorflow, pytest.mark.timeout(900)]

TRAINING_LIMIT_MS = 400_000


def _open_tab(page: Page, name: str) -> None:
    page.get_by_role("tab", name=name).click()
    expect(page.get_by_role("tab", name=name)).to_have_attribute("aria-selected", "true")


def _train(page: Page) -> None:
    page.get_by_role("button", name="Train and score").click()
    expect(page.get_by_text("Scores and threshold")).to_be_visible(timeout=TRAINING_LIMIT_MS)
    expect(_badge(page, "finished")).to_be_visible()


def _badge(page: Page, state: str) -> Locator:
    """The badge of a run's state; the name of its icon stands in front of the word."""
    return page.get_by_text(re.compile(rf"^\w+ {state}$")).first


def _train_from_a_shell(folder: Path, *options: str) -> dict[str, object]:
    command = [sys.executable, "-m", "app.main", "cae", "--data", "elpv-mono", "--epochs", "1", "--image-size", "64", *options, "--json"]
    environment = {**os.environ, "TWOPATH_RUNS_DIR": str(folder / "runs"), "TWOPATH_LOCK_DIR": str(folder / "locks")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TRAINING_LIMIT_MS / 1000)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_the_whole_main_job(page: Page, server: Server, tmp_path: Path) -> None:
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))

    # Which path, and why.
    page.goto(server.url)
    expect(page.get_by_text("How it was decided")).to_be_visible()
    expect(page.get_by_text("CPU ·").first).to_be_visible()
    expect(page.get_by_text("CPU path").first).to_be_visible()

    # The threshold moves by hand, decides, and stands in the URL.
    slider = page.get_by_role("slider").first
    press_until(slider, 2304)
    page.wait_for_url("**min_vram_mib=2304**")

    # Pick real pictures, train, score.
    _open_tab(page, "Keras CAE")
    expect(page.get_by_text("elpv-mono").first).to_be_visible()
    expect(page.get_by_text("2304 MiB free VRAM")).to_be_visible()
    page.get_by_text("Quick", exact=True).click()
    _train(page)
    for name in ("Image AUROC", "Average precision", "Training", "Scoring"):
        expect(page.get_by_text(name, exact=True).filter(visible=True).first).to_be_visible()
    expect(page.get_by_text("images/s").filter(visible=True).first).to_be_visible()
    runs = sorted((tmp_path / "runs").glob("2*"))
    assert len(runs) == 1
    config = json.loads((runs[0] / "config.json").read_text(encoding="utf-8"))
    assert (config["data"], config["min_vram_mib"]) == ("elpv-mono", 2304)
    metrics = json.loads((runs[0] / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["image_auroc"] > 0.6, "even a short training finds defective cells better than chance"
    expect(page.get_by_text(f"{metrics['image_auroc']:.3f}").filter(visible=True).first).to_be_visible()
    assert metrics["not_available"]["pixel_auroc"], "there are no masks, and that is said"

    # A second run, from a shell, appears on the same page and is compared.
    second = _train_from_a_shell(tmp_path, "--seed", "1")
    _open_tab(page, "Compare")
    expect(page.get_by_text(str(second["run_id"])).first).to_be_attached()
    page.goto(f"{server.url}/?tab=Compare&runs={runs[0].name},{second['run_id']}")
    expect(page.locator(".js-plotly-plot").first).to_be_visible()
    expect(page.get_by_text("What differs")).to_be_visible()
    expect(page.get_by_role("region", name="Options that differ between the ticked runs")).to_be_visible()

    # Nothing went to the outside.
    assert requests
    assert all(url.startswith((server.url, server.url.replace("http", "ws"), "data:", "blob:")) for url in requests)


def test_a_run_survives_reload_second_tab_and_restart_of_the_dashboard(page: Page, tmp_path: Path) -> None:
    with running_dashboard(folder=tmp_path) as first:
        page.goto(f"{first.url}/?tab=Keras+CAE")
        page.get_by_text("Quick", exact=True).click()
        page.get_by_role("button", name="Train and score").click()
        expect(page.get_by_role("button", name="Cancel")).to_be_visible(timeout=60_000)
        page.reload()
        expect(page.get_by_role("button", name="Cancel")).to_be_visible()
        second = page.context.new_page()
        second.goto(f"{first.url}/?tab=Keras+CAE")
        expect(second.get_by_role("button", name="Cancel")).to_be_visible()
        second.close()
    with running_dashboard(folder=tmp_path) as again:
        page.goto(f"{again.url}/?tab=Keras+CAE")
        cancel = page.get_by_role("button", name="Cancel")
        expect(cancel).to_be_visible()
        cancel.click()
        expect(_badge(page, "cancelled")).to_be_visible(timeout=120_000)
    runs = list((tmp_path / "runs").glob("2*"))
    assert len(runs) == 1, "no reload and no second tab started another run"
