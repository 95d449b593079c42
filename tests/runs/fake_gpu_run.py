"""A run's process on GPUs: `python fake_gpu_run.py RUN_FOLDER`. The device is really decided and brought up, with a fake nvidia-smi and
`tests/data/tf_stub` in place of TensorFlow; instead of training it waits until a file `go` lies in its folder.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from fake_run import Result

from app.cae.config import CaeConfig
from app.core.tf_device import configure_tensorflow
from app.runs.reporter import FolderReporter
from app.runs.worker import run_in_folder


def pipeline(config: CaeConfig, *, reporter: FolderReporter, work_dir: Path) -> Any:
    profile = configure_tensorflow(config.min_vram_mib, device=config.device, gpus=config.gpus, own=reporter.gpus)
    reporter.profile(profile)
    reporter.phase("training", 0, 1)
    while not (work_dir / "go").exists() and not reporter.cancelled():
        time.sleep(0.02)
    return Result(config, profile, "finished")


if __name__ == "__main__":
    sys.exit(run_in_folder(Path(sys.argv[1]), pipeline=pipeline))
