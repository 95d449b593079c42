"""How long a run will take and what it needs, before it starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from compare_runs import write_run

from app.cae.config import make_config
from app.runs.table import runs_table
from app.ui import estimate
from app.ui.estimate import Rates, Work

WORK = Work(train=100, held_out=20, test=80, channels=3)


def _config(**values: object) -> object:
    return make_config({"data": "elpv-mono", "epochs": 10, **values})


def test_seconds_are_pictures_over_throughput() -> None:
    """On paper: 1000 pictures at 50/s, 200 validated and 200 scored at 100/s: 20 + 2 + 2 s, 1 s for the mean residual, and the start."""
    found = estimate.duration(_config(), WORK, Rates(50.0, 100.0, "as told"))
    assert found.seconds == pytest.approx(estimate.START_S + 25)
    plain = estimate.duration(_config(correct_mean=False), WORK, Rates(50.0, 100.0, "as told"))
    assert plain.seconds == pytest.approx(estimate.START_S + 24)
    assert found.basis == "as told"


def test_steps_make_as_many_epochs_as_the_run_will_have() -> None:
    config = make_config({"steps": 70, "batch_size": 10})
    assert WORK.training_pictures(config) == 700


def test_without_runs_the_cpu_is_reckoned_from_what_was_measured(tmp_path: Path) -> None:
    none = runs_table(tmp_path)
    known = estimate.rates(_config(), none, device="cpu", cores=2, channels=3)
    assert known is not None
    assert known.train_images_per_s == estimate.MEASURED_TRAIN_PER_S
    larger = estimate.rates(_config(image_size=256), none, device="cpu", cores=2, channels=3)
    more_cores = estimate.rates(_config(), none, device="cpu", cores=8, channels=3)
    assert larger is not None
    assert more_cores is not None
    assert larger.train_images_per_s == pytest.approx(known.train_images_per_s / 4)
    assert more_cores.train_images_per_s == pytest.approx(known.train_images_per_s * 4)


def test_nothing_is_made_up_for_a_gpu_that_has_not_been_measured(tmp_path: Path) -> None:
    assert estimate.rates(_config(), runs_table(tmp_path), device="gpu", cores=2, channels=3) is None
    assert estimate.duration(_config(), WORK, None).seconds is None


def test_earlier_runs_on_the_same_path_count(tmp_path: Path) -> None:
    write_run(tmp_path, 0, speed=40.0)
    write_run(tmp_path, 1, speed=1000.0, device="gpu")
    write_run(tmp_path, 2, speed=7.0, state="failed")
    cpu = estimate.rates(_config(), runs_table(tmp_path), device="cpu", cores=2, channels=1)
    gpu = estimate.rates(_config(), runs_table(tmp_path), device="gpu", cores=2, channels=1)
    assert cpu is not None
    assert gpu is not None
    assert cpu.train_images_per_s == pytest.approx(40.0)
    assert gpu.train_images_per_s == pytest.approx(1000.0)
    assert "earlier runs of this data set" in cpu.basis


def test_runs_of_other_sizes_are_scaled_by_pixels(tmp_path: Path) -> None:
    write_run(tmp_path, 0, speed=40.0, options={"image_size": 256})
    found = estimate.rates(_config(), runs_table(tmp_path), device="cpu", cores=2, channels=1)
    assert found is not None
    assert found.train_images_per_s == pytest.approx(160.0)
    assert "scaled by pixels" in found.basis


def test_memory_grows_with_what_fills_it() -> None:
    base = estimate.memory_mib(_config(), WORK)
    assert base > estimate.PROCESS_MIB
    for more in ({"image_size": 256}, {"batch_size": 64}, {"base_filters": 64}):
        assert estimate.memory_mib(_config(**more), WORK) > base
    assert estimate.memory_mib(_config(), Work(100_000, 20, 80, 3)) > base + 6000


def test_f10_what_does_not_fit_is_counted_as_disk() -> None:
    """5000 pictures of 256 px, 4000 of them trained on, where 2 GiB of memory are free: 1250 MiB lie on disk."""
    config, work = _config(image_size=256), Work(3400, 600, 1000, 3)
    fits = estimate.room(config, work, free_mib=16_000)
    assert fits == estimate.Room(estimate.memory_mib(config, work))
    filed = estimate.room(config, work, free_mib=2048)
    assert filed.disk_mib > 1250
    assert filed.memory_mib + filed.disk_mib == pytest.approx(fits.memory_mib)
    assert filed.memory_mib < 2048 < fits.memory_mib
