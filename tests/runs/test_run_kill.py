"""kill -9 at random moments of real runs, from their first line to their last word: every file whole or absent, and the run goes on."""

from __future__ import annotations

import functools
import json
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
from run_helpers import HERE, until

from app.cae.config import CaeConfig
from app.runs.files import RESERVE, RESERVE_BYTES, TEMP_PREFIX
from app.runs.folder import RunFolder

KILLS = 40
PICTURES, MODEL_BYTES = 300, 600_000
# One process that has imported everything, and a fork of it for each life of a run: forty starts of Python would take most of a minute.
NURSERY = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import numpy, pandas
import fake_run
from app.runs.folder import load_history
from app.runs.worker import run_in_folder

class Model:
    def save(self, temp):
        with temp.open("wb", buffering=0) as file:
            for _ in range(60):
                file.write(b"m" * (int(sys.argv[3]) // 60))

def pipeline(config, *, reporter, work_dir):
    done = len(load_history(work_dir))
    script = {"first_epoch": done + 1, "epochs": done + 3, "batch_s": 0.003, "pictures": int(sys.argv[2])}
    os.environ["FAKE_RUN"] = fake_run.json.dumps(script)
    result = fake_run.fake_pipeline(config, reporter=reporter, work_dir=work_dir)
    result.model = Model()
    return result

for line in sys.stdin:
    child = os.fork()
    if not child:
        os._exit(run_in_folder(Path(line.strip()), pipeline=pipeline))
    if sys.stdin.readline() == "kill\\n":
        os.kill(child, signal.SIGKILL)  # whether it lives or has just ended: its number is kept until the next line
    os.waitpid(child, 0)
    print("gone", flush=True)
"""
MOMENTS = (None, "profile.json", "history.csv", "scores.csv")
_FILES = {
    *("config.json", "status.json", "profile.json", "dataset.json", "history.csv", "metrics.json", "scores.csv", "maps.npz"),
    *("model.keras", "log.txt", RESERVE),
}


def assert_whole(folder: Path) -> set[str]:
    """Every file of the run folder that is there reads back whole; returns their names."""
    names = {path.name for path in folder.iterdir() if not path.name.startswith(TEMP_PREFIX)}
    assert names <= _FILES, names - _FILES
    for name in names:
        path = folder / name
        try:
            if path.suffix == ".json":
                assert isinstance(json.loads(path.read_text(encoding="utf-8")), dict)
            elif name == "history.csv":
                history = pd.read_csv(path)
                assert list(history["epoch"]) == list(range(1, len(history) + 1))
                assert history[["loss", "val_loss", "step"]].notna().all(axis=None)
            elif name == "scores.csv":
                assert list(pd.read_csv(path)["path"]) == [f"{number}.png" for number in range(PICTURES)]
            elif name == "maps.npz":
                with np.load(path, allow_pickle=False) as archive:
                    assert {len(archive[part]) for part in archive.files} == {PICTURES}
            elif name in ("model.keras", RESERVE):
                assert path.stat().st_size == (MODEL_BYTES if name == "model.keras" else RESERVE_BYTES)
            else:
                path.read_text(encoding="utf-8")
        except FileNotFoundError:  # the room that was set aside is given back at the end
            assert name == RESERVE
    return names


def _stamps(run: RunFolder) -> dict[str, int]:
    return {name: (run.path / name).stat().st_mtime_ns for name in _FILES - {RESERVE} if (run.path / name).exists()}


def _is_new(run: RunFolder, name: str | None, written: dict[str, int]) -> bool:
    return name is None or _stamps(run).get(name) != written.get(name)


def _say(nursery: subprocess.Popen[str], line: str) -> None:
    assert nursery.stdin
    nursery.stdin.write(f"{line}\n")
    nursery.stdin.flush()


def _hear(nursery: subprocess.Popen[str]) -> None:
    assert nursery.stdout
    assert nursery.stdout.readline() == "gone\n"


def test_runs_killed_at_random_moments_leave_whole_files_and_go_on(runs_dir: Path, config: CaeConfig) -> None:
    rng = random.Random(7)
    states: list[str] = []
    run = RunFolder.create(runs_dir, config)
    command = [sys.executable, "-W", "ignore", "-c", NURSERY, str(HERE), str(PICTURES), str(MODEL_BYTES)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=HERE.parents[1]) as nursery:
        for number in range(KILLS):
            written = _stamps(run)
            _say(nursery, str(run.path))
            # Somewhere after one of the moments of its life: its start, the decision, an epoch, the first results.
            until(functools.partial(_is_new, run, MOMENTS[number % len(MOMENTS)], written), f"moment {number} of {run.run_id}")
            end = time.monotonic() + rng.uniform(0.0, 0.04)
            while time.monotonic() < end:
                assert_whole(run.path)
            _say(nursery, "kill")
            _hear(nursery)
            status = run.status()
            states.append(status.state)
            assert status.state in ("queued", "interrupted", "finished"), status
            assert_whole(run.path)
            if status.state == "finished":
                run = RunFolder.create(runs_dir, config)
            else:
                run.set_up_again(status)
        # And once without a kill: it ends as if nothing had been, with all the epochs of its lives.
        _say(nursery, str(run.path))
        _say(nursery, "wait")
        _hear(nursery)
        nursery.communicate()
    assert states.count("interrupted") > KILLS / 2, states
    assert run.status().state == "finished"
    assert assert_whole(run.path) == _FILES - {RESERVE}
    assert not list(run.path.glob(f"{TEMP_PREFIX}*")), "what a killed writer left is cleaned up by the next"
