"""Upload → score → gallery as a person does it: a real server and browser, a trained model, a process that outlives a reload."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from dashboard_server import ROOT, Server, confirm, escape
from PIL import Image
from playwright.sync_api import Browser, Page, expect

pytestmark = [pytest.mark.browser, pytest.mark.tensorflow, pytest.mark.timeout(600)]

LIMIT_MS = 180_000
SMALL = ("--image-size", "64", "--base-filters", "4", "--latent-dim", "8", "--epochs", "1", "--device", "cpu")


def _trained(folder: Path) -> Path:
    """The folder of a finished run in the server's folder of runs."""
    command = [sys.executable, "-m", "app.main", "cae", "--data", "synthetic:weave,train=12,good=2,defective=3,size=64", *SMALL, "--json"]
    environment = {**os.environ, "TWOPATH_RUNS_DIR": str(folder / "runs"), "TWOPATH_LOCK_DIR": str(folder / "locks")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_MS / 1000)
    assert done.returncode == 0, done.stderr
    return Path(json.loads(done.stdout)["run_folder"])


def test_uploaded_pictures_are_scored_shown_and_enlarged(page: Page, browser: Browser, server: Server, tmp_path: Path) -> None:
    run = _trained(tmp_path)
    Image.linear_gradient("L").resize((320, 160)).save(tmp_path / "wide picture.png")
    (tmp_path / "broken.png").write_bytes((tmp_path / "wide picture.png").read_bytes()[:300])

    page.goto(f"{server.url}/?tab=Keras+CAE")
    card = page.locator(".st-key-score_card")
    expect(card.get_by_role("button", name="Score", exact=True)).to_be_disabled()
    card.locator('input[type="file"]').set_input_files([tmp_path / "wide picture.png", tmp_path / "broken.png"])
    expect(card.get_by_text("wide picture.png")).to_be_visible()
    card.get_by_role("button", name="Score", exact=True).click()
    expect(card.get_by_role("button", name="Cancel")).to_be_visible()
    page.wait_for_url("**scored=*")

    # A reload finds it again, without having kept anything but the link.
    page.reload()
    expect(card.get_by_text("at the threshold above")).to_be_visible(timeout=LIMIT_MS)
    expect(card.get_by_text("broken.png: cannot be decoded")).to_be_visible()
    expect(card.get_by_role("img", name="heat map of wide picture.png")).to_be_visible()
    (scored,) = (run / "scored").iterdir()
    assert not (scored / "uploads").exists(), "what was uploaded is gone"
    with Image.open(next((scored / "heatmaps").iterdir())) as heat:
        assert heat.size == (320, 160)

    # Another visitor sees the run, not these pictures.
    context = browser.new_context(viewport={"width": 1280, "height": 1000})
    other = context.new_page()
    other.goto(f"{server.url}/?tab=Keras+CAE")
    expect(other.locator(".st-key-score_card").get_by_role("combobox")).to_be_visible()
    expect(other.get_by_text("wide picture.png")).to_have_count(0)
    context.close()

    # Large, with the heat map at the size of the original.
    card.get_by_role("button", name="Enlarge").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("320 × 160 px.")).to_be_visible()
    expect(dialog.get_by_role("img", name="Heat map of wide picture.png, large")).to_be_visible()
    with page.expect_download() as download:
        dialog.get_by_role("button", name="Heat map").last.click()
    with Image.open(download.value.path()) as saved:
        assert saved.size == (320, 160)
    escape(page)

    remove, for_good = card.get_by_role("button", name="Remove"), page.get_by_role("button", name="Remove for good")
    confirm(remove, for_good, gone=card.get_by_text("at the threshold above"))
    assert list((run / "scored").iterdir()) == []
