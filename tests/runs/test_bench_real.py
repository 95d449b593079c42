"""The benchmark with TensorFlow: two points, tiny, once."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from app.core.cpu_probe import cpu_facts
from app.runs.bench_cli import add_bench_parser, bench_command


@pytest.mark.tensorflow
def test_two_points_are_measured_and_their_kernels_seen(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    if not cpu_facts().avx2:
        pytest.skip("this processor has no AVX2, so the two points would be the same")
    parser = argparse.ArgumentParser()
    add_bench_parser(parser.add_subparsers())
    options = ["--points", "cpu,sse41", "--image-size", "64", "--batch-size", "4", "--steps", "2", "--rounds", "1"]
    assert bench_command(parser.parse_args(["bench", *options, "--out", str(tmp_path / "b"), "--json"])) == 0
    told = json.loads(capfd.readouterr().out)
    cpu, sse41 = told["points"]
    assert (cpu["problem"], sse41["problem"], sse41["notes"]) == (None, None, [])
    assert sse41["evidence"]["instruction_set"] == "SSE4.1"
    assert cpu["evidence"]["instruction_set"] in ("AVX2", "AVX-512")
    assert any("sse41" in kernel for kernel in sse41["kernels"])
    assert not any("sse41" in kernel for kernel in cpu["kernels"])
    cores = cpu_facts().usable_cores
    assert (cpu["evidence"]["onednn_threads"], cpu["evidence"]["compute_threads"]) == (cores, cores)
    for point in (cpu, sse41):
        (measured,) = point["rounds"]
        assert measured["train_pictures"] >= 2 * 4
        assert measured["train_seconds"] >= 1.0
        assert measured["score_pictures"] >= 128
        assert measured["train_images_per_s"] == pytest.approx(measured["train_pictures"] / measured["train_seconds"])
    assert min(cpu["train"]["speed_up"], sse41["train"]["speed_up"]) == 1.0
