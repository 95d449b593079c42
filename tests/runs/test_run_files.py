"""Every file of a run folder is whole or absent at any instant, whenever its writer is killed."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from app.core.errors import RunError
from app.runs.files import clean_leftovers, plain, read_json, write_by, write_bytes, write_json
from app.runs.processes import container_memory_left_mib, memory_now, oom_kills

KILLS = 40
WRITER = """
import sys, os, signal
from pathlib import Path
import numpy as np
from app.runs.files import write_json, write_bytes, write_by, clean_leftovers
from app.runs.recorder import history_csv
folder = Path(sys.argv[1])
def write_for_ever():
    n = 0
    while True:
        n += 1
        rows = [{"epoch": i, "loss": 1 / i, "val_loss": float(n)} for i in range(1, 200)]
        write_json(folder / "status.json", {"n": n, "text": "x" * 5000})
        write_bytes(folder / "history.csv", history_csv(rows))
        write_by(folder / "maps.npz", lambda temp: np.savez(temp, maps=np.full((8, 64, 64), n, np.float32)))
for line in sys.stdin:      # one line, one writer to be killed
    child = os.fork()
    if not child:
        clean_leftovers(folder)
        write_for_ever()
    print(child, flush=True)
    os.waitpid(child, 0)
    print("gone", flush=True)
"""


def assert_whole(folder: Path) -> int:
    """Every file that is there reads back whole; returns how many there were."""
    seen = 0
    if (folder / "status.json").exists():
        assert len(json.loads((folder / "status.json").read_text())["text"]) == 5000
        seen += 1
    if (folder / "history.csv").exists():
        frame = pd.read_csv(folder / "history.csv")
        assert list(frame["epoch"]) == list(range(1, 200))
        assert frame["val_loss"].nunique() == 1
        seen += 1
    if (folder / "maps.npz").exists():
        with np.load(folder / "maps.npz", allow_pickle=False) as archive:
            assert len(np.unique(archive["maps"])) == 1
        seen += 1
    return seen


def test_files_are_whole_while_their_writer_is_killed_at_random_moments(tmp_path: Path) -> None:
    rng = random.Random(4)
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", WRITER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as nursery:
        assert nursery.stdin
        assert nursery.stdout
        looks = 0
        for _ in range(KILLS):
            nursery.stdin.write("again\n")
            nursery.stdin.flush()
            child = int(nursery.stdout.readline())
            until = time.monotonic() + rng.uniform(0.002, 0.08)
            while time.monotonic() < until:
                looks += assert_whole(tmp_path)
            os.kill(child, signal.SIGKILL)
            assert nursery.stdout.readline() == "gone\n"
            looks += assert_whole(tmp_path)
        nursery.stdin.close()
    assert looks > KILLS
    assert assert_whole(tmp_path) == 3
    clean_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["history.csv", "maps.npz", "status.json"]


def test_a_failed_write_leaves_the_old_file_and_no_leftover(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    write_json(target, {"old": True})

    def half(temp: Path) -> None:
        temp.write_bytes(b'{"new')
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(RunError, match=r"a\.json: the disk is full in .* \(\d+.* of \d+.* free\)\. Free some space"):
        write_by(target, half)
    assert read_json(target) == {"old": True}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EACCES, "permission denied"),
        (errno.EROFS, "read-only"),
        (errno.EDQUOT, "quota is used up"),
        (errno.ENOENT, "not a folder that exists"),
        (errno.EFBIG, "largest file size"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_each_kind_of_refusal_has_its_sentence(tmp_path: Path, number: int, words: str) -> None:
    def refuse(_temp: Path) -> None:
        raise OSError(number, os.strerror(number))

    with pytest.raises(RunError) as caught:
        write_by(tmp_path / "history.csv", refuse)
    assert str(caught.value).startswith("history.csv: ")
    assert words in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_leftovers_of_living_writers_stay_and_those_of_dead_ones_go(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (tmp_path / f".tmp-{ended.pid}-1-a.json").touch()
    (tmp_path / f".tmp-{os.getppid()}-1-b.json").touch()
    (tmp_path / "c.json").touch()
    clean_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f".tmp-{os.getppid()}-1-b.json", "c.json"]


def test_json_holds_plain_values_only(tmp_path: Path) -> None:
    write_json(
        tmp_path / "a.json",
        {"f": np.float32(0.5), "nan": float("nan"), "inf": np.float64("inf"), "list": np.arange(2), 1: Path("x"), "b": np.bool_(True)},
    )
    assert read_json(tmp_path / "a.json") == {"f": 0.5, "nan": None, "inf": None, "list": [0, 1], "1": "x", "b": True}
    assert plain((1, {"a": {2}})) == [1, {"a": [2]}]


@pytest.mark.parametrize(
    ("content", "words"),
    [(b'{"a": ', "is not JSON"), (b"\xff\xfe\x00", "is not JSON"), (b"[1]", "holds a JSON list"), (b"[" * 100_000, "is not JSON")],
)
def test_what_is_no_json_object_is_told(tmp_path: Path, content: bytes, words: str) -> None:
    write_bytes(tmp_path / "a.json", content)
    with pytest.raises(ValueError, match=words):
        read_json(tmp_path / "a.json")


def test_memory_figures_of_this_process_are_plausible() -> None:
    memory = memory_now()
    assert memory.rss_mib is not None
    assert 10 < memory.rss_mib < 4096
    assert memory.free_mib is not None
    assert memory.free_mib > 0


def test_the_tightest_container_limit_counts_and_page_cache_does_not(tmp_path: Path) -> None:
    mib = 1024 * 1024
    outer, inner = tmp_path / "a", tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (outer / "memory.max").write_text(str(1000 * mib))
    (outer / "memory.current").write_text(str(800 * mib))
    (outer / "memory.stat").write_text(f"anon 5\ninactive_file {300 * mib}\n")
    (inner / "memory.max").write_text("max")
    (inner / "memory.current").write_text(str(700 * mib))
    (tmp_path / "self").write_text("0::/a/b\n")
    assert container_memory_left_mib(tmp_path, tmp_path / "self") == 500
    (inner / "memory.max").write_text(str(750 * mib))
    assert container_memory_left_mib(tmp_path, tmp_path / "self") == 50


def test_the_old_kind_of_container_limit_counts_too(tmp_path: Path) -> None:
    group = tmp_path / "memory" / "docker"
    group.mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text(str(2**63 - 4096))
    (group / "memory.usage_in_bytes").write_text("1000")
    (tmp_path / "self").write_text("9:cpu,cpuacct:/docker\n5:memory:/docker\nnonsense\n")
    assert container_memory_left_mib(tmp_path, tmp_path / "self") is None
    (group / "memory.limit_in_bytes").write_text(str(64 * 1024 * 1024))
    assert container_memory_left_mib(tmp_path, tmp_path / "self") == 63


def test_out_of_memory_kills_are_counted_where_the_kernel_counts(tmp_path: Path) -> None:
    (tmp_path / "vmstat").write_text("nr_free_pages 1\noom_kill 7\n")
    assert oom_kills(tmp_path / "vmstat") == 7
    assert oom_kills(tmp_path / "absent") is None
