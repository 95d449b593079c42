"""Figures of the Compare tab: which points are drawn, in whose colours, and what a zoom shows."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from compare_runs import history_rows

from app.runs.folder import load_history
from app.runs.pairs import RunFacts
from app.ui.charts_compare import MAX_POINTS, Curve, Zoom, curves, has_values, short, shortened, smoothed, thinned, time_unit
from app.ui.charts_results import bars
from app.ui.palette import CPU_BLUE, GPU_GREEN, RunStyle, run_styles

STYLES = run_styles(["a", "b"])


def curve(run_id: str = "a", epochs: int = 10, *, label: str | None = None, best: float | None = None, gpu: bool = False) -> Curve:
    return Curve(run_id, label or run_id, STYLES[run_id], pd.DataFrame(history_rows(epochs, 100.0, gpu=gpu)), best)


def lines(figure: go.Figure, *, legend: bool | None = None) -> list[go.Scatter]:
    return [
        trace
        for trace in figure.data
        if trace.mode == "lines" and trace.x[0] is not None and legend in (None, trace.showlegend is not False)
    ]


def test_loss_draws_validation_strong_and_training_thin_in_the_colour_of_the_run() -> None:
    training, validation = lines(curves([curve()]))
    assert (training.line.color, validation.line.color) == (STYLES["a"].colour, STYLES["a"].colour)
    assert training.line.width < validation.line.width
    assert (training.showlegend, validation.showlegend) == (False, True)
    np.testing.assert_allclose(validation.y, curve().history["val_loss"])
    np.testing.assert_allclose(training.y, curve().history["loss"])


@pytest.mark.parametrize(
    ("x_axis", "expected", "title"),
    [("epoch", [1.0, 2.0], "epoch"), ("step", [58.0, 116.0], "optimizer step"), ("seconds", [9.2, 18.4], "wall time, s")],
)
def test_the_x_axis_is_epoch_step_or_wall_time(x_axis: str, expected: list[float], title: str) -> None:
    figure = curves([curve(epochs=2)], "val_loss", x_axis)
    np.testing.assert_allclose(lines(figure)[0].x, expected)
    assert figure.layout.xaxis.title.text == title


@pytest.mark.parametrize(
    ("seconds", "unit"), [(20.0, (1.0, "s")), (600.0, (60.0, "min")), (20_000.0, (3600.0, "h")), (math.nan, (1.0, "s"))]
)
def test_one_unit_of_time_fits_the_longest_run(seconds: float, unit: tuple[float, str]) -> None:
    runs = [Curve(name, name, STYLES[name], pd.DataFrame({"seconds": [value]})) for name, value in (("b", seconds), ("a", 2.0))]
    assert time_unit(runs) == unit
    assert time_unit([]) == (1.0, "s")


def test_every_quantity_names_its_unit_and_memory_shows_vram_beside_ram() -> None:
    titles = {name: curves([curve(gpu=True)], name).layout.yaxis.title.text for name in ("loss", "images_per_s", "memory")}
    assert titles == {"loss": "loss", "images_per_s": "training, images/s", "memory": "memory, MiB"}
    vram, ram = lines(curves([curve(gpu=True)], "memory"))
    assert max(vram.y) < min(ram.y)
    assert len(lines(curves([curve(gpu=False)], "memory"))) == 1


def test_the_best_epoch_is_marked_on_the_curve_and_not_the_last() -> None:
    run = curve(epochs=30, best=12.0)
    star = next(trace for trace in curves([run]).data if trace.mode == "markers" and trace.x[0] is not None)
    assert star.x[0] == 12
    assert star.y[0] == run.history["val_loss"][11]
    on_smooth = next(trace for trace in curves([run], smoothing=0.6).data if trace.mode == "markers" and trace.x[0] is not None)
    assert on_smooth.y[0] == pytest.approx(smoothed(run.history["val_loss"].to_numpy(), 0.6)[11])
    assert not [trace for trace in curves([run], "learning_rate").data if trace.mode == "markers"]


def test_a_smoothed_curve_keeps_the_raw_one_behind_it_paler() -> None:
    raw, smooth = lines(curves([curve()], "val_loss", smoothing=0.8))
    np.testing.assert_allclose(raw.y, curve().history["val_loss"])
    assert raw.opacity < smooth.opacity
    assert np.std(np.diff(smooth.y)) < np.std(np.diff(raw.y))


def test_smoothing_by_hand() -> None:
    # weights 1/2: y0 = 4; y1 = (4/2 + 1) / (1/2 + 1) = 2; unknown stays unknown and is skipped; y3 = (3/2 + 2) / (3/4 + 1) = 2
    np.testing.assert_allclose(smoothed(np.array([4.0, 1.0, np.nan, 2.0]), 0.5), [4.0, 2.0, np.nan, 2.0])
    constant = np.full(50, 3.0)
    np.testing.assert_allclose(smoothed(constant, 0.95), constant)
    np.testing.assert_allclose(smoothed(np.arange(5.0), 0.0), np.arange(5.0))


def test_thinning_keeps_extremes_ends_and_order() -> None:
    values = np.sin(np.linspace(0, 60, 50_000))
    values[31_234], values[7_777], values[40_000] = 9.0, -9.0, np.nan
    kept = thinned(values)
    assert len(kept) <= MAX_POINTS
    assert {0, 49_999, 31_234, 7_777} <= set(kept.tolist())
    assert (np.diff(kept) > 0).all()
    np.testing.assert_array_equal(thinned(values[:1000]), np.arange(1000))


def test_no_trace_has_more_than_about_a_thousand_points() -> None:
    figure = curves([curve(epochs=6000)], smoothing=0.5)
    assert all(len(trace.x) <= MAX_POINTS for trace in figure.data)
    assert max(len(trace.x) for trace in figure.data) > MAX_POINTS / 2


def test_a_zoom_sets_both_ranges_and_brings_the_points_that_thinning_left_out() -> None:
    zoom = Zoom("epoch", (100.0, 200.0), "val_loss", (0.1, 0.4))
    figure = curves([curve(epochs=6000)], "val_loss", zoom=zoom)
    assert figure.layout.xaxis.range == (100.0, 200.0)
    assert figure.layout.yaxis.range == (0.1, 0.4)
    np.testing.assert_array_equal(lines(figure)[0].x, np.arange(99, 202))


def test_there_is_no_half_epoch() -> None:
    assert curves([curve(epochs=3)]).layout.xaxis.dtick == 1
    assert curves([curve(epochs=60)]).layout.xaxis.dtick is None
    assert curves([curve(epochs=3)], "loss", "seconds").layout.xaxis.dtick is None


@pytest.mark.parametrize(
    ("losses", "ticks"),
    [
        ([0.001, 0.02, 3.0], ["0.001", "0.01", "0.1", "1"]),
        ([0.04, 0.3], ["0.05", "0.1", "0.2"]),
        ([0.021, 0.042], ["0.025", "0.03", "0.035", "0.04"]),
        ([0.5, 0.5], []),
    ],
)
def test_a_logarithmic_axis_has_whole_numbers(losses: list[float], ticks: list[str]) -> None:
    history = pd.DataFrame(history_rows(len(losses), 100.0)).assign(val_loss=losses)
    figure = curves([Curve("a", "a", STYLES["a"], history)], "val_loss", "epoch", log=True)
    assert list(figure.layout.yaxis.ticktext or ()) == ticks


def test_a_zoom_follows_the_unit_of_time_and_the_logarithmic_axis() -> None:
    zoom = Zoom("seconds", (60.0, 120.0), "val_loss", (0.1, 1.0))
    figure = curves([curve(epochs=60)], "val_loss", "seconds", log=True, zoom=zoom)
    assert figure.layout.xaxis.title.text == "wall time, min"
    assert figure.layout.xaxis.range == (1.0, 2.0)
    assert figure.layout.yaxis.range == (-1.0, 0.0)


def test_a_zoom_has_no_say_on_axes_it_was_not_made_for() -> None:
    figure = curves([curve()], "images_per_s", "step", zoom=Zoom("epoch", (1.0, 2.0), "loss", (0.1, 0.2)))
    assert figure.layout.xaxis.range is None
    assert figure.layout.yaxis.range is None


def test_a_zoom_survives_the_url_and_nonsense_there_is_no_zoom() -> None:
    zoom = Zoom.from_box({"x": [2.5, 1.5], "y": [0.75, 0.25]}, "seconds", "loss", 60.0)
    assert zoom == Zoom("seconds", (90.0, 150.0), "loss", (0.25, 0.75))
    assert Zoom.from_text(zoom.to_text()) == zoom
    for text in (None, "", "epoch,1,2", "epoch,1,x,loss,1,2", "epoch,1,nan,loss,1,2", "colour,1,2,loss,1,2", "epoch,1,2,beauty,1,2"):
        assert Zoom.from_text(text) is None
    assert Zoom.from_box({"x": [1.0, 1.0], "y": [0.0, 1.0]}, "epoch", "loss", 1.0) is None


def test_a_run_without_a_first_epoch_stands_in_the_legend_only(tmp_path: Path) -> None:
    empty = Curve("b", "queued one", STYLES["b"], load_history(tmp_path))
    figure = curves([curve(), empty], "loss")
    assert [trace.name for trace in figure.data if trace.showlegend is not False and trace.mode == "lines"] == ["a", "queued one"]
    assert has_values([empty, curve()], "loss")
    assert not has_values([empty], "loss")
    assert not has_values([], "loss")


def test_a_single_epoch_is_a_point() -> None:
    assert {trace.mode for trace in curves([curve(epochs=1)], "val_loss").data} == {"markers"}


def test_long_names_are_shortened_in_the_middle_and_never_read_as_markup() -> None:
    name = "<b>bold</b> " + "x" * 60 + " the end"
    assert len(shortened(name)) <= 34
    assert shortened(name).endswith("the end")
    figure = curves([curve(label=name)], "val_loss")
    assert lines(figure)[0].name.startswith("&lt;b&gt;")
    assert "<b>bold" not in figure.to_json()
    assert short("plain") == "plain"


def test_many_runs_have_their_legend_beside_the_curves() -> None:
    ids = [f"run{place}" for place in range(6)]
    styles = run_styles(ids)
    runs = [Curve(name, name, styles[name], pd.DataFrame(history_rows(3, 50.0))) for name in ids]
    assert curves(runs).layout.legend.orientation == "v"
    assert curves(runs[:2]).layout.legend.orientation == "h"


def test_bars_have_the_colours_of_the_paths_and_say_why_a_metric_is_missing() -> None:
    runs = [
        RunFacts("1", "finished", selected_device="gpu", train_images_per_s=655.0, metrics={"image_auroc": 0.95, "aupro": 0.5}),
        RunFacts("2", "failed", selected_device="cpu", train_images_per_s=104.4, metrics={}, not_available={"aupro": "No masks."}),
    ]
    figure = bars(runs, {"1": "fast", "2": "slow"})
    by_title = {note.text: trace for note, trace in zip(figure.layout.annotations, figure.data, strict=True)}
    assert list(by_title) == ["Image AUROC", "AUPRO", "Training images/s", "Scoring images/s"]
    assert by_title["Image AUROC"].marker.color == (GPU_GREEN, CPU_BLUE)
    assert by_title["Image AUROC"].text == ("0.950", "–")
    assert by_title["Training images/s"].text == ("655", "104")
    assert "not known, the run is failed" in by_title["Image AUROC"].customdata[1][1]
    assert by_title["AUPRO"].customdata[1][1] == ": No masks."


def test_a_style_is_taken_as_it_is_given() -> None:
    run = Curve("a", "a", RunStyle("#123456", "dashdot"), pd.DataFrame(history_rows(4, 10.0)))
    assert {(trace.line.color, trace.line.dash) for trace in lines(curves([run]))} == {("#123456", "dashdot")}
