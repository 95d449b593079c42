"""The Keras CAE tab through AppTest: pictures, options, starting, and each state of a run."""

from __future__ import annotations

import functools
import importlib.util
import io
import json
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from cae_runs import write_pictures, write_scored_run, write_status
from compare_runs import put_json, write_run
from page_helpers import open_page, words
from streamlit.testing.v1 import AppTest

from app.cae.config import PRESETS, CaeConfig, make_config
from app.core.errors import DataError
from app.runs.folder import RunFolder
from app.runs.launch import cancel_run, resume_run, start_run
from app.runs.table import runs_table
from app.ui import cae_data, cae_form, cae_judge, cae_live, cae_look, cae_start
from app.ui.format import escaped, shortened

WAITS = (sys.executable, "-c", "import time; time.sleep(120)")
"""A process in place of the run's own: it does nothing, so the run stays queued."""


def _page(**query: str) -> AppTest:
    return open_page("Keras CAE", **query)


def _page_on(folder: str, **query: str) -> AppTest:
    """The page with a typed folder as its pictures."""
    return open_page("Keras CAE", {cae_data.CHOICE: cae_data.FOLDER, cae_data.FOLDER_PATH: folder}, **query)


def _drawn(app: AppTest) -> AppTest:
    app.run()
    assert not app.exception, app.exception
    return app


def _metric(app: AppTest, label: str) -> Any:
    return next(metric for metric in app.metric if metric.label == label)


@pytest.fixture
def pictures(data_root: Path) -> Path:
    return write_pictures(data_root / "plate")


@pytest.fixture
def _idle_runs(monkeypatch: pytest.MonkeyPatch, runs_dir: Path) -> Iterator[None]:
    """Runs started from the page get a real process that only waits; it is killed at the end."""
    monkeypatch.setattr(cae_start, "start_run", functools.partial(start_run, program=WAITS))
    yield
    for run_id in runs_table(runs_dir)["run_id"]:
        folder = RunFolder(runs_dir / run_id)
        while folder.status().live:
            cancel_run(folder)


# --- pictures


def test_a_folder_is_shown_before_it_is_trained_on(pictures: Path) -> None:
    app = _page()
    app.selectbox(key=cae_data.CHOICE).set_value(cae_data.FOLDER)
    _drawn(app)
    app.text_input(key=cae_data.FOLDER_PATH).set_value("plate")
    _drawn(app)
    said = words(app)
    assert "layout MVTec AD" in said
    assert "72 × 72 px, grey · with masks" in said
    counts = app.dataframe[0].value
    assert counts.to_dict("list") == {"class": ["good", "scratch"], "train": [6, 0], "test": [3, 3], "masks": [0, 3]}
    assert "5 pictures, 1 held out, 6 to test" in said
    assert not app.button(key=cae_start.START).disabled


def test_f10_before_training_is_said_what_will_lie_on_disk(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fits = words(_page_on(str(pictures)))
    assert "GiB of memory." in fits
    assert "of disk" not in fits
    monkeypatch.setenv("TWOPATH_MEMORY_MIB", "400.5")  # TensorFlow's share leaves next to nothing
    assert "MiB of disk, since the pictures do not fit into memory." in words(_page_on(str(pictures)))
    monkeypatch.setenv("TWOPATH_MEMORY_MIB", "much")
    assert "GiB of memory." in words(_page_on(str(pictures))), "the run itself will say what is wrong"


def test_a_broken_picture_is_listed_and_left_out(pictures: Path) -> None:
    (pictures / "test/good/broken.png").write_bytes(b"")
    said = words(_page_on("plate"))
    assert "1 problem found" in said
    assert "broken.png" in said


def test_many_problems_are_folded(pictures: Path) -> None:
    for number in range(9):
        (pictures / f"test/good/broken{number}.png").write_bytes(b"")
    app = _page_on("plate")
    assert "All 9 problems" in [expander.label for expander in app.expander]
    assert sum("broken" in line for line in app.warning[0].value.splitlines()) == cae_data.PROBLEMS_SHOWN


@pytest.mark.parametrize("typed", ["/etc", "../outside", "nothing/here"])
def test_a_folder_that_cannot_be_used_is_said_and_nothing_can_start(typed: str, data_root: Path) -> None:
    app = _page_on(typed)
    assert len(app.error) == 1
    assert app.button(key=cae_start.START).disabled


def test_an_empty_folder_is_said(data_root: Path) -> None:
    (data_root / "empty").mkdir()
    app = _page_on("empty")
    assert "empty" in app.error[0].value
    assert app.button(key=cae_start.START).disabled


def test_before_a_folder_is_typed_the_page_says_what_to_type(data_root: Path) -> None:
    app = _page_on("")
    assert f"Type the path of a folder inside {data_root}" in words(app)
    assert app.button(key=cae_start.START).disabled
    assert not app.error


def test_missing_sample_pictures_are_named_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    cae_look.forget()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "elpv_dataset" else found(name, *rest))
    app = _page()
    assert "pip install elpv-dataset" in words(app)
    assert app.button(key=cae_start.START).disabled


def test_a_zip_is_unpacked_once_beside_the_runs(pictures: Path, tmp_path: Path) -> None:
    content = _zipped(pictures)
    folder = cae_data.unpack(content, "my plate.zip", tmp_path / "up")
    assert folder.name == "my-plate"
    assert len(list(folder.rglob("*.png"))) == 15
    stamp = folder.stat().st_ino
    assert cae_data.unpack(content, "my plate.zip", tmp_path / "up").stat().st_ino == stamp


@pytest.mark.parametrize("name", ["../evil.png", "/abs.png"])
def test_a_zip_that_leaves_its_folder_is_refused(name: str, tmp_path: Path) -> None:
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w") as archive:
        archive.writestr(name, b"x")
    with pytest.raises(DataError):
        cae_data.unpack(memory.getvalue(), "a.zip", tmp_path / "up")
    assert not list(tmp_path.rglob("*.png"))


def _zipped(folder: Path) -> bytes:
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w") as archive:
        for file in folder.rglob("*.png"):
            archive.write(file, file.relative_to(folder.parent))
    return memory.getvalue()


# --- options


def test_every_option_has_exactly_one_place() -> None:
    assert sorted([option.name for option in cae_form.options()] + list(cae_form.ELSEWHERE)) == sorted(CaeConfig.model_fields)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_fills_fields_that_accept_its_values(preset: str) -> None:
    values = cae_form.preset_values(preset)
    for option in cae_form.options():
        if option.kind == "choice":
            assert values[option.name] in option.choices
        elif option.kind == "switch":
            assert values[option.name] in (True, False)
        elif values[option.name] is not None:
            assert option.low <= values[option.name] <= option.high
        assert option.help


def test_bounds_come_from_the_declaration() -> None:
    size = next(option for option in cae_form.options() if option.name == "image_size")
    assert (size.kind, size.low, size.high, size.step) == ("int", 64, 512, 16)
    assert {option.name for option in cae_form.options() if option.optional} == {"epochs", "intra_op_threads", "inter_op_threads"}


def test_a_preset_resets_the_fields(pictures: Path) -> None:
    app = _page_on("plate")
    app.number_input(key=cae_form.key("batch_size")).set_value(4)
    assert "1 changed" in _expander_labels(_drawn(app))
    app.pills(key=cae_form.PRESET).set_value("documented")
    _drawn(app)
    assert app.number_input(key=cae_form.key("batch_size")).value == 16
    assert app.number_input(key=cae_form.key("epochs")).value == 20
    assert app.selectbox(key=cae_form.key("mask_fill")).value == "zero"
    assert "changed" not in _expander_labels(app)
    assert cae_form.ABOUT_PRESETS["documented"] in words(app)


def test_options_that_do_not_fit_each_other_are_said_and_nothing_can_start(pictures: Path) -> None:
    app = _page_on("plate")
    app.number_input(key=cae_form.key("mask_patch")).set_value(7)
    app.button(key=cae_start.START).click()
    _drawn(app)
    assert "expected a divisor of image_size 128" in words(app)
    assert "No runs yet" in words(app)


@pytest.mark.parametrize(
    ("option", "typed", "allowed", "said"),
    [
        ("image_size", 63, 64, "image_size: expected a multiple of 16, got 63."),
        ("epochs", 5_000_000, 5, "epochs: expected 10000 or less, got 5000000."),
        ("seed", -1, 1, "seed: expected 0 or more, got -1."),
    ],
)
@pytest.mark.usefixtures("_idle_runs")
def test_a_number_that_an_option_cannot_have_starts_nothing_and_is_said(
    option: str, typed: float, allowed: float, said: str, pictures: Path, runs_dir: Path
) -> None:
    app = _page_on("plate")
    field = next(field for field in cae_form.options() if field.name == option)
    app.number_input(key=cae_form.key(option)).set_value(typed)
    app.button(key=cae_start.START).click()
    _drawn(app)
    assert [error.value.replace("\\", "") for error in app.error] == [said]
    assert f":red[{said}]" in words(app), "under the field"
    assert f"1 changed · {field.label} does not fit" in _expander_labels(app)
    assert f"{field.group} · does not fit" in _expander_labels(app)
    assert app.number_input(key=cae_form.key(option)).value == typed
    assert not len(runs_table(runs_dir))

    app.number_input(key=cae_form.key(option)).set_value(allowed)
    app.button(key=cae_start.START).click()
    _drawn(app)
    assert not app.error
    config = RunFolder(runs_dir / app.session_state["run"]).config()
    assert config is not None
    assert getattr(config, option) == allowed


def test_number_fields_have_no_bounds_that_would_keep_what_is_typed_to_the_browser() -> None:
    numbers = [option for option in cae_form.options() if option.kind in ("int", "float")]
    shown = {field.key: field.proto for field in _page().number_input}
    assert numbers
    assert not [option.name for option in numbers if shown[cae_form.key(option.name)].has_min or shown[cae_form.key(option.name)].has_max]


def test_emptied_epochs_are_as_many_as_the_steps_need_whatever_the_preset() -> None:
    app = _page()
    app.pills(key=cae_form.PRESET).set_value("documented")
    _drawn(app)
    app.number_input(key=cae_form.key("epochs")).set_value(None)
    _drawn(app)
    assert app.number_input(key=cae_form.key("epochs")).placeholder == "auto"
    assert "1 changed" in _expander_labels(app)
    assert "Estimate" in words(app)
    assert "20 epochs of" not in words(app)


def test_options_survive_a_look_at_another_tab(pictures: Path) -> None:
    app = _page_on("plate")
    app.number_input(key=cae_form.key("batch_size")).set_value(4)
    _drawn(app)
    app.session_state["tab"] = "Device"
    _drawn(app)
    app.session_state["tab"] = "Keras CAE"
    _drawn(app)
    assert app.number_input(key=cae_form.key("batch_size")).value == 4
    assert app.text_input(key=cae_data.FOLDER_PATH).value == "plate"


def _expander_labels(app: AppTest) -> str:
    return " ".join(expander.label for expander in app.expander)


# --- starting


def test_the_threshold_and_path_of_the_device_tab_hold_here() -> None:
    said = words(_page(min_vram_mib="512", device="cpu"))
    assert "Decides at ≥ 512 MiB free VRAM" in said
    assert "will run on" in said
    assert "CPU, " in said


@pytest.mark.usefixtures("_idle_runs")
def test_a_run_gets_a_frozen_copy_of_what_the_page_shows(pictures: Path, runs_dir: Path) -> None:
    app = _page_on("plate", min_vram_mib="512")
    app.pills(key=cae_form.PRESET).set_value("quick")
    _drawn(app)
    app.number_input(key=cae_form.key("image_size")).set_value(64)
    app.selectbox(key=cae_start.PATH).set_value("cpu")
    app.button(key=cae_start.START).click()
    _drawn(app)
    run_id = app.session_state["run"]
    config = json.loads((runs_dir / run_id / "config.json").read_text())
    assert config["data"] == str(pictures)
    assert (config["preset"], config["steps"], config["image_size"]) == ("quick", 150, 64)
    assert (config["device"], config["min_vram_mib"]) == ("cpu", 512)
    assert app.query_params["run"] == run_id
    assert "queued" in words(app)
    assert "1 run going on or waiting" in words(app)


@pytest.mark.usefixtures("_idle_runs")
def test_a_double_press_starts_one_run_and_says_so(pictures: Path, runs_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cae_start, "DOUBLE_CLICK_S", 3600.0)
    app = _page_on("plate")
    app.button(key=cae_start.START).click()
    _drawn(app)
    first = app.session_state["run"]
    app.button(key=cae_start.START).click()
    _drawn(app)
    assert list(runs_table(runs_dir)["run_id"]) == [first]
    assert f"run {first} was started a moment ago" in "".join(toast.value for toast in app.toast).replace("\\", "")

    # Another option is another run, and so is the same one once the visitor has seen the first; they wait their turn.
    app.number_input(key=cae_form.key("seed")).set_value(7)
    app.button(key=cae_start.START).click()
    _drawn(app)
    monkeypatch.setattr(cae_start, "DOUBLE_CLICK_S", 0.0)
    app.button(key=cae_start.START).click()
    _drawn(app)
    assert len(runs_table(runs_dir)) == 3
    # Before the page was drawn nobody can have seen the first, however slow the machine is.
    app.session_state[cae_start._LAST_START] = (app.session_state[cae_start._LAST_START][0], "slow", None)
    app.button(key=cae_start.START).click()
    _drawn(app)
    assert len(runs_table(runs_dir)) == 3


@pytest.mark.usefixtures("_idle_runs")
def test_another_visitor_finds_the_run_and_has_own_options(pictures: Path, runs_dir: Path) -> None:
    first = _page_on("plate")
    first.number_input(key=cae_form.key("batch_size")).set_value(4)
    first.button(key=cae_start.START).click()
    _drawn(first)
    second = _page()
    assert "queued" in words(second)
    assert second.number_input(key=cae_form.key("batch_size")).value == 16


@pytest.mark.usefixtures("_idle_runs")
def test_cancel_asks_first_and_kills_second(pictures: Path, runs_dir: Path) -> None:
    app = _page_on("plate")
    app.button(key=cae_start.START).click()
    _drawn(app)
    folder = RunFolder(runs_dir / app.session_state["run"])
    assert app.button(key="cae_cancel").label == "Cancel"
    app.button(key="cae_cancel").click()
    _drawn(app)
    assert folder.cancel_asked()
    if folder.status().live:  # the waiting process ends by the signal, sooner or later
        assert app.button(key="cae_cancel").label == "Kill now"
        app.button(key="cae_cancel").click()
        _drawn(app)
    deadline = time.monotonic() + 20
    while folder.status().live and time.monotonic() < deadline:
        time.sleep(0.05)
    assert folder.status().state == "cancelled"


def test_a_folder_of_runs_that_cannot_be_written_is_said(pictures: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TWOPATH_RUNS_DIR", str(tmp_path / "file/runs"))
    app = _page_on("plate")
    app.button(key=cae_start.START).click()
    _drawn(app)
    assert "a folder for runs cannot be made there" in words(app)


# --- runs


def test_without_runs_the_page_invites() -> None:
    assert "No runs yet" in words(_page())


def test_a_running_run_is_shown_live(runs_dir: Path) -> None:
    folder = write_run(runs_dir, state="running", epochs=9)
    write_status(folder, epochs=20, progress_done=45, progress_total=100, eta_s=72.0, memory_mib=940)
    app = _page()
    said = words(app)
    assert "running" in said
    assert "CPU · AVX-512 through oneDNN" in said
    assert "No NVIDIA GPU found. Using AVX2 CPU path." in said
    assert _metric(app, "Epoch").value == "9 of 20"
    assert _metric(app, "Memory").value == "940 MiB"
    assert "images/s" in _metric(app, "Throughput").value
    assert app.button(key="cae_cancel").label == "Cancel"
    assert len(app.get("plotly_chart")) == 2


def test_before_the_first_epoch_nothing_is_made_up(runs_dir: Path) -> None:
    folder = write_run(runs_dir, state="running", epochs=1)
    (folder.path / "history.csv").unlink()
    write_status(folder, phase=None, epoch=None, path=None, reason=None, selected_device=None)
    app = _page()
    assert _metric(app, "Epoch").value == _metric(app, "Throughput").value == _metric(app, "Validation loss").value == "–"
    assert "path not decided yet" in words(app)
    assert not app.get("plotly_chart"), "no axes without a curve"
    assert cae_live.BEFORE_FIGURES in words(app)
    assert "The first epoch is going on." not in words(app), "it may still read pictures"
    write_status(folder, phase="training")
    assert "The first epoch is going on." in words(_drawn(app))


def test_a_queued_run_says_what_it_waits_for(runs_dir: Path) -> None:
    folder = write_run(runs_dir, state="queued", epochs=1)
    write_status(folder, message="Waiting for run 20260101-000000-x on CPU.", phase=None)
    assert "Waiting for run 20260101-000000-x on CPU." in words(_page())


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("failed", {"error": "The disk is full in /runs (3 MiB of 100 MiB free)."}),
        ("interrupted", {"error": "The process was ended by SIGKILL."}),
        ("cancelled", {"message": "Cancelled while it waited."}),
    ],
)
def test_a_run_that_ended_early_says_why_and_what_stays(state: str, said: dict[str, str], runs_dir: Path) -> None:
    write_run(runs_dir, state=state, epochs=5, status=said)
    app = _page()
    text = words(app)
    assert state in text
    assert next(iter(said.values())) in text
    assert "Usable: figures of 5 epochs." in text
    assert {"Resume", "Start the same again", "Use its options"} <= {button.label for button in app.button}
    assert len(app.get("plotly_chart")) == 2


def test_a_run_that_somebody_resumed_meanwhile_is_shown_going_on(runs_dir: Path) -> None:
    run = write_run(runs_dir, state="interrupted", epochs=5, options={"data": "synthetic", "epochs": 20}, status={"error": "Killed."})
    app = _page()
    resume_run(run, program=WAITS)
    try:
        app.button(key="cae_resume").click()
        _drawn(app)
        assert not app.error
        assert "queued" in words(app)
        assert "Cancel" in {button.label for button in app.button}
    finally:
        cancel_run(run)
        cancel_run(run)


def test_a_run_stopped_within_its_first_epoch_left_nothing_to_use(runs_dir: Path) -> None:
    folder = write_run(runs_dir, state="cancelled", epochs=0, options={"epochs": 5})
    text = words(_page())
    assert "It ended before the first epoch was over: there are no figures, and there is no model." in text
    assert "Usable" not in text
    (folder.path / "model.keras").write_bytes(b"weights")
    assert "there are no figures, and the model file holds the weights of that moment, which have hardly learnt." in words(_page())


def test_a_run_whose_pictures_are_gone_is_not_offered_to_go_on(runs_dir: Path, tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "plates")
    run = write_run(runs_dir, state="interrupted", epochs=5, options={"data": str(pictures), "epochs": 20}, status={"error": "Killed."})
    app = _page()
    assert "Resume" in {button.label for button in app.button}
    assert not app.button(key="cae_again").disabled

    pictures.rename(tmp_path / "elsewhere")
    _drawn(app)
    assert "Resume" not in {button.label for button in app.button}
    assert app.button(key="cae_again").disabled
    assert f"cannot be resumed or started again, since its pictures are gone: {pictures}: not a dataset folder" in words(app)
    put_json(run.path / "launch.json", {"launcher": "slurm", "job_id": "7"})
    assert "Resume" in {button.label for button in _drawn(app).button}, "a node may see what this machine does not"


def test_an_unreadable_run_is_said_and_others_are_still_there(runs_dir: Path) -> None:
    write_run(runs_dir, 0)
    folder = write_run(runs_dir, 1)
    (folder.path / "status.json").write_text("{")
    app = _page()
    assert "cannot be read" in words(app)
    assert len(app.selectbox(key="run").options) == 3


def test_a_link_shows_its_run_and_a_wrong_one_is_said(runs_dir: Path) -> None:
    old = write_run(runs_dir, 0, notes={"name": "my old run"})
    write_run(runs_dir, 1)
    app = _page(run=old.run_id)
    assert app.selectbox(key="run").value == old.run_id
    assert "my old run" in app.selectbox(key="run").options[2]
    assert "There is no run nonsense" in words(_page(run="nonsense"))


def test_the_run_going_on_comes_before_newer_ones(runs_dir: Path) -> None:
    live = write_run(runs_dir, 0, state="running", epochs=3)
    write_run(runs_dir, 1)
    first = _page().selectbox(key="run").options[0]
    assert first.startswith("Active: ")
    assert "going on" in first
    write_status(live, state="cancelled")
    assert _page().selectbox(key="run").options[0].startswith("Newest: ")


def test_a_chosen_run_stays_when_its_state_changes(runs_dir: Path) -> None:
    """The list's labels change with the states; the choice must not get lost by that."""
    write_run(runs_dir, 0)
    chosen = write_run(runs_dir, 1, state="failed", status={"error": "No."})
    write_run(runs_dir, 2)
    app = _page(run=chosen.run_id)
    write_status(chosen, state="cancelled")
    _drawn(app)
    assert app.selectbox(key="run").value == chosen.run_id
    assert app.query_params["run"] == chosen.run_id


# --- what a reload keeps


def _linked(app: AppTest, name: str) -> str:
    """A parameter of the URL: text where the test gave it, a list where the page has set it."""
    value = app.query_params[name]
    return value[0] if isinstance(value, list) else value


@pytest.mark.parametrize("choice", ["elpv-poly", "synthetic"])
def test_data_preset_and_path_survive_a_reload(choice: str) -> None:
    app = _page()
    assert not {"data", "preset", "run_on"} & set(app.query_params), "what is the default does not lengthen the link"
    app.selectbox(key=cae_data.CHOICE).set_value(choice)
    app.pills(key=cae_form.PRESET).set_value("quick")
    app.selectbox(key=cae_start.PATH).set_value("cpu")
    _drawn(app)
    kept = {name: _linked(app, name) for name in ("data", "preset", "run_on")}
    assert kept == {"data": choice, "preset": "quick", "run_on": "cpu"}
    again = _page(**kept)
    assert again.selectbox(key=cae_data.CHOICE).value == choice
    assert again.pills(key=cae_form.PRESET).value == "quick"
    assert again.selectbox(key=cae_start.PATH).value == "cpu"
    assert again.session_state[cae_form.key("steps")] == PRESETS["quick"]["steps"]


def test_changed_options_survive_a_reload() -> None:
    app = _page()
    assert "options" not in app.query_params
    app.pills(key=cae_form.PRESET).set_value("documented")
    _drawn(app)
    app.number_input(key=cae_form.key("epochs")).set_value(None)
    app.number_input(key=cae_form.key("learning_rate")).set_value(0.0005)
    app.selectbox(key=cae_form.key("augment")).set_value("texture")
    app.checkbox(key=cae_form.key("tensorboard")).set_value(True)
    _drawn(app)
    kept = {name: _linked(app, name) for name in ("preset", "options")}
    assert kept["options"] == "epochs:auto,learning_rate:0.0005,augment:texture,tensorboard:True"
    again = _page(**kept)
    assert again.number_input(key=cae_form.key("epochs")).value is None
    assert again.number_input(key=cae_form.key("learning_rate")).value == 0.0005
    assert again.selectbox(key=cae_form.key("augment")).value == "texture"
    assert again.checkbox(key=cae_form.key("tensorboard")).value
    again.button(key=cae_form.RESET).click()
    _drawn(again)
    assert "options" not in again.query_params


@pytest.mark.parametrize(
    "link",
    ["nonsense", "epochs:", "epochs:many", f"seed:{2**60}", "augment:none of these", "learning_rate:nan", "tensorboard:1", "a:b:c,,:"],
)
def test_a_link_to_options_that_cannot_be_is_calm(link: str) -> None:
    app = _page(options=link)
    assert "changed" not in _expander_labels(app)
    assert not app.error


def test_a_typed_folder_survives_a_reload_and_stays_inside_the_data_root(pictures: Path, data_root: Path) -> None:
    link = _linked(_page_on(pictures.name), "data")
    assert link == f"folder:{pictures.name}"
    again = _page(data=link)
    assert again.text_input(key=cae_data.FOLDER_PATH).value == pictures.name
    assert "layout MVTec" in words(again)
    assert "expected a folder below" in words(_page(data=f"folder:{data_root.parent}"))


def test_an_upload_survives_a_reload_by_its_link(pictures: Path, runs_dir: Path) -> None:
    folder = cae_data.unpack(_zipped(pictures), "plate.zip", runs_dir / ".uploads")
    link = f"zip:{folder.parent.name}/{folder.name}"
    app = _page(data=link)
    assert app.selectbox(key=cae_data.CHOICE).value == cae_data.ZIP
    assert "plate.zip, uploaded before, is used until another one is chosen." in words(app)
    assert _linked(app, "data") == link
    assert not app.button(key=cae_start.START).disabled


@pytest.mark.parametrize(
    "link", ["nonsense", "zip:../../etc", "zip:0123456789abcdef/..", "zip:0123456789abcdef/gone", "zip:", "folder:", ""]
)
def test_a_link_to_no_pictures_is_calm(link: str) -> None:
    app = _page(data=link)
    chosen = link.split(":")[0]
    assert app.selectbox(key=cae_data.CHOICE).value == (chosen if chosen in ("zip", "folder") else "elpv-mono")


# --- results


def test_figures_that_are_missing_say_why(runs_dir: Path) -> None:
    write_scored_run(runs_dir)
    app = _page()
    assert _metric(app, "Image AUROC").value == "0.948"
    assert _metric(app, "AUPIMO").value == "–"
    assert "Not available\\: Too few pixels." in _metric(app, "AUPIMO").help
    assert "Not available: AUPIMO. Too few pixels." in words(app)
    assert "images/s" in _metric(app, "Training").value


def test_moving_the_threshold_changes_verdicts_at_once(runs_dir: Path) -> None:
    folder = write_scored_run(runs_dir)
    app = _page()
    assert all(cell in words(app) for cell in ("7 passed", "1 alarms", "1 missed", "5 found"))
    assert _metric(app, "Recall").value == "0.833"
    app.slider(key=f"cae_threshold_{folder.run_id}").set_value(2.0)
    _drawn(app)
    assert all(cell in words(app) for cell in ("5 passed", "3 alarms", "0 missed", "6 found"))
    assert (_metric(app, "Precision").value, _metric(app, "Recall").value) == ("0.667", "1.000")
    app.button(key="cae_threshold_reset").click()
    _drawn(app)
    assert "7 passed" in words(app)


def test_the_slider_spans_all_scores_with_round_ends(runs_dir: Path) -> None:
    folder = write_scored_run(runs_dir)
    slider = _page().slider(key=f"cae_threshold_{folder.run_id}")
    assert slider.min < 0.5
    assert slider.max > 9.25
    assert slider.value == 3.0


def test_the_threshold_follows_when_a_resumed_run_has_other_scores(runs_dir: Path) -> None:
    run = write_scored_run(runs_dir)
    scores, metrics = pd.read_csv(run.path / "scores.csv"), json.loads((run.path / "metrics.json").read_text("utf-8"))

    def scored_again(factor: float) -> AppTest:
        scores.assign(score=scores["score"] * factor).to_csv(run.path / "scores.csv", index=False)
        put_json(run.path / "metrics.json", {**metrics, "threshold": metrics["threshold"] * factor})
        return _drawn(app)

    app, name = _page(), cae_judge.key(run.run_id)
    own = app.slider(key=name).value
    assert scored_again(0.5).slider(key=name).value == pytest.approx(own / 2), "nobody has moved it"
    slider = scored_again(1.0).slider(key=name)
    slider.set_value(slider.max)
    _drawn(app)
    slider = scored_again(0.5).slider(key=name)
    assert slider.value == slider.max, "moved further than there is now: as far as there is"
    slider.set_value(own / 3)
    _drawn(app)
    assert scored_again(2.0).slider(key=name).value == pytest.approx(own / 3, abs=0.01), "wider ends leave it where it was moved to"


def test_the_gallery_is_ordered_and_paged(runs_dir: Path) -> None:
    write_scored_run(runs_dir)
    app = _page()
    assert _gallery(app) == ["9.25", "7.50", "6.00", "5.20", "4.50", "3.40"]
    assert "1 to 6 of 14 pictures" in words(app)
    assert "in pink pixels whose anomaly stands out of its surroundings by more than 3.00 (the image threshold)." in words(app)
    app.segmented_control(key="cae_gallery_order").set_value("mistakes")
    _drawn(app)
    assert _gallery(app) == ["2.10", "3.40"]
    assert "missed" in words(app)
    app.segmented_control(key="cae_gallery_order").set_value("most")
    app.selectbox(key="cae_gallery_class").set_value("scratch")
    _drawn(app)
    assert _gallery(app) == ["5.20", "4.50", "2.10"]


def _gallery(app: AppTest) -> list[str]:
    """Scores of the pictures on the page, in order."""
    return [text.value.partition("score **")[2].rstrip("*") for text in app.markdown if "score **" in text.value]


def test_a_run_without_pictures_still_shows_its_scores(runs_dir: Path) -> None:
    write_scored_run(runs_dir, maps=False)
    app = _page()
    assert "maps.npz is missing or damaged" in words(app)
    assert "7 passed" in words(app)


def test_a_damaged_calibration_does_not_matter(runs_dir: Path) -> None:
    folder = write_scored_run(runs_dir)
    (folder.path / "scoring.npz").write_bytes(b"PK")
    assert len(_gallery(_page())) == 6


def test_details_are_read_when_somebody_opens_them(runs_dir: Path) -> None:
    folder = write_scored_run(runs_dir)
    rule = "=" * 60
    (folder.path / "log.txt").write_text(f"2026-11-01 {rule}\nTitle\n{rule}\n  GPU : none\n{rule}\n2026-11-01 phase reading\n")
    assert not _page().code
    app = open_page("Keras CAE", {"cae_details": True, "cae_curves": True})
    report, log = (block.value for block in app.code)
    assert report == f"{rule}\nTitle\n{rule}\n  GPU : none\n{rule}"
    assert log.endswith("phase reading")
    assert len(app.get("plotly_chart")) == 6
    assert "TF_ENABLE_ONEDNN_OPTS" in app.dataframe[2].value["setting"].tolist()


def test_without_masks_there_are_no_pimo_curves_and_it_is_said(runs_dir: Path) -> None:
    write_scored_run(runs_dir, masks=False)
    app = open_page("Keras CAE", {"cae_curves": True})
    assert "No PIMO curves: they need test pictures with masks." in words(app)
    assert len(app.get("plotly_chart")) == 5


@pytest.mark.parametrize(("name", "known"), [("bottle", True), ("my parts", False)])
def test_published_figures_stand_beside_those_of_a_known_set(name: str, known: bool, runs_dir: Path) -> None:
    folder = write_scored_run(runs_dir)
    (folder.path / "dataset.json").write_text(json.dumps({"name": name, "layout": "MVTec AD", "image_size": 128}))
    app = open_page("Keras CAE", {"cae_curves": True})
    assert ("this run is one category at 128 px" in words(app)) is known
    if known:
        table = app.dataframe[2].value
        assert table["method"].iloc[0] == "this run"
        assert table["image AUROC"].tolist() == ["0.948", "–", "–", "0.990", "0.982", "–"]


def test_what_a_run_left_can_be_downloaded(runs_dir: Path) -> None:
    write_scored_run(runs_dir)
    labels = {button.proto.label for button in _page().get("download_button")}
    assert labels == {"Metrics", "Scores", "History", "Anomaly maps", "Model"}


def test_the_options_of_a_run_can_be_taken_over(pictures: Path, runs_dir: Path) -> None:
    write_run(runs_dir, options={"preset": "quick", "seed": 7, "data": str(pictures)})
    app = _page()
    app.button(key="cae_use_options").click()
    _drawn(app)
    assert app.pills(key=cae_form.PRESET).value == "quick"
    assert app.number_input(key=cae_form.key("seed")).value == 7
    assert app.text_input(key=cae_data.FOLDER_PATH).value == str(pictures)
    assert len(runs_table(runs_dir)) == 1, "the form is filled, nothing is started"


@pytest.mark.usefixtures("_idle_runs")
def test_the_same_run_can_be_started_again(runs_dir: Path) -> None:
    first = write_run(runs_dir, options={"seed": 7})
    app = _page()
    app.button(key="cae_again").click()
    _drawn(app)
    again = RunFolder(runs_dir / app.session_state["run"])
    assert again.run_id != first.run_id
    assert again.config() == first.config()


# --- words


def test_names_are_text_and_not_markdown() -> None:
    assert escaped("a*b_[c](d) $x$ :red[e]") == "a\\*b\\_\\[c\\](d) \\$x\\$ \\:red\\[e\\]"


def test_long_names_keep_both_ends() -> None:
    short = shortened("a" * 50 + "_cell0001.png", 20)
    assert len(short) == 20
    assert short.endswith("0001.png")
    assert shortened("short.png", 20) == "short.png"


def test_a_very_long_name_of_a_run_fits_the_list(runs_dir: Path) -> None:
    write_run(runs_dir, notes={"name": "long " * 60})
    assert len(_page().selectbox(key="run").options[1]) < 90


def test_config_of_the_form_is_valid_for_every_preset() -> None:
    for preset in PRESETS:
        assert (
            make_config({"preset": preset, **{k: v for k, v in cae_form.preset_values(preset).items() if v is not None}}).preset == preset
        )
