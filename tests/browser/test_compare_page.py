"""The Compare tab as a visitor uses it: a real server and a real browser; the runs are folders as real runs leave them."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from dashboard_server import ROOT, Server, press_until, running_dashboard
from playwright.sync_api import Browser, BrowserContext, Locator, Page, TimeoutError, expect

from app.runs.folder import RunFolder
from app.runs.table import runs_table
from app.ui import compare_table

sys.path.insert(0, str(ROOT / "tests/ui"))
from compare_runs import history_rows, put_json, write_history, write_run

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

COLUMNS_PX = {"boxes": 44, "drawn": 48, "run": 215, "state": 100, "data": 95, "path": 205, "train": 80}
"""How wide the first columns of the table are, `app/ui/compare_table.py`; the heads are drawn on a canvas."""
GRID = ".st-key-compare_table [data-testid=data-grid-canvas]"
CURVES = ".st-key-compare_curves .js-plotly-plot"
COLUMN = "[...document.querySelectorAll(`{grid} [role=row]`)].slice(1).map(row => row.children[{place}].textContent)"
LINES = f"(document.querySelector('{CURVES}')?._fullData ?? []).filter(line => line.mode === 'lines')"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One dashboard for all tests, with a CPU run, the same on a GPU, and others."""
    folder = tmp_path_factory.mktemp("compare")
    runs = folder / "runs"
    write_run(runs, 0, speed=100.0, seed=1, notes={"name": "weave", "tags": ["lens"]})
    write_run(runs, 1, device="gpu", speed=650.0, seed=2, metrics={"image_auroc": 0.951})
    write_run(runs, 2, speed=17.0, options={"seed": 5}, notes={"tags": ["lens"]})
    write_run(runs, 3, state="cancelled", speed=40.0, epochs=7, options={"data": "synthetic"})
    with running_dashboard(folder=folder) as started:
        yield started
        print(started.output())


@pytest.fixture(scope="module")
def context(browser: Browser) -> Iterator[BrowserContext]:
    """One browser for all tests, so that it keeps the page's scripts; each page of it is a visit of its own."""
    opened = browser.new_context(viewport={"width": 1280, "height": 1000})
    yield opened
    opened.close()


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    opened = context.new_page()
    opened.set_default_timeout(60_000)
    yield opened
    opened.close()


@pytest.fixture
def runs(server: Server) -> Path:
    return server.log.parent / "runs"


def _ids(runs: Path) -> list[str]:
    """Oldest first."""
    return sorted(runs_table(runs)["run_id"])


def _open(page: Page, server: Server, *ids: str, **query: str) -> None:
    values = {"tab": "Compare", **({"runs": ",".join(ids)} if ids else {}), **query}
    page.goto(f"{server.url}/?{'&'.join(f'{name}={value}' for name, value in values.items())}")
    expect(page.locator(f"{GRID} [role=row]").nth(1)).to_be_attached()


def _until(page: Page, act: Callable[[], object], seen: str, arg: str | None = None) -> None:
    """Do what a person does until it shows: a click that a redraw of the page swallowed is made once more."""
    for _ in range(10):
        if page.evaluate(seen, arg):
            return
        act()
        try:
            page.wait_for_function(seen, arg=arg, timeout=6000)
        except TimeoutError:
            continue
        return
    page.wait_for_function(seen, arg=arg)


def _column(name: str) -> str:
    """JavaScript for what stands in a column of the table, from the top."""
    return COLUMN.format(grid=GRID, place=list(COLUMNS_PX).index(name) - 1)


def _middle_px(name: str) -> float:
    place = list(COLUMNS_PX).index(name)
    return sum(list(COLUMNS_PX.values())[:place]) + COLUMNS_PX[name] / 2


def _press(button: Locator, appears: Locator) -> None:
    """Open what a button opens."""
    for _ in range(10):
        button.click()
        try:
            appears.wait_for(timeout=6000)
        except TimeoutError:
            continue
        return
    expect(appears).to_be_visible()


def _switch(page: Page, key: str, name: str) -> None:
    page.locator(f".st-key-{key}").get_by_text(name, exact=True).click()


def test_a_click_on_a_head_sorts_and_a_tick_means_the_run_in_that_row(page: Page, server: Server, runs: Path) -> None:
    ids = _ids(runs)
    _open(page, server, ids[2])
    table = page.locator(".st-key-compare_table [data-testid=stDataFrame]")
    head, speeds = {"x": _middle_px("train"), "y": compare_table.ROW_PX / 2}, _column("train")
    _until(page, lambda: table.click(position=head), f"() => {speeds}.join() === '650,100,40,17'")
    fastest = {"x": _middle_px("boxes"), "y": compare_table.ROW_PX * 1.5}
    _until(page, lambda: table.click(position=fastest), "id => location.search.includes(id)", ids[1])
    assert ids[2] in page.url
    assert page.evaluate(f"{speeds}.join()") == "650,100,40,17", "what is ticked does not undo the order"
    page.wait_for_function(f"name => {LINES}.some(line => line.name === name)", arg=ids[1])
    expect(page.get_by_text("6.50 × faster").first).to_be_visible()
    expect(page.get_by_text("has no finished GPU run of the same")).to_be_visible()
    expect(page.get_by_role("button", name="Run the same on the GPU path")).to_be_disabled()
    expect(page.get_by_text("The GPU path does not exist on this machine")).to_be_visible()


def test_a_link_taken_after_switches_shows_the_same_to_others(page: Page, context: BrowserContext, server: Server, runs: Path) -> None:
    ids = _ids(runs)
    _open(page, server, ids[0], ids[1])
    expect(page.locator(CURVES)).to_be_visible()
    page.get_by_placeholder("words in names, notes").fill("lens")
    page.wait_for_url("**find=lens**")
    press_until(page.locator(".st-key-smooth").get_by_role("slider"), 0.05)
    for key, name, says in (("x", "Step", "x=Step"), ("log", "Log scale", "log=true"), ("curve", "Validation loss", "curve=Validation")):
        _until(page, lambda key=key, name=name: _switch(page, key, name), "says => location.search.includes(says)", says)  # type: ignore[misc]
    code = page.get_by_test_id("stPopoverBody").locator("code")
    _press(page.get_by_role("button", name="Link"), code)
    expect(code).to_contain_text("smooth=0.05")
    link = code.inner_text()

    other = context.new_page()
    other.goto(link)
    other.wait_for_function(f"() => document.querySelector('{CURVES}')?._fullLayout?.xaxis.title.text === 'optimizer step'", timeout=60_000)
    assert other.evaluate(f"document.querySelector('{CURVES}')._fullLayout.yaxis.type") == "log"
    lines = other.evaluate(f"{LINES}.map(line => [line.line.color, line.opacity < 1])")
    assert [pale for _, pale in lines] == [True, False] * 2, "the raw curve stands behind the smoothed one"
    assert lines[0][0] == lines[1][0] != lines[2][0]
    assert other.get_by_placeholder("words in names, notes").input_value() == "lens"
    other.wait_for_function(f"wanted => {_column('run')}.sort().join() === wanted", arg=f"{ids[2]},weave")
    # The stars mark the best epochs.
    assert other.evaluate(f"document.querySelector('{CURVES}')._fullData.filter(line => line.marker?.symbol === 'star').length") == 3
    other.close()


def test_the_report_draws_its_charts_without_a_network(page: Page, browser: Browser, server: Server, runs: Path, tmp_path: Path) -> None:
    ids = _ids(runs)
    _open(page, server, ids[0], ids[1], x="Step", smooth="0.5")
    save = page.get_by_role("button", name="Report with charts (HTML)")
    _press(page.get_by_role("button", name="Export"), save)
    with page.expect_download() as download:
        save.click()
    report = tmp_path / download.value.suggested_filename
    download.value.save_as(report)

    offline = browser.new_context(offline=True)
    alone = offline.new_page()
    asked: list[str] = []
    said: list[str] = []
    alone.on("request", lambda request: asked.append(request.url))
    alone.on("console", lambda message: said.append(message.text))
    alone.on("pageerror", lambda error: said.append(str(error)))
    alone.goto(report.as_uri())
    alone.wait_for_function("document.querySelectorAll('.plotly-graph-div .main-svg').length >= 5 * 2")
    titles = alone.evaluate("[...document.querySelectorAll('.plotly-graph-div')].slice(1).map(chart => chart._fullLayout.xaxis.title.text)")
    assert titles == ["optimizer step"] * 4
    assert alone.locator(".scatterlayer .trace").count() >= 12
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert said == []
    offline.close()


def test_a_deleted_run_comes_back_and_colours_stay(page: Page, server: Server, runs: Path) -> None:
    ids = _ids(runs)
    _open(page, server, ids[3])
    move = page.get_by_role("button", name="Move to the bin")
    _press(page.get_by_role("button", name="Delete"), move)
    move.click()
    expect(page.get_by_role("button", name="Bin (1)")).to_be_visible()
    expect(page.get_by_text("Nothing is ticked")).to_be_visible()
    expect(move).to_have_count(0)  # what was asked is answered, so the question goes
    _open(page, server, ids[3], ids[2])
    colours = f"Object.fromEntries({LINES}.map(line => [line.name, line.line.color]))"
    page.wait_for_function(f"() => {LINES}.length > 0")
    before = page.evaluate(colours)
    page.locator(".st-key-compare_vanished").get_by_role("button", name="Restore").click()
    page.wait_for_function(f"count => {LINES}.length === count", arg=4)
    after = page.evaluate(colours)
    assert len(after) == 2
    assert before[ids[2]] == after[ids[2]] != after[ids[3]]
    assert _ids(runs) == ids


def _grown(run: RunFolder, epochs: int, **status: object) -> None:
    """What the process of a run that goes on writes."""
    write_history(run.path, history_rows(epochs, 50.0, seed=9))
    put_json(run.path / "status.json", {**json.loads((run.path / "status.json").read_text("utf-8")), "epoch": epochs, **status})


def test_zoom_and_what_is_typed_stay_while_a_run_grows_and_ends(page: Page, server: Server, runs: Path) -> None:
    live = write_run(runs, 9, state="running", epochs=10, speed=50.0, seed=9, options={"epochs": 1000})
    _open(page, server, live.run_id)
    area = page.locator(f"{CURVES} .nsewdrag").first
    expect(area).to_be_visible()

    def mark_a_box() -> None:
        box = area.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + box["height"] * 0.3)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.8, steps=5)
        page.mouse.up()

    _until(page, mark_a_box, "() => location.search.includes('zoom=epoch')")
    shown = f"(document.querySelector('{CURVES}')?._fullLayout?.xaxis.range ?? [0, 0])"
    page.wait_for_function(f"() => {shown}[0] > 1")
    zoomed = page.evaluate(shown)
    epochs = page.get_by_text("12 of 1000").or_(page.get_by_text("epoch 12 of 1000")).first
    _grown(live, 12)
    expect(epochs).to_be_visible()
    assert page.evaluate(shown) == zoomed
    page.get_by_role("button", name="Whole curves").click()
    page.wait_for_function(f"() => {shown}[1] >= 12")

    # Somebody names a run while another one ends: the dialog waits with what was typed.
    dialog = page.get_by_role("dialog")
    cell = dialog.locator("[data-testid=data-grid-canvas] [role=row]").nth(1).locator("[role=gridcell]").nth(1)
    _press(page.get_by_role("button", name="Name, note, tags"), dialog)
    expect(cell).to_be_attached()
    field = page.locator("#portal textarea")

    def type_a_name() -> None:
        if not field.count():
            dialog.get_by_test_id("stDataFrame").click(position={"x": 380, "y": compare_table.ROW_PX * 1.5})
            page.keyboard.press("Enter")
        with contextlib.suppress(TimeoutError):
            field.fill("named meanwhile", timeout=6000)
            field.press("Enter", timeout=6000)

    canvas = "document.querySelector('[role=dialog] [data-testid=data-grid-canvas]')"
    _until(page, type_a_name, f"() => {canvas}.textContent.includes('named meanwhile')")
    _grown(live, 14, state="finished")
    expect(page.get_by_text("of 1000")).to_have_count(0)  # the line on top has seen the end
    page.wait_for_function(f"() => {_column('state')}[0] === 'finished'")
    expect(cell).to_have_text("named meanwhile")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_have_count(0)
    page.wait_for_function(f"() => {_column('run')}[0] === 'named meanwhile'")
