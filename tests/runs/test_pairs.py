"""Pairs of runs that are equal but for the path, and what differs between configurations."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from app.cae.config import CaeConfig, make_config
from app.runs.folder import RunFolder
from app.runs.pairs import (
    Pair,
    RunFacts,
    config_differences,
    device_options,
    equal_tasks,
    find_pairs,
    missing_halves,
    on_the_way,
    read_options,
    read_run_facts,
    task_key,
)

CONFIG = make_config({"data": "elpv-mono", "seed": 3}).model_dump(mode="json")


def facts(
    run_id: str, device: str | None = "cpu", *, state: str = "finished", config: dict[str, Any] | None = None, **values: Any
) -> RunFacts:
    path = {"cpu": "CPU · AVX2 through oneDNN", "gpu": "GPU · RTX A4000"}.get(device or "")
    return RunFacts(run_id, state, {**CONFIG, **(config or {})}, **{"selected_device": device, "path": path, **values})


def ids(pairs: list[Pair]) -> list[tuple[str, str]]:
    return [(pair.base.run_id, pair.other.run_id) for pair in pairs]


def test_options_that_only_choose_the_path_do_not_make_another_task() -> None:
    assert device_options() == {"device", "min_vram_mib", "gpus", "intra_op_threads", "inter_op_threads"}
    other = make_config({"data": "elpv-mono", "seed": 3, "device": "gpu", "min_vram_mib": 400, "intra_op_threads": 1}).model_dump(
        mode="json"
    )
    assert task_key(other) == task_key(CONFIG)


@pytest.mark.parametrize("change", [{"seed": 4}, {"data": "elpv-poly"}, {"precision": "mixed_bfloat16"}, {"steps": 20}])
def test_options_that_change_what_is_computed_make_another_task(change: dict[str, Any]) -> None:
    assert task_key({**CONFIG, **change}) != task_key(CONFIG)


def test_a_preset_and_the_same_values_given_by_hand_are_the_same_task() -> None:
    by_preset = make_config({"preset": "quick", "data": "synthetic"}).model_dump(mode="json")
    by_hand = make_config({"steps": 150, "data": "synthetic"}).model_dump(mode="json")
    assert by_preset != by_hand
    assert task_key(by_preset) == task_key(by_hand)


def test_the_cpu_is_the_base_of_the_gpu_in_whichever_order_they_ran() -> None:
    runs = [
        facts("1", "gpu", train_images_per_s=600.0, score_images_per_s=900.0),
        facts("2", "cpu", train_images_per_s=100.0, score_images_per_s=300.0),
    ]
    (pair,) = find_pairs(runs, {"1", "2"})
    assert (pair.base.run_id, pair.other.run_id) == ("2", "1")
    assert pair.across_devices
    assert pair.train_speedup == 6.0
    assert pair.score_speedup == 3.0


def test_differences_are_other_minus_base_and_unknown_where_one_is_unknown() -> None:
    cpu = facts("1", final_loss=0.25, best_val_loss=0.5, metrics={"image_auroc": 0.75, "aupro": None})
    gpu = facts("2", "gpu", final_loss=0.5, best_val_loss=None, metrics={"image_auroc": 0.875, "aupro": 0.5})
    pair = Pair(cpu, gpu)
    assert pair.difference("final_loss") == 0.25
    assert pair.difference("image_auroc") == 0.125
    assert pair.difference("best_val_loss") is None
    assert pair.difference("aupro") is None
    assert pair.train_speedup is None


def test_a_ticked_run_gets_the_newest_finished_partner_from_the_other_device() -> None:
    runs = [
        facts("1", "gpu"),
        facts("2", "gpu"),
        facts("3", "cpu", path="CPU · oneDNN off"),
        facts("4", "cpu"),
        facts("5", "gpu", state="failed"),
    ]
    assert ids(find_pairs(runs, {"4"})) == [("4", "2")]


def test_ticked_partners_go_before_newer_ones_that_are_not_ticked() -> None:
    runs = [facts("1", "gpu"), facts("2", "gpu"), facts("3", "cpu")]
    assert ids(find_pairs(runs, {"1", "3"})) == [("3", "1")]


def test_two_cpu_paths_are_a_pair_with_the_slower_one_as_base() -> None:
    off = facts("2", path="CPU · oneDNN off", train_images_per_s=17.0, settings={"onednn": "off", "intra_op_threads": "2"})
    on = facts("1", train_images_per_s=102.0, settings={"onednn": "on", "intra_op_threads": "2"})
    (pair,) = find_pairs([off, on], {"1", "2"})
    assert (pair.base, pair.other) == (off, on)
    assert not pair.across_devices
    assert pair.train_speedup == 6.0
    assert pair.different_settings() == [("oneDNN", "off", "on")]


def test_runs_of_the_same_path_or_of_other_tasks_are_no_pair() -> None:
    assert find_pairs([facts("1"), facts("2")], {"1", "2"}) == []
    assert find_pairs([facts("1"), facts("2", "gpu", config={"seed": 9})], {"1", "2"}) == []
    assert find_pairs([facts("1"), facts("2", "gpu")], set()) == []


def test_gpu_against_cpu_comes_first_among_three_paths() -> None:
    runs = [facts("1"), facts("2", path="CPU · oneDNN off"), facts("3", "gpu")]
    found = find_pairs(runs, {"1", "2", "3"})
    assert len(found) == 3
    assert [pair.across_devices for pair in found] == [True, True, False]


def test_a_run_without_a_partner_misses_its_other_half_until_one_has_finished() -> None:
    alone, running = facts("1"), facts("2", None, state="queued", config={"device": "gpu"})
    assert missing_halves([alone, running], {"1"}) == [alone]
    assert on_the_way([alone, running], alone.task_key, "gpu") == running
    assert on_the_way([alone, running], alone.task_key, "cpu") is None
    on_second_gpu = facts("3", None, state="queued", config={"device": "1", "gpus": 2})
    assert on_the_way([alone, on_second_gpu], alone.task_key, "gpu") == on_second_gpu, "any GPU is the other path of a CPU"
    assert missing_halves([alone, facts("2", "gpu")], {"1"}) == []
    assert missing_halves([facts("1", state="failed")], {"1"}) == []


def test_only_what_differs_is_listed_in_the_words_of_the_form() -> None:
    runs = [facts("1", "cpu"), facts("2", "gpu", config={"learning_rate": 0.0003, "epochs": 5, "later_option": True})]
    rows = {label: (group, values) for group, label, values in config_differences(runs)}
    assert rows == {
        "Learning rate": ("Training", ["0.001", "0.0003"]),
        "Epochs": ("Training", ["automatic", "5"]),
        "later_option": ("Options", ["–", "on"]),
        "Path": ("Ran on", ["CPU · AVX2 through oneDNN", "GPU · RTX A4000"]),
    }
    assert config_differences(runs[:1]) == []


def test_what_a_run_does_not_tell_yet_is_no_difference() -> None:
    waiting = dataclasses.replace(facts("1", "cpu"), selected_device=None, path=None, machine="node7", tensorflow=None)
    assert config_differences([waiting, facts("2", "cpu")]) == []


def test_a_run_folder_is_read_back_as_facts(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, make_config({"data": "synthetic", "steps": 20}))
    status = json.loads((folder.path / "status.json").read_text())
    files = {
        "status.json": {
            **status,
            "state": "finished",
            "selected_device": "cpu",
            "path": "CPU",
            "reason": "No GPU.",
            "train_images_per_s": 90.0,
            "host": "lab",
        },
        "profile.json": {
            "selected_device": "cpu",
            "cpu": {"name": "Some CPU"},
            "tensorflow_version": "2.21.0",
            "intra_op_threads": 2,
            "onednn": False,
            "settings": [
                {"name": "TF_NUM_INTRAOP_THREADS", "value": "8"},
                {"name": "ONEDNN_MAX_CPU_ISA", "value": "AVX2"},
                {"name": "TF_CPP_MIN_LOG_LEVEL", "value": "2"},
            ],
        },
        "metrics.json": {"image_auroc": 0.9, "pixel_auroc": None, "not_available": {"pixel_auroc": "No masks."}},
    }
    for name, value in files.items():
        (folder.path / name).write_text(json.dumps(value))
    (folder.path / "history.csv").write_text("epoch,loss,val_loss\n1,0.5,0.6\n2,0.4,\n")
    run = read_run_facts(folder)
    assert (run.state, run.machine, run.tensorflow) == ("finished", "Some CPU on lab", "2.21.0")
    assert run.settings == {"onednn": "off", "intra_op_threads": "2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
    assert run.final_loss == 0.4
    assert run.metrics["image_auroc"] == 0.9
    assert run.metrics["pixel_auroc"] is None
    assert run.not_available == {"pixel_auroc": "No masks."}


def test_an_empty_or_damaged_folder_gives_unknowns_and_no_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{not json")
    (tmp_path / "history.csv").write_bytes(b"\xff\xfe\x00")
    run = read_run_facts(RunFolder(tmp_path))
    assert run.state == "unreadable"
    assert run.config == {}
    assert run.task_key == ""
    assert find_pairs([run], {run.run_id}) == []


def test_options_of_an_older_version_get_their_default_and_unknown_ones_stay(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"data": "synthetic", "from_the_future": 1}))
    options = read_options(RunFolder(tmp_path))
    assert options["learning_rate"] == CaeConfig.model_fields["learning_rate"].default
    assert options["from_the_future"] == 1


def test_runs_of_equal_task_are_found_among_all(tmp_path: Path) -> None:
    same = [RunFolder.create(tmp_path, make_config({"data": "synthetic", "seed": 1, "device": device})) for device in ("cpu", "gpu")]
    other = RunFolder.create(tmp_path, make_config({"data": "synthetic", "seed": 2}))
    assert equal_tasks([*same, other], {task_key(read_options(same[0]))}) == same
    assert equal_tasks([*same, other], set()) == []
