"""A whole run: pictures → training → scores → figures. Imports TensorFlow only after `configure_tensorflow` has decided where it computes.

Labels and masks of the test pictures are touched in one place, `_figures`, after everything that is chosen has been chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from app.cae import cae_keras, scoring, whole_picture
from app.cae.cae_fit import Trained
from app.cae.calibration import NOTHING_HELD_OUT, SMALL_HELD_OUT, SMALL_SET
from app.cae.config import CaeConfig
from app.cae.datasets import Dataset, Pictures, load_pictures, open_dataset, split_digest, split_validation
from app.cae.error_maps import Doubles
from app.cae.figures import Figures, run_figures, synthetic_auroc
from app.cae.reporting import Reporter, Row, SilentReporter
from app.cae.scoring import Calibration, Forward, Observed, Scored, ScoringRule
from app.cae.training import Floats, Throughput
from app.core.device_policy import DEFAULT_MIN_VRAM_MIB
from app.core.tf_device import HardwareProfile, configure_tensorflow

SMALL_BATCH = 4
"""Below it BatchNorm sees too few pictures a step."""

_SMALL_BATCH = "Batch size {batch}: BatchNorm's statistics are poor below 4 pictures a step; reconstructions may suffer."
_STEPS_IGNORED = "The option steps ({steps}) has no effect, since epochs ({epochs}) are given; leave epochs out to train by steps."
_FEWER_PICTURES = "Only {train} good training pictures for batch size {batch}: each step sees all of them."


@dataclass
class CaeResult:
    """What a run leaves. T test pictures, S px, C channels; fields that a cancelled run did not reach are None or empty."""

    config: CaeConfig
    profile: HardwareProfile
    state: Literal["finished", "cancelled"]
    history: list[Row] = field(default_factory=list)
    """One row for each whole epoch; keys as `reporting.HISTORY_COLUMNS`."""
    best_epoch: int | None = None
    """From 1: the epoch whose weights the model has."""
    batch_size: int | None = None
    """The one that fitted into memory."""
    train_images_per_s: float | None = None
    """Warm-up steps and validation left out."""
    score_images_per_s: float | None = None
    """Standardise, forward pass, error map, smoothing; the first batch left out."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """See `figures.run_figures`."""
    scores: pd.DataFrame | None = None
    """Columns path, split, label, defect, score, verdict. The T test pictures first, in the order of `maps`; then the held-out good
    pictures, split "validation", whose scores set the threshold."""
    maps: Floats | None = None
    """(T, S, S) raw anomaly maps, larger is worse."""
    inputs: NDArray[np.uint8] | None = None
    """(T, S, S, C) as the network saw them."""
    reconstructions: NDArray[np.uint8] | None = None
    """(T, S, S, C)."""
    masks: NDArray[np.uint8] | None = None
    """(T, S, S) 0/1."""
    has_mask: NDArray[np.bool_] | None = None
    """(T,) whether `masks` is known."""
    calibration: Calibration | None = None
    model: Any = None
    """Plain `keras.Model` with the best weights; None when training did not begin."""
    warnings: list[str] = field(default_factory=list)

    @property
    def epochs(self) -> int:
        """Whole epochs trained."""
        return len(self.history)


class _Cancelled(Exception):  # noqa: N818 - a signal, not an error
    """Somebody wants the run to stop."""


def run_keras_cae_pipeline(
    config: CaeConfig, *, reporter: Reporter | None = None, work_dir: Path | None = None, gpus: Collection[str] = ()
) -> CaeResult:
    """Reads pictures, configures TensorFlow, trains, scores and computes the figures.

    Args:
        config: what to do.
        reporter: told of everything on the way, and asked for cancel at every picture read and every batch.
        work_dir: the run's folder. Training's state is kept in its sub-folder `backup`, and a run that finds one goes on from it; the
            caller removes it (`app.cae.backup.remove_backup`) once the results are written.
        gpus: keys of the GPUs that are this run's; the others are left to other runs.

    Returns:
        A result, also when cancelled: then with state "cancelled" and whatever was reached.

    Raises:
        DataError: no usable pictures.
        DeviceError: TensorFlow cannot run here.
        OptionError: an option does not fit.
        TrainingError: no usable weights came out.
    """
    return _Run(config, _Recording(reporter or SilentReporter()), work_dir, gpus).carried_out()


class _Recording(SilentReporter):
    """Passes everything on and keeps the warnings for the result."""

    def __init__(self, to: Reporter) -> None:
        self._to = to
        self.warnings: list[str] = []
        self.phase, self.profile, self.dataset = to.phase, to.profile, to.dataset  # type: ignore[method-assign]
        self.epoch, self.epoch_step_rows, self.cancelled = to.epoch, to.epoch_step_rows, to.cancelled  # type: ignore[method-assign]

    def warning(self, sentence: str) -> None:
        self.warnings.append(sentence)
        self._to.warning(sentence)


@dataclass
class _Run:
    config: CaeConfig
    reporter: _Recording
    work_dir: Path | None
    gpus: Collection[str] = ()
    devices: tuple[str, ...] = field(init=False, default=())
    """TensorFlow's devices that share the training; none: one device."""

    def carried_out(self) -> CaeResult:
        profile = self._configured()
        self.devices = profile.strategy_devices
        self.reporter.profile(profile)
        result = CaeResult(self.config, profile, "cancelled", warnings=self.reporter.warnings)
        pictures = self._read()
        if pictures is None:
            return result
        with cae_keras.held_to(profile.tf_device_string):
            return self._computed(result, pictures)

    def _computed(self, result: CaeResult, pictures: Pictures) -> CaeResult:
        """Trains and scores; fills `result` in and returns it."""
        train, held_out = split_validation(pictures.rows, self.config.val_fraction, self.config.seed)
        trained = self._train(pictures.images[train], pictures.images[held_out])
        result.history, result.best_epoch, result.batch_size = trained.rows, trained.best_epoch, trained.batch_size
        result.train_images_per_s, result.model = trained.images_per_s, trained.model
        if trained.state == "cancelled":
            return result
        try:
            self._score(result, pictures, train, held_out)
        except _Cancelled:
            return result
        result.state = "finished"
        return result

    def _configured(self) -> HardwareProfile:
        config = self.config
        return configure_tensorflow(
            config.min_vram_mib,
            device=config.device,
            intra_op_threads=config.intra_op_threads,
            inter_op_threads=config.inter_op_threads,
            gpus=config.gpus,
            own=self.gpus,
        )

    def _read(self) -> Pictures | None:
        """The pictures; None when cancelled on the way."""
        config, reporter = self.config, self.reporter
        reporter.phase("reading", 0, 0)
        dataset = open_dataset(config.data, seed=config.seed)
        pictures = load_pictures(
            dataset,
            size=config.image_size,
            channels=config.channels,
            progress=lambda done, total: reporter.phase("reading", done, total),
            cancelled=reporter.cancelled,
        )
        if pictures.cancelled:
            return None
        reporter.dataset(dataset_summary(dataset, pictures, config))
        return pictures

    def _train(self, train: NDArray[np.uint8], held_out: NDArray[np.uint8]) -> Trained:
        if self.config.steps_ignored:
            self.reporter.warning(_STEPS_IGNORED.format(steps=self.config.steps, epochs=self.config.epochs))
        if self.config.batch_size < SMALL_BATCH:
            self.reporter.warning(_SMALL_BATCH.format(batch=self.config.batch_size))
        if len(train) < self.config.batch_size:
            self.reporter.warning(_FEWER_PICTURES.format(train=len(train), batch=self.config.batch_size))
        backup = None if self.work_dir is None else self.work_dir / "backup"
        return cae_keras.train_cae(self.config, train, held_out, reporter=self.reporter, backup_dir=backup, devices=self.devices)

    def _score(self, result: CaeResult, pictures: Pictures, train: NDArray[np.intp], held_out: NDArray[np.intp]) -> None:
        """Fills in everything that follows from the model. What is chosen is chosen from good training pictures, by `_calibrated`."""
        test = np.flatnonzero(pictures.rows["split"].to_numpy() == "test")
        work = _Scoring(self.reporter, cae_keras.reconstructor(result.model), ScoringRule.of(self.config))
        taken_in = scoring.uses_training_pictures(len(train), len(held_out))
        work.total = len(test) + len(held_out) + (len(train) if taken_in or self.config.whole_weight else 0)
        chosen_from = _Good(pictures.images[train], pictures.images[held_out], pictures.channels, pictures.full_scale)
        calibration, held_out_scores, held_out_errors = self._calibrated(work, chosen_from, taken_in)
        scored = scoring.score_pictures(pictures.images[test], work.reconstruct, calibration, throughput=work.throughput, tick=work.tick)
        result.calibration, result.score_images_per_s = calibration, work.throughput.images_per_s
        result.maps, result.inputs, result.reconstructions = scored.maps, scored.inputs, scored.reconstructions
        result.masks, result.has_mask = pictures.masks[test], pictures.has_mask[test]
        rows = pictures.rows
        result.scores = _score_table(rows.iloc[test], scored.scores, rows.iloc[held_out], held_out_scores, calibration.threshold)
        result.metrics = run_figures(
            Figures(
                rows.iloc[test],
                scored.scores,
                scored.maps,
                pictures.masks[test],
                pictures.has_mask[test],
                calibration.threshold,
                None if calibration.whole is None else scoring.pooled(scored.maps, calibration.rule),
            )
        )
        # From maps alone: what whole pictures add is fitted to these very pictures, which would flatter it.
        by_map = replace(calibration, whole=None)
        synthetic_auroc(
            result.metrics,
            pictures.images[held_out],
            scoring.pooled(calibration.applied(held_out_errors), calibration.rule),
            lambda images: scoring.score_pictures(images, work.reconstruct, by_map).scores,
            self.config.seed,
        )

    def _calibrated(self, work: _Scoring, good: _Good, taken_in: bool) -> tuple[Calibration, Doubles, Floats]:
        """Calibration and threshold, the held-out scores, and the held-out error maps. Sees good training pictures only."""
        train: Observed | None = None
        from_held_out, any_held_out = good.held_out, bool(len(good.held_out))
        if not any_held_out:
            self.reporter.warning(NOTHING_HELD_OUT)
            from_held_out = good.train
        else:
            if taken_in and len(good.train) + len(good.held_out) < SMALL_SET:
                total = len(good.train) + len(good.held_out)
                self.reporter.warning(SMALL_HELD_OUT.format(held_out=len(good.held_out), total=total))
            if taken_in or self.config.whole_weight:
                train = scoring.observed(good.train, *work.means, keep_errors=False)
        seen = scoring.observed(from_held_out, *work.means, keep_errors=True)
        assert seen.errors is not None
        about: dict[str, Any] = {"channels": good.channels, "full_scale": good.full_scale, "from_held_out": any_held_out}
        sums = train.sums if train and taken_in else None
        calibration, scores = scoring.calibrate(work.rule, self.config, sums, seen.errors, **about)
        calibration, scores = self._with_whole_picture(calibration, scores, good, train, seen)
        if not any_held_out:
            return calibration, scores[:0], seen.errors[:0]
        return calibration, scores, seen.errors

    def _with_whole_picture(
        self, calibration: Calibration, scores: Doubles, good: _Good, train: Observed | None, seen: Observed
    ) -> tuple[Calibration, Doubles]:
        """The same, with whole pictures judged too where the options ask for it and there are good pictures enough."""
        images = good.held_out if len(good.held_out) else good.train
        many = len(images) + (len(good.train) if train else 0)
        if self.config.whole_weight == 0 or len(images) < whole_picture.FEWEST_HELD_OUT or many < whole_picture.FEWEST_GOOD:
            return calibration, scores
        share = scoring.unexplained_share(images, seen.squared_error, good.train, self.config.standardise)
        light, features = whole_picture.photometry(images), seen.features
        if train is not None:
            light = np.concatenate([light, whole_picture.photometry(good.train)])
            features = np.concatenate([features, train.features])
        unit = self.config.whole_weight * share * float(scores.std())
        whole, added = whole_picture.WholePicture.fit(light, features, unit)
        return scoring.with_whole_picture(calibration, scores, whole, added[: len(images)], self.config)


@dataclass(frozen=True)
class _Good:
    """Good pictures of the training folder: all that anything is chosen from."""

    train: NDArray[np.uint8]
    held_out: NDArray[np.uint8]
    channels: int
    full_scale: float | None


@dataclass
class _Scoring:
    """The scoring phase: forward pass, rule, clock and progress."""

    reporter: Reporter
    reconstruct: Forward
    rule: ScoringRule
    throughput: Throughput = field(default_factory=Throughput)
    done: int = 0
    total: int = 0

    @property
    def means(self) -> tuple[Forward, ScoringRule, Throughput, Callable[[int], None]]:
        """What a pass over pictures needs."""
        return self.reconstruct, self.rule, self.throughput, self.tick

    def tick(self, pictures: int) -> None:
        self.done += pictures
        self.reporter.phase("scoring", self.done, self.total)
        if self.reporter.cancelled():
            raise _Cancelled


def _score_table(
    test: pd.DataFrame, test_scores: Doubles, held_out: pd.DataFrame, held_out_scores: Doubles, threshold: float
) -> pd.DataFrame:
    columns = ["path", "split", "label", "defect"]
    table = pd.concat([test[columns], held_out[columns].assign(split="validation")], ignore_index=True)
    table["score"] = np.r_[test_scores, held_out_scores]
    return table.assign(verdict=verdicts(table["score"].to_numpy(), threshold))


def verdicts(scores: Doubles, threshold: float) -> list[str]:
    """ "defective" where score > threshold, else "good"."""
    return ["defective" if score > threshold else "good" for score in scores]


def dataset_summary(dataset: Dataset, pictures: Pictures, config: CaeConfig) -> dict[str, Any]:
    """What was found and read, as JSON types; `split_digest` identifies the split for repeating the run."""
    rows = pictures.rows
    train, held_out = split_validation(rows, config.val_fraction, config.seed)
    test = rows[rows["split"] == "test"]
    return {
        "name": dataset.name,
        "source": dataset.source,
        "layout": dataset.layout,
        "image_size": config.image_size,
        "channels": pictures.channels,
        "pictures": len(rows),
        "train": len(train),
        "held_out": len(held_out),
        "test_good": int((test["label"] == 0).sum()),
        "test_defective": int((test["label"] == 1).sum()),
        "defects": {str(name): int(count) for name, count in test["defect"][test["label"] == 1].value_counts().items()},
        "test_with_mask": int(pictures.has_mask[test.index].sum()),
        "epochs": config.epochs_for(len(train)),
        "split_digest": split_digest(dataset),
        "problems": list(dict.fromkeys((*dataset.problems, *pictures.problems))),
        "notes": list(dict.fromkeys((*dataset.notes, *pictures.notes))),
    }


@dataclass(frozen=True)
class NewScores:
    """New pictures, scored with a saved model."""

    scored: Scored
    verdicts: Sequence[str]
    calibration: Calibration
    profile: HardwareProfile
    images_per_s: float | None


def score_with_saved_model(
    model_path: Path,
    calibration: Calibration | Path,
    images: NDArray[np.uint8] | Callable[[Calibration], NDArray[np.uint8]],
    *,
    device: str = "auto",
    min_vram_mib: int = DEFAULT_MIN_VRAM_MIB,
    reporter: Reporter | None = None,
    gpus: Collection[str] = (),
) -> NewScores:
    """Scores new pictures with what a run left, in any process.

    Args:
        model_path: the run's `model.keras`; loaded in Keras' safe mode.
        calibration: the run's `scoring.npz`, or what was loaded from it.
        images: (N, S, S, C) uint8, read with the size, channels and `full_scale` of the calibration; or a function that reads them so.
        device: as in `CaeConfig`.
        min_vram_mib: as in `CaeConfig`.
        reporter: told of the scoring phase.
        gpus: keys of the GPUs that are this process's; the others are left to other runs.

    Raises:
        DataError: model or calibration cannot be read, or the pictures have another size.
        DeviceError: TensorFlow cannot run here.
    """
    told = reporter or SilentReporter()
    rule = calibration if isinstance(calibration, Calibration) else Calibration.load(calibration)
    pictures = images(rule) if callable(images) else images
    profile = configure_tensorflow(min_vram_mib, device=device, own=gpus)
    told.profile(profile)
    with cae_keras.held_to(profile.tf_device_string):
        work = _Scoring(told, cae_keras.reconstructor(cae_keras.load_model(model_path)), rule.rule, total=len(pictures))
        scored = scoring.score_pictures(pictures, work.reconstruct, rule, throughput=work.throughput, tick=work.tick)
    return NewScores(scored, verdicts(scored.scores, rule.threshold), rule, profile, work.throughput.images_per_s)
