"""Training and scoring throughput: plain Keras with TensorFlow's defaults against this program, same network, same pictures, side by side.

    python benchmarks/train_step.py [--rounds 3] [--steps 30] [--size 128] [--channels 1] [--batch 16]

Each measurement is a process of its own (oneDNN and threads are fixed once per process), the ways take turns within a round, warm-up is
left out. Printed: median with minimum and maximum, and the ratio of medians to the first way. "A CPU-second" is training pictures a second
of processor time over all threads: it moves less than wall time where others use the machine too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

import numpy as np

SAME_NETWORK = {"optimizer": "adamw", "centre": "no", "mixtures": "no"}
"""In every way the network and the steps that plain Keras has; rows that name another optimizer differ in it alone."""

WAYS = {
    "plain Keras, TensorFlow's defaults": {"loss": "tf.image.ssim", "configure": False},
    "plain Keras, configured by tf_device": {"loss": "tf.image.ssim", "configure": True},
    "this program, oneDNN off": {"loss": "ours", "configure": True, "environ": {"TF_ENABLE_ONEDNN_OPTS": "0"}},
    "this program, inter-op threads 1": {"loss": "ours", "configure": True, "environ": {"TF_NUM_INTEROP_THREADS": "1"}},
    "this program, Muon": {"loss": "ours", "configure": True, "options": {"optimizer": "muon"}},
    "this program, Muon as Keras has it": {"loss": "ours", "configure": True, "options": {"optimizer": "muon"}, "fused": False},
    "this program": {"loss": "ours", "configure": True},
}


def measured(way: dict[str, Any], options: argparse.Namespace) -> dict[str, float | None]:
    """In this process: training and scoring images/s, and training images a second of processor time."""
    from app.cae.config import make_config

    if way["configure"]:
        from app.core.tf_device import configure_tensorflow

        configure_tensorflow(device="cpu")
    count = options.steps * options.batch
    pictures = np.random.default_rng(0).integers(0, 256, (count, options.size, options.size, options.channels), dtype=np.uint8)
    values = {"image_size": options.size, "batch_size": options.batch, "epochs": 1, "schedule": "constant"} | SAME_NETWORK
    config = make_config(values | way.get("options", {}))
    if not way.get("fused", True):
        from app.cae import optimizers

        optimizers.fused = lambda _tf, kind: kind
    return _ours(config, pictures) if way["loss"] == "ours" else _plain(config, pictures)


def _ours(config: Any, pictures: np.ndarray) -> dict[str, float | None]:
    from app.cae import cae_keras, scoring
    from app.cae.reporting import SilentReporter
    from app.cae.training import Throughput

    class Clock(SilentReporter):
        def phase(self, _name: str, done: int, _total: int) -> None:
            cpu.start() if done == 0 else cpu.step(config.batch_size)

    cpu = Throughput(warmup=5, clock=time.process_time)
    trained = cae_keras.train_cae(config, pictures, pictures[:0], reporter=Clock())
    throughput = Throughput()
    reconstruct = cae_keras.reconstructor(trained.model)
    scoring.summed_errors(pictures, reconstruct, scoring.ScoringRule.of(config), throughput, lambda _: None)
    return {"train": trained.images_per_s, "cpu": cpu.images_per_s, "score": throughput.images_per_s}


def _plain(config: Any, pictures: np.ndarray) -> dict[str, float | None]:
    """As one writes it from the Keras guides: `compile`, `fit` on arrays, `predict`, NumPy."""
    import keras
    import tensorflow as tf
    from scipy.ndimage import gaussian_filter

    from app.cae.cae_keras import build_cae
    from app.cae.training import Throughput, standardise

    def loss(target: Any, output: Any) -> Any:
        ssim = tf.image.ssim(target, output, max_val=1.0)
        return 0.5 * (1 - ssim) + 0.5 * 20 * tf.reduce_mean(tf.square(target - output), axis=(1, 2, 3))

    class Clock(keras.callbacks.Callback):
        def on_epoch_begin(self, *_: Any, **__: Any) -> None:
            throughput.start()
            cpu.start()

        def on_train_batch_end(self, *_: Any, **__: Any) -> None:
            throughput.step(config.batch_size)
            cpu.step(config.batch_size)

    throughput, cpu = Throughput(warmup=5), Throughput(warmup=5, clock=time.process_time)
    model = build_cae(config, channels=pictures.shape[-1])
    model.compile(keras.optimizers.AdamW(1e-3, weight_decay=1e-4), loss)
    inputs = standardise(pictures, "picture")
    model.fit(inputs, inputs, batch_size=config.batch_size, epochs=1, verbose=0, callbacks=[Clock()])
    model.predict(inputs[:32], verbose=0)
    started = time.perf_counter()
    errors = np.abs(model.predict(standardise(pictures, "picture"), verbose=0) - inputs).mean(axis=-1)
    gaussian_filter(errors, (0, 1, 1))
    return {"train": throughput.images_per_s, "cpu": cpu.images_per_s, "score": len(pictures) / (time.perf_counter() - started)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("rounds", 3), ("steps", 30), ("size", 128), ("channels", 1), ("batch", 16)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--only", choices=list(WAYS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        print(json.dumps(measured(WAYS[options.only], options)))
        return
    found: dict[str, list[dict[str, float]]] = {name: [] for name in WAYS}
    for _ in range(options.rounds):
        for name, way in WAYS.items():
            command = [sys.executable, __file__, "--only", name]
            command += [f"--{key}={getattr(options, key)}" for key in ("steps", "size", "channels", "batch")]
            environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", **way.get("environ", {})}
            ended = subprocess.run(command, capture_output=True, text=True, check=True, env=environ)
            found[name].append(json.loads(ended.stdout.splitlines()[-1]))
    print(
        f"{options.size} px, {options.channels} channel(s), batch {options.batch}, {options.steps} steps, {os.cpu_count()} logical cores\n"
    )
    print("| | training images/s | ratio | a CPU-second | ratio | scoring images/s | ratio |\n|---|---|---|---|---|---|---|")
    first = next(iter(found.values()))
    for name, rounds in found.items():
        cells = []
        for figure in ("train", "cpu", "score"):
            values = [entry[figure] for entry in rounds]
            ratio = statistics.median(values) / statistics.median([entry[figure] for entry in first])
            cells += [f"{statistics.median(values):.0f} ({min(values):.0f}-{max(values):.0f})", f"{ratio:.2f}"]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
