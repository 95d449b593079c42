"""Time and memory of the pixel metrics on 80 maps of 256×256, beside anomalib where that is installed.

    python benchmarks/metrics.py [--maps 80] [--size 256]

anomalib 2.7 took 7.6-12.9 s and 2.8 GB for the same AUPIMO on two cores (docs/quality.md); install `anomalib[core]` to measure it here.
"""

from __future__ import annotations

import argparse
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.ndimage import gaussian_filter

from app.cae.metrics import aupimo, aupro, pixel_auroc


def maps_and_masks(count: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Smooth noise; every other image has a square defect that stands out a little."""
    random = np.random.default_rng(0)
    maps = gaussian_filter(random.normal(size=(count, size, size)).astype(np.float32), (0, 2, 2))
    masks = np.zeros((count, size, size), np.uint8)
    for image in range(0, count, 2):
        row, column, side = *random.integers(0, size * 3 // 4, 2), random.integers(size // 16, size // 4)
        masks[image, row : row + side, column : column + side] = 1
    return maps + masks * np.float32(maps.std() * 3), masks


def measure(compute: Callable[[], Any], repeats: int = 3) -> tuple[Any, float, float]:
    """(result, best time in s, peak memory in MiB); memory is traced in a run of its own, because tracing costs time."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        result = compute()
        times.append(time.perf_counter() - started)
    tracemalloc.start()
    compute()
    peak = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    return result, min(times), peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--maps", type=int, default=80)
    parser.add_argument("--size", type=int, default=256)
    options = parser.parse_args()
    maps, masks = maps_and_masks(options.maps, options.size)
    print(f"{options.maps} maps of {options.size}×{options.size}\n\n| | value | s | MiB |\n|---|---|---|---|")
    ours: dict[str, Callable[[], float]] = {
        "AUPIMO": lambda: aupimo(maps, masks).mean,
        "AUPRO": lambda: aupro(maps, masks),
        "pixel AUROC": lambda: pixel_auroc(maps, masks),
    }
    for name, compute in ours.items():
        value, seconds, peak = measure(compute)
        print(f"| {name} | {value:.6f} | {seconds:.3f} | {peak:.0f} |")
    try:
        import torch
        from anomalib.metrics.pimo.functional import aupimo_scores
    except ImportError:
        print("| AUPIMO, anomalib | not installed | | |")
        return
    tensors = torch.from_numpy(maps), torch.from_numpy(masks.astype(np.int64))
    started = time.perf_counter()
    scores = aupimo_scores(*tensors)[4]
    print(f"| AUPIMO, anomalib | {float(torch.nanmean(scores)):.6f} | {time.perf_counter() - started:.3f} | |")


if __name__ == "__main__":
    main()
