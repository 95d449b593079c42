"""A disk that fills up: a real small file system, filled by somebody else while a run goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from run_helpers import HERE, LIMIT_S

SCENE = """
import json, os, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from fake_run import fake_pipeline
from app.cae.config import make_config
from app.core.errors import RunError
from app.runs.folder import RunFolder
from app.runs.worker import run_in_folder
place = Path(sys.argv[1])
config = make_config({"data": "synthetic", "device": "cpu"})
run = RunFolder.create(place / "runs", config)
ballast = place / "ballast"

def fill():
    with ballast.open("ab", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass

def pipeline(config, *, reporter, work_dir):
    reporter.epoch({"epoch": 1, "loss": 1.0, "val_loss": 1.0})
    fill()
    reporter.epoch({"epoch": 2, "loss": 0.5, "val_loss": 0.5})
    time.sleep(1.2)  # the heartbeat tries, and tries again
    if "space comes back" in sys.argv:
        ballast.unlink()
    result = fake_pipeline(config, reporter=reporter, work_dir=work_dir)
    return result

code = run_in_folder(run.path, pipeline=pipeline)
told = {"code": code, "status": json.loads((run.path / "status.json").read_text())}
told["history"] = (run.path / "history.csv").read_text().count(chr(10)) - 1
told["files"] = sorted(path.name for path in run.path.iterdir())
fill()
try:
    RunFolder.create(place / "runs", config)
except RunError as error:
    told["create"] = str(error)
print(json.dumps(told))
"""


def _in_small_file_system(place: Path, *arguments: str, **script: object) -> subprocess.CompletedProcess[str]:
    """Run SCENE with 400 KiB mounted on `place`, in a mount namespace of its own, so that nothing stays mounted."""
    place.mkdir()
    mount = f'mount -t tmpfs -o size=600k none "{place}" && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", mount, "sh", sys.executable, "-c", SCENE, str(place), str(HERE), *arguments]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=2 * LIMIT_S,
        cwd=HERE.parents[1],
        env={**os.environ, "FAKE_RUN": json.dumps(script)},
    )


def _can_mount(place: Path) -> bool:
    command = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", str(place)]
    try:
        return subprocess.run(command, capture_output=True, timeout=LIMIT_S).returncode == 0
    except OSError:
        return False


@pytest.fixture
def place(tmp_path: Path) -> Path:
    if not _can_mount(tmp_path):
        pytest.skip("mounting a small file system needs root and unshare(1)")
    return tmp_path / "small"


def test_a_full_disk_is_told_with_numbers_and_what_was_computed_stays(place: Path) -> None:
    done = _in_small_file_system(place)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["code"] == 1
    status = told["status"]
    assert status["state"] == "failed"
    assert "the disk is full in " in status["error"]
    assert "(0.0 MiB of 0.6 MiB free). Free some space" in status["error"]
    assert "Not written either: scores.csv, maps.npz." in status["error"]
    assert status["error"] in done.stderr
    assert any("The run goes on and tries again." in sentence for sentence in status["warnings"])
    assert told["history"] == 3, "every epoch, also those of the time without room"
    assert not [name for name in told["files"] if name.startswith(".tmp-")]
    assert "the disk is full in " in told["create"] or "No space left on device; 0.0 MiB of 0.6 MiB free" in told["create"]


def test_a_disk_that_was_full_for_a_while_costs_nothing(place: Path) -> None:
    done = _in_small_file_system(place, "space comes back")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["code"], told["status"]["state"], told["history"]) == (0, "finished", 3)
    assert any("the disk is full" in sentence for sentence in told["status"]["warnings"])
    assert "maps.npz" in told["files"]
