"""Real runs logged to a real MLflow server on loopback, and to servers that are none."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import socketserver
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from mlflow_server import PYTHON, free_port, mlflow_server
from run_helpers import FAKE, Start, until, wait_phase, wait_state

from app.cae.config import CaeConfig
from app.runs.folder import RunFolder
from app.runs.launch import cancel_run, resume_run
from app.runs.trackers import NO_MLFLOW
from app.runs.trackers_mlflow import ARTIFACTS
from app.runs.trackers_record import MlflowRecord, read_record, without_secrets

pytest.importorskip("mlflow", reason="the extra mlflow is not installed")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if not PYTHON.exists():
        if os.environ.get("CI"):
            pytest.fail("CI needs MLflow's server: make test installs it.")
        pytest.skip(f"no MLflow server in {PYTHON.parents[1]} (make test installs it)")
    with mlflow_server(tmp_path_factory.mktemp("mlflow")) as uri:
        yield uri


@pytest.fixture
def logged(server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The tracking URI that the runs of this test log to."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    return server


def _asked(uri: str, run: RunFolder) -> dict[str, Any]:
    """What the server tells of a run, through its own REST interface, once the companion is done."""
    record = _record_at_end(run)
    assert record.mlflow_run_id, record

    def get(what: str, **query: str) -> dict[str, Any]:
        address = f"{uri}/api/2.0/mlflow/{what}?{urllib.parse.urlencode({'run_id': record.mlflow_run_id, **query})}"
        with urllib.request.urlopen(address, timeout=60) as answer:
            return dict(json.load(answer))

    def curve(name: str) -> list[list[float]]:
        points = get("metrics/get-history", metric_key=name).get("metrics", [])
        return [[int(point.get("step", 0)), point["value"]] for point in points]

    found = get("runs/get")["run"]
    data = {kind: {pair["key"]: pair["value"] for pair in found["data"].get(kind, [])} for kind in ("params", "metrics", "tags")}
    artifacts = [file["path"] for file in get("artifacts/list").get("files", [])]
    curves = {name: curve(name) for name in ("loss", "val_loss")}
    return {"status": found["info"]["status"], "name": found["info"]["run_name"], **data, "curve": curves, "artifacts": artifacts}


def _record_at_end(run: RunFolder) -> MlflowRecord:
    pid = run.status().pid
    return until(lambda: (found := read_record(run.path)) and found.ended and found.pid == pid and found, "the end of the companion", 90)


def test_a_finished_run_stands_in_mlflow_whole(logged: str, start: Start, config: CaeConfig) -> None:
    run = start(epochs=3)
    status = wait_state(run, "finished")
    found = _asked(logged, run)
    assert (found["status"], found["name"]) == ("FINISHED", run.run_id)
    assert found["params"] == {name: str(value) for name, value in config.model_dump(mode="json").items()}
    assert found["curve"] == {"loss": [[1, 1.0], [2, 0.5], [3, 1 / 3]], "val_loss": [[1, 2.0], [2, 1.0], [3, 2 / 3]]}
    assert found["metrics"]["image_auroc"] == 0.75
    assert (found["metrics"]["final.train_images_per_s"], found["metrics"]["final.batch_size"]) == (100.0, 8.0)
    tags = found["tags"]
    assert (tags["selected_device"], tags["path"], tags["reason"]) == ("cpu", status.path, "Because the test says so.")
    assert (tags["host"], tags["state"], tags["twopath_run_id"]) == (status.host, "finished", run.run_id)
    assert tags["twopath_version"]
    assert (
        set(found["artifacts"])
        == {name for name in ARTIFACTS if (run.path / name).is_file()}
        >= {"metrics.json", "scores.csv", "history.csv"}
    )
    assert not [sentence for sentence in status.warnings if "MLflow" in sentence]
    record = read_record(run.path)
    assert record is not None
    assert record.url == f"{logged}/#/experiments/{record.experiment_id}/runs/{record.mlflow_run_id}"


def test_cancelled_and_failed_runs_end_so_and_a_resumed_one_goes_on_in_the_same_place(logged: str, start: Start) -> None:
    run = start(epochs=100, batch_s=0.1)
    until(lambda: (run.status().epoch or 0) >= 2, "two epochs")
    cancel_run(run)
    wait_state(run, "cancelled")
    first = _asked(logged, run)
    assert (first["status"], first["tags"]["state"]) == ("KILLED", "cancelled")
    epochs = run.status().epoch or 0
    assert [step for step, _ in first["curve"]["loss"]] == list(range(1, epochs + 1))

    os.environ["FAKE_RUN"] = json.dumps({"first_epoch": epochs + 1, "epochs": epochs + 2, "fail": "ValueError:no good"})
    known = read_record(run.path)
    resume_run(run, program=FAKE)
    wait_state(run, "failed")
    second = _asked(logged, run)
    again = read_record(run.path)
    assert known is not None
    assert again is not None
    assert again.mlflow_run_id == known.mlflow_run_id
    assert (second["status"], second["tags"]["state"]) == ("FAILED", "failed")
    assert "no good" in second["tags"]["error"]
    assert [step for step, _ in second["curve"]["loss"]] == list(range(1, epochs + 2)), "joined, and no epoch twice"


def test_a_run_that_is_killed_is_told_as_killed(logged: str, start: Start) -> None:
    run = start(epochs=100, batch_s=0.1)
    until(lambda: (record := read_record(run.path)) and record.epochs >= 1, "the first epoch in MLflow", 60)
    os.killpg(int(run.status().pid or 0), signal.SIGKILL)
    wait_state(run, "interrupted")
    found = _asked(logged, run)
    assert (found["status"], found["tags"]["state"]) == ("KILLED", "interrupted")
    assert found["curve"]["loss"][0] == [1, 1.0]


class _Refuses(BaseHTTPRequestHandler):
    """Answers every request with the status its server is named after."""

    def parse_request(self) -> bool:
        if super().parse_request():
            self.send_error(int(self.server.server_name))  # type: ignore[attr-defined]
        return False

    def log_message(self, *_: Any) -> None:
        pass


class _Forward(socketserver.BaseRequestHandler):
    """Passes one connection on to `server.target`."""

    def handle(self) -> None:
        with socket.create_connection(self.server.target) as there:  # type: ignore[attr-defined]
            back = threading.Thread(target=self._pass, args=(there, self.request), daemon=True)
            back.start()
            self._pass(self.request, there)
            back.join()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


def test_a_server_that_comes_late_gets_everything(server: str, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}")
    run = start(epochs=1000, batch_s=0.1)
    until(lambda: run.status().warnings, "a warning", 60)
    with socketserver.ThreadingTCPServer(("127.0.0.1", port), _Forward) as forward:
        forward.daemon_threads = True
        forward.target = ("127.0.0.1", int(server.rpartition(":")[2]))  # type: ignore[attr-defined]
        threading.Thread(target=forward.serve_forever, daemon=True).start()
        until(lambda: (record := read_record(run.path)) and record.epochs >= 1, "the first epoch in MLflow", 120)
        cancel_run(run)
        wait_state(run, "cancelled")
        found = _asked(server, run)
        forward.shutdown()
    assert found["status"] == "KILLED"
    assert [step for step, _ in found["curve"]["loss"]] == list(range(1, (run.status().epoch or 0) + 1))
    assert len([sentence for sentence in run.status().warnings if "MLflow" in sentence]) == 1


@pytest.fixture(params=["nobody", "hangs", "401", "500", "no uri"])
def bad_uri(request: pytest.FixtureRequest) -> Iterator[str]:
    """Tracking URIs that lead nowhere, each in its own way; with a password that nobody may read."""
    if request.param == "no uri":
        yield "gopher:nonsense"
        return
    if request.param in ("nobody", "hangs"):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            if request.param == "hangs":
                listener.listen(64)  # connects, and never gets an answer
            yield f"http://user:secret@127.0.0.1:{listener.getsockname()[1]}"
        return
    with ThreadingHTTPServer(("127.0.0.1", 0), _Refuses) as httpd:
        httpd.server_name = request.param
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        yield f"http://user:secret@127.0.0.1:{httpd.server_address[1]}"
        httpd.shutdown()


def test_a_server_that_is_none_costs_one_sentence(bad_uri: str, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", bad_uri)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")  # what the user sets is kept
    run = start(epochs=3)
    status = wait_state(run, "finished")
    about = [sentence for sentence in status.warnings if "MLflow" in sentence]
    assert len(about) == 1, status.warnings
    assert without_secrets(bad_uri) in about[0]
    assert len((run.path / "history.csv").read_text().splitlines()) == 4
    assert (run.path / "metrics.json").exists()
    _record_at_end(run)
    for name in ("status.json", "mlflow.json", "log.txt"):
        assert "secret" not in (run.path / name).read_text(encoding="utf-8"), name


def test_training_does_not_wait_for_a_server_that_hangs(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{listener.getsockname()[1]}")
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "600")
        run = start(epochs=3, scoring_s=60)
        wait_phase(run, "scoring")
        record = read_record(run.path)
        assert record is None or record.contact is None, "the server has not even been given up, and training is over"
        cancel_run(run)
        status = wait_state(run, "cancelled")
    assert [sentence for sentence in status.warnings if "had not answered" in sentence]


def test_without_the_package_one_sentence_says_what_to_install(start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Where `sitecustomize` hides it, the package is not there for the whole process of the run.
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u\nfind = u.find_spec\nu.find_spec = lambda name, *a: None if name == 'mlflow' else find(name, *a)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    run = start(epochs=2)
    status = wait_state(run, "finished")
    assert NO_MLFLOW in status.warnings
    assert not (run.path / "mlflow.json").exists()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://ada:p@ss@host/api", "https://host/api"),
        ("no https://ada:x@host:5000/a, no http://bo:y@other", "no https://host:5000/a, no http://other"),
        ("postgresql+psycopg2://u:p@db/mlflow", "postgresql+psycopg2://db/mlflow"),
        ("https://host/users/@me?mail=a@b", "https://host/users/@me?mail=a@b"),
    ],
)
def test_names_and_passwords_of_servers_are_left_out(text: str, shown: str) -> None:
    assert without_secrets(text) == shown
