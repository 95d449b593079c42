"""Live figures of the machine, sampled in one background thread however many pages look at them.

A page never probes by itself: a probe may hang for seconds, and ten open tabs would probe ten times. Pages call `latest()`,
which returns at once; the thread samples as long as somebody asked within `idle_after_s` and then sleeps until asked again.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from app.core.facts import GpuFacts
from app.core.gpu_probe import gpu_facts

HISTORY_S = 300.0
MIB = 1024 * 1024
FIRST_CPU_LOOK_S = 0.1
"""psutil's own advice for the least time between two looks at the CPU."""


@dataclass(frozen=True)
class Sample:
    """One look at the machine. `at` is `time.time()` when the look ended."""

    at: float
    gpu: GpuFacts
    cpu_percent: tuple[float, ...]
    """Use of each logical CPU since the sample before, 0-100."""
    ram_used_mib: int
    ram_total_mib: int
    load_1min: float | None
    refresh_ms: float
    """What this look cost, GPU probe included."""

    @property
    def cpu_mean_percent(self) -> float | None:
        return sum(self.cpu_percent) / len(self.cpu_percent) if self.cpu_percent else None


def probe_for_panel() -> GpuFacts:
    """The GPU probe with the limits of a live panel: NVML 2 s, nvidia-smi 5 s."""
    return gpu_facts(smi_limit_s=5.0)


def take_sample(probe: Callable[[], GpuFacts] = probe_for_panel) -> Sample:
    """Look once. Takes no longer than the probe's own limits."""
    started = time.perf_counter()
    gpu = probe()
    memory = psutil.virtual_memory()
    return Sample(
        at=time.time(),
        gpu=gpu,
        cpu_percent=tuple(psutil.cpu_percent(percpu=True)),
        ram_used_mib=int((memory.total - memory.available) // MIB),
        ram_total_mib=int(memory.total // MIB),
        load_1min=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        refresh_ms=1000.0 * (time.perf_counter() - started),
    )


class LiveSampler:
    """One thread, many readers."""

    def __init__(self, probe: Callable[[], GpuFacts] = probe_for_panel, *, interval_s: float = 1.0, idle_after_s: float = 15.0) -> None:
        self._probe = probe
        self._idle_after_s = idle_after_s
        self.interval_s = interval_s
        self._history: deque[Sample] = deque(maxlen=int(HISTORY_S / 0.5))
        self._good_gpu: Sample | None = None
        self._asked = 0.0
        self._first_asked: float | None = None
        self._wake = threading.Event()
        self._first = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.looking_since: float | None = None
        """When the probe now under way began, `time.time()`; None between probes. A large age means that it hangs."""

    def latest(self, wait_s: float = 0.0) -> Sample | None:
        """The newest sample, at once; only the very first one is waited for, `wait_s` in all however often and by whom it is asked for."""
        self._asked = time.monotonic()
        if self._first_asked is None:
            self._first_asked = self._asked
        self._ensure_running()
        self._wake.set()
        self._first.wait(max(0.0, self._first_asked + wait_s - self._asked))
        with self._lock:
            return self._history[-1] if self._history else None

    def last_with_gpus(self) -> Sample | None:
        """The newest sample that saw a GPU: what is shown, marked stale, when the driver stops answering."""
        with self._lock:
            return self._good_gpu

    def history(self) -> list[Sample]:
        """The samples of the last five minutes, oldest first."""
        oldest = time.time() - HISTORY_S
        with self._lock:
            return [sample for sample in self._history if sample.at >= oldest]

    def stop(self) -> None:
        """End the thread after the look it is at; it starts again when somebody asks."""
        with self._lock:
            self._thread, self._asked = None, float("-inf")
        self._wake.set()

    def _ensure_running(self) -> None:
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="live-sampler", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        psutil.cpu_percent(percpu=True)  # the first call has nothing to compare with and answers 0
        time.sleep(FIRST_CPU_LOOK_S)
        while self._thread is threading.current_thread():
            if time.monotonic() - self._asked > self._idle_after_s:
                self._wake.clear()
                self._wake.wait()
                continue
            self.looking_since = time.time()
            sample = take_sample(self._probe)
            self.looking_since = None
            with self._lock:
                self._history.append(sample)
                if sample.gpu.gpus:
                    self._good_gpu = sample
            self._first.set()
            time.sleep(self.interval_s)
