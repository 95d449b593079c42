"""A process that carries out several small runs and writes down what came out: `python pipeline_runs.py OUT < plan.json`.

The plan is a list of {"name", "config", "cancel_in", "score": [model, calibration, pictures], "env"}; each becomes OUT/<name>.json and
OUT/<name>.npz. One process, because starting TensorFlow takes longer than the runs.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from app.cae.cae_keras import save_model
from app.cae.cae_pipeline import run_keras_cae_pipeline, score_with_saved_model
from app.cae.config import make_config
from app.cae.reporting import SilentReporter
from app.core.errors import AppError


class Recorder(SilentReporter):
    def __init__(self, cancel_in: str | None) -> None:
        self.told: dict[str, Any] = {"phases": [], "warnings": [], "rows": [], "dataset": None, "profile": None, "order": []}
        self._cancel_in = cancel_in
        self._stop = False

    def phase(self, name: str, done: int, total: int) -> None:
        self.told["phases"].append([name, done, total])
        self._stop = self._stop or (name == self._cancel_in and done > 0)

    def profile(self, profile: Any) -> None:
        self.told["order"].append("profile")
        self.told["profile"] = profile.selected_device

    def dataset(self, summary: Any) -> None:
        self.told["order"].append("dataset")
        self.told["dataset"] = json.loads(json.dumps(summary))

    def epoch(self, row: Any) -> None:
        self.told["rows"].append(row)

    def warning(self, sentence: str) -> None:
        self.told["warnings"].append(sentence)

    def cancelled(self) -> bool:
        return self._stop


def carry_out(entry: dict[str, Any], out: Path) -> None:
    recorder = Recorder(entry.get("cancel_in"))
    told, arrays = recorder.told, {}
    try:
        if "score" in entry:
            model, calibration, pictures = entry["score"]
            found = score_with_saved_model(Path(model), Path(calibration), np.load(pictures), reporter=recorder)
            arrays = {"scores": found.scored.scores, "maps": found.scored.maps}
            told["verdicts"] = list(found.verdicts)
        else:
            result = run_keras_cae_pipeline(make_config(entry["config"]), reporter=recorder, work_dir=out / entry["name"])
            told |= {
                "state": result.state,
                "epochs": result.epochs,
                "best_epoch": result.best_epoch,
                "train_images_per_s": result.train_images_per_s,
                "score_images_per_s": result.score_images_per_s,
                "metrics": result.metrics,
                "result_warnings": result.warnings,
                "table": None if result.scores is None else json.loads(result.scores.to_json(orient="records")),
                "threshold": None if result.calibration is None else result.calibration.threshold,
            }
            names = ("maps", "inputs", "reconstructions", "masks", "has_mask")
            arrays = {name: getattr(result, name) for name in names if getattr(result, name) is not None}
            if result.model is not None:
                arrays |= {f"weight_{place:02d}": weight for place, weight in enumerate(result.model.get_weights())}
                save_model(result.model, out / f"{entry['name']}.keras")
            if result.calibration is not None:
                result.calibration.save(out / f"{entry['name']}.scoring.npz")
    except AppError as error:
        told["error"] = [type(error).__name__, str(error)]
    (out / f"{entry['name']}.json").write_text(json.dumps(told))
    np.savez(out / f"{entry['name']}.npz", **arrays)


if __name__ == "__main__":
    for planned in json.load(sys.stdin):
        os.environ.update(planned.get("env", {}))  # holds for those that follow, too
        carry_out(planned, Path(sys.argv[1]))
