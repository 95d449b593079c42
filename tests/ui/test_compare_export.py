"""What one takes away from the Compare tab: CSV of runs and curves, and a report that needs no network."""

from __future__ import annotations

import datetime as dt
import io
import re
from pathlib import Path

import pandas as pd
import pytest
from compare_runs import write_run

from app.runs.folder import load_history
from app.runs.pairs import RunFacts, find_pairs, read_run_facts
from app.runs.table import runs_table
from app.ui.charts_compare import Curve
from app.ui.compare_export import curves_csv, html_report, pair_rows, runs_csv, signed, times
from app.ui.compare_table import run_labels
from app.ui.palette import run_styles

NASTY = 'A name with <script>alert("x")</script> & "quotes", comma'


@pytest.fixture
def three(tmp_path: Path) -> tuple[pd.DataFrame, list[Curve], list[RunFacts]]:
    """A CPU run, the same on a GPU, and one that failed; newest first, as the table has them."""
    folders = [
        write_run(tmp_path, 0, speed=100.0, seed=1, notes={"name": NASTY, "tags": ["lens", "poly"], "note": "zwei\nZeilen"}),
        write_run(tmp_path, 1, device="gpu", speed=650.0, metrics={"image_auroc": 0.951}),
        write_run(
            tmp_path, 2, state="failed", epochs=0, options={"data": "synthetic", "epochs": 3}, status={"error": "Memory is exhausted."}
        ),
    ]
    frame = runs_table(tmp_path)
    frame["run"] = frame["run_id"].map(run_labels(frame))
    styles = run_styles(frame["run_id"])
    by_id = {folder.run_id: folder for folder in folders}
    ids = list(frame["run_id"])
    curves = [
        Curve(run_id, label, styles[run_id], load_history(by_id[run_id].path)) for run_id, label in zip(ids, frame["run"], strict=True)
    ]
    return frame, curves, [read_run_facts(by_id[run_id]) for run_id in ids]


def test_the_runs_come_back_from_csv_with_results_reason_machine_and_options(
    three: tuple[pd.DataFrame, list[Curve], list[RunFacts]],
) -> None:
    frame, _, facts = three
    back = pd.read_csv(io.BytesIO(runs_csv(frame, {run.run_id: run for run in facts})))
    assert list(back["run_id"]) == list(frame["run_id"])
    assert list(back["selected_device"]) == ["cpu", "gpu", "cpu"]
    row = back.iloc[2]
    assert row["name"] == NASTY
    assert row["note"] == "zwei\nZeilen"
    assert row["tags"] == "lens poly"
    assert row["image_auroc"] == 0.948
    assert row["train_images_per_s"] == 100.0
    assert row["machine"] == "AMD EPYC"
    assert row["option.epochs"] == 20
    as_written = pd.read_csv(io.BytesIO(runs_csv(frame, {run.run_id: run for run in facts})), dtype=str).iloc[2]
    assert (as_written["option.epochs"], as_written["option.seed"]) == ("20", "0"), "whole numbers, though another run has none"
    assert row["final_loss"] == pytest.approx(load_history(Path(frame["run_folder"].iloc[2]))["loss"].iloc[-1])
    assert pd.isna(back["image_auroc"].iloc[0])
    assert not {"run", "run_folder"} & set(back.columns)


def test_the_curves_come_back_from_csv(three: tuple[pd.DataFrame, list[Curve], list[RunFacts]]) -> None:
    frame, curves, _ = three
    back = pd.read_csv(io.BytesIO(curves_csv(curves)))
    assert list(back["run_id"].unique()) == list(frame["run_id"])[1:]
    gpu = back[back["run_id"] == frame["run_id"].iloc[1]]
    assert list(gpu["val_loss"]) == list(curves[1].history["val_loss"])
    assert gpu["gpu_memory_mib"].notna().all()
    assert back.loc[back["run_id"] == frame["run_id"].iloc[2], "gpu_memory_mib"].isna().all()
    assert curves_csv([curves[0]]) == b"run_id,epoch\n"


def test_the_report_is_one_file_that_asks_the_network_for_nothing(three: tuple[pd.DataFrame, list[Curve], list[RunFacts]]) -> None:
    frame, curves, facts = three
    text = html_report(
        frame, curves, facts, find_pairs(facts, set(frame["run_id"])), now=dt.datetime(2026, 11, 29, 19, 30, tzinfo=dt.UTC)
    ).decode()
    assert "default-src 'none'" in text
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=", text)
    assert "Plotly.newPlot" in text
    assert text.count('class="plotly-graph-div"') == 5  # results, loss, images/s, learning rate, memory
    assert text.count("Plotly.newPlot(") >= 5
    assert len(re.findall(r"plotly\.js v\d", text)) == 1  # Plotly's code once, not once a chart
    for expected in (
        "2026-11-29 19:30",
        "6.50 × faster",
        "GPU against CPU",
        "What differs in the configurations",
        "No NVIDIA GPU found.",
        "0.951",
    ):
        assert expected in text
    assert "<script>alert" not in text


def test_a_pair_is_told_in_numbers_with_units(three: tuple[pd.DataFrame, list[Curve], list[RunFacts]]) -> None:
    _, _, facts = three
    (pair,) = find_pairs(facts, {facts[1].run_id})
    rows = {row[0]: row[1:] for row in pair_rows(pair)}
    assert rows["Training"] == ("100 images/s", "650 images/s", "6.50 × faster")
    assert rows["Image AUROC"] == ("0.948", "0.951", "+0.003")
    assert rows["Image AP"][2] == "no difference"
    assert "AUPRO" not in rows


@pytest.mark.parametrize(("factor", "text"), [(6.5, "6.50 × faster"), (1.0, "1.00 × faster"), (0.5, "2.00 × slower"), (None, "–")])
def test_a_speed_up_below_one_is_said_as_slower(factor: float | None, text: str) -> None:
    assert times(factor) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.0031, "+0.003"), (-0.02, "−0.020"), (0.0, "no difference"), (-0.0001, "±0.000"), (None, "–")]
)
def test_a_difference_has_its_sign(value: float | None, text: str) -> None:
    assert signed(value) == text
