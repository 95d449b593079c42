"""A real MLflow tracking server on loopback, from an environment of its own (tests/data/mlflow-server.txt says why and what)."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

PYTHON = Path(sys.prefix) / "mlflow-server/bin/python"
"""Where `make test` puts it."""


@contextlib.contextmanager
def mlflow_server(folder: Path) -> Iterator[str]:
    """The tracking URI of a server that keeps everything in `folder`.

    Raises:
        RuntimeError: it ended or did not answer within 120 s; the message holds its output.
    """
    uri = f"http://127.0.0.1:{free_port()}"
    command = [str(PYTHON), "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", uri.rpartition(":")[2], "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder / 'mlflow.sqlite'}", "--artifacts-destination", str(folder / "artifacts")]
    # Jobs of MLflow's own would be six more processes; telemetry would go to its maker.
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    log = folder / "server.log"
    with log.open("ab") as output:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        _wait(uri, process, log)
        yield uri
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait(uri: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        with (
            contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError),
            urllib.request.urlopen(f"{uri}/health", timeout=2),
        ):
            return
        time.sleep(0.1)
    raise RuntimeError(f"MLflow's server did not answer. It printed:\n{log.read_text(encoding='utf-8', errors='replace')}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
