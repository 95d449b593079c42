"""One measured point of the benchmark, in a process of its own: `python -m app.cae.bench_point '{"part": …}'`.

`timed`: training steps and scoring of the autoencoder through the very functions that a run uses, warm-up left out.
`evidence`: a few of the same steps while oneDNN reports its kernels (ONEDNN_VERBOSE=1 in the environment), not timed, since printing
takes time. Lines on standard output that begin with `app.core.tf_trial.MARK` are answers; the rest is TensorFlow's.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from app.cae import cae_keras
from app.cae.cae_fit import Trained
from app.cae.config import CaeConfig, make_config
from app.cae.reporting import Phase, SilentReporter
from app.cae.scoring import SCORE_BATCH, ScoringRule, calibrate, collected_errors, score_pictures
from app.cae.training import WARMUP_STEPS, Throughput
from app.core import tf_readback
from app.core.errors import AppError
from app.core.kernel_evidence import KernelEvidence, parse_onednn_verbose
from app.core.tf_device import HardwareProfile, configure_tensorflow
from app.core.tf_log import catch_descriptor
from app.core.tf_trial import MARK

EVIDENCE_STEPS = 2
EPOCH_BYTES = 64 * 2**20
"""Pictures kept in memory for one epoch of the benchmark; larger pictures make shorter epochs, not more memory."""
FEWEST_STEPS = 4
MOST_REPEATS = 50
"""How often a device that is done with the steps in no time repeats them at most."""
SCORED_AT_ONCE = 4 * SCORE_BATCH
COARSE = 8
"""Side of the texture's blocks, px."""
MOST_KERNELS = 24
POOL_WITHIN_S = 2.0

_OTHER_DEVICE = "TensorFlow did not use this GPU: {why}"
_SMALLER_BATCH = "Memory ran out at batch size {batch}; choose a smaller batch or image size."


@dataclass(frozen=True)
class PointRequest:
    """What one process is asked to measure."""

    part: Literal["evidence", "timed"]
    device: str = "cpu"
    """As in `CaeConfig`."""
    min_vram_mib: int = 0
    intra_op_threads: int | None = None
    inter_op_threads: int | None = None
    image_size: int = 128
    batch_size: int = 16
    channels: Literal[1, 3] = 1
    steps: int = 12
    """Training steps that count, after `WARMUP_STEPS`."""
    min_seconds: float = 1.0
    """Fast devices go on with the same steps until this much was timed."""
    seed: int = 0
    leave_with_parent: bool = False
    """End this process when its standard input is closed, which the system does when the parent is gone."""

    @property
    def epoch_steps(self) -> int:
        """Batches of one epoch of the synthetic pictures."""
        if self.part == "evidence":
            return EVIDENCE_STEPS
        batch_bytes = self.batch_size * self.image_size**2 * self.channels
        return max(FEWEST_STEPS, min(WARMUP_STEPS + self.steps, EPOCH_BYTES // batch_bytes))

    def config(self) -> CaeConfig:
        """The recommended preset with what is asked here. Raises OptionError for what does not fit.

        The network is the one that many pictures get, whatever the number of synthetic ones that a size and a batch come with.
        """
        most = 1 if self.part == "evidence" else math.ceil(MOST_REPEATS * (WARMUP_STEPS + self.steps) / (self.epoch_steps - 1))
        asked = ("device", "min_vram_mib", "intra_op_threads", "inter_op_threads", "image_size", "batch_size", "seed")
        values = {name: getattr(self, name) for name in asked}
        return make_config({**values, "data": "synthetic", "val_fraction": 0.0, "centre": "yes", "mixtures": "no", "epochs": most})


def textures(count: int, size: int, channels: int, seed: int) -> NDArray[np.uint8]:
    """Seeded noise textures, (count, size, size, channels): blocks of one level with fine noise on top; `size` a multiple of 8."""
    random = np.random.default_rng(seed)
    coarse = random.random((count, size // COARSE, size // COARSE, channels), np.float32)
    pictures = coarse.repeat(COARSE, axis=1).repeat(COARSE, axis=2)
    pictures *= 0.7
    pictures += 0.3 * random.random(pictures.shape, np.float32)
    return (pictures * 255.0).astype(np.uint8)


@dataclass
class StepClock(SilentReporter):
    """Times training steps as a reporter of the training, and ends it when enough was timed.

    Left out: the first `warmup` steps of the process, and the first step of every further epoch, whose time holds the end of the epoch
    before.
    """

    warmup: int
    steps: int
    epoch_steps: int
    min_seconds: float
    clock: Callable[[], float] = time.perf_counter
    times: list[float] = field(default_factory=list)
    """Seconds of each step that counts."""
    warnings: list[str] = field(default_factory=list)
    _since: float | None = None

    def phase(self, name: Phase, done: int, total: int) -> None:
        del total
        now = self.clock()
        if name == "training" and self._since is not None and done > self.warmup and (done - 1) % self.epoch_steps:
            self.times.append(now - self._since)
        self._since = now

    def warning(self, sentence: str) -> None:
        self.warnings.append(sentence)

    def cancelled(self) -> bool:
        return len(self.times) >= self.steps and sum(self.times) >= self.min_seconds


def train_timed(request: PointRequest, pictures: NDArray[np.uint8]) -> tuple[Trained, dict[str, float]]:
    """(the trained model, pictures and seconds that count).

    Raises:
        AppError: training failed, or memory did not suffice for the batch asked for.
    """
    clock = StepClock(WARMUP_STEPS, request.steps, request.epoch_steps, request.min_seconds)
    trained = cae_keras.train_cae(request.config(), pictures, pictures[:0], reporter=clock)
    if trained.batch_size != request.batch_size:
        raise AppError(_SMALLER_BATCH.format(batch=request.batch_size))
    return trained, _speed(len(clock.times) * request.batch_size, sum(clock.times))


def score_timed(request: PointRequest, model: Any, pictures: NDArray[np.uint8]) -> dict[str, float]:
    """Pictures and seconds that count; the first batch, which traces the forward pass and gives the calibration, does not."""
    config, reconstruct = request.config(), cae_keras.reconstructor(model)
    rule = ScoringRule.of(config)
    errors = collected_errors(_as_many(pictures, SCORE_BATCH), reconstruct, rule, Throughput(), lambda _: None)
    calibration, _ = calibrate(rule, config, None, errors, channels=request.channels)
    clock, many = Throughput(warmup=0), _as_many(pictures, SCORED_AT_ONCE)
    while request.part == "timed" and (clock.pictures < request.steps * request.batch_size or clock.seconds < request.min_seconds):
        score_pictures(many, reconstruct, calibration, throughput=clock)
    return _speed(clock.pictures, clock.seconds)


def _as_many(pictures: NDArray[np.uint8], count: int) -> NDArray[np.uint8]:
    return pictures[np.arange(count) % len(pictures)]


def _speed(pictures: int, seconds: float) -> dict[str, float]:
    return {"pictures": pictures, "seconds": seconds, "images_per_s": pictures / seconds if seconds > 0 else 0.0}


def _configure(request: PointRequest) -> tuple[HardwareProfile, int | None]:
    """(the profile, threads of the inter-op pool). Counted before training: Keras' own input pipeline adds threads of the same name."""
    profile = configure_tensorflow(
        request.min_vram_mib,
        device=request.device,
        intra_op_threads=request.intra_op_threads,
        inter_op_threads=request.inter_op_threads,
    )
    if request.device != "cpu" and profile.selected_device != "gpu":
        raise AppError(_OTHER_DEVICE.format(why=profile.happened or profile.reason))
    return profile, _pool_threads(profile.inter_op_threads or 1)


def _pool_threads(expected: int) -> int | None:
    """Threads of the inter-op pool; on a busy machine new threads take a moment to be there and to take their name."""
    until = time.monotonic() + POOL_WITHIN_S
    while (found := tf_readback.compute_threads() or 0) < expected and time.monotonic() < until:
        time.sleep(0.02)
    return found or None


def _say_timed(request: PointRequest) -> None:
    profile, pool = _configure(request)
    pictures = textures(request.epoch_steps * request.batch_size, request.image_size, request.channels, request.seed)
    trained, train = train_timed(request, pictures)
    score = score_timed(request, trained.model, pictures)
    say("timed", train=train, score=score, evidence=seen(profile, pool, KernelEvidence()))


def _say_evidence(request: PointRequest) -> None:
    with catch_descriptor(1, pass_on=False) as verbose:
        profile, pool = _configure(request)
        pictures = textures(request.epoch_steps * request.batch_size, request.image_size, request.channels, request.seed)
        trained = cae_keras.train_cae(request.config(), pictures, pictures[:0])
        score_timed(request, trained.model, pictures)
    say("evidence", evidence=seen(profile, pool, parse_onednn_verbose(verbose.text)))


def seen(profile: HardwareProfile, pool: int | None, kernels: KernelEvidence) -> dict[str, Any]:
    """What really ran, as JSON; `None` where it was not seen."""
    return {
        "path": profile.with_evidence(kernels).path,
        "first_op_device": profile.first_op_device,
        "onednn_on": profile.onednn,
        "tensorflow": profile.tensorflow_version,
        "keras": profile.keras_version,
        "intra_op_threads": profile.intra_op_threads,
        "inter_op_threads": profile.inter_op_threads,
        "compute_threads": pool,
        "onednn_threads": kernels.threads,
        "onednn_version": kernels.version,
        "runtime": kernels.runtime,
        "isa": kernels.isa,
        "instruction_set": kernels.instruction_set,
        "convolutions_in_onednn": kernels.onednn_convolutions,
        "kernels": [vars(kernel) for kernel in kernels.kernels[:MOST_KERNELS]],
    }


def say(step: str, **values: Any) -> None:
    """One line for the parent, at once."""
    sys.stdout.write(MARK + json.dumps({"step": step, **values}) + "\n")
    sys.stdout.flush()


def _leave_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)


def measure(request: Mapping[str, Any]) -> int:
    """Does what the request says; the exit status. What the user can read about a failure is said as the step `failed`."""
    try:
        point = PointRequest(**request)
        if point.leave_with_parent:
            threading.Thread(target=_leave_with_parent, name="leave with parent", daemon=True).start()
        point.config()  # says what does not fit before TensorFlow is imported
        (_say_evidence if point.part == "evidence" else _say_timed)(point)
    except AppError as error:
        say("failed", sentence=str(error))
        return error.exit_status
    return 0


if __name__ == "__main__":
    raise SystemExit(measure(json.loads(sys.argv[1])))
