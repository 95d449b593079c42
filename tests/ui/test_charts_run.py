"""Charts of one run: what is drawn, from the figures alone."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from cae_runs import DEFECT_SCORES, GOOD_SCORES, HELD_OUT_SCORES, THRESHOLD, score_table
from compare_runs import history_rows
from plotly.graph_objects import Figure

from app.ui import charts_run as charts
from app.ui import verdicts

COLOUR = "#0072B2"
LABELS = verdicts.test_rows(score_table())["label"].to_numpy(np.int64)
SCORES = verdicts.test_rows(score_table())["score"].to_numpy(np.float64)


def _history(epochs: int) -> pd.DataFrame:
    return pd.DataFrame(history_rows(epochs, 100.0) or None, columns=["epoch", "loss", "val_loss", "images_per_s"])


def _named(figure: Figure) -> dict[str, object]:
    return {trace.name: trace for trace in figure.data}


def test_loss_shows_training_validation_and_the_best_epoch() -> None:
    traces = _named(charts.loss_curves(_history(9), colour=COLOUR, best_epoch=7))
    assert set(traces) == {"training", "validation", "best, epoch 7"}
    assert list(traces["best, epoch 7"].x) == [7]  # type: ignore[attr-defined]
    assert {trace.line.color for trace in traces.values() if trace.mode == "lines"} == {COLOUR}  # type: ignore[attr-defined]


def test_the_axis_is_as_long_as_the_run_will_be() -> None:
    """So that nothing jumps while the curve grows."""
    for figure in (
        charts.loss_curves(_history(3), colour=COLOUR, epochs=40),
        charts.throughput_curve(_history(3), colour=COLOUR, epochs=40),
    ):
        low, high = figure.layout.xaxis.range
        assert low < 1 < 40 < high < 42
        assert figure.layout.uirevision == "constant"


def test_before_the_first_epoch_the_charts_are_empty_frames() -> None:
    for figure in (charts.loss_curves(_history(0), colour=COLOUR, epochs=5), charts.throughput_curve(_history(0), colour=COLOUR)):
        assert sum(len(trace.x) for trace in figure.data) == 0
        assert figure.layout.height == charts.CURVES_HEIGHT


def test_without_held_out_pictures_there_is_no_validation_curve() -> None:
    history = _history(4).assign(val_loss=np.nan)
    assert list(_named(charts.loss_curves(history, colour=COLOUR, best_epoch=2))) == ["training"]


def test_throughput_begins_at_zero() -> None:
    assert charts.throughput_curve(_history(5), colour=COLOUR).layout.yaxis.range[0] == 0


def test_every_axis_says_what_it_shows_and_backgrounds_are_clear() -> None:
    frame = verdicts.test_rows(score_table())
    figures = [
        charts.loss_curves(_history(2), colour=COLOUR),
        charts.throughput_curve(_history(2), colour=COLOUR),
        charts.score_histogram(frame, 1.0),
        charts.roc(LABELS, SCORES, colour=COLOUR, threshold=3.0),
        charts.precision_recall(LABELS, SCORES, colour=COLOUR, threshold=3.0),
    ]
    for figure in figures:
        assert figure.layout.xaxis.title.text
        assert figure.layout.yaxis.title.text
        assert figure.layout.paper_bgcolor == figure.layout.plot_bgcolor == "rgba(0,0,0,0)"


def test_the_histogram_counts_every_picture_in_the_same_bins() -> None:
    figure = charts.score_histogram(verdicts.test_rows(score_table()), THRESHOLD, held_out=np.array(HELD_OUT_SCORES))
    traces = _named(figure)
    assert sum(traces["good (8)"].y) == len(GOOD_SCORES)  # type: ignore[attr-defined]
    assert sum(traces["defective (6)"].y) == sum(len(scores) for scores in DEFECT_SCORES.values())  # type: ignore[attr-defined]
    np.testing.assert_allclose(traces["good (8)"].x, traces["defective (6)"].x)  # type: ignore[attr-defined]
    assert "held-out good (4)" in traces


def test_bars_stand_still_while_the_threshold_moves() -> None:
    frame = verdicts.test_rows(score_table())
    first, second = charts.score_histogram(frame, 1.0), charts.score_histogram(frame, 8.0)
    for before, after in zip(first.data, second.data, strict=True):
        np.testing.assert_allclose(before.x, after.x)
        np.testing.assert_allclose(before.y, after.y)
    assert first.layout.shapes[0].x0 == 1.0
    assert second.layout.shapes[0].x0 == 8.0


@pytest.mark.parametrize("values", [[], [2.0], [2.0, 2.0], [np.nan, 1.0, 3.0]])
def test_bins_of_odd_scores_have_width(values: list[float]) -> None:
    edges = charts.bin_edges(np.array(values, np.float64))
    assert (np.diff(edges) > 0).all()


def test_curves_mark_the_operating_point_of_the_threshold() -> None:
    """Paper figures: at 3, 1 of 8 good and 5 of 6 defective score higher; 5 of the 6 called defective are."""
    point = _named(charts.roc(LABELS, SCORES, colour=COLOUR, threshold=THRESHOLD))["at the threshold"]
    assert (point.x[0], point.y[0]) == pytest.approx((1 / 8, 5 / 6))  # type: ignore[attr-defined]
    point = _named(charts.precision_recall(LABELS, SCORES, colour=COLOUR, threshold=THRESHOLD))["at the threshold"]
    assert (point.x[0], point.y[0]) == pytest.approx((5 / 6, 5 / 6))  # type: ignore[attr-defined]


def test_curves_name_their_area() -> None:
    """AUROC on paper: of 6 × 8 pairs, 2.1 loses to 2.2, 2.6 and 3.4; all others win: 45/48."""
    assert "AUROC 0.938" in _named(charts.roc(LABELS, SCORES, colour=COLOUR, threshold=3.0))


def test_curves_of_one_class_are_refused() -> None:
    with pytest.raises(ValueError):
        charts.roc(np.zeros(4, np.int64), np.arange(4.0), colour=COLOUR, threshold=1.0)


def test_pimo_shows_each_picture_their_mean_and_the_range() -> None:
    fpr = np.logspace(-5, 0, 11)
    recalls = np.linspace(0, 1, 11) * np.linspace(0.2, 1, 70)[:, None]
    figure = charts.pimo(fpr, recalls, bounds=(1e-5, 1e-4), colour=COLOUR)
    traces = _named(figure)
    np.testing.assert_allclose(traces["mean"].y, recalls.mean(axis=0))  # type: ignore[attr-defined]
    assert f"each picture ({charts.PIMO_LINES} of 70)" in traces
    assert (figure.layout.shapes[0].x0, figure.layout.shapes[0].x1) == (1e-5, 1e-4)
    assert figure.layout.xaxis.type == "log"
