"""Run folders with scores, maps and calibration, and folders of small pictures: for the tests of the Keras CAE tab. No TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from compare_runs import put_json, write_run
from PIL import Image

from app.cae.config import make_config
from app.cae.scoring import Calibration, ScoringRule
from app.runs.folder import RunFolder

SIZE = 16
THRESHOLD = 3.0
GOOD_SCORES = (0.5, 0.9, 1.4, 1.9, 2.2, 2.6, 3.4, 1.1)
DEFECT_SCORES = {"scratch": (2.1, 4.5, 5.2), "spot": (6.0, 7.5, 9.25)}
HELD_OUT_SCORES = (0.7, 1.2, 2.0, 3.1)
"""At the threshold 3: one false alarm (3.4), one defect missed (2.1), five found, seven passed."""


def write_scored_run(runs_dir: Path, number: int = 0, *, maps: bool = True, masks: bool = True, **more: Any) -> RunFolder:
    """A finished run whose test pictures have the scores above. `more` goes to `write_run`."""
    given: Mapping[str, Any] = more.pop("metrics", {})
    kinds = {name: {"pictures": len(scores), "found": 0, "image_auroc": 0.9} for name, scores in DEFECT_SCORES.items()}
    metrics = {
        "threshold": THRESHOLD,
        "per_defect": kinds,
        "not_available": {"aupro": "No masks here.", "aupimo": "Too few pixels."},
        **given,
    }
    folder = write_run(runs_dir, number, metrics=metrics, **more)
    table = score_table()
    table.to_csv(folder.path / "scores.csv", index=False)
    if maps:
        np.savez(folder.path / "maps.npz", **map_arrays(table, masks=masks))
    rule = ScoringRule.of(make_config({}))
    flat = np.zeros((SIZE, SIZE), np.float32)
    Calibration(rule, flat, flat + 1, 1, THRESHOLD, 0.25, 4.0, "12 good pictures").save(folder.path / "scoring.npz")
    (folder.path / "model.keras").write_bytes(b"not a real model")
    return folder


def score_table() -> pd.DataFrame:
    rows = [("test", 0, "good", score) for score in GOOD_SCORES]
    rows += [("test", 1, kind, score) for kind, scores in DEFECT_SCORES.items() for score in scores]
    rows += [("validation", 0, "good", score) for score in HELD_OUT_SCORES]
    table = pd.DataFrame(rows, columns=["split", "label", "defect", "score"])
    table.insert(0, "path", [f"/pictures/{row.split}/{row.defect}/{place:03d}.png" for place, row in enumerate(table.itertuples())])
    return table.assign(verdict=np.where(table["score"] > THRESHOLD, "defective", "good"))


def map_arrays(table: pd.DataFrame, *, masks: bool = True) -> dict[str, np.ndarray[Any, Any]]:
    """Maps of the test pictures; each defect is a square in the middle whose anomaly is the picture's score."""
    tested = table[table["split"] == "test"]
    marked = np.zeros((len(tested), SIZE, SIZE), np.uint8)
    marked[tested["label"].to_numpy() == 1, 4:10, 4:10] = 1
    values = np.full((len(tested), SIZE, SIZE), 0.3, np.float32) + marked * tested["score"].to_numpy(np.float32)[:, None, None]
    pictures = np.random.default_rng(0).integers(60, 200, (len(tested), SIZE, SIZE, 1)).astype(np.uint8)
    return {
        "maps": values,
        "inputs": pictures,
        "reconstructions": pictures // 2,
        "masks": marked * masks,
        "has_mask": np.full(len(tested), masks),
        "indices": np.arange(len(tested), dtype=np.int64),
    }


def write_status(folder: RunFolder, **values: Any) -> None:
    """Change fields of the run's status.json."""
    put_json(folder.path / "status.json", {**folder.status().to_json(), **values})


def write_pictures(root: Path, *, size: int = 72, train: int = 6, good: int = 3, scratches: int = 3) -> Path:
    """A folder in MVTec AD layout with one kind of defect and its masks."""
    random = np.random.default_rng(1)
    for folder, count in (("train/good", train), ("test/good", good), ("test/scratch", scratches)):
        (root / folder).mkdir(parents=True)
        for number in range(count):
            pixels = random.integers(90, 160, (size, size)).astype(np.uint8)
            if "scratch" in folder:
                pixels[20:24, 10:60] = 250
            Image.fromarray(pixels).save(root / folder / f"{number:03d}.png")
    (root / "ground_truth/scratch").mkdir(parents=True)
    mask = np.zeros((size, size), np.uint8)
    mask[20:24, 10:60] = 255
    for number in range(scratches):
        Image.fromarray(mask).save(root / f"ground_truth/scratch/{number:03d}_mask.png")
    return root
