"""One measured point: its clock, its pictures, its answers. The measurement itself is tested with tests/runs/test_bench_real.py."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from app.cae.bench_point import EPOCH_BYTES, FEWEST_STEPS, PointRequest, StepClock, measure, textures
from app.cae.training import WARMUP_STEPS
from app.core.tf_trial import MARK

ROOT = Path(__file__).resolve().parents[2]


def ticking(seconds: list[float]) -> Iterator[float]:
    now = 0.0
    for step in seconds:
        now += step
        yield now


def run_clock(clock: StepClock, seconds: list[float]) -> int:
    """Feeds steps that take these times; the number of steps until the clock had enough."""
    clock.phase("reading", 0, 1)
    clock.phase("training", 0, 99)
    for done in range(1, len(seconds) - 1):
        clock.phase("training", done, 99)
        if clock.cancelled():
            return done
    return 0


def test_warm_up_does_not_count_and_slow_devices_do_the_steps_once() -> None:
    times = ticking([0.0, 0.0, *[9.0] * 3, *[1.0] * 20])
    clock = StepClock(3, 4, 7, 1.0, clock=lambda: next(times))
    assert run_clock(clock, [0.0] * 25) == 7
    assert clock.times == [1.0] * 4


def test_fast_devices_go_on_and_the_first_step_of_an_epoch_does_not_count() -> None:
    epoch = [5.0, 0.25, 0.25]
    times = ticking([0.0, 0.0, 9.0, 0.25, 0.25, *epoch * 4])
    clock = StepClock(1, 2, 3, 1.5, clock=lambda: next(times))
    assert run_clock(clock, [0.0] * 17) == 9
    assert clock.times == [0.25] * 6


def test_enough_needs_both_steps_and_time() -> None:
    clock = StepClock(0, 2, 10, 1.0)
    assert not clock.cancelled()
    clock.times = [5.0]
    assert not clock.cancelled()
    clock.times = [0.1, 0.1]
    assert not clock.cancelled()
    clock.times = [0.5, 0.5]
    assert clock.cancelled()


def test_textures_are_seeded_and_differ_from_one_another() -> None:
    pictures = textures(3, 64, 3, seed=1)
    assert (pictures.shape, pictures.dtype) == ((3, 64, 64, 3), np.uint8)
    np.testing.assert_array_equal(pictures, textures(3, 64, 3, seed=1))
    assert (pictures != textures(3, 64, 3, seed=2)).any()
    assert (pictures[0] != pictures[1]).mean() > 0.9
    assert pictures.std(axis=(1, 2, 3)).min() > 20


@pytest.mark.parametrize(
    ("size", "batch", "channels", "steps"), [(128, 16, 1, WARMUP_STEPS + 12), (512, 64, 3, FEWEST_STEPS), (512, 512, 3, FEWEST_STEPS)]
)
def test_large_pictures_make_short_epochs(size: int, batch: int, channels: int, steps: int) -> None:
    request = PointRequest("timed", image_size=size, batch_size=batch, channels=3 if channels == 3 else 1)
    assert request.epoch_steps == steps
    assert steps == FEWEST_STEPS or steps * batch * size**2 * channels <= EPOCH_BYTES
    counted = (request.epoch_steps - 1) * request.config().epochs_for(steps * batch)
    assert counted >= WARMUP_STEPS + request.steps


def test_the_point_trains_the_recommended_preset_as_a_run_does() -> None:
    config = PointRequest("timed", device="cpu", intra_op_threads=1, batch_size=8).config()
    assert (config.preset, config.precision, config.batch_size, config.intra_op_threads) == ("recommended", "float32", 8, 1)
    assert PointRequest("evidence").config().epochs == 1


def test_a_request_that_does_not_fit_is_answered_with_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert measure({"part": "timed", "image_size": 100}) == 2
    told = json.loads(capsys.readouterr().out.removeprefix(MARK))
    assert (told["step"], "image_size" in told["sentence"]) == ("failed", True)


def test_it_leaves_when_its_parent_is_gone() -> None:
    request = json.dumps({"part": "timed", "leave_with_parent": True, "steps": 1000})
    process = subprocess.Popen(
        [sys.executable, "-m", "app.cae.bench_point", request], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd=ROOT
    )
    try:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 1
    finally:
        process.kill()
        process.wait()
