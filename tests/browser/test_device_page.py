"""The Device tab in a real browser, on a simulated GPU: the slider moves across its free memory and everything follows."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from dashboard_server import ROOT, press_until, running_dashboard
from fake_machine import smi_environment
from playwright.sync_api import Locator, Page, expect

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


GPU_BUILD = {"PYTHONPATH": str(ROOT / "tests/data/tf_stub")}
"""A TensorFlow first on the import path that does not rule a GPU out, whatever is installed; the page reads its files only."""


def test_verdict_reason_badge_and_flow_chart_follow_the_slider(page: Page, tmp_path: Path) -> None:
    with running_dashboard({**smi_environment(tmp_path, "A00-low"), **GPU_BUILD}, tmp_path) as server:
        page.goto(f"{server.url}/?min_vram_mib=896")
        expect(page.get_by_text("has only 887 MiB free (< threshold 896 MiB)").first).to_be_visible()
        chart = page.get_by_test_id("stGraphVizChart").first
        expect(chart.get_by_text("memory at least 896 MiB free?")).to_be_visible()
        assert _filled(page) == ["CPU path"]

        slider = page.get_by_role("slider").first
        press_until(slider, 832)
        expect(page.get_by_text("has 887 MiB free (≥ threshold 832 MiB)").first).to_be_visible()
        expect(chart.get_by_text("memory at least 832 MiB free?")).to_be_visible()
        page.wait_for_function("() => [...document.querySelectorAll('[data-testid=stGraphVizChart] path[fill=\"#11aa77\"]')].length > 0")
        assert _filled(page) == ["GPU path"]
        for place in (".st-key-path_now", ".st-key-verdict"):
            expect(page.locator(place)).to_contain_text("GPU · Quadro T2000")

        press_until(slider, 896)
        expect(page.get_by_text("has only 887 MiB free (< threshold 896 MiB)").first).to_be_visible()
        for place in (".st-key-path_now", ".st-key-verdict"):
            expect(page.locator(place)).not_to_contain_text("GPU · Quadro T2000")


def test_history_keeps_its_zoom_while_values_come_in(page: Page, tmp_path: Path) -> None:
    with running_dashboard(folder=tmp_path) as server:
        page.goto(server.url)
        chart = page.get_by_test_id("stVegaLiteChart").last
        axis = chart.locator("[aria-label*='time scale']")
        expect(axis).to_be_attached()
        _refreshed(page)
        _refreshed(page)  # a span of time to look into
        begins = re.compile(str(re.search(r"from \S+ ", str(axis.get_attribute("aria-label")))[0]))  # type: ignore[index]
        for _ in range(5):  # as people do: a drag during which the chart was drawn anew is made again
            _mark_a_span(page, chart)
            if _comes_true(lambda: expect(axis).not_to_have_attribute("aria-label", begins, timeout=3000)):
                break
        expect(axis).not_to_have_attribute("aria-label", begins)
        zoomed = str(axis.get_attribute("aria-label"))
        _refreshed(page)
        _refreshed(page)
        expect(axis).to_have_attribute("aria-label", zoomed)

        slider = page.get_by_role("slider").first
        press_until(slider, 1984)
        page.wait_for_url("**min_vram_mib=1984**")
        _refreshed(page)
        expect(axis).to_have_attribute("aria-label", zoomed)


def _mark_a_span(page: Page, chart: Locator) -> None:
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    assert box
    strip = box["y"] + box["height"] - 30
    page.mouse.move(box["x"] + 0.4 * box["width"], strip)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.7 * box["width"], strip, steps=5)
    page.mouse.up()


def _comes_true(check: Callable[[], None]) -> bool:
    try:
        check()
    except AssertionError:
        return False
    return True


def _refreshed(page: Page) -> None:
    """Waits until the live panel shows figures of another second."""
    as_of = page.get_by_text(re.compile(r"as of \d\d:\d\d:\d\d"))
    seen = re.search(r"as of [\d:]+", as_of.inner_text())
    assert seen
    expect(as_of).not_to_contain_text(seen[0])


def test_a_hanging_driver_leaves_the_page_usable_and_its_last_figures_marked(page: Page, tmp_path: Path) -> None:
    """A11 and A13: nvidia-smi answers at first, then hangs, then answers again."""
    environ = smi_environment(tmp_path, "A00")
    case = tmp_path / "smi-A00/case.json"
    well = case.read_text("utf-8")
    with running_dashboard(environ, tmp_path) as server:
        page.goto(server.url)
        bars = page.get_by_text("GPU 0 · RTX A4000").first
        expect(bars).to_be_visible()
        expect(page.get_by_text("15900 MiB free").first).to_be_visible()

        _replace(case, json.dumps({**json.loads(well), "delay_s": 600}))
        expect(page.get_by_text(re.compile(r"figures of \d\d:\d\d:\d\d, \d+ s old: the next probe has not answered for"))).to_be_visible()
        slider = page.get_by_role("slider").first
        press_until(slider, 1984)
        page.wait_for_url("**min_vram_mib=1984**")
        expect(page.get_by_text(re.compile(r"GPU status unavailable since \d\d:\d\d:\d\d"))).to_be_visible()
        expect(page.get_by_text("nvidia-smi timed out after 5 s").first).to_be_visible()
        expect(bars).to_be_visible()
        page.get_by_text("What if this were …", exact=True).first.click()
        expect(page.get_by_text("simulated").first).to_be_visible()

        _replace(case, well)
        expect(page.get_by_text("GPU status unavailable")).to_have_count(0)
        expect(page.get_by_text("15900 MiB free").first).to_be_visible()


def test_a_driver_that_hangs_from_the_start_does_not_hold_up_the_page(page: Page, tmp_path: Path) -> None:
    with running_dashboard(smi_environment(tmp_path, "A13"), tmp_path) as server:
        page.goto(server.url)
        expect(page.get_by_text("looking for GPUs")).to_be_visible()
        expect(page.get_by_role("slider").first).to_be_visible()
        expect(page.get_by_text("nvidia-smi timed out after 5 s").first).to_be_visible()
        expect(page.get_by_text("looking for GPUs")).to_have_count(0)


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
        press_until(slider, 1984)
        page.wait_for_url("**min_vram_mib=1984**")
        page.get_by_role("tab", name="Keras CAE").click()
        expect(page.get_by_text("1984 MiB free VRAM")).to_be_visible()
        page.wait_for_url("**min_vram_mib=1984**")
        page.reload()
        expect(page.get_by_text("1984 MiB free VRAM")).to_be_visible()
        page.get_by_role("tab", name="Device").click()
        expect(page.get_by_test_id("stSliderThumbValue").first).to_have_text("1984")


def test_one_gpu_forced_and_a_paused_panel_survive_a_reload(page: Page, tmp_path: Path) -> None:
    with running_dashboard({**smi_environment(tmp_path, "A31"), **GPU_BUILD}, tmp_path) as server:
        page.goto(server.url)
        page.locator(".st-key-device input").click()
        page.get_by_role("option", name=re.compile("^GPU 2 ")).click()
        page.wait_for_url("**device=2**")
        page.get_by_text("paused", exact=True).click()
        page.wait_for_url("**refresh_s=paused**")
        page.reload()
        expect(page.locator(".st-key-verdict")).to_contain_text("is forced. Auto would say:")
        expect(page.locator(".st-key-device input")).to_have_value(re.compile("^GPU 2 "))
        expect(page.get_by_role("radio", name="paused")).to_be_checked()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_the_page(page: Page, tmp_path: Path, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    with running_dashboard(smi_environment(tmp_path, "A31"), tmp_path) as server:
        page.goto(server.url)
        expect(page.get_by_text("How it was decided")).to_be_visible()
        expect(page.get_by_test_id("stGraphVizChart").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def _replace(case: Path, text: str) -> None:
    """Whole or not at all: the fake may be reading it."""
    beside = case.with_suffix(".new")
    beside.write_text(text, "utf-8")
    beside.replace(case)


def _filled(page: Page) -> list[str]:
    """Words on the filled leaf of the flow chart."""
    return page.evaluate(
        """() => [...document.querySelectorAll('[data-testid=stGraphVizChart] g.node')]
            .filter(node => ['#11aa77', '#1177aa'].includes(node.querySelector('path')?.getAttribute('fill')))
            .map(node => node.querySelector('text').textContent)"""
    )
