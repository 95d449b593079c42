"""Run folders as real runs leave them, made in milliseconds: for the tests of the Compare tab."""

from __future__ import annotations

import datetime as dt
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from app.cae.config import make_config
from app.runs.folder import RunFolder
from app.runs.processes import mark
from app.runs.status import RunStatus

CPU_PATH = "CPU · AVX-512 through oneDNN"
GPU_PATH = "GPU · NVIDIA RTX A4000"
CPU_REASON = "No NVIDIA GPU found. Using AVX2 CPU path."
GPU_REASON = "GPU 'NVIDIA RTX A4000' has 14210 MiB free (≥ threshold 2048 MiB)."
METRICS = {"image_auroc": 0.948, "image_ap": 0.931, "image_f1": 0.872, "pixel_auroc": 0.907, "aupro": None, "aupimo": None}
EPOCH_0 = dt.datetime(2026, 11, 1, 8, 0, tzinfo=dt.UTC)


def write_run(
    runs_dir: Path,
    number: int = 0,
    *,
    state: str = "finished",
    device: str = "cpu",
    path: str | None = None,
    epochs: int = 20,
    speed: float = 100.0,
    options: Mapping[str, Any] | None = None,
    metrics: Mapping[str, Any] | None = None,
    notes: Mapping[str, Any] | None = None,
    profile: Mapping[str, Any] | None = None,
    status: Mapping[str, Any] | None = None,
    seed: int | None = None,
) -> RunFolder:
    """One run folder; `number` gives its id and its place in time. A live state belongs to this very process, so it is alive."""
    config = make_config({"data": "elpv-mono", "epochs": epochs, **(options or {})})
    created = EPOCH_0 + dt.timedelta(minutes=7 * number)
    run_id = f"{created:%Y%m%d-%H%M%S}-{Path(config.data).name}-{number:04x}"
    folder = RunFolder(runs_dir / run_id)
    folder.path.mkdir(parents=True)
    rows = history_rows(epochs, speed, seed=number if seed is None else seed, gpu=device == "gpu")
    best = min(range(len(rows)), key=lambda place: rows[place]["val_loss"]) if rows else None
    values: dict[str, Any] = {
        "created": created,
        "started": created + dt.timedelta(seconds=3),
        "heartbeat": created + dt.timedelta(seconds=3 + (rows[-1]["seconds"] if rows else 0.0)),
        "epoch": epochs,
        "epochs": config.epochs,
        "best_epoch": rows[best]["epoch"] if best is not None else None,
        "best_val_loss": rows[best]["val_loss"] if best is not None else None,
        "selected_device": device,
        "path": path or (GPU_PATH if device == "gpu" else CPU_PATH),
        "reason": GPU_REASON if device == "gpu" else CPU_REASON,
        "train_images_per_s": speed,
        "score_images_per_s": speed * 3.1,
        "phase": "writing",
    }
    if state in ("queued", "running"):
        me = mark(os.getpid())
        assert me is not None
        values |= {"pid": me.pid, "pid_started": me.started, "pid_token": me.token, "host": me.host, "heartbeat": None}
        values |= {"phase": "training", "score_images_per_s": None}
    else:
        values["ended"] = values["heartbeat"] + dt.timedelta(seconds=4)
    put_json(folder.path / "status.json", RunStatus(run_id, state, **{**values, **(status or {})}).to_json())  # type: ignore[arg-type]
    put_json(folder.path / "config.json", config.model_dump(mode="json"))
    put_json(folder.path / "profile.json", {**_profile(device), **(profile or {})})
    if state == "finished":
        put_json(folder.path / "metrics.json", {**METRICS, "not_available": {"aupro": "No masks."}, **(metrics or {})})
    if notes:
        put_json(folder.path / "notes.json", notes)
    write_history(folder.path, rows)
    return folder


def history_rows(epochs: int, speed: float, *, seed: int = 0, gpu: bool = False) -> list[dict[str, float]]:
    """A curve that falls, with noise: as real ones look."""
    random = np.random.default_rng(seed)
    rows = []
    for epoch in range(1, epochs + 1):
        at = epoch / max(20, epochs)
        loss = 0.62 * math.exp(-5 * at) + 0.21 + 0.012 * random.standard_normal()
        rows.append(
            {
                "epoch": epoch,
                "step": epoch * 58,
                "seconds": epoch * 920 / speed,
                "loss": loss,
                "val_loss": 0.55 * math.exp(-6 * at) + 0.16 + 0.06 * at**2 + 0.01 * random.standard_normal(),
                "images_per_s": speed * (1 + 0.04 * random.standard_normal()),
                "learning_rate": 1e-3 * 0.5 * (1 + math.cos(math.pi * at)),
                "memory_mib": 1450 + 20 * random.random(),
                **({"gpu_memory_mib": 1100 + 5 * random.random()} if gpu else {}),
            }
        )
    return rows


def write_history(folder: Path, rows: list[dict[str, float]]) -> None:
    names = list(rows[0]) if rows else ["epoch"]
    lines = [",".join(names), *(",".join(repr(row[name]) for name in names) for row in rows)]
    (folder / "history.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def put_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


def _profile(device: str) -> dict[str, Any]:
    return {
        "selected_device": device,
        "tensorflow_version": "2.21.0",
        "cpu": {"name": "AMD EPYC"},
        "gpu": {"name": "NVIDIA RTX A4000"} if device == "gpu" else None,
        "instruction_set": "AVX-512",
        "onednn": True,
        "intra_op_threads": 2,
        "inter_op_threads": 2,
        "settings": [{"name": "TF_ENABLE_ONEDNN_OPTS", "value": "1"}, {"name": "OMP_NUM_THREADS", "value": "2"}],
    }
