"""Figures of the Device tab, from values."""

from __future__ import annotations

import math

from app.core.facts import Gpu, GpuFacts
from app.core.live import Sample
from app.ui import charts_device as charts

FULL = Gpu(index=0, uuid="GPU-a", name="NVIDIA A30", total_mib=24576, free_mib=100)
FREE = Gpu(index=1, uuid="GPU-b", name="NVIDIA A30", total_mib=24576, free_mib=24000)
UNIFIED = Gpu(index=2, uuid="GPU-c", name="NVIDIA GB10", unified_memory=True)


def _sample(at: float, gpus: tuple[Gpu, ...] = (FULL, FREE)) -> Sample:
    return Sample(
        at=at, gpu=GpuFacts(gpus=gpus), cpu_percent=(10.0, 30.0), ram_used_mib=1024, ram_total_mib=4096, load_1min=0.5, refresh_ms=1.0
    )


def test_used_and_free_add_up_to_the_total_and_the_line_stands_at_the_threshold() -> None:
    figure = charts.memory_bars([FULL, FREE], 4096)
    used, free = figure.data[0], figure.data[1]
    assert [a + b for a, b in zip(used.x, free.x, strict=True)] == [24576, 24576]
    assert [shape.x0 for shape in figure.layout.shapes] == [24576 - 4096] * 2


def test_a_gpu_without_figures_gets_no_bar_and_a_threshold_beyond_the_total_no_line() -> None:
    figure = charts.memory_bars([FULL, UNIFIED], 99999)
    assert list(figure.layout.yaxis.ticktext) == ["GPU 0 · A30"]
    assert not figure.layout.shapes


def test_slices_of_one_profile_have_a_bar_each_and_long_names_leave_room_for_bars() -> None:
    slices = [Gpu(0, f"MIG-{name}", "NVIDIA A100 MIG 1g.5gb", 4864, free, mig="1g.5gb") for name, free in (("a", 4000), ("b", 1000))]
    long = Gpu(1, "GPU-c", "NVIDIA GeForce RTX 4060 Laptop GPU with a very very long marketing name", 8192, 5000)
    figure = charts.memory_bars([*slices, long], 2048)
    assert list(figure.data[1].x) == [4000, 1000, 5000]
    assert len(set(figure.data[1].y)) == 3
    assert max(len(label) for label in figure.layout.yaxis.ticktext) <= charts.LONGEST_LABEL
    assert not figure.layout.showlegend, "a legend would be stacked over the bars"
    assert all(word in figure.layout.title.text for word in ("used", "free", "threshold 2048 MiB"))
    assert figure.data[1].customdata[2] == charts.gpu_label(long)


def test_history_has_a_series_for_cpu_ram_and_each_gpu_in_percent() -> None:
    frame = charts.history_frame([_sample(100.0), _sample(101.0, (FREE,))])
    series = {name: list(part["percent"]) for name, part in frame.groupby("series")}
    assert series["CPU"] == [20.0, 20.0]
    assert series["RAM"] == [25.0, 25.0]
    assert len(series["VRAM of GPU 0"]) == 1
    assert [round(value, 1) for value in series["VRAM of GPU 1"]] == [2.3, 2.3]


def test_lines_end_where_nobody_looked_and_go_on_after_it() -> None:
    frame = charts.history_frame([_sample(at) for at in (100.0, 101.0, 102.0, 107.0, 108.0, 200.0, 201.0)])
    cpu = frame[frame["series"] == "CPU"]
    # 5 s is a slow refresh; 92 s is a page that was closed.
    assert [math.isnan(value) for value in cpu["percent"]] == [False] * 5 + [True] + [False] * 2
    assert cpu["time"].is_monotonic_increasing
    slow = charts.history_frame([_sample(at) for at in (100.0, 110.0, 120.0, 130.0)])
    assert not slow["percent"].isna().any()


def test_the_history_is_the_same_chart_at_every_refresh_so_that_its_zoom_is_kept() -> None:
    first, second = (sorted(set(charts.history_frame([_sample(at)])["series"]) - {"CPU", "RAM"}) for at in (100.0, 200.0))
    assert charts.history_spec(first) == charts.history_spec(second)
    scale = charts.history_spec(first)["vconcat"][0]["encoding"]["color"]["scale"]
    assert len(scale["domain"]) == len(scale["range"]) == 4


def test_cores_stop_at_what_can_be_read() -> None:
    assert len(charts.core_frame([1.0] * 256)) == charts.MAX_CORES_SHOWN


def test_a_slice_is_named_with_its_profile() -> None:
    assert charts.gpu_label(Gpu(index=0, uuid="MIG-x", name="NVIDIA A100", mig="1g.5gb")) == "GPU 0 · A100 · 1g.5gb"
    assert charts.gpu_label(FULL) == "GPU 0 · A30"
