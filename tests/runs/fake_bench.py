"""The command `bench` with the fake points: `python fake_bench.py --out FOLDER [options]`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from app.core.errors import AppError
from app.runs import bench_worker
from app.runs.bench_cli import add_bench_parser, bench_command

POINT = (sys.executable, str(Path(__file__).with_name("fake_bench_point.py")))


def main() -> int:
    real = bench_worker.carry_out
    bench_worker.carry_out = lambda folder, options, **more: real(folder, options, **{**more, "program": POINT})
    parser = argparse.ArgumentParser()
    add_bench_parser(parser.add_subparsers())
    try:
        return bench_command(parser.parse_args(["bench", *sys.argv[1:]]))
    except AppError as error:
        print(error, file=sys.stderr)
        return error.exit_status


if __name__ == "__main__":
    sys.exit(main())
