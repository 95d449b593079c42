"""Makes the pictures of the README: starts the dashboard, trains twice on real pictures, and photographs the three tabs.

    python docs/make_screenshots.py [FOLDER]

FOLDER keeps the runs, so that a second call does not train again. Needs a Chromium and the extras cpu (or gpu), samples and dev.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs/images"
RUNS = (("--preset", "recommended", "--epochs", "12"), ("--preset", "documented", "--epochs", "12"))


def main(folder: Path) -> None:
    """Train what is missing, then photograph."""
    from dashboard_server import chromium, running_dashboard

    environment = {"TWOPATH_RUNS_DIR": str(folder / "runs"), "TWOPATH_LOCK_DIR": str(folder / "locks")}
    if not list((folder / "runs").glob("2*")):
        for options in RUNS:
            command = [sys.executable, "-m", "app.main", "cae", "--data", "elpv-mono", *options]
            subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, check=True)
    IMAGES.mkdir(parents=True, exist_ok=True)
    with running_dashboard(environment, folder) as server, chromium() as browser:
        page = browser.new_page(viewport={"width": 1440, "height": 1080}, color_scheme="light")
        for name, query in (("device", ""), ("cae", f"?tab=Keras+CAE&run={_recommended(folder)}"), ("compare", "?tab=Compare")):
            page.goto(f"{server.url}/{query}")
            page.wait_for_selector("[data-testid=stTab]")
            page.wait_for_timeout(20_000)
            page.screenshot(path=str(IMAGES / f"{name}.png"))


def _recommended(folder: Path) -> str:
    """The run to show: the newest one of the default preset."""
    made = [
        path.parent for path in (folder / "runs").glob("2*/config.json") if json.loads(path.read_text("utf-8"))["preset"] == "recommended"
    ]
    return max(made).name


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tests/browser"))
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]).resolve())
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
