"""The history of a run as TensorBoard event files, in `tensorboard/` of its folder. TensorFlow is not needed for that."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.cae.reporting import Row

FOLDER = "tensorboard"
NO_TENSORBOARD = (
    "tensorboard: the package tensorboard is not installed, so no event files are written. Install it: pip install 'twopath[tensorboard]'."
)
CANNOT_WRITE = "{path}: TensorBoard's event files cannot be written ({why}); the run goes on without them."


class TensorBoardLog:
    """Writes one event file for each process of a run; TensorBoard reads all files of a folder as one curve."""

    def __init__(self, run: Path, warn: Callable[[str], None]) -> None:
        self._folder = run / FOLDER
        self._warn = warn
        self._writer: Any = None
        self._broken = importlib.util.find_spec("tensorboard") is None
        if self._broken:
            warn(NO_TENSORBOARD)

    def epoch(self, row: Row) -> None:
        """Every column as a scalar; the step is the epoch."""
        if self._broken:
            return
        try:
            if self._writer is None:
                self._open(int(row["epoch"]))
            self._write(int(row["epoch"]), {name: float(value) for name, value in row.items() if name != "epoch"})
        except OSError as error:
            self._fails(error.strerror or str(error))
        except (ImportError, TypeError, AttributeError) as error:  # another TensorBoard, or one whose protobuf does not fit
            self._fails(str(error) or type(error).__name__)

    def settle(self) -> None:
        """Nothing: every epoch is on disk."""

    def leave(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _open(self, epoch: int) -> None:
        from tensorboard.compat.proto import event_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._folder.mkdir(exist_ok=True)
        now = time.time()
        # The name that TensorBoard looks for; the process makes it unique.
        file = (self._folder / f"events.out.tfevents.{int(now):010d}.twopath.{os.getpid()}.{time.monotonic_ns()}").open("wb")
        self._writer = RecordWriter(file)
        self._write_event(event_pb2.Event(wall_time=now, file_version="brain.Event:2"))
        # Training that goes on from a backup repeats the epochs after it: what an earlier file holds of them is void.
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._write_event(event_pb2.Event(wall_time=now, step=epoch, session_log=start))

    def _write(self, epoch: int, values: dict[str, float]) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2

        scalars = [summary_pb2.Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._write_event(event_pb2.Event(wall_time=time.time(), step=epoch, summary=summary_pb2.Summary(value=scalars)))

    def _write_event(self, event: Any) -> None:
        self._writer.write(event.SerializeToString())
        self._writer.flush()

    def _fails(self, why: str) -> None:
        self._broken = True
        self._warn(CANNOT_WRITE.format(path=self._folder, why=why))
