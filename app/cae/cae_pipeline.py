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

from app.cae import cae_keras, correction, scoring, whole_picture
from app.cae.cae_fit import Trained
from app.cae.calibration import NOTHING_HELD_OUT, SMALL_HELD_OUT, SMALL_SET
from app.cae.config import CaeConfig
from app.cae.datasets import Pictures, load_pictures, open_dataset, split_validation
from app.cae.error_maps import Doubles
from app.cae.figures import Figures, run_figures, synthetic_auroc
from app.cae.memory import free_mib
from app.cae.pictures import MEMORY_SHARE
from app.cae.reporting import Reporter, Row, SilentReporter
from app.cae.rows import Rows, Store, Zeros, chosen, store_folder
from app.cae.scoring import Calibration, Forward, Observed, Scored, ScoringRule
from app.cae.summary import dataset_summary
from app.cae.training import Throughput
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
    maps: Rows | None = None
    """(T, S, S) float32, raw anomaly maps, larger is worse. Not in memory, like the next three, where they are too many."""
    inputs: Rows | None = None
    """(T, S, S, C) uint8, as the network saw them."""
    reconstructions: Rows | None = None
    """(T, S, S, C) uint8."""
    masks: Rows | None = None
    """(T, S, S) uint8, 0/1."""
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
            caller removes it (`app.cae.backup.remove_backup`) once the results are written. Pictures and maps that do not fit into memory
            are kept there too, in files without a name that the system removes with the process; without a folder, see
            `rows.store_folder`.
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
        trained = self._train(chosen(pictures.images, train), chosen(pictures.images, held_out))
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
            folder=store_folder(self.work_dir),
            val_fraction=config.val_fraction,
        )
        if pictures.cancelled:
            return None
        reporter.dataset(dataset_summary(dataset, pictures, config))
        return pictures

    def _train(self, train: Rows, held_out: Rows) -> Trained:
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
        store = store_now(self.work_dir)
        work = _Scoring(self.reporter, cae_keras.reconstructor(result.model), ScoringRule.of(self.config), store.zeros)
        taken_in = scoring.uses_training_pictures(len(train), len(held_out))
        correct = self.config.correct_mean and len(train) >= correction.FEWEST
        work.total = len(test) + len(held_out) + len(train) * (correct + bool(taken_in or self.config.whole_weight))
        images = chosen(pictures.images, held_out)
        chosen_from = _Good(chosen(pictures.images, train), images, pictures.channels, pictures.full_scale)
        raw, offset = work.reconstruct, None
        if correct:
            offset = correction.mean_residual(chosen_from.train, raw, self.config.standardise, work.tick)
            work.reconstruct = correction.Corrected(raw, offset)
        calibration, held_out_scores, held_out_errors = self._calibrated(work, chosen_from, taken_in)
        calibration = replace(calibration, offset=offset)
        scored = scoring.score_pictures(
            chosen(pictures.images, test), raw, calibration, throughput=work.throughput, tick=work.tick, zeros=store.zeros
        )
        result.calibration, result.score_images_per_s = calibration, work.throughput.images_per_s
        result.maps, result.inputs, result.reconstructions = scored.maps, scored.inputs, scored.reconstructions
        result.masks, result.has_mask = chosen(pictures.masks, test), pictures.has_mask[test]
        rows = pictures.rows
        result.scores = _score_table(rows.iloc[test], scored.scores, rows.iloc[held_out], held_out_scores, calibration.threshold)
        result.metrics = run_figures(
            Figures(
                rows.iloc[test],
                scored.scores,
                scored.maps,
                result.masks,
                result.has_mask,
                calibration.threshold,
                None if calibration.whole is None else scoring.pooled(scored.maps, calibration.rule),
                MEMORY_SHARE * free_mib(),
            )
        )
        # From maps alone: what whole pictures add is fitted to these very pictures, which would flatter it.
        by_map = replace(calibration, whole=None)
        synthetic_auroc(
            result.metrics,
            images,
            scoring.pooled_errors(held_out_errors, calibration),
            lambda images: scoring.score_pictures(images, raw, by_map).scores,
            self.config.seed,
        )

    def _calibrated(self, work: _Scoring, good: _Good, taken_in: bool) -> tuple[Calibration, Doubles, Rows]:
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
        seen = scoring.observed(from_held_out, *work.means, keep_errors=True, zeros=work.zeros)
        assert seen.errors is not None
        about: dict[str, Any] = {"channels": good.channels, "full_scale": good.full_scale, "from_held_out": any_held_out}
        sums = train.sums if train and taken_in else None
        calibration, scores = scoring.calibrate(work.rule, self.config, sums, seen.errors, zeros=work.zeros, **about)
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

    train: Rows
    held_out: Rows
    channels: int
    full_scale: float | None


@dataclass
class _Scoring:
    """The scoring phase: forward pass, rule, clock and progress."""

    reporter: Reporter
    reconstruct: Forward
    rule: ScoringRule
    zeros: Zeros = np.zeros
    """Makes room for maps."""
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


def store_now(work_dir: Path | None) -> Store:
    """Room for maps: in memory within `MEMORY_SHARE` of what is free now, then in files."""
    return Store(store_folder(work_dir), MEMORY_SHARE * free_mib())


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
    images: Rows | Callable[[Calibration], Rows],
    *,
    device: str = "auto",
    min_vram_mib: int = DEFAULT_MIN_VRAM_MIB,
    reporter: Reporter | None = None,
    gpus: Collection[str] = (),
    work_dir: Path | None = None,
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
        work_dir: where maps that do not fit into memory are kept meanwhile; None: see `rows.store_folder`.

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
        zeros = store_now(work_dir).zeros
        scored = scoring.score_pictures(pictures, work.reconstruct, rule, throughput=work.throughput, tick=work.tick, zeros=zeros)
    return NewScores(scored, verdicts(scored.scores, rule.threshold), rule, profile, work.throughput.images_per_s)
