"""In place of `python -m app.cae.bench_point`: answers, crashes or hangs by what its environment asks for. No TensorFlow.

FAKE_BENCH holds JSON: instruction set (or `off`, `plain`) → what to do: a number (training images/s, scoring four times that),
`crash`, `hang`, `fail`, `status`, `mute`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

MARK = "@twopath "
"""As in app.core.tf_trial, whose import takes longer than all the rest here."""
SEEN = {"AVX512_CORE": "AVX-512", "AVX2": "AVX2", "AVX": "AVX", "SSE41": "SSE4.1"}


def say(step: str, **values: Any) -> None:
    print(MARK + json.dumps({"step": step, **values}), flush=True)


def key() -> str:
    if os.environ.get("TF_ENABLE_ONEDNN_OPTS") == "0":
        return "off"
    return os.environ.get("ONEDNN_MAX_CPU_ISA", "plain")


def misbehave(what: str) -> int:
    if what == "crash":
        os.kill(os.getpid(), signal.SIGILL)
    if what == "hang":
        (Path(os.environ["FAKE_BENCH_PIDS"]) / str(os.getpid())).touch()
        time.sleep(600)
    if what == "fail":
        say("failed", sentence="The pictures are too wide.")
    if what == "status":
        print("Traceback (most recent call last):\n  somewhere\nValueError: it broke.", file=sys.stderr)
    return 0 if what == "mute" else 1


def main() -> int:
    request = json.loads(sys.argv[1])
    todo = json.loads(os.environ.get("FAKE_BENCH", "{}")).get(key(), 100.0)
    part, _, todo = todo.partition(":") if isinstance(todo, str) and ":" in todo else ("", "", todo)
    if isinstance(todo, str) and part in ("", request["part"]):
        return misbehave(todo)
    speed = float(todo) if not isinstance(todo, str) else 50.0
    print("a line of TensorFlow's")
    if place := os.environ.get("FAKE_BENCH_PIDS"):
        (Path(place) / f"verbose-{request['part']}").write_text(os.environ.get("ONEDNN_VERBOSE", "not set"))
    evidence = {
        "path": "CPU",
        "instruction_set": SEEN.get(key(), "AVX2") if request["part"] == "evidence" else None,
        "convolutions_in_onednn": key() != "off",
        "onednn_threads": request["intra_op_threads"] or 2,
        "compute_threads": request["inter_op_threads"] or 2,
        "onednn_version": "oneDNN v3.7.3",
        "kernels": [{"primitive": "convolution", "implementation": f"jit:{key()}", "count": 3, "total_ms": 1.5}],
        "request": request,
    }
    if request["part"] == "evidence":
        say("evidence", evidence=evidence)
        return 0
    train = {"pictures": 32, "seconds": 32 / speed, "images_per_s": speed}
    say("timed", train=train, score={"pictures": 128, "seconds": 32 / speed, "images_per_s": 4 * speed}, evidence=evidence)
    return 0


if __name__ == "__main__":
    sys.exit(main())
