"""Training shared by two logical CPUs, in a process of its own: `python shared_training.py REQUEST.json`.

Logical devices are TensorFlow's own way to try a strategy on a machine without several GPUs; they are made before anything else.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration(), tf.config.LogicalDeviceConfiguration()]
)

from app.cae.cae_keras import save_model, train_cae  # noqa: E402
from app.cae.config import make_config  # noqa: E402
from app.cae.reporting import Row, SilentReporter  # noqa: E402
from app.cae.training import Floats, TrainingBatches  # noqa: E402

TWO = ("/CPU:0", "/CPU:1")


class Reporter(SilentReporter):
    def __init__(self, cancel_at: int | None) -> None:
        self.cancel_at, self.steps, self.warnings = cancel_at, 0, []

    def phase(self, name: str, done: int, total: int) -> None:
        self.steps = done if name == "training" else self.steps

    def epoch(self, row: Row) -> None:
        pass

    def warning(self, sentence: str) -> None:
        self.warnings.append(sentence)

    def cancelled(self) -> bool:
        return self.cancel_at is not None and self.steps >= self.cancel_at


def _poisoned_from(epoch: int) -> None:
    """From this epoch on (counted from 0) the network sees NaN."""
    plain = TrainingBatches.batch

    def batch(self: TrainingBatches, at: int, index: int) -> tuple[Floats, Floats]:
        seen, target = plain(self, at, index)
        return (seen * np.float32("nan"), target) if at >= epoch else (seen, target)

    TrainingBatches.batch = batch  # type: ignore[method-assign]


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    random = np.random.default_rng(0)
    pictures = random.integers(0, 256, (48, 64, 64, 1), np.uint8)
    pictures[:, 16:48, 16:48] //= 4
    answers = {}
    small = {"data": "synthetic", "image_size": 64, "base_filters": 4, "latent_dim": 8, "batch_size": 8, "epochs": 2}
    for name, job in request.items():
        if "poisoned_from" in job:
            _poisoned_from(job["poisoned_from"])
        reporter = Reporter(job.get("cancel_at"))
        trained = train_cae(
            make_config({**small, **job.get("config", {})}),
            pictures[: job["train"]],
            pictures[40 : 40 + job["held_out"]],
            reporter=reporter,
            backup_dir=Path(job["backup"]) if "backup" in job else None,
            devices=TWO if job["devices"] == 2 else (),
        )
        if "save" in job:
            save_model(trained.model, Path(job["save"]))
        answers[name] = {
            "state": trained.state,
            "rows": trained.rows,
            "batch_size": trained.batch_size,
            "warnings": reporter.warnings,
            "weights": [float(np.abs(weight).sum()) for weight in trained.model.get_weights()],
            "synchronised": any(getattr(layer, "synchronized", False) for layer in trained.model.layers),
        }
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
