"""Benchmarks as processes and folders: started, followed, queued behind runs, cancelled, killed, read back. No TensorFlow in the points."""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from run_helpers import HERE, until

from app.cae.config import CaeConfig
from app.core.errors import OptionError, RunError
from app.runs import bench_worker
from app.runs.bench_cli import add_bench_parser, bench_command
from app.runs.bench_folder import Bench, BenchFolder, cancel_bench, list_benches, read_bench, start_bench
from app.runs.bench_options import BenchOptions, make_options
from app.runs.bench_sentences import CANCELLED_IN_QUEUE
from app.runs.files import write_json
from app.runs.folder import RunFolder
from app.runs.queue import Line
from app.runs.status import RunStatus, utc_now
from app.runs.table import list_json, runs_table

PROGRAM = (sys.executable, str(HERE / "fake_bench.py"))
POINT = (sys.executable, str(HERE / "fake_bench_point.py"))
QUICK = make_options({"points": "cpu,sse41", "rounds": 1, "limit_s": 60})

Start = Callable[..., BenchFolder]


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HERE.parents[1]))
    (tmp_path / "pids").mkdir()
    monkeypatch.setenv("FAKE_BENCH_PIDS", str(tmp_path / "pids"))


@pytest.fixture
def begin(runs_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Start a benchmark whose points follow a script; what still runs at the end is killed."""
    folders: list[BenchFolder] = []

    def start_one(options: BenchOptions = QUICK, **script: Any) -> BenchFolder:
        monkeypatch.setenv("FAKE_BENCH", json.dumps(script))
        folders.append(start_bench(options, runs_dir, program=PROGRAM))
        return folders[-1]

    yield start_one
    for folder in folders:
        pid = (folder.launch_record() or {}).get("pid")
        if isinstance(pid, int):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            until(lambda pid=pid: not psutil.pid_exists(pid), f"end of process {pid}")


def wait_state(folder: BenchFolder, *states: str) -> Bench:
    def reached() -> Bench | None:
        bench = read_bench(folder)
        return bench if bench.state in states else None

    try:
        return until(reached, f"{states} of {folder.bench_id}")
    except BaseException:
        print(read_bench(folder), (folder.path / "log.txt").read_text())
        raise


def hanging(tmp_path: Path) -> list[int]:
    return [int(file.name) for file in (tmp_path / "pids").iterdir() if file.name.isdigit()]


def call(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    add_bench_parser(parser.add_subparsers())
    return bench_command(parser.parse_args(["bench", *arguments]))


@pytest.fixture
def _fake_points(monkeypatch: pytest.MonkeyPatch) -> None:
    real = bench_worker.carry_out
    monkeypatch.setattr(bench_worker, "carry_out", lambda *given, **more: real(*given, **{**more, "program": POINT}))


def test_started_in_the_background_it_ends_with_a_whole_folder(begin: Start, runs_dir: Path, config: CaeConfig) -> None:
    folder = begin(plain=100, SSE41=20)
    bench = wait_state(folder, "finished")
    assert bench.result is not None
    assert (bench.result.speed_up("cpu", "train"), bench.result.bench_id) == (5.0, folder.bench_id)
    assert bench.options["points"] == ["cpu", "sse41"]
    assert (bench.status.progress, bench.status.error) == (1.0, None)
    assert json.loads((folder.path / "result.json").read_text())["machine"]["tensorflow"]
    with (folder.path / "result.csv").open(newline="") as file:
        assert [row["name"] for row in csv.DictReader(file)] == ["cpu", "sse41"]
    assert "round 1 of 1" in (folder.path / "log.txt").read_text()
    assert [path for path in folder.path.iterdir() if path.name.startswith(".tmp")] == []
    run = RunFolder.create(runs_dir, config)
    assert [row["run_id"] for row in list_json(runs_dir)] == list(runs_table(runs_dir)["run_id"]) == [run.run_id]
    assert [one.folder for one in list_benches(runs_dir)] == [folder]
    assert "nothing to cancel" in cancel_bench(folder)


def test_it_waits_for_a_run_and_says_so(begin: Start, tmp_path: Path) -> None:
    place = Line("cpu").join("run-before", tmp_path)
    try:
        folder = begin()
        bench = until(lambda: (bench := read_bench(folder)).status.message and bench, "a message")
        assert bench.state == "queued"
        assert "Waiting for run run-before on CPU" in str(bench.status.message)
        assert bench.result is None
    finally:
        place.leave()
    wait_state(folder, "finished")
    assert Line("cpu").tickets() == []


def test_cancelled_in_the_queue_nothing_is_measured(begin: Start, tmp_path: Path) -> None:
    place = Line("cpu").join("run-before", tmp_path)
    try:
        folder = begin()
        until(lambda: read_bench(folder).status.message, "a message")
        cancel_bench(folder)
        bench = wait_state(folder, "cancelled")
        assert bench.status.message == CANCELLED_IN_QUEUE
    finally:
        place.leave()


def test_while_it_measures_it_holds_the_line_and_cancel_keeps_what_was_measured(begin: Start, tmp_path: Path) -> None:
    folder = begin(plain=100, SSE41="timed:hang")
    (pid,) = until(lambda: hanging(tmp_path), "the point that hangs")
    bench = read_bench(folder)
    assert (bench.state, bench.point, bench.round, bench.rounds, bench.status.phase) == ("running", "sse41", 1, 1, "timed")
    assert [ticket.run_id for ticket in Line("cpu").tickets()] == [f"benchmark {folder.bench_id}"]
    assert "stop" in cancel_bench(folder)
    bench = wait_state(folder, "cancelled")
    assert bench.result is not None
    assert (bench.result.state, len(bench.result.of("cpu").rounds), bench.result.of("sse41").rounds) == ("cancelled", 1, ())
    with (folder.path / "result.csv").open(newline="") as file:
        assert [row["measured"] for row in csv.DictReader(file)] == ["True", "False"]
    until(lambda: not psutil.pid_exists(pid), "end of the hanging point")


def test_killed_it_is_interrupted_and_its_point_leaves_with_it(begin: Start, tmp_path: Path) -> None:
    folder = begin(plain=100, SSE41="timed:hang")
    until(lambda: hanging(tmp_path), "the point that hangs")
    process = read_bench(folder).status.mark
    assert process is not None
    children = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGKILL)
    bench = wait_state(folder, "interrupted")
    assert "SIGKILL" in str(bench.status.error) or "gone" in str(bench.status.error)
    assert bench.result is not None
    assert len(bench.result.of("cpu").rounds) == 1
    for child in children:  # the fake does not watch its parent; the real point does (tests/cae/test_bench_point.py)
        child.kill()


def test_cancelled_twice_it_is_killed_with_its_processes(begin: Start, tmp_path: Path) -> None:
    folder = begin(plain=100, SSE41="timed:hang")
    (pid,) = until(lambda: hanging(tmp_path), "the point that hangs")
    process = read_bench(folder).status.mark
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    cancel_bench(folder)
    assert "Killed" in cancel_bench(folder)
    wait_state(folder, "cancelled")
    until(lambda: not psutil.pid_exists(pid), "end of the hanging point")


def test_a_program_that_cannot_start_makes_it_failed(runs_dir: Path) -> None:
    with pytest.raises(RunError, match="cannot be started"):
        start_bench(QUICK, runs_dir, program=("/no/such/program",))
    (bench,) = list_benches(runs_dir)
    assert (bench.state, bench.result) == ("failed", None)


def test_folders_that_do_not_tell_are_unreadable(runs_dir: Path) -> None:
    places = [BenchFolder(runs_dir / "bench" / name) for name in ("none", "cut", "odd", "result")]
    for place in places[1:]:
        place.path.mkdir(parents=True)
    (places[1].path / "progress.json").write_text('{"state": "fin')
    write_json(places[2].path / "progress.json", {"state": "sleeping"})
    write_json(places[3].path / "progress.json", RunStatus("result", "finished").to_json())
    write_json(places[3].path / "result.json", {"points": []})
    found = [read_bench(place) for place in places]
    assert [bench.state for bench in found] == ["unreadable"] * 4
    for bench, words in zip(found, ("without progress.json", "not JSON", "expected a state", "holds no result"), strict=True):
        assert words in str(bench.status.error)
    assert [bench.folder.bench_id for bench in list_benches(runs_dir)] == ["result", "odd", "cut"]
    assert list_benches(runs_dir / "nowhere") == []


def test_one_set_up_without_a_process_is_interrupted_in_the_end(runs_dir: Path) -> None:
    folder = BenchFolder.new(runs_dir)
    folder.set_up(QUICK)
    assert read_bench(folder).state == "queued"
    old = RunStatus(folder.bench_id, "queued", created=utc_now().replace(year=2020))
    write_json(folder.path / "progress.json", old.to_json())
    assert read_bench(folder).state == "interrupted"


@pytest.mark.usefixtures("_fake_points")
def test_the_command_prints_one_object_and_saves_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "out"
    assert call("--points", "cpu", "--rounds", "1", "--out", str(place), "--json") == 0
    told = json.loads(capfd.readouterr().out)
    assert (told["state"], told["folder"], told["points"][0]["train"]["median"]) == ("finished", str(place), 100.0)
    assert json.loads((place / "result.json").read_text()) == {name: value for name, value in told.items() if name != "folder"}
    with pytest.raises(OptionError, match="--out: expected a folder that is new or empty"):
        call("--points", "cpu", "--out", str(place))


@pytest.mark.usefixtures("_fake_points")
def test_the_command_prints_a_table(runs_dir: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert call("--points", "cpu", "--rounds", "1") == 0
    out = capfd.readouterr().out
    assert "100 (100–100)" in out
    (bench,) = list_benches(runs_dir)
    assert f"Saved in {bench.folder.path}" in out


@pytest.mark.usefixtures("_fake_points")
def test_nothing_measured_is_a_failure_with_the_reason(runs_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_BENCH", json.dumps({"plain": "crash"}))
    with pytest.raises(RunError, match=r"no point could be measured: CPU, all automatic.*SIGILL"):
        call("--points", "cpu")
    (bench,) = list_benches(runs_dir)
    assert bench.state == "failed"
    assert "SIGILL" in str(bench.status.error)


def test_the_list_measures_nothing(runs_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--list") == 0
    assert "onednn-off" in capsys.readouterr().out
    assert call("--list", "--points", "cpu", "--json") == 0
    assert [point["name"] for point in json.loads(capsys.readouterr().out)["points"]] == ["cpu"]
    assert not (runs_dir / "bench").exists()
    with pytest.raises(OptionError, match="--list"):
        call("--list", "--out", "x")
    with pytest.raises(OptionError, match="rounds: expected"):
        call("--rounds", "none")
    with pytest.raises(OptionError, match="points: expected"):
        call("--points", "avx3")
    assert not (runs_dir / "bench").exists()
