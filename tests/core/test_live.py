"""The live sampler: one thread, many readers, silence when nobody looks, last good figures while a probe hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from app.core.facts import Gpu, GpuFacts
from app.core.live import LiveSampler, take_sample

A_GPU = GpuFacts(gpus=(Gpu(index=0, uuid="GPU-a", name="NVIDIA A", total_mib=4096, free_mib=887),), source="nvml")


def _until(condition: Callable[[], bool], limit_s: float = 10.0) -> bool:
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return False


def test_a_sample_holds_what_the_machine_says() -> None:
    sample = take_sample(lambda: A_GPU)
    assert sample.gpu is A_GPU
    assert 0 < sample.ram_used_mib < sample.ram_total_mib
    assert len(sample.cpu_percent) >= 1
    assert all(0 <= percent <= 100 for percent in sample.cpu_percent)


def test_many_readers_cost_one_probe_at_a_time() -> None:
    running, most = 0, 0
    guard = threading.Lock()

    def probe() -> GpuFacts:
        nonlocal running, most
        with guard:
            running += 1
            most = max(most, running)
        time.sleep(0.02)
        with guard:
            running -= 1
        return A_GPU

    sampler = LiveSampler(probe, interval_s=0.001)
    readers = [threading.Thread(target=lambda: sampler.latest(wait_s=5)) for _ in range(20)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert sampler.latest() is not None
    assert most == 1


def test_a_hanging_first_probe_is_waited_for_once_and_not_by_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page asks several times in one run; together they may wait as long as one."""
    answer = threading.Event()

    def probe() -> GpuFacts:
        answer.wait(30)
        return A_GPU

    sampler = LiveSampler(probe)
    assert sampler.latest(wait_s=0.05) is None
    assert sampler.looking_since is not None or _until(lambda: sampler.looking_since is not None)
    waits: list[float] = []
    monkeypatch.setattr(sampler._first, "wait", waits.append)
    assert sampler.latest(wait_s=0.05) is None
    assert waits == [0.0]
    answer.set()
    assert _until(lambda: sampler.latest() is not None)
    sampler.stop()


def test_probing_stops_when_nobody_looks_and_starts_again() -> None:
    calls: list[float] = []

    def probe() -> GpuFacts:
        calls.append(time.monotonic())
        return A_GPU

    sampler = LiveSampler(probe, interval_s=0.01, idle_after_s=0.2)
    sampler.latest(wait_s=5)
    assert _until(lambda: bool(calls) and time.monotonic() - calls[-1] > 0.3)
    before = len(calls)
    sampler.latest()
    assert _until(lambda: len(calls) > before)


def test_a_hanging_probe_leaves_the_last_sample_and_says_since_when() -> None:
    release = threading.Event()
    answers = iter([A_GPU])

    def probe() -> GpuFacts:
        answer = next(answers, None)
        if answer is None:
            release.wait(30)
            return GpuFacts(no_gpu_because="NVML: Unknown Error.")
        return answer

    sampler = LiveSampler(probe, interval_s=0.01)
    first = sampler.latest(wait_s=5)
    assert first is not None
    assert _until(lambda: sampler.looking_since is not None)
    started = time.monotonic()
    assert sampler.latest(wait_s=5) is first
    assert time.monotonic() - started < 2, "a reader must not wait for the hanging probe"
    release.set()
    assert _until(lambda: (newest := sampler.latest()) is not None and not newest.gpu.gpus)
    good = sampler.last_with_gpus()
    assert good is first


def test_a_stopped_sampler_probes_no_more_until_it_is_asked_again() -> None:
    calls: list[float] = []

    def probe() -> GpuFacts:
        calls.append(time.monotonic())
        return A_GPU

    sampler = LiveSampler(probe, interval_s=0.01)
    sampler.latest(wait_s=5)
    sampler.stop()
    assert _until(lambda: bool(calls) and time.monotonic() - calls[-1] > 0.3)
    before = len(calls)
    sampler.latest()
    assert _until(lambda: len(calls) > before)


def test_history_grows_oldest_first() -> None:
    sampler = LiveSampler(lambda: A_GPU, interval_s=0.01)
    sampler.latest(wait_s=5)
    assert _until(lambda: (sampler.latest() is not None) and len(sampler.history()) >= 3)
    times = [sample.at for sample in sampler.history()]
    assert times == sorted(times)
