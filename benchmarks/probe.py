"""What a look at the machine costs: NVML against nvidia-smi against the live panel's whole refresh, side by side in one run.

    python benchmarks/probe.py [--rounds N] [--json]

Each round does all three one after the other; printed are medians with minimum and maximum, ms, and the ratio to NVML. What this machine
lacks is said and left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

from app.core.live import take_sample
from app.core.nvidia_smi import read_smi
from app.core.nvml import read_nvml


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    ways: dict[str, Callable[[], object]] = {
        "NVML": _nvml,
        "nvidia-smi": _smi,
        "whole refresh of the panel": take_sample,
    }
    found: dict[str, list[float]] = {name: [] for name in ways if _works(ways[name])}
    for _ in range(args.rounds):
        for name in found:
            started = time.perf_counter()
            ways[name]()
            found[name].append(1000 * (time.perf_counter() - started))
    result = {
        name: {"median_ms": statistics.median(values), "min_ms": min(values), "max_ms": max(values)}
        for name, values in found.items()
        if values
    }
    missing = [name for name in ways if name not in found]
    if args.json:
        print(json.dumps({"rounds": args.rounds, "ways": result, "not available": missing}, indent=2))
        return
    base = result.get("NVML", {}).get("median_ms")
    for name, figures in result.items():
        ratio = f"  {figures['median_ms'] / base:8.1f} × NVML" if base else ""
        print(f"{name:28} {figures['median_ms']:9.2f} ms ({figures['min_ms']:.2f}-{figures['max_ms']:.2f}){ratio}")
    for name in missing:
        print(f"{name:28} not available on this machine")


def _nvml() -> None:
    if not read_nvml().gpus:
        raise LookupError


def _smi() -> None:
    if not read_smi().gpus:
        raise LookupError


def _works(way: Callable[[], object]) -> bool:
    try:
        way()
    except LookupError:
        return False
    return True


if __name__ == "__main__":
    main()
