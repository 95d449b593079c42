"""The companion that logs a run to MLflow: a process of its own, which reads the run folder as any reader does.

`python -m app.runs.trackers_mlflow RUN_FOLDER PID`. The process that trains never talks to a server, never imports mlflow (2 s, 150 MB) and
never waits for one: whatever hangs, hangs here. A run that is killed is told as killed, because this process lives on.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from app.core.errors import RunError
from app.runs.files import read_json
from app.runs.folder import RunFolder
from app.runs.locks import try_lock
from app.runs.log import RunLog
from app.runs.recorder import read_history
from app.runs.status import RunStatus
from app.runs.trackers_record import MlflowRecord, read_record, without_secrets

POLL_S = 0.5
END_LIMIT_S = 30.0
"""How long a server that answered before, and no longer does, is tried after the run has ended."""
HANG_LIMIT_S = 120.0
"""After the end of the run this process ends by itself, whatever hangs."""
FORMER_LIMIT_S = 60.0
"""How long to wait for the companion of the same run's former process."""
LONGEST_PAUSE_S = 60.0

ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_ARTIFACT_UPLOAD_DOWNLOAD_TIMEOUT": "60",
    # Nothing goes to anybody but the server that the user named.
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
}
"""Set where the user has not set them, before mlflow is imported."""

ARTIFACTS = ("config.json", "profile.json", "dataset.json", "metrics.json", "scores.csv", "history.csv")
MODEL_ARTIFACTS = ("model.keras", "scoring.npz")
"""Uploaded where TWOPATH_MLFLOW_MODEL is 1."""
EXPERIMENT = "twopath"
ENDS = {"finished": "FINISHED", "failed": "FAILED", "cancelled": "KILLED", "interrupted": "KILLED"}

NOTHING_LOGGED = "MLflow at {uri}: the run could not be logged there ({cause}); it goes on all the same."
NOT_ALL_LOGGED = "MLflow at {uri}: not everything could be logged there ({cause}); the run goes on, and what is missing is tried again."

Row = Mapping[str, Any]


class Companion:
    """Brings MLflow to what the run folder says, again and again, until the run has ended."""

    def __init__(self, folder: Path, pid: int, uri: str) -> None:
        self.run = RunFolder(folder)
        self.uri = uri
        known = read_record(folder)
        same = known is not None and known.tracking_uri == without_secrets(uri)
        self.record = known if known is not None and same else MlflowRecord(without_secrets(uri))
        self.record.pid, self.record.contact, self.record.ended, self.record.trouble = pid, None, False, None
        # A resumed run goes on after a whole epoch, so what was logged before is what stands in its history.
        rows = read_history(folder / "history.csv")
        self._logged: dict[int, Row] = {int(row["epoch"]): row for row in rows if row["epoch"] <= self.record.epochs}
        self._told: dict[str, str] = {}
        self._client: Any = None
        self._ended_at: float | None = None
        self._log = RunLog(folder / "log.txt")

    def follow(self) -> None:
        """Until the run has ended, or is no longer the process this companion belongs to."""
        threading.Thread(target=self._end_by_itself, name="hang-limit", daemon=True).start()
        pause, not_before = 1.0, 0.0
        while (status := self._status()) is not None:
            over = not status.live
            if over and self._ended_at is None:
                self._ended_at, not_before = time.monotonic(), 0.0
            if time.monotonic() >= not_before:
                done = self._try(status)
                pause = 1.0 if done else min(LONGEST_PAUSE_S if not over else 5.0, 2 * pause)
                not_before = time.monotonic() + (0.0 if done else pause)
                if over and (done or self._give_up()):
                    break
            time.sleep(POLL_S)
        self._save(ended=True)

    def _status(self) -> RunStatus | None:
        """The run's state; `None` when its folder is gone or belongs to another process by now."""
        status = self.run.status()
        if status.state == "unreadable" or status.pid not in (None, self.record.pid) or (status.pid is None and status.state == "queued"):
            return None
        return status

    def _give_up(self) -> bool:
        return not self.record.contact or time.monotonic() - (self._ended_at or 0.0) > END_LIMIT_S

    def _try(self, status: RunStatus) -> bool:
        try:
            self._bring_up_to(status)
        except Exception as error:  # noqa: BLE001 - servers, proxies and stores of artifacts fail in every way there is
            cause = _cause(error)
            sentence = NOT_ALL_LOGGED if self.record.contact else NOTHING_LOGGED
            self._log.line(f"mlflow: {cause}\n{without_secrets(traceback.format_exc())}")
            self._save(contact=bool(self.record.contact), trouble=sentence.format(uri=self.record.tracking_uri, cause=cause))
            return False
        if self.record.trouble or self.record.contact is None:
            self._save(contact=True, trouble=None)
        return True

    def _bring_up_to(self, status: RunStatus) -> None:
        """One step: what the folder holds and MLflow does not. Raises whatever mlflow raises; may be called again."""
        if self._client is None:
            self._client = self._connected()
        self._tags(status)
        self._epochs()
        if not status.live:
            self._finish(status)

    def _connected(self) -> Any:
        from mlflow.tracking import MlflowClient

        client = MlflowClient(tracking_uri=self.uri)
        if self.record.mlflow_run_id is not None and _is_there(client, self.record.mlflow_run_id):
            client.update_run(self.record.mlflow_run_id, status="RUNNING")
        else:
            experiment = _experiment(client)
            made = client.create_run(experiment, run_name=self.run.run_id, tags={"twopath_run_id": self.run.run_id})
            self._logged.clear()
            self._save(experiment_id=experiment, mlflow_run_id=made.info.run_id, epochs=0)
        for some in _in_parts(self._parameters(), 100):
            client.log_batch(str(self.record.mlflow_run_id), params=some)
        url = f"{self.record.tracking_uri.rstrip('/')}/#/experiments/{self.record.experiment_id}/runs/{self.record.mlflow_run_id}"
        self._save(contact=True, trouble=None, url=url if self.uri.startswith(("http://", "https://")) else None)
        return client

    def _parameters(self) -> list[Any]:
        from mlflow.entities import Param

        return [Param(name, str(value)) for name, value in self.run.config().model_dump(mode="json").items()]

    def _tags(self, status: RunStatus) -> None:
        """The decision, once it is known, and what the data are."""
        profile, dataset = _object(self.run.path / "profile.json"), _object(self.run.path / "dataset.json")
        gpu = profile.get("gpu")
        found = {
            "selected_device": profile.get("selected_device") or status.selected_device,
            "path": profile.get("path") or status.path,
            "reason": profile.get("reason") or status.reason,
            "gpu": gpu.get("name") if isinstance(gpu, dict) else None,
            "host": status.host,
            "twopath_version": _version(),
            "tensorflow_version": profile.get("tensorflow_version"),
            "data": dataset.get("name"),
            "split_digest": dataset.get("split_digest"),
            "state": status.state,
            "error": status.error,
        }
        for name, value in found.items():
            if value is not None and self._told.get(name) != value:
                self._client.set_tag(self.record.mlflow_run_id, name, str(value)[:5000])
                self._told[name] = value

    def _epochs(self) -> None:
        rows = read_history(self.run.path / "history.csv")
        new = [row for row in rows if self._logged.get(int(row["epoch"])) != row]
        for some in _in_parts(new, 50):
            self._metrics([(name, value, int(row["epoch"])) for row in some for name, value in row.items() if name != "epoch"])
            self._logged.update({int(row["epoch"]): row for row in some})
            self._save(epochs=max(self._logged))

    def _metrics(self, values: list[tuple[str, float, int]]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        for some in _in_parts([Metric(name, float(value), now, step) for name, value, step in values], 1000):
            self._client.log_batch(self.record.mlflow_run_id, metrics=some)

    def _finish(self, status: RunStatus) -> None:
        last = max(self._logged, default=0)
        names = ("best_epoch", "best_val_loss", "batch_size", "train_images_per_s", "score_images_per_s")
        known = {f"final.{name}": value for name in names if (value := getattr(status, name)) is not None}
        figures = {**known, **dict(_numbers(_object(self.run.path / "metrics.json")))}
        self._metrics([(name, value, last) for name, value in figures.items()])
        wanted = (*ARTIFACTS, *(MODEL_ARTIFACTS if os.environ.get("TWOPATH_MLFLOW_MODEL") == "1" else ()))
        for name in wanted:
            if (self.run.path / name).is_file():
                self._client.log_artifact(self.record.mlflow_run_id, str(self.run.path / name))
        self._client.set_terminated(self.record.mlflow_run_id, status=ENDS[status.state])

    def _save(self, **values: Any) -> None:
        for name, value in values.items():
            setattr(self.record, name, value)
        with contextlib.suppress(RunError):  # a full disk: the next one is written again
            self.record.write(self.run.path)

    def _end_by_itself(self) -> None:
        while (status := self._status()) is not None and status.live:
            time.sleep(4 * POLL_S)
        time.sleep(HANG_LIMIT_S)
        self._save(ended=True)
        os._exit(1)


def _cause(error: BaseException) -> str:
    """What went wrong in a few words, without secrets."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return without_secrets(lines[0] if lines else type(error).__name__).rstrip(".")[:240]


def _is_there(client: Any, mlflow_run_id: str) -> bool:
    from mlflow.exceptions import MlflowException

    try:
        return bool(client.get_run(mlflow_run_id).info.lifecycle_stage == "active")
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return False
        raise


def _experiment(client: Any) -> str:
    """The id of the experiment that mlflow's own variables name, else of ours; made where there is none."""
    if known := os.environ.get("MLFLOW_EXPERIMENT_ID"):
        return known
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return str(client.create_experiment(name))
        except Exception:  # another run may have made it in between
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    return str(found.experiment_id)


def _numbers(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Every finite number in nested objects, its name joined by dots."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _numbers(value, f"{prefix}{name}.")
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            yield "".join(letter if letter.isalnum() or letter in "_-./ " else "_" for letter in f"{prefix}{name}"), value


def _in_parts(items: list[Any], size: int) -> Iterator[list[Any]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _object(path: Path) -> dict[str, Any]:
    try:
        return read_json(path) or {}
    except ValueError:
        return {}


def _version() -> str | None:
    try:
        return metadata.version("twopath")
    except metadata.PackageNotFoundError:
        return None


def alone(folder: Path, act: Callable[[], None]) -> None:
    """`act` once no other companion is at work in `folder`, or not at all."""
    descriptor = os.open(folder / ".mlflow-lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        until = time.monotonic() + FORMER_LIMIT_S
        while not _locked(descriptor):
            if time.monotonic() > until:
                return
            time.sleep(POLL_S)
        act()
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        return try_lock(descriptor)
    except OSError:  # a network file system without locks
        return True


def main(arguments: list[str]) -> int:
    """`RUN_FOLDER PID`: follow the run that process PID carries out."""
    if os.fork():  # on its own from here: no child of the run's process that a second cancel would kill with it
        return 0
    os.nice(10)
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    folder, pid = Path(arguments[0]), int(arguments[1])
    alone(folder, lambda: Companion(folder, pid, os.environ["MLFLOW_TRACKING_URI"]).follow())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
