"""Training from the first attempt to the record: smaller batches where memory runs out, NaN, cancel, early stopping, backup and resume.

TensorFlow and Keras come in as arguments; `app.cae.cae_keras` is the door.
"""

from __future__ import annotations

import gc
import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import psutil

from app.cae.backup import Backup, read_backup, write_backup
from app.cae.config import BEFORE, CaeConfig
from app.cae.reporting import Reporter, Row
from app.cae.rows import Rows, parts
from app.cae.training import (
    CANCELLED,
    Floats,
    Monitor,
    StopTraining,
    Throughput,
    TrainingBatches,
    standardise,
    warmup_steps,
)
from app.core.errors import TrainingError

MEMORY_SIGNS = (
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",
    "CUDA_ERROR_OUT_OF_MEMORY",
    "out of memory",
    "OOM when allocating",
    "failed to allocate",
)
"""Texts with which CUDA's libraries report a lack of memory under other names."""

_WHERE = {
    "data",
    "device",
    "min_vram_mib",
    "gpus",
    "intra_op_threads",
    "inter_op_threads",
    "tensorboard",
    "correct_mean",
    "background_sigma",
}
"""Options that say where pictures lie, where is computed, what else is written, and what is done after training: backups made before
`correct_mean` and `background_sigma` were options go on."""

_LATER = ("centre", "mixtures", "optimizer")
"""Options that came later: a backup made before them goes on with what was done then."""

_HALVED = "Memory ran out at batch size {batch} ({cause}); training starts again with {half} and fresh weights."
_UNEVEN = "Batch size {batch} cannot be shared evenly by {replicas} devices; {even} is used."
_NO_MEMORY = "Memory ran out even at batch size {batch} ({cause}). Choose a smaller image size, or train on the CPU (device cpu)."
_NAN_KEPT = (
    "The loss became NaN or infinite in epoch {epoch}; training stopped and the weights of epoch {best} are kept. "
    "A lower learning rate or float32 precision usually cures it."
)
_NAN_AT_ONCE = (
    "The loss became NaN or infinite in the first epoch, so there are no usable weights. Lower the learning rate (now {rate:g}) or choose "
    "float32 precision (now {precision})."
)
_FOREIGN_BACKUP = "The backup in {folder} belongs to another configuration or other pictures; training starts from the beginning."
_NO_BACKUP = "{folder}: the state of training cannot be kept ({cause}); training goes on, but could not be resumed from here."
_FAILED = "TensorFlow stopped training: {cause}."


@dataclass
class Trained:
    """What training leaves: a model with the best weights, and the record."""

    model: Any
    """Plain functional `keras.Model`, not compiled."""
    rows: list[Row]
    """One for each whole epoch."""
    best_epoch: int | None
    """From 1; None when training was cancelled within the first epoch: the weights are those of the moment."""
    batch_size: int
    """The one that fitted into memory."""
    images_per_s: float | None
    """Training throughput of all parts, the first steps (`training.warmup_steps`) and validation left out; None when there was no other."""
    state: Literal["finished", "cancelled"]
    warnings: list[str] = field(default_factory=list)

    @property
    def epochs(self) -> int:
        """Whole epochs trained."""
        return len(self.rows)


MakeTrainer = Callable[[CaeConfig, int], tuple[Any, Any]]
"""(configuration, total steps) → (plain model, compiled trainer that shares its weights)."""


@dataclass
class Session:
    """Attempts at one training, each with a smaller batch than the one before."""

    tf: Any
    keras: Any
    make: MakeTrainer
    config: CaeConfig
    train: Rows
    held_out: Rows
    reporter: Reporter
    backup_dir: Path | None = None
    replicas: int = 1
    """Devices that share every batch."""
    warnings: list[str] = field(default_factory=list)

    _backup_failed: bool = field(init=False, default=False)
    fingerprint: str = field(init=False)
    """Of the pictures and of all options that change the weights; where and with how many threads they are computed does not."""

    def __post_init__(self) -> None:
        later = {name for name in _LATER if getattr(self.config, name) == BEFORE[name]}
        digest = hashlib.sha256(self.config.model_dump_json(exclude=_WHERE | later).encode())
        for images in (self.train, self.held_out) if self.backup_dir is not None else ():
            digest.update(repr(images.shape).encode())
            for part in parts(images):
                digest.update(np.ascontiguousarray(images[part]).data)
        self.fingerprint = digest.hexdigest()

    def warn(self, sentence: str) -> None:
        self.warnings.append(sentence)
        self.reporter.warning(sentence)

    def train_until_it_fits(self) -> Trained:
        """Runs attempts until one ends otherwise than by a lack of memory."""
        backup = self._usable_backup()
        self._share_evenly()
        while True:
            try:
                return self._attempt(backup)
            except (self.tf.errors.OpError, MemoryError) as error:
                cause = first_line(error)
                if not self._is_memory_shortage(error):
                    raise TrainingError(_FAILED.format(cause=cause)) from error
            # Outside the handler: the traceback no longer holds the tensors of the attempt that failed.
            self.keras.backend.clear_session()
            gc.collect()
            backup = None
            self._halve(cause)

    def _usable_backup(self) -> Backup | None:
        backup = read_backup(self.backup_dir) if self.backup_dir else None
        if backup is None:
            return None
        if backup.fingerprint != self.fingerprint:
            self.warn(_FOREIGN_BACKUP.format(folder=self.backup_dir))
            return None
        self.warnings = list(backup.warnings)
        self.config = self.config.model_copy(update={"batch_size": backup.batch_size})
        return backup

    def _share_evenly(self) -> None:
        """A batch size that every device gets an equal share of."""
        batch = self.config.batch_size
        even = max(self.replicas, batch // self.replicas * self.replicas)
        if even != batch:
            self.warn(_UNEVEN.format(batch=batch, replicas=self.replicas, even=even))
            self.config = self.config.model_copy(update={"batch_size": even})

    def _halve(self, cause: str) -> None:
        batch = self.config.batch_size
        if batch <= self.replicas:
            raise TrainingError(_NO_MEMORY.format(batch=batch, cause=cause))
        self.warn(_HALVED.format(batch=batch, half=batch // 2, cause=cause))
        self.config = self.config.model_copy(update={"batch_size": batch // 2})
        self._share_evenly()

    def _is_memory_shortage(self, error: BaseException) -> bool:
        errors = self.tf.errors
        if isinstance(error, (MemoryError, errors.ResourceExhaustedError)):
            return True
        text = str(error).lower()
        return isinstance(error, (errors.InternalError, errors.UnknownError)) and any(sign.lower() in text for sign in MEMORY_SIGNS)

    def _attempt(self, backup: Backup | None) -> Trained:
        """Trains from fresh weights, or on from `backup`."""
        self.keras.utils.set_random_seed(self.config.seed)
        epochs = self.config.epochs_for(len(self.train))
        total = epochs * self.config.steps_per_epoch(len(self.train))
        model, trainer = self.make(self.config, total)
        monitor = Monitor(self.reporter, self.config.patience, total, Throughput(warmup_steps(total)))
        if backup is not None:
            _restore(backup, trainer, monitor, len(self.train))
        state: Literal["finished", "cancelled"] = "finished"
        try:
            self.reporter.phase("training", monitor.steps, total)
            if self.reporter.cancelled():
                raise StopTraining(CANCELLED)
            if not monitor.patience_is_out():
                self._fit(trainer, monitor, epochs, backup.epoch if backup else 0)
        except StopTraining as stop:
            state = self._stopped(stop, monitor)
        if monitor.best_weights is not None:
            model.set_weights(monitor.best_weights)
        images_per_s = monitor.throughput.images_per_s
        return Trained(model, monitor.rows, monitor.best_epoch, self.config.batch_size, images_per_s, state, self.warnings)

    def _stopped(self, stop: StopTraining, monitor: Monitor) -> Literal["finished", "cancelled"]:
        """The state a stop leads to."""
        if stop.reason == CANCELLED:
            return "cancelled"
        if monitor.best_epoch is None:
            raise TrainingError(_NAN_AT_ONCE.format(rate=self.config.learning_rate, precision=self.config.precision))
        self.warn(_NAN_KEPT.format(epoch=len(monitor.rows) + 1, best=monitor.best_epoch))
        return "finished"

    def _fit(self, trainer: Any, monitor: Monitor, epochs: int, done: int) -> None:
        batches = TrainingBatches(self.train, self.config, self.replicas)
        train, held_out = _datasets(self.keras, batches, self.held_out, done)
        trainer.fit(
            train,
            validation_data=held_out if len(self.held_out) else None,
            epochs=epochs,
            initial_epoch=done,
            shuffle=False,  # the batches are in their epoch's order already
            verbose=0,
            callbacks=[self._watch(trainer, monitor, train)],
        )

    def _watch(self, trainer: Any, monitor: Monitor, train: Any) -> Any:
        """The callback between `fit` and `monitor`."""
        session, count = self, len(self.train)

        class Watch(self.keras.callbacks.Callback):  # type: ignore[misc, name-defined]
            def on_epoch_begin(self, epoch: int, *_: Any, **__: Any) -> None:
                train.epoch = epoch
                monitor.epoch_begin()

            def on_train_batch_end(self, batch: int, logs: Mapping[str, float]) -> None:
                size = session.config.batch_size
                monitor.batch_end(float(logs["loss"]), min(size, count - batch * size))

            def on_test_batch_end(self, *_: Any, **__: Any) -> None:
                if monitor.reporter.cancelled():
                    raise StopTraining(CANCELLED)

            def on_epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
                figures: Row = {name: float(value) for name, value in logs.items()}
                figures["learning_rate"] = float(trainer.optimizer.learning_rate)
                monitor.epoch_end(epoch + 1, figures | session._memory(), trainer.get_weights)
                trainer.stop_training = monitor.patience_is_out()
                session._back_up(trainer, monitor, epoch + 1)

        return Watch()

    def _back_up(self, trainer: Any, monitor: Monitor, epoch: int) -> None:
        """Keeps the state after `epoch`. A full disk costs the backup, not the training."""
        if self.backup_dir is None or self._backup_failed:
            return
        backup = Backup(
            self.fingerprint,
            epoch,
            self.config.batch_size,
            monitor.rows,
            monitor.best_epoch,
            monitor.best_loss,
            self.warnings,
            trainer.get_weights(),
            [np.asarray(variable) for variable in trainer.optimizer.variables],
            [] if monitor.best_epoch == epoch else monitor.best_weights or [],
        )
        try:
            write_backup(self.backup_dir, backup)
        except OSError as error:
            self._backup_failed = True
            self.warn(_NO_BACKUP.format(folder=self.backup_dir, cause=error.strerror or error))

    def _memory(self) -> Row:
        """Resident memory of this process, and the most TensorFlow held of the GPU, MiB."""
        figures: Row = {"memory_mib": round(psutil.Process().memory_info().rss / 2**20, 1)}
        if self.tf.config.list_logical_devices("GPU"):
            figures["gpu_memory_mib"] = round(self.tf.config.experimental.get_memory_info("GPU:0")["peak"] / 2**20, 1)
        return figures


def _datasets(keras: Any, batches: TrainingBatches, held_out: Rows, epoch: int) -> tuple[Any, Any]:
    """Keras' view of the training batches, starting with `epoch`, and of the held-out pictures, which are never masked."""
    size, mode = batches.config.batch_size, batches.config.standardise
    if 0 < len(held_out) < batches.multiple:
        held_out = np.concatenate([held_out[:]] * batches.multiple)  # each device all of them: the mean stays what it is
    # Keras adds up the shares of the first batch, so they must be equal; a shorter last one is weighed by its pictures.
    size = min(size, max(1, len(held_out) // batches.multiple * batches.multiple)) if batches.multiple > 1 else size

    class Train(keras.utils.PyDataset):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.epoch = epoch

        def __len__(self) -> int:
            return len(batches)

        def __getitem__(self, index: int) -> tuple[Floats, Floats]:
            return batches.batch(self.epoch, index)

    class HeldOut(keras.utils.PyDataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return math.ceil(len(held_out) / size)

        def __getitem__(self, index: int) -> tuple[Floats, Floats]:
            clean = standardise(held_out[index * size : (index + 1) * size], mode)
            return clean, clean

    return Train(), HeldOut()


def _restore(backup: Backup, trainer: Any, monitor: Monitor, pictures: int) -> None:
    """Puts the state after the backup's epoch back, speed included; `pictures` are those of one epoch.

    The clock of the earlier parts is gone, so each of their epochs counts with all its pictures at the speed in its row.
    """
    trainer.set_weights(backup.weights)
    for variable, value in zip(trainer.optimizer.variables, backup.optimizer, strict=True):
        variable.assign(value)
    monitor.rows = list(backup.rows)
    monitor.best_epoch, monitor.best_loss = backup.best_epoch, backup.best_loss
    monitor.best_weights = backup.weights if backup.best_epoch == backup.epoch else backup.best_weights
    if backup.rows:
        monitor.steps = int(backup.rows[-1]["step"])
        monitor.seconds_before = float(backup.rows[-1]["seconds"])
    for speed in (row.get("images_per_s") for row in backup.rows):
        if speed:
            monitor.throughput.pictures += pictures
            monitor.throughput.seconds += pictures / speed


def first_line(error: BaseException) -> str:
    """The first line of `error` that says something, without its full stop."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(".")[:300]
