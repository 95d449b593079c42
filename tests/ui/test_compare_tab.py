"""The Compare tab through AppTest: what is ticked, what stays ticked, and what one can do with it."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest
from compare_runs import CPU_PATH, GPU_REASON, write_run
from streamlit.testing.v1 import AppTest

from app.core.facts import Gpu, GpuFacts
from app.runs.folder import RunFolder
from app.runs.keeping import BIN, deleted_runs, read_notes
from app.runs.launch import start_run
from app.runs.table import runs_table
from app.ui import cae_text, compare_actions, compare_tab, compare_table, state
from app.ui.palette import run_styles

ROOT = Path(__file__).resolve().parents[2]
WAITS = (sys.executable, "-c", "import time; time.sleep(120)")


@pytest.fixture(autouse=True)
def _end_what_was_started(tmp_path: Path) -> Iterator[None]:
    """Runs started by a page outlive it; those of a test must not."""
    yield
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if any(str(tmp_path) in word for word in child.cmdline()):
                child.kill()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the page under test looks for runs, see `tests/conftest.py`."""
    place = tmp_path / "runs"
    place.mkdir()
    return place


def page(**query: str) -> AppTest:
    app = AppTest.from_file(str(ROOT / "app/dashboard.py"), default_timeout=30)
    for name, value in {"tab": "Compare", **query}.items():
        app.query_params[name] = value
    return drawn(app)


def drawn(app: AppTest) -> AppTest:
    app.run()
    assert not app.exception, app.exception
    return app


def said(app: AppTest) -> str:
    kinds = (app.subheader, app.markdown, app.caption, app.info, app.warning, app.error)
    return "\n".join(str(element.value) for kind in kinds for element in kind).replace("\\", "")


def shown(app: AppTest) -> pd.DataFrame:
    return next(table.value for table in app.dataframe if table.key == compare_table.TABLE)


def ticked_rows(app: AppTest) -> list[int]:
    return list(app.session_state[compare_table.TABLE]["selection"]["rows"])


def tick_rows(app: AppTest, rows: list[int]) -> AppTest:
    """As the visitor's browser does: it sends the rows whose boxes are ticked."""
    app.session_state[compare_table.TABLE] = {"selection": {"rows": rows, "columns": [], "cells": []}}
    return drawn(app)


def url_ids(app: AppTest) -> list[str]:
    value = app.query_params[state.COMPARED_RUNS]
    return (value[0] if isinstance(value, list) else value).split(",")


def figure(app: AppTest, key: str) -> dict[str, Any]:
    chart = next(item for item in app.get("plotly_chart") if key in item.proto.id)
    return dict(json.loads(chart.proto.spec))


def legend(app: AppTest) -> list[str]:
    return [
        trace["name"]
        for trace in figure(app, compare_tab.CURVES_CHART)["data"]
        if trace.get("showlegend", True) and trace["name"] != "best epoch"
    ]


def test_without_runs_the_page_says_what_to_do_and_leads_there(folder: Path) -> None:
    app = page()
    assert "No runs yet" in said(app)
    app.button(key="compare_to_cae").click()
    assert drawn(app).session_state[state.TAB] == "Keras CAE"


def test_each_state_has_a_colour_that_tells_it_from_the_others(folder: Path) -> None:
    states = ["finished", "cancelled", "failed", "interrupted", "running", "queued"]
    for number, name in enumerate(states):
        write_run(folder, number, state=name, epochs=1)
    column = compare_table.column_config(runs_table(folder))["state"]
    colours = {option["value"].split(":")[0]: option["color"] for option in column["type_config"]["options"]}
    assert set(colours) == set(states)
    assert len(set(colours.values())) == len(states)
    assert cae_text.STATE_PILLS.keys() == cae_text.STATES.keys()


def test_exports_are_called_by_what_they_hold() -> None:
    names = [compare_actions.file_name(kind, "csv").rsplit("-", 2)[0] for kind in ("runs", "curves")]
    assert names == ["twopath-runs", "twopath-curves"]


def test_the_newest_two_finished_runs_are_ticked_when_the_link_says_nothing(folder: Path) -> None:
    runs = [write_run(folder, 0), write_run(folder, 1), write_run(folder, 2), write_run(folder, 3, state="failed")]
    app = page()
    assert list(shown(app)["run_id"]) == [run.run_id for run in reversed(runs)]
    assert ticked_rows(app) == [1, 2]
    assert legend(app) == [runs[2].run_id, runs[1].run_id]


def test_a_link_ticks_its_runs_and_sets_its_switches(folder: Path) -> None:
    runs = [write_run(folder, place) for place in range(4)]
    link = {
        "runs": f"{runs[0].run_id},{runs[3].run_id}",
        "curve": "Images/s",
        "x": "Wall time",
        "log": "true",
        "smooth": "0.5",
        "zoom": "seconds,30,90,images_per_s,50,200",
    }
    app = page(**link)
    assert ticked_rows(app) == [0, 3]
    layout = figure(app, compare_tab.CURVES_CHART)["layout"]
    assert layout["yaxis"]["title"]["text"] == "training, images/s"
    assert layout["yaxis"]["type"] == "log"
    assert layout["xaxis"]["title"]["text"] == "wall time, min"
    assert layout["xaxis"]["range"] == [0.5, 1.5]
    assert app.slider(key=compare_tab.SMOOTHING).value == 0.5


def test_ticking_and_unticking_goes_into_the_link(folder: Path) -> None:
    runs = [write_run(folder, place) for place in range(3)]
    app = tick_rows(page(), [0, 1, 2])
    assert set(url_ids(app)) == {run.run_id for run in runs}
    assert url_ids(tick_rows(app, [2])) == [runs[0].run_id]
    assert url_ids(tick_rows(app, [])) == [compare_table.NOTHING]
    assert "Nothing is ticked" in said(app)


def test_a_run_that_comes_on_top_does_not_shift_what_is_ticked(folder: Path) -> None:
    runs = [write_run(folder, place) for place in range(3)]
    app = tick_rows(page(), [2])
    write_run(folder, 7, state="running")
    drawn(app)
    assert ticked_rows(app) == [3]
    assert legend(app) == [runs[0].run_id]
    tick_rows(app, [0, 3])
    assert url_ids(app)[0] == runs[0].run_id
    assert url_ids(app)[1].endswith("0007")


def test_the_filter_hides_rows_and_leaves_what_is_ticked(folder: Path) -> None:
    first = write_run(folder, 0, options={"data": "synthetic"}, notes={"tags": ["lens"]})
    second = write_run(folder, 1, device="gpu", notes={"name": "night sweep"})
    app = page(runs=f"{first.run_id},{second.run_id}")
    app.text_input(key=compare_table.FIND).set_value("LENS synth")
    drawn(app)
    assert list(shown(app)["run_id"]) == [first.run_id]
    assert "1 of the ticked hidden by the filter" in said(app)
    tick_rows(app, [])
    assert url_ids(app) == [second.run_id]
    app.text_input(key=compare_table.FIND).set_value("")
    app.multiselect(key=compare_table.DATA).set_value(["elpv-mono"])
    assert list(shown(drawn(app))["run"]) == ["night sweep"]


def test_what_is_ticked_at_first_stays_when_other_runs_end(folder: Path) -> None:
    """An open question whether to delete the ticked runs is about the runs it was asked about."""
    first = [write_run(folder, place).run_id for place in range(2)]
    app = page()
    assert set(url_ids(app)) == set(first)
    write_run(folder, 2)
    assert set(url_ids(drawn(app))) == set(first)
    assert len(shown(app)) == 3


def test_a_filter_outlives_the_last_run_that_fitted(folder: Path) -> None:
    ended, live = write_run(folder, 0), write_run(folder, 1, state="running", options={"data": "synthetic"})
    app = page(runs=ended.run_id)
    app.multiselect(key=compare_table.STATES).set_value(["running"])
    app.multiselect(key=compare_table.DATA).set_value(["synthetic"])
    assert list(shown(drawn(app))["run_id"]) == [live.run_id]
    shutil.rmtree(live.path)
    app = drawn(app)
    assert app.multiselect(key=compare_table.STATES).value == ["running"]
    assert len(shown(app)) == 0
    assert "0 fit the filter" in said(app)
    linked = page(runs=ended.run_id, states="running")
    assert linked.multiselect(key=compare_table.STATES).value == ["running"], "and a link that names it"
    assert len(shown(linked)) == 0


def test_a_vanished_run_is_told_and_brought_back_from_the_bin(folder: Path) -> None:
    kept, gone = write_run(folder, 0), write_run(folder, 1)
    app = page(runs=f"{kept.run_id},{gone.run_id},20200101-000000-never-0000")
    assert "No longer here: 20200101-000000-never-0000" in said(app)
    app.button(key="compare_delete_confirmed").click()
    drawn(app)
    assert len(deleted_runs(folder)) == 2
    assert "No runs yet" in said(app)
    app.button(key="compare_restore_all").click()
    drawn(app)
    assert deleted_runs(folder) == []
    assert len(shown(app)) == 2


def test_deleting_needs_a_second_press_and_keeps_live_runs(folder: Path) -> None:
    ended, live = write_run(folder, 0), write_run(folder, 1, state="running")
    app = page(runs=f"{ended.run_id},{live.run_id}")
    assert "Move **1 run** to the bin? Nothing is erased" in said(app)
    assert "cancel them first" in said(app)
    assert ended.path.is_dir()
    app.button(key="compare_delete_confirmed").click()
    drawn(app)
    assert not ended.path.exists()
    assert (folder / BIN / ended.run_id).is_dir()
    assert url_ids(app) == [live.run_id]
    app.multiselect(key="compare_restore_choice").set_value([ended.run_id])
    drawn(app)
    app.button(key="compare_restore").click()
    drawn(app)
    assert ended.path.is_dir()


def test_deleting_a_run_does_not_recolour_the_others(folder: Path) -> None:
    runs = [write_run(folder, place) for place in range(3)]
    app = page(runs=runs[2].run_id)
    before = figure(app, compare_tab.CURVES_CHART)["data"][1]["line"]
    assert before["color"] == run_styles([run.run_id for run in runs])[runs[2].run_id].colour
    app = page(runs=runs[0].run_id)
    app.button(key="compare_delete_confirmed").click()
    drawn(app)
    app = page(runs=runs[2].run_id)
    assert figure(app, compare_tab.CURVES_CHART)["data"][1]["line"] == before


def test_names_notes_and_tags_are_written_for_what_was_edited_only(folder: Path) -> None:
    first, second = write_run(folder, 0), write_run(folder, 1, notes={"name": "old", "note": "keep", "tags": ["a"]})
    before = pd.DataFrame(
        [{"run_id": run.run_id, **{**read_notes(run.path), "name": read_notes(run.path)["name"] or ""}} for run in (first, second)]
    )
    after = before.copy()
    after.at[1, "name"], after.at[1, "tags"] = " new name ", ["a", "b"]
    compare_actions.save_notes([first, second], before, after)
    assert read_notes(second.path) == {"name": "new name", "note": "keep", "tags": ["a", "b"]}
    assert not (first.path / "notes.json").exists()
    app = page()
    app.button(key="compare_annotate").click()
    drawn(app)
    editor = next(table for table in app.dataframe if table.key == compare_actions.EDITOR)
    assert list(editor.value["name"]) == ["new name", ""]


def test_gpu_against_cpu_with_reasons_side_by_side(folder: Path) -> None:
    cpu = write_run(folder, 0, speed=100.0, seed=1)
    gpu = write_run(folder, 1, device="gpu", speed=650.0, metrics={"image_auroc": 0.951}, seed=2)
    write_run(folder, 2, options={"data": "synthetic"})
    app = page(runs=cpu.run_id)
    assert "GPU against CPU" in said(app)
    values = {metric.label: metric.value for metric in app.metric}
    assert values["Training"] == "6.50 × faster"
    assert values["Image AUROC"] == "+0.003"
    assert GPU_REASON in said(app)
    assert "No NVIDIA GPU found." in said(app)
    assert gpu.run_id in said(app)


def test_two_cpu_paths_are_compared_too(folder: Path) -> None:
    write_run(folder, 0, speed=102.0)
    write_run(folder, 1, speed=17.0, path="CPU · oneDNN off", profile={"onednn": False})
    app = page()
    assert "Two paths of one device" in said(app)
    assert next(metric.value for metric in app.metric if metric.label == "Training") == "6.00 × faster"


def test_the_other_path_says_why_it_does_not_exist_here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "gpu", lambda: GpuFacts(no_gpu_because="no nvidia-smi and no NVML."))
    run = write_run(folder, 0)
    app = page()
    button = app.button(key=f"run_other_{run.run_id}")
    assert button.label == "Run the same on the GPU path"
    assert button.disabled
    assert "The GPU path does not exist on this machine: No usable NVIDIA GPU: no nvidia-smi and no NVML.\n" in said(app) + "\n"


@pytest.fixture
def _waiting_process(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[None]:
    """A run started from the page gets a real process that only waits."""
    monkeypatch.setattr(
        compare_actions, "start_run", lambda config, runs_dir, name=None: start_run(config, runs_dir, name=name, program=WAITS)
    )
    yield
    for run in folder.iterdir():
        pid = (RunFolder(run).launch_record() or {}).get("pid")
        if isinstance(pid, int) and psutil.pid_exists(pid):
            psutil.Process(pid).kill()


@pytest.mark.usefixtures("_waiting_process")
def test_the_missing_half_is_started_with_the_same_options_and_ticked(folder: Path) -> None:
    run = write_run(folder, 0, device="gpu", options={"seed": 11, "learning_rate": 3e-4}, notes={"name": "lens"})
    app = page()
    app.button(key=f"run_other_{run.run_id}").click()
    drawn(app)
    started = next(RunFolder(path) for path in folder.iterdir() if path.name != run.run_id)
    assert started.config().model_dump() == {**run.config().model_dump(), "device": "cpu"}
    assert read_notes(started.path)["name"] == "lens, CPU"
    assert url_ids(app) == [run.run_id, started.run_id]
    assert f"{started.run_id} is queued" in said(app)
    assert not [button for button in app.button if button.key == f"run_other_{run.run_id}"]


def test_a_gpu_path_that_exists_can_be_taken(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(0, "GPU-1", "RTX A4000", 16376, 400, visible=True)
    monkeypatch.setattr(state, "gpu", lambda: GpuFacts((gpu,), "nvml"))
    monkeypatch.setattr(
        state,
        "build",
        lambda: state.tensorflow_build().__class__(installed=True, version="2.21.0", distribution="tensorflow", has_gpu=True),
    )
    run = write_run(folder, 0)
    assert not page().button(key=f"run_other_{run.run_id}").disabled
    monkeypatch.setattr(
        state,
        "build",
        lambda: state.tensorflow_build().__class__(installed=True, version="2.21.0", distribution="tensorflow-cpu", has_gpu=False),
    )
    app = page()
    assert app.button(key=f"run_other_{run.run_id}").disabled
    assert "GPU support" in said(app)


def test_only_what_differs_is_in_the_table_of_differences(folder: Path) -> None:
    write_run(folder, 0, options={"learning_rate": 3e-4})
    write_run(folder, 1, device="gpu")
    table = next(item.value for item in page().dataframe if "Option" in item.value)
    assert list(table["Option"]) == ["Learning rate", "Path", "Machine"]


def test_long_names_and_damaged_folders_do_not_break_the_page(folder: Path) -> None:
    write_run(folder, 0, notes={"name": "x" * 400 + " <b>*_`[", "note": "y" * 3000, "tags": ["z" * 300]})
    write_run(folder, 1, state="failed", status={"error": "Memory is exhausted."})
    (folder / "broken").mkdir()
    (folder / "broken" / "config.json").write_text("{")
    (folder / "broken" / "status.json").write_text("[]")
    ids = ",".join(path.name for path in folder.iterdir())
    app = page(runs=ids)
    assert "Run broken cannot be read" in said(app)
    assert {tuple(states) for states in shown(app)["state"]} == {("finished",), ("failed",), ("unreadable",)}


def test_a_queued_run_has_no_curve_yet_and_the_page_says_so(folder: Path) -> None:
    run = write_run(folder, 0, state="queued", epochs=0, options={"epochs": 5})
    assert "comes with the first epoch" in said(page(runs=run.run_id))


def test_a_link_cannot_name_a_path() -> None:
    assert compare_table.ids_of("../../etc,a/b,..,.,ok,ok,none") == ["ok"]


def test_hundreds_of_runs_are_quick(folder: Path) -> None:
    for place in range(300):
        write_run(folder, place, epochs=3, device="gpu" if place % 3 == 0 else "cpu", options={"seed": place})
    app = page()
    assert len(shown(app)) == 300
    started = time.process_time()
    drawn(app)
    # CPU time of one redraw of the page; about 0.3 s on a slow machine. A folder read for each run again would take many times that.
    assert time.process_time() - started < 3.0


def test_ticking_more_than_can_be_drawn_is_said(folder: Path) -> None:
    for place in range(compare_tab.MOST_DRAWN + 3):
        write_run(folder, place, epochs=2, options={"seed": place})
    app = tick_rows(page(), list(range(compare_tab.MOST_DRAWN + 3)))
    assert f"{compare_tab.MOST_DRAWN + 3} runs are ticked; the first {compare_tab.MOST_DRAWN} are drawn" in said(app)
    assert len(legend(app)) == compare_tab.MOST_DRAWN


def test_labels_tell_equal_names_apart_and_folders_by_their_end(folder: Path) -> None:
    write_run(folder, 0, notes={"name": "same"})
    write_run(folder, 1, notes={"name": "same"}, options={"data": "/srv/mvtec/bottle"})
    write_run(folder, 2)
    frame = runs_table(folder)
    labels = compare_table.run_labels(frame)
    assert sorted(labels.values())[1:] == ["same (0000)", "same (0001)"]
    assert compare_table.data_label("/srv/mvtec/bottle") == "mvtec/bottle"
    table = compare_table.display_frame(frame, run_styles(frame["run_id"]), labels)
    assert list(table["data"]) == ["elpv-mono", "mvtec/bottle", "elpv-mono"]
    assert list(table["path"]) == [[CPU_PATH]] * 3
    assert "aupro" not in table.columns
