"""The queue: one at a time, first come first served, and a dead holder frees its place. Real processes, real locks."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from run_helpers import run_python, until

from app.core.errors import RunError
from app.runs.locks import lock_dir, try_lock
from app.runs.queue import Line, lines

OTHER_USER = """
import json, os, sys, time
from pathlib import Path
from app.runs.queue import Line
os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))
place = Line("cpu").join("theirs", Path("/nowhere"))
print(json.dumps({"number": place.number, "ahead": [ticket.run_id for ticket in place.ahead()]}), flush=True)
time.sleep(100)
"""

VISITOR = """
import os, sys, time
from pathlib import Path
from app.runs.queue import Line
name, log, rounds, stay = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
def note(what):
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{what}\\n".encode()); os.close(descriptor)
print("ready", flush=True); sys.stdin.readline()
for n in range(rounds):
    place = Line("cpu").join(f"{name}{n}", Path("/nowhere"))
    note(f"join {place.number} {name}{n}")
    while place.ahead():
        time.sleep(0.002)
    note(f"enter {place.number} {name}{n}")
    time.sleep(stay)
    note(f"exit {place.number} {name}{n}")
    place.leave()
"""


@pytest.fixture
def visitors(tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that join the CPU's line again and again; none begins before all are ready."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


def visit(visitors: list[subprocess.Popen[str]], log: Path, names: str, rounds: int, stay: float = 0.005) -> None:
    for name in names:
        visitors.append(run_python(VISITOR, name, str(log), str(rounds), str(stay), stdin=subprocess.PIPE))
    for process in visitors:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
    for process in visitors:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()


def test_racing_starters_are_let_in_one_at_a_time_in_the_order_they_came(visitors: list[subprocess.Popen[str]], tmp_path: Path) -> None:
    log = tmp_path / "log"
    visit(visitors, log, "abcd", rounds=12)
    for process in visitors:
        assert process.wait(60) == 0, process.communicate()[1]
    events = [line.split() for line in log.read_text().splitlines()]
    inside = [event for event in events if event[0] != "join"]
    assert len(inside) == 2 * 4 * 12
    for enter, leave in zip(inside[::2], inside[1::2], strict=True):
        assert (enter[0], leave[0]) == ("enter", "exit")
        assert enter[1:] == leave[1:]
    # Numbers start again when the line was empty, so order is judged from one such moment to the next.
    numbers = [int(event[1]) for event in inside[::2]]
    assert all(later == earlier + 1 or later == 1 for earlier, later in itertools.pairwise(numbers))
    assert Line("cpu").tickets() == []


def test_a_killed_holder_frees_the_place_and_keeps_the_order(visitors: list[subprocess.Popen[str]], tmp_path: Path) -> None:
    log = tmp_path / "log"
    visit(visitors, log, "a", rounds=1, stay=60)
    until(lambda: log.exists() and "enter 1 a0" in log.read_text())
    second, third = Line("cpu").join("second", tmp_path), Line("cpu").join("third", tmp_path)
    assert [ticket.run_id for ticket in third.ahead()] == ["a0", "second"]
    assert second.ahead()[0].pid == visitors[0].pid
    os.kill(visitors[0].pid, signal.SIGKILL)
    visitors[0].wait()
    assert second.ahead() == []
    assert [ticket.run_id for ticket in third.ahead()] == ["second"]
    second.leave()
    assert third.ahead() == []
    third.leave()
    third.leave()  # leaving twice does no harm
    assert [path.name for path in (lock_dir() / "cpu").iterdir()] == ["mutex"]


def test_one_who_waits_and_dies_holds_nobody_up(visitors: list[subprocess.Popen[str]], tmp_path: Path) -> None:
    first = Line("cpu").join("first", tmp_path)
    log = tmp_path / "log"
    visit(visitors, log, "a", rounds=1)
    until(lambda: log.exists() and "join 2 a0" in log.read_text())
    third = Line("cpu").join("third", tmp_path)
    os.kill(visitors[0].pid, signal.SIGKILL)
    visitors[0].wait()
    assert [ticket.run_id for ticket in third.ahead()] == ["first"]
    first.leave()
    assert third.ahead() == []
    third.leave()


def test_devices_have_lines_of_their_own(tmp_path: Path) -> None:
    cpu, gpu = Line("cpu").join("a", tmp_path), Line("GPU-1234/../x").join("b", tmp_path)
    assert cpu.ahead() == []
    assert gpu.ahead() == []
    assert sorted(line.key for line in lines()) == ["GPU-1234_.._x", "cpu"]
    assert all(path.parent == lock_dir() for path in (line.folder for line in lines()))
    cpu.leave()
    gpu.leave()


def test_a_ticket_in_use_looks_fresh_to_cleaners_of_temporary_folders(tmp_path: Path) -> None:
    place = Line("cpu").join("a", tmp_path)
    ticket = place.line.ticket_path(place.number)
    os.utime(ticket, (0, 0))
    place.touch()
    assert time.time() - ticket.stat().st_mtime < 60
    place.leave()
    place.touch()


def test_a_ticket_without_readable_words_still_holds_its_place(tmp_path: Path) -> None:
    first, second = Line("cpu").join("a", tmp_path), Line("cpu").join("b", tmp_path)
    first.line.ticket_path(first.number).write_text("{")
    assert [(ticket.run_id, ticket.pid) for ticket in second.ahead()] == [("unknown", None)]
    second.leave()
    first.leave()


def test_the_lock_of_a_file_is_free_again_when_it_is_closed(tmp_path: Path) -> None:
    one, two = (os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR) for _ in range(2))
    assert try_lock(one)
    assert not try_lock(two)
    os.close(one)
    assert try_lock(two)
    os.close(two)


def test_the_folder_of_locks_is_private_and_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TWOPATH_LOCK_DIR")
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    folder = lock_dir()
    assert folder == tmp_path / f"twopath-{os.getuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.rmdir()
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError, match="expected a folder of your own"):
        lock_dir()


def test_a_line_in_a_private_folder_stays_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "locks").mkdir(mode=0o755)
    monkeypatch.setenv("TWOPATH_LOCK_DIR", str(tmp_path / "locks"))
    place = Line("cpu").join("a", tmp_path)
    assert place.line.folder.stat().st_mode & 0o777 == 0o700
    assert place.line.ticket_path(place.number).stat().st_mode & 0o777 == 0o600
    place.leave()


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can become another user")
def test_users_that_share_a_folder_of_locks_stand_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made as an administrator would: mkdir -m 1777. A killed run of one user does not hold up the other."""
    nobody = 65534
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        folder = Path(place) / "locks"
        folder.mkdir()
        folder.chmod(0o1777)
        monkeypatch.setenv("TWOPATH_LOCK_DIR", str(folder))
        ours = Line("cpu").join("ours", Path("/nowhere"))
        theirs = run_python(OTHER_USER, str(nobody))
        with theirs:
            assert theirs.stdout is not None
            assert json.loads(theirs.stdout.readline()) == {"number": 2, "ahead": ["ours"]}
            behind = Line("cpu").join("behind", Path("/nowhere"))
            assert [ticket.run_id for ticket in behind.ahead()] == ["ours", "theirs"]
            ours.leave()
            theirs.kill()
        until(lambda: not behind.ahead(), "the place of the killed one to be free")
        behind.leave()
        with run_python(OTHER_USER, str(nobody)) as first:  # and the other way round, over what we left
            assert first.stdout is not None
            assert json.loads(first.stdout.readline())["ahead"] == []
            first.kill()


def test_a_folder_of_locks_that_cannot_be_made_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TWOPATH_LOCK_DIR", str(tmp_path / "file" / "locks"))
    with pytest.raises(
        RunError, match=r"file/locks: the folder where runs queue cannot be made \(Not a directory\)\. Set TWOPATH_LOCK_DIR"
    ):
        Line("cpu")
