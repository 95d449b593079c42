"""Whole runs on small folders, in processes of their own: what comes out, and what no choice may ever see."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import gaussian_filter
from sklearn.metrics import average_precision_score, roc_auc_score

from app.cae.cae_pipeline import CaeResult
from app.cae.metrics import aupro, pixel_auroc

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).with_name("pipeline_runs.py")
CASES = Path(__file__).resolve().parent.parent / "data" / "pictures"
TINY = {"image_size": 64, "base_filters": 4, "latent_dim": 8, "batch_size": 8, "epochs": 2, "device": "cpu"}


@dataclass
class Outcome:
    told: dict[str, Any]
    arrays: dict[str, NDArray[Any]]

    def __getattr__(self, name: str) -> Any:
        return self.told[name]

    @property
    def weights(self) -> list[NDArray[Any]]:
        return [self.arrays[name] for name in sorted(self.arrays) if name.startswith("weight_")]

    def column(self, name: str, split: str) -> NDArray[Any]:
        return np.array([row[name] for row in self.told["table"] if row["split"] == split])


def carry_out(plan: list[dict[str, Any]], out: Path, **environ: str) -> dict[str, Outcome]:
    """The plan in one process."""
    out.mkdir(exist_ok=True)
    ended = subprocess.run(
        [sys.executable, str(SCRIPT), str(out)],
        input=json.dumps(plan),
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, **environ},
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    found = {}
    for entry in plan:
        with np.load(out / f"{entry['name']}.npz") as archive:
            arrays = {name: archive[name] for name in archive.files}
        found[entry["name"]] = Outcome(json.loads((out / f"{entry['name']}.json").read_text()), arrays)
    return found


def make_folder(root: Path) -> Path:
    """MVTec layout, 64 px grey: stripes; defects are bright squares, masked but for one kind."""
    random = np.random.default_rng(0)

    def stripes() -> NDArray[np.float64]:
        place = np.arange(64)[:, None] / 4
        return np.clip(127.5 + 90 * np.sin(place + random.uniform(0, 6) + np.zeros((1, 64))) + random.normal(0, 8, (64, 64)), 0, 255)

    def save(picture: NDArray[Any], path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.round(picture).astype(np.uint8)).save(path)

    for place in range(30):
        save(stripes(), root / "train" / "good" / f"{place:03d}.png")
    for place in range(8):
        save(stripes(), root / "test" / "good" / f"{place:03d}.png")
    for kind, masked in (("spot", True), ("dent", False)):
        for place in range(4):
            picture, mask = stripes(), np.zeros((64, 64))
            row, column = random.integers(4, 44, 2)
            mask[row : row + 14, column : column + 14] = 255
            picture[mask > 0] = 255 - picture[mask > 0]
            save(picture, root / "test" / kind / f"{place:03d}.png")
            if masked:
                save(mask, root / "ground_truth" / kind / f"{place:03d}_mask.png")
    return root


def swapped_labels(folder: Path, to: Path) -> Path:
    """The same pictures, but those of test/good and test/dent have changed places: other labels, other masks."""
    shutil.copytree(folder, to)
    (to / "test" / "good").rename(to / "test" / "was_good")
    (to / "test" / "dent").rename(to / "test" / "good")
    (to / "test" / "was_good").rename(to / "test" / "dent")
    return to


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    place = tmp_path_factory.mktemp("pipeline")
    folder = make_folder(place / "stripes")
    swapped = swapped_labels(folder, place / "swapped")
    plan: list[dict[str, Any]] = [
        {"name": "plain", "config": {**TINY, "data": str(folder), "epochs": 6, "val_fraction": 0.2}},
        {"name": "swapped", "config": {**TINY, "data": str(swapped), "epochs": 6, "val_fraction": 0.2}},
        {"name": "documented", "config": {**TINY, "data": str(folder), "preset": "documented", "threshold_rule": "sigma"}},
        {"name": "single", "config": {**TINY, "data": str(CASES / "D14-single"), "batch_size": 1, "steps": 60}},
        {"name": "no_test", "config": {**TINY, "data": str(CASES / "D14-notest"), "epochs": 1}},
        {"name": "no_masks", "config": {**TINY, "data": str(CASES / "D11"), "epochs": 1}},
        {"name": "constant", "config": {**TINY, "data": str(CASES / "D20"), "epochs": 1}},
        {"name": "missing", "config": {**TINY, "data": str(place / "nowhere")}},
        {"name": "stopped_reading", "config": {**TINY, "data": str(folder)}, "cancel_in": "reading"},
        {"name": "stopped_training", "config": {**TINY, "data": str(folder)}, "cancel_in": "training"},
        {"name": "stopped_scoring", "config": {**TINY, "data": str(folder)}, "cancel_in": "scoring"},
        # Last: the environment stays.
        {
            "name": "on_disk",
            "config": {**TINY, "data": str(folder), "epochs": 6, "val_fraction": 0.2},
            "env": {"TWOPATH_MEMORY_MIB": "0.1"},
        },
    ]
    found = carry_out(plan, place / "out")
    found["place"] = Outcome({"out": place / "out"}, {})
    return found


def test_a_run_ends_with_everything(outcomes: dict[str, Outcome]) -> None:
    run = outcomes["plain"]
    assert run.told.get("error") is None
    assert (run.state, run.epochs, run.profile) == ("finished", 6, "cpu")
    assert run.order == ["profile", "dataset"]
    assert len(run.rows) == 6
    assert run.train_images_per_s > 0
    assert run.score_images_per_s > 0
    assert {name: array.shape for name, array in run.arrays.items() if not name.startswith("weight")} == {
        "maps": (16, 64, 64),
        "inputs": (16, 64, 64, 1),
        "reconstructions": (16, 64, 64, 1),
        "masks": (16, 64, 64),
        "has_mask": (16,),
    }
    assert run.arrays["maps"].dtype == np.float32
    assert run.arrays["has_mask"].sum() == 12
    table = run.table
    assert list(table[0]) == ["path", "split", "label", "defect", "score", "verdict"]
    # 30 good ones: 20 % held out is 6.
    assert [row["split"] for row in table] == ["test"] * 16 + ["validation"] * 6
    assert run.dataset["train"] == 24
    assert run.dataset["held_out"] == 6
    assert run.dataset["defects"] == {"dent": 4, "spot": 4}
    assert len(run.dataset["split_digest"]) == 64


def test_phases_come_in_order_and_end_complete(outcomes: dict[str, Outcome]) -> None:
    phases = outcomes["plain"].phases
    assert list(dict.fromkeys(name for name, _, _ in phases)) == ["reading", "training", "scoring"]
    last = {name: (done, total) for name, done, total in phases}
    # Training pictures twice: for their mean residual, then for their errors.
    assert last == {"reading": (46, 46), "training": (18, 18), "scoring": (16 + 6 + 2 * 24, 70)}


def test_figures_are_those_of_the_scores_and_maps(outcomes: dict[str, Outcome]) -> None:
    run = outcomes["plain"]
    labels, scores = run.column("label", "test"), run.column("score", "test")
    assert run.metrics["image_auroc"] == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    assert run.metrics["image_auroc"] > 0.9  # inverted squares are easy
    assert run.metrics["image_ap"] == pytest.approx(average_precision_score(labels, scores), abs=1e-12)
    confusion = run.metrics["confusion"]
    called = run.column("verdict", "test") == "defective"
    assert (called == (scores > run.threshold)).all()
    assert confusion == {
        "tp": int((called & (labels == 1)).sum()),
        "fp": int((called & (labels == 0)).sum()),
        "fn": int((~called & (labels == 1)).sum()),
        "tn": int((~called & (labels == 0)).sum()),
    }
    assert run.threshold == pytest.approx(np.quantile(run.column("score", "validation"), 0.95))
    assert run.metrics["per_defect"]["spot"]["pictures"] == 4


def test_pixel_figures_leave_out_pictures_without_a_mask(outcomes: dict[str, Outcome]) -> None:
    run = outcomes["plain"]
    known = run.arrays["has_mask"]
    maps, masks = run.arrays["maps"][known], run.arrays["masks"][known]
    assert run.metrics["pixel_auroc"] == pytest.approx(pixel_auroc(maps, masks), abs=1e-12)
    assert run.metrics["aupro"] == pytest.approx(aupro(maps, masks), abs=1e-12)
    # 8 normal maps of 64×64 cannot reach a false-positive rate of 1e-5.
    assert run.metrics["aupimo"] is None
    assert "needs at least 100000 normal pixels" in run.metrics["not_available"]["aupimo"]
    assert run.metrics["synthetic_auroc"] is None
    assert "Only 6 good pictures are held out" in run.metrics["not_available"]["synthetic_auroc"]


def test_whole_pictures_count_beside_their_maps(outcomes: dict[str, Outcome]) -> None:
    """With 30 good pictures, 6 of them held out, the score is not the pooled map alone; both figures are told."""
    run = outcomes["plain"]
    top = round(0.01 * 64 * 64)
    standing_out = [each - gaussian_filter(each, 16, mode="reflect", truncate=8) for each in run.arrays["maps"]]  # 32 px at 128
    by_map = np.sort(np.reshape(standing_out, (16, -1)), axis=1)[:, -top:].mean(axis=1)
    labels, scores = run.column("label", "test"), run.column("score", "test")
    assert np.abs(scores - by_map).max() > 1e-3
    assert run.metrics["image_auroc_maps"] == pytest.approx(roc_auc_score(labels, by_map), abs=1e-12)
    assert "image_auroc_maps" not in outcomes["documented"].metrics


def test_the_mean_residual_is_put_right_where_there_are_training_pictures_enough(outcomes: dict[str, Outcome]) -> None:
    offsets = {}
    for name in ("plain", "documented", "single"):
        with np.load(outcomes["place"].out / f"{name}.scoring.npz") as archive:
            offsets[name] = archive["offset"] if "offset" in archive.files else None
    assert offsets["plain"].shape == (64, 64, 1)
    assert np.abs(offsets["plain"]).max() > 0
    assert offsets["documented"] is None
    assert offsets["single"] is None


def test_no_choice_is_made_with_the_labels_or_masks_of_the_test_set(outcomes: dict[str, Outcome]) -> None:
    """Two folders that differ in the test labels alone: weights, threshold, scores and maps are the same to the last bit."""
    run, other = outcomes["plain"], outcomes["swapped"]
    assert other.state == "finished"
    for ours, theirs in zip(run.weights, other.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert run.threshold == other.threshold
    np.testing.assert_array_equal(run.column("score", "validation"), other.column("score", "validation"))

    def by_picture(outcome: Outcome, moved: dict[str, str]) -> dict[tuple[str, str], float]:
        found = {}
        for row in outcome.table:
            if row["split"] == "test":
                path = Path(row["path"])
                found[moved.get(path.parent.name, path.parent.name), path.name] = row["score"]
        return found

    assert by_picture(run, {}) == by_picture(other, {"good": "dent", "dent": "good"})
    assert run.metrics["image_auroc"] != other.metrics["image_auroc"]


def test_the_documented_preset_scores_in_its_own_way(outcomes: dict[str, Outcome]) -> None:
    run = outcomes["documented"]
    assert run.state == "finished"
    errors = np.abs(run.arrays["inputs"] / 255 - run.arrays["reconstructions"] / 255)[..., 0]
    np.testing.assert_allclose(run.arrays["maps"], errors, atol=0.005)
    held_out = run.column("score", "validation")
    assert run.threshold == pytest.approx(held_out.mean() + 3 * held_out.std())


def test_d14_single_picture_trains_without_validation_and_warns(outcomes: dict[str, Outcome]) -> None:
    run = outcomes["single"]
    assert run.state == "finished"
    assert run.dataset["held_out"] == 0
    assert not [row for row in run.table if row["split"] == "validation"]
    assert any("calibration and threshold come from training pictures" in warning for warning in run.warnings)
    assert any("Batch size 1: BatchNorm's statistics are poor" in warning for warning in run.warnings)  # F08
    assert any("The option steps (60) has no effect, since epochs (2) are given" in warning for warning in run.warnings)
    assert run.warnings == run.result_warnings
    assert np.isfinite(run.threshold)
    assert np.isfinite(run.column("score", "test")).all()


@pytest.mark.parametrize(
    ("name", "missing", "why"),
    [
        ("no_test", ("image_auroc", "image_ap", "image_f1", "pixel_auroc", "aupro", "aupimo"), ""),
        ("no_masks", ("pixel_auroc", "aupro", "aupimo"), "has a mask"),
    ],
)
def test_what_cannot_be_computed_is_none_and_says_why(outcomes: dict[str, Outcome], name: str, missing: tuple[str, ...], why: str) -> None:
    run = outcomes[name]
    assert run.told.get("error") is None
    for figure in missing:
        assert run.metrics[figure] is None
        assert why in run.metrics["not_available"][figure]
    if name == "no_masks":
        assert 0 <= run.metrics["image_auroc"] <= 1


def test_d20_constant_pictures_are_scored_finitely(outcomes: dict[str, Outcome]) -> None:
    run = outcomes["constant"]
    assert run.told.get("error") is None
    assert np.isfinite([row["score"] for row in run.table]).all()
    assert np.isfinite(run.threshold)


def test_a_folder_that_is_not_there_is_a_sentence(outcomes: dict[str, Outcome]) -> None:
    kind, sentence = outcomes["missing"].error
    assert kind == "DataError"
    assert "nowhere" in sentence


def test_a_run_can_be_stopped_in_every_phase(outcomes: dict[str, Outcome]) -> None:
    reading, training, scoring = (outcomes[f"stopped_{phase}"] for phase in ("reading", "training", "scoring"))
    assert {run.state for run in (reading, training, scoring)} == {"cancelled"}
    assert reading.phases[-1][0] == "reading"
    assert not reading.weights
    assert training.phases[-1][:2] == ["training", 1]
    assert training.weights
    assert training.table is None
    assert scoring.epochs == 2
    assert scoring.phases[-1][0] == "scoring"
    assert (scoring.table, scoring.metrics) == (None, {})


def test_f10_pictures_on_disk_give_the_same_to_the_last_bit(outcomes: dict[str, Outcome]) -> None:
    run, filed = outcomes["plain"], outcomes["on_disk"]
    assert filed.told.get("error") is None
    assert not [note for note in run.dataset["notes"] if "kept in a file" in note]
    assert [note for note in filed.dataset["notes"] if "kept in a file" in note]
    assert filed.arrays.keys() == run.arrays.keys()
    for name, array in run.arrays.items():
        np.testing.assert_array_equal(filed.arrays[name], array, err_msg=name)
    assert (filed.table, filed.threshold, filed.metrics) == (run.table, run.threshold, run.metrics)
    left = [path.name for path in (outcomes["place"].told["out"] / "on_disk").iterdir()]
    assert left == ["backup"], "a file of pictures was left behind"


@pytest.fixture(scope="module")
def rescored(outcomes: dict[str, Outcome], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """The same model and pictures scored in fresh processes, in several ways of computing."""
    place, out = tmp_path_factory.mktemp("rescored"), outcomes["place"].told["out"]
    folder = out.parent / "stripes" / "test"
    files = [Path(row["path"]) for row in outcomes["plain"].table if row["split"] == "test"]
    assert all(file.is_relative_to(folder) for file in files)
    np.save(place / "pictures.npy", np.stack([np.asarray(Image.open(file))[..., None] for file in files]))
    plan = [{"name": "again", "score": [str(out / "plain.keras"), str(out / "plain.scoring.npz"), str(place / "pictures.npy")]}]
    ways = {
        "onednn": {"TF_ENABLE_ONEDNN_OPTS": "1"},
        "eigen": {"TF_ENABLE_ONEDNN_OPTS": "0"},
        "one thread": {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"},
    }
    return {name: carry_out(plan, place / name.replace(" ", "_"), **environ)["again"] for name, environ in ways.items()}


@pytest.mark.parametrize("way", ["onednn", "eigen", "one thread"])
def test_b16_a_saved_model_scores_the_same_in_a_fresh_process_however_it_computes(
    outcomes: dict[str, Outcome], rescored: dict[str, Outcome], way: str
) -> None:
    run, again = outcomes["plain"], rescored[way]
    wanted = run.column("score", "test")
    np.testing.assert_allclose(again.arrays["scores"], wanted, rtol=1e-4)
    np.testing.assert_allclose(again.arrays["maps"], run.arrays["maps"], atol=1e-2)
    assert (np.argsort(again.arrays["scores"]) == np.argsort(wanted)).all()
    assert again.verdicts == run.column("verdict", "test").tolist()


def test_a_result_without_anything_reached_is_empty_and_not_zero() -> None:
    empty = CaeResult(config=None, profile=None, state="cancelled")  # type: ignore[arg-type]
    assert (empty.epochs, empty.train_images_per_s, empty.maps, empty.metrics) == (0, None, None, {})
