"""Options: presets fill what is not given, bounds hold, and bad values are one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.cae.config import BEFORE, PRESETS, CaeConfig, make_config, read_config
from app.core.errors import OptionError


def test_the_default_is_the_recommended_preset() -> None:
    assert make_config({}) == make_config({"preset": "recommended"})


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_a_preset_sets_its_values_and_what_is_given_wins(preset: str) -> None:
    config = make_config({"preset": preset})
    assert {name: getattr(config, name) for name in PRESETS[preset]} == PRESETS[preset]
    assert make_config({"preset": preset, "epochs": 3, "top_fraction": 0.5}).top_fraction == 0.5


def test_as_documented_is_the_network_as_it_is_usually_described() -> None:
    config = make_config({"preset": "documented"})
    assert (config.ssim_weight, config.mse_scale, config.epochs, config.batch_size, config.image_size) == (0.84, 1.0, 20, 16, 128)
    assert (config.mask_ratio, config.mask_patch, config.masked_pictures) == (0.25, 16, 1.0)
    assert (config.learning_rate, config.weight_decay, config.val_fraction, config.latent_dim) == (1e-3, 1e-4, 0.15, 128)
    assert config.threshold_quantile == 0.95


def test_epochs_follow_from_steps_unless_they_are_given() -> None:
    assert make_config({"steps": 100, "batch_size": 10}).epochs_for(95) == 10
    assert make_config({"steps": 100, "epochs": 2}).epochs_for(95) == 2
    assert make_config({"preset": "documented", "steps": 100, "batch_size": 10}).epochs_for(95) == 10
    assert make_config({"preset": "documented"}).epochs_for(95) == 20


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"image_size": 50}, ["image_size", "multiple of 16", "50"]),
        ({"image_size": 100}, ["image_size", "100"]),
        ({"image_size": 16}, ["image_size", "64", "16"]),
        ({"mask_patch": 24}, ["mask_patch", "128", "24"]),
        ({"background_sigma": 0.5}, ["background_sigma", "0 or at least 4 px", "got 0.5"]),
        ({"epochs": "many"}, ["epochs: expected a whole number, got 'many'."]),
        ({"epochs": 1.5}, ["epochs: expected a whole number, got 1.5."]),
        ({"epochs": 0}, ["epochs: expected 1 or more, got 0."]),
        ({"learning_rate": "fast"}, ["learning_rate: expected a number, got 'fast'."]),
        ({"learning_rate": 0}, ["learning_rate: expected a number above 0, got 0."]),
        ({"val_fraction": 0.75}, ["val_fraction: expected 0.5 or less, got 0.75."]),
        ({"tensorboard": "perhaps"}, ["tensorboard: expected yes or no, got 'perhaps'."]),
        ({"data": 5}, ["data: expected a text, got 5."]),
        ({"pooling": "median"}, ["pooling: expected 'top', 'max' or 'mean', got 'median'."]),
        ({"preset": ["recommended"]}, ["preset"]),
        ({"learning_rate": "nan"}, ["learning_rate: expected a finite number, got 'nan'."]),
        ({"whole_weight": "inf"}, ["whole_weight: expected a finite number, got 'inf'."]),
        ({"error_mix": float("-inf")}, ["error_mix: expected a finite number, got -inf."]),
        ({"device": "7x"}, ["--device: expected auto, cpu, gpu, the index of a GPU or its UUID (GPU-… or MIG-…), got '7x'."]),
        ({"colour": "red"}, ["colour: expected an option that exists"]),
    ],
)
def test_what_does_not_fit_is_one_sentence_with_what_came(values: dict[str, object], words: list[str]) -> None:
    with pytest.raises(OptionError) as raised:
        make_config(values)
    assert all(word in str(raised.value) for word in words), raised.value
    assert "\n" not in str(raised.value)
    assert "Input should" not in str(raised.value)


def test_steps_beside_epochs_are_told_to_have_no_effect_unless_the_preset_set_them() -> None:
    assert make_config({"epochs": 2, "steps": 60}).steps_ignored
    assert not make_config({"steps": 60}).steps_ignored
    assert not make_config({"epochs": 2}).steps_ignored
    assert not make_config({"preset": "quick", "epochs": 2}).steps_ignored
    assert not make_config({"preset": "documented"}).steps_ignored
    assert not make_config({"preset": "documented", "steps": 60}).steps_ignored


@pytest.mark.parametrize("device", ["auto", " CPU ", "gpu", "3", "GPU-1a2b", "mig-", ""])
def test_a_device_is_judged_by_its_word_and_not_by_the_machine(device: str) -> None:
    assert make_config({"device": device}).device == device


@pytest.mark.parametrize("content", ["{", "[]", json.dumps({"preset": []}), json.dumps({"data": 5})])
def test_a_damaged_configuration_is_an_option_error(content: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(OptionError):
        read_config(path)


def test_a_configuration_survives_the_way_through_its_file(tmp_path: Path) -> None:
    config = make_config({"preset": "documented", "epochs": 3, "device": "cpu"})
    path = tmp_path / "config.json"
    path.write_text(config.model_dump_json(), encoding="utf-8")
    assert read_config(path) == config
    assert set(json.loads(path.read_text(encoding="utf-8"))) == set(CaeConfig.model_fields)


def test_a_configuration_from_before_an_option_was_there_says_what_was_computed_then(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    other = {"centre": "yes", "mixtures": "yes", "optimizer": "muon", "background_sigma": 8.0}
    now = make_config({"data": "x", "preset": "recommended", **other}).model_dump(mode="json")
    later = {"correct_mean": False, "whole_weight": 0.0, "centre": "no", "mixtures": "no", "optimizer": "adamw", "background_sigma": 0.0}
    assert later.items() <= BEFORE.items()
    file.write_text(json.dumps({name: value for name, value in now.items() if name not in later}))
    assert read_config(file).model_dump(include=set(later)) == later
    file.write_text(json.dumps(now))
    assert read_config(file).correct_mean
    for switch, meant in ((True, "yes"), (False, "no")):
        file.write_text(json.dumps({**now, "centre": switch}))
        assert read_config(file).centre == meant


def test_what_suits_few_pictures_is_chosen_by_their_number_unless_told() -> None:
    auto = make_config({})
    assert [(auto.centred(count), auto.mixed(count)) for count in (51, 149, 150, 400)] == [(False, True)] * 2 + [(True, False)] * 2
    told = make_config({"centre": "yes", "mixtures": "yes"})
    assert all(told.centred(count) and told.mixed(count) for count in (51, 400))
    documented = make_config({"preset": "documented"})
    assert not any(documented.centred(count) or documented.mixed(count) for count in (51, 400))
