"""The Device tab in a real browser, on a simulated GPU: the slider moves across its free memory and everything follows."""

from __future__ import annotations

from pathlib import Path

import pytest
from dashboard_server import running_dashboard
from fake_machine import smi_environment
from playwright.sync_api import Page, expect

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


def test_verdict_reason_and_flow_chart_follow_the_slider(page: Page, tmp_path: Path) -> None:
    with running_dashboard(smi_environment(tmp_path, "A00-low"), tmp_path) as server:
        page.goto(f"{server.url}/?min_vram_mib=896")
        expect(page.get_by_text("has only 887 MiB free (< threshold 896 MiB)").first).to_be_visible()
        chart = page.get_by_test_id("stGraphVizChart").first
        expect(chart.get_by_text("memory at least 896 MiB free?")).to_be_visible()
        assert _filled(page) == ["CPU path"]

        slider = page.get_by_role("slider").first
        slider.focus()
        slider.press("ArrowLeft")
        expect(page.get_by_text("has 887 MiB free (≥ threshold 832 MiB)").first).to_be_visible()
        expect(chart.get_by_text("memory at least 832 MiB free?")).to_be_visible()
        page.wait_for_function("() => [...document.querySelectorAll('[data-testid=stGraphVizChart] path[fill=\"#11aa77\"]')].length > 0")
        assert _filled(page) == ["GPU path"]
        # The CPU build installed here cannot follow, and the page says so at once.
        expect(page.get_by_text("has no GPU support").first).to_be_visible()

        slider.press("ArrowRight")
        expect(page.get_by_text("has only 887 MiB free (< threshold 896 MiB)").first).to_be_visible()


def test_a_link_survives_the_other_tabs(page: Page, tmp_path: Path) -> None:
    with running_dashboard(folder=tmp_path) as server:
        page.goto(f"{server.url}/?tab=Compare&min_vram_mib=512")
        expect(page.get_by_text("No runs yet").first).to_be_visible()
        page.get_by_role("tab", name="Keras CAE").click()
        expect(page.get_by_text("512 MiB free VRAM")).to_be_visible()
        page.get_by_role("tab", name="Device").click()
        expect(page.get_by_test_id("stSliderThumbValue").first).to_have_text("512")


def test_a_moved_threshold_survives_a_reload_on_another_tab(page: Page, tmp_path: Path) -> None:
    with running_dashboard(folder=tmp_path) as server:
        page.goto(server.url)
        slider = page.get_by_role("slider").first
        slider.focus()
        slider.press("ArrowLeft")
        page.wait_for_url("**min_vram_mib=1984**")
        page.get_by_role("tab", name="Keras CAE").click()
        expect(page.get_by_text("1\u202f984 MiB free VRAM")).to_be_visible()
        page.wait_for_url("**min_vram_mib=1984**")
        page.reload()
        expect(page.get_by_text("1\u202f984 MiB free VRAM")).to_be_visible()
        page.get_by_role("tab", name="Device").click()
        expect(page.get_by_test_id("stSliderThumbValue").first).to_have_text("1984")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_the_page(page: Page, tmp_path: Path, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    with running_dashboard(smi_environment(tmp_path, "A31"), tmp_path) as server:
        page.goto(server.url)
        expect(page.get_by_text("How it was decided")).to_be_visible()
        expect(page.get_by_test_id("stGraphVizChart").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def _filled(page: Page) -> list[str]:
    """Words on the filled leaf of the flow chart."""
    return page.evaluate(
        """() => [...document.querySelectorAll('[data-testid=stGraphVizChart] g.node')]
            .filter(node => ['#11aa77', '#1177aa'].includes(node.querySelector('path')?.getAttribute('fill')))
            .map(node => node.querySelector('text').textContent)"""
    )
