"""Time and memory of the pixel metrics on 80 maps of 256×256, side by side with anomalib's AUPIMO where that is installed.

    python benchmarks/metrics.py [--maps 80] [--size 256] [--rounds 3] [--reference PYTHON]

anomalib brings PyTorch (6 GB with CUDA), so it stands in an environment of its own, and `--reference` names that environment's Python:

    python -m venv reference && reference/bin/pip install anomalib==2.7.0
    python benchmarks/metrics.py --reference reference/bin/python

Every measurement is a fresh process that reads the same maps and masks, computes once to warm up and once more against the clock. Its
memory is the peak of its resident size while it computes, less its size before (Linux). Rounds alternate, so that a busy machine slows
all of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
OURS, REFERENCE = ("AUPIMO", "AUPRO", "pixel AUROC"), "AUPIMO, anomalib"


def maps_and_masks(count: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Smooth noise; every other image has a square defect that stands out a little."""
    from scipy.ndimage import gaussian_filter

    random = np.random.default_rng(0)
    maps = gaussian_filter(random.normal(size=(count, size, size)).astype(np.float32), (0, 2, 2))
    masks = np.zeros((count, size, size), np.uint8)
    for image in range(0, count, 2):
        row, column, side = *random.integers(0, size * 3 // 4, 2), random.integers(size // 16, size // 4)
        masks[image, row : row + side, column : column + side] = 1
    return maps + masks * np.float32(maps.std() * 3), masks


def computation(name: str, maps: np.ndarray, masks: np.ndarray) -> Callable[[], float]:
    """What is measured under `name`. Imports happen here, before memory and clock are looked at."""
    if name == REFERENCE:
        import torch
        from anomalib.metrics.pimo.functional import aupimo_scores

        tensors = torch.from_numpy(maps), torch.from_numpy(masks.astype(np.int64))
        return lambda: float(torch.nanmean(aupimo_scores(*tensors)[4]))
    sys.path.insert(0, str(ROOT))
    from app.cae.metrics import aupimo, aupro, pixel_auroc

    made: dict[str, Callable[[], float]] = {
        "AUPIMO": lambda: aupimo(maps, masks).mean,
        "AUPRO": lambda: aupro(maps, masks),
        "pixel AUROC": lambda: pixel_auroc(maps, masks),
    }
    return made[name]


def measured_here(name: str, file: Path) -> dict[str, float]:
    """Value, seconds, and MiB that computing took."""
    with np.load(file) as arrays:
        compute = computation(name, arrays["maps"], arrays["masks"])
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak counts from here
    before = _status_mib("VmRSS")
    compute()
    peak = _status_mib("VmHWM") - before
    started = time.perf_counter()
    value = compute()
    return {"value": value, "seconds": time.perf_counter() - started, "mib": peak}


def _status_mib(name: str) -> float:
    text = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith(name)) / 1024


def measured_apart(python: str, name: str, file: Path) -> dict[str, Any]:
    """`measured_here` in a fresh process."""
    done = subprocess.run([python, __file__, "--one", name, "--file", str(file)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{name} could not be measured with {python}: {done.stderr.strip().splitlines()[-1] if done.stderr else 'no output'}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--maps", type=int, default=80)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--reference", metavar="PYTHON", help="of an environment with anomalib; without it only our own are measured")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measured_here(options.one, options.file)))
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "maps.npz"
        maps, masks = maps_and_masks(options.maps, options.size)
        np.savez(file, maps=maps, masks=masks)
        pythons = dict.fromkeys(OURS, sys.executable) | ({REFERENCE: options.reference} if options.reference else {})
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in pythons}
        for _ in range(options.rounds):
            for name, python in pythons.items():
                found[name].append(measured_apart(python, name, file))
    print(f"{options.maps} maps of {options.size}×{options.size}, {options.rounds} rounds: median (least to most)\n")
    print("| | value | s | MiB |\n|---|---|---|---|")
    for name, rounds in found.items():
        print(f"| {name} | {rounds[0]['value']:.6f} | {_spread(rounds, 'seconds', 2)} | {_spread(rounds, 'mib', 0)} |")
    if options.reference:
        times = [theirs["seconds"] / ours["seconds"] for ours, theirs in zip(found["AUPIMO"], found[REFERENCE], strict=True)]
        memory = statistics.median(r["mib"] for r in found["AUPIMO"]) / statistics.median(r["mib"] for r in found[REFERENCE])
        print(f"\nAUPIMO: {statistics.median(times):.0f} times as fast ({min(times):.0f} to {max(times):.0f}), {memory:.1%} of the memory.")


def _spread(rounds: list[dict[str, Any]], key: str, places: int) -> str:
    values = [one[key] for one in rounds]
    return f"{statistics.median(values):.{places}f} ({min(values):.{places}f} to {max(values):.{places}f})"


if __name__ == "__main__":
    main()
