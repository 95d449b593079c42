"""A real dashboard on a free port, and a real Chromium to look at it. Also used by docs/make_screenshots.py."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright
from playwright.sync_api import Error as PlaywrightError

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Without these Chromium looks for its maker's servers at every start.
CHROMIUM_ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def find_chromium() -> str | None:
    """The machine's own Chromium: the environment variable CHROMIUM, else the first of the usual names on PATH."""
    return os.environ.get("CHROMIUM") or next((path for name in CHROMIUM_NAMES if (path := shutil.which(name))), None)


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=list(CHROMIUM_ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


def press_until(slider: Locator, value: float) -> None:
    """Move a slider by keys as a person does: one more press where one was swallowed while the page was being drawn anew."""
    for _ in range(20):
        if (seen := slider.input_value()) == str(value):
            return
        slider.press("ArrowRight" if float(seen) < value else "ArrowLeft")
        with contextlib.suppress(AssertionError):
            expect(slider).not_to_have_value(seen, timeout=3000)
    expect(slider).to_have_value(str(value))


def confirm(opener: Locator, button: Locator, gone: Locator) -> None:
    """Press `button` in the popover of `opener` until `gone` is, as a person does where a press was swallowed on a busy machine."""
    for _ in range(5):
        if not button.is_visible():
            opener.click()
        with contextlib.suppress(AssertionError, PlaywrightError):
            button.click(timeout=10_000)
            expect(gone).to_have_count(0, timeout=20_000)
            return
    expect(gone).to_have_count(0)


def escape(page: Page) -> None:
    """Close the dialog by its key. A button that is still working gives the focus up, and until the dialog has it no key arrives:
    then, as a person does, by a click on its heading first."""
    dialog = page.get_by_role("dialog")
    for _ in range(5):
        with contextlib.suppress(AssertionError, PlaywrightError):
            page.wait_for_function("document.activeElement?.closest('[role=dialog]')", timeout=10_000)
            page.keyboard.press("Escape")
            expect(dialog).to_have_count(0, timeout=10_000)
            return
        with contextlib.suppress(PlaywrightError):
            dialog.get_by_role("heading").first.click(timeout=10_000)
    expect(dialog).to_have_count(0)


@dataclass
class Server:
    """A running dashboard."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")


def start_server(
    folder: Path, environ: Mapping[str, str] | None = None, port: int | None = None, script: str = "app/dashboard.py"
) -> Server:
    """Start the dashboard as a user would, with runs and locks in `folder`, and wait until it answers.

    Args:
        port: a free one unless told otherwise.
        script: what Streamlit runs, from the root of the repository.

    Raises:
        RuntimeError: it ended or did not answer within 60 s; the message holds its output.
    """
    port = port or free_port()
    log = folder / f"server-{port}.log"
    environment = {
        **os.environ,
        "TWOPATH_RUNS_DIR": str(folder / "runs"),
        "TWOPATH_LOCK_DIR": str(folder / "locks"),
        **(environ or {}),
    }
    command = [sys.executable, "-m", "streamlit", "run", script, "--server.headless", "true", "--server.port", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    server = Server(f"http://localhost:{port}", process, log)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        with (
            contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError),
            urllib.request.urlopen(f"{server.url}/_stcore/health", timeout=2),
        ):
            return server
        time.sleep(0.2)
    stop_server(server)
    raise RuntimeError(f"The dashboard did not answer within 60 s. It printed:\n{server.output()}")


def stop_server(server: Server) -> None:
    server.process.terminate()
    try:
        server.process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        server.process.kill()
        server.process.wait()


@contextlib.contextmanager
def running_dashboard(
    environ: Mapping[str, str] | None = None, folder: Path | None = None, port: int | None = None, script: str = "app/dashboard.py"
) -> Iterator[Server]:
    """A dashboard for the length of a `with` block."""
    with tempfile.TemporaryDirectory() as own:
        server = start_server(folder or Path(own), environ, port, script)
        try:
            yield server
        finally:
            stop_server(server)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])
