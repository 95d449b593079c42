"""Run folders: made whole, read back without ever raising, and judged truthfully when their process is gone."""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.cae.config import CaeConfig, make_config
from app.core.errors import OptionError, RunError
from app.runs import folder as readers
from app.runs.files import write_json
from app.runs.folder import HISTORY_COLUMNS, SCORE_COLUMNS, RunFolder, default_runs_dir
from app.runs.processes import ProcessMark, is_alive, mark
from app.runs.recorder import history_csv
from app.runs.status import START_WITHIN_S, RunStatus, iso, judged, parse_time, status_from_json, utc_now


@pytest.fixture
def run(runs_dir: Path, config: CaeConfig) -> RunFolder:
    return RunFolder.create(runs_dir, config)


def test_a_new_run_is_queued_and_holds_its_configuration(runs_dir: Path, config: CaeConfig) -> None:
    run = RunFolder.create(runs_dir, config, name="first try")
    assert run.path.parent == runs_dir
    assert run.config() == config
    status = run.status()
    assert (status.run_id, status.state, status.phase, status.pid) == (run.run_id, "queued", None, None)
    assert status.created is not None
    assert abs((utc_now() - status.created).total_seconds()) < 60
    assert json.loads((run.path / "notes.json").read_text()) == {"name": "first try"}
    assert [child.name for child in runs_dir.iterdir()] == [run.run_id]


def test_ids_sort_by_start_and_are_unique_however_many_start_at_once(runs_dir: Path, config: CaeConfig) -> None:
    made: list[RunFolder] = []
    threads = [threading.Thread(target=lambda: made.extend(RunFolder.create(runs_dir, config) for _ in range(25))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({run.run_id for run in made}) == 100 == len(list(runs_dir.iterdir()))
    by_id = [run.status().created for run in sorted(made, key=lambda run: run.run_id)]
    # Ids resolve 1/256 s; creation is noted a moment later.
    assert all((later - earlier).total_seconds() > -0.5 for earlier, later in itertools.pairwise(by_id) if earlier and later)
    assert all(run.run_id.split("-", 2)[2].startswith("synthetic-") for run in made)


@pytest.mark.parametrize(
    ("data", "slug"), [("/data/My Pictures (2)/käse", "k-se"), ("elpv-mono", "elpv-mono"), ("/", "data"), ("x" * 80, "x" * 24)]
)
def test_ids_are_safe_names_whatever_the_data_is_called(runs_dir: Path, data: str, slug: str) -> None:
    run = RunFolder.create(runs_dir, make_config({"data": data}))
    assert run.run_id[16:-5] == slug


def test_a_relative_data_folder_is_made_absolute(runs_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "elpv-mono").mkdir()
    monkeypatch.chdir(tmp_path)
    assert RunFolder.create(runs_dir, make_config({"data": "pictures"})).config().data == str(tmp_path / "pictures")
    assert RunFolder.create(runs_dir, make_config({"data": "elpv-mono"})).config().data == "elpv-mono"
    assert RunFolder.create(runs_dir, make_config({"data": "absent"})).config().data == "absent"


def test_the_default_place_is_the_environments_or_runs_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TWOPATH_RUNS_DIR", str(tmp_path / "here"))
    assert default_runs_dir() == tmp_path / "here"
    monkeypatch.delenv("TWOPATH_RUNS_DIR")
    monkeypatch.chdir(tmp_path)
    assert default_runs_dir() == tmp_path / "runs"


def test_a_place_that_is_no_folder_is_told(tmp_path: Path, config: CaeConfig) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"file/runs: a folder for runs cannot be made there \(Not a directory; .*free\)"):
        RunFolder.create(tmp_path / "file" / "runs", config)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="becomes another user, which only root can")
def test_an_unwritable_place_is_told_and_nothing_is_left_in_it(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    place = tmp_path / "runs"
    place.mkdir(mode=0o555)
    code = (
        "import os, sys; from pathlib import Path; from app.cae.config import make_config; from app.runs.folder import RunFolder\n"
        "from app.core.errors import AppError; os.setuid(65534)\n"
        "try: RunFolder.create(Path(sys.argv[1]), make_config({}))\nexcept AppError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(place)], capture_output=True, text=True, timeout=60)
    # Folders above pytest's may be closed to others: then that is what the sentence tells.
    assert f"{place}: a folder for runs cannot be made there (Permission denied; " in done.stdout, done
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"state": "runn', "status.json is not JSON"),
        (b"", "status.json is not JSON"),
        (b"[]", "holds a JSON list"),
        (b'{"state": "asleep"}', "expected a state (queued, running, finished, failed, cancelled), got 'asleep'"),
        (b"{}", "expected a state"),
        (None, "status.json is missing"),
    ],
)
def test_a_damaged_status_is_unreadable_with_a_sentence(run: RunFolder, content: bytes | None, words: str) -> None:
    (run.path / "status.json").unlink()
    if content is not None:
        (run.path / "status.json").write_bytes(content)
    status = run.status()
    assert status.state == "unreadable"
    assert status.error is not None
    assert words in status.error
    assert run.run_id in status.error


def test_a_folder_that_does_not_exist_is_unreadable(runs_dir: Path) -> None:
    status = RunFolder(runs_dir / "nope").status()
    assert (status.state, status.run_id) == ("unreadable", "nope")


def test_a_status_from_another_version_is_read_as_far_as_it_is_known(run: RunFolder) -> None:
    values = {
        "state": "finished",
        "mood": "fine",
        "epoch": "three",
        "epochs": 7.0,
        "warnings": "w",
        "started": "yesterday",
        "eta_s": float("inf"),
    }
    write_json(run.path / "status.json", values)
    assert run.status() == RunStatus(run.run_id, "finished", epochs=7)


def test_a_status_survives_the_file(run: RunFolder) -> None:
    now = dt.datetime(2026, 11, 29, 19, 30, 5, 123000, dt.UTC)
    status = RunStatus(
        *(run.run_id, "finished", "writing", 2, 5),
        **{"pid": 3, "pid_started": 1.5, "created": now, "warnings": ("a", "b"), "best_val_loss": 0.25, "cancel_requested": True},
    )
    write_json(run.path / "status.json", status.to_json())
    assert run.status() == status
    assert json.loads((run.path / "status.json").read_text())["created"] == "2026-11-29T19:30:05.123+00:00"


def test_every_reader_answers_calmly_on_a_new_folder(run: RunFolder) -> None:
    assert list(readers.load_history(run.path).columns) == list(HISTORY_COLUMNS)
    assert readers.load_history(run.path).empty
    assert list(readers.load_scores(run.path).columns) == list(SCORE_COLUMNS)
    assert readers.load_metrics(run.path) is None
    assert readers.load_profile(run.path) is None
    assert readers.load_dataset_summary(run.path) is None
    assert readers.load_maps(run.path) is None
    assert readers.load_calibration(run.path) is None
    assert readers.read_log_tail(run.path, 5) == ""


@pytest.mark.parametrize("content", [b"", b"\x00\xff\x80garbage", b"a,b\n1,2,3\n4", b"PK\x03\x04half a zip"])
def test_every_reader_answers_calmly_on_damaged_files(run: RunFolder, content: bytes) -> None:
    for name in (
        "history.csv",
        "scores.csv",
        "metrics.json",
        "profile.json",
        "dataset.json",
        "maps.npz",
        "scoring.npz",
        "log.txt",
        "notes.json",
    ):
        (run.path / name).write_bytes(content)
    assert list(readers.load_history(run.path).columns)[: len(HISTORY_COLUMNS)] == list(HISTORY_COLUMNS)
    readers.load_scores(run.path)
    assert readers.load_metrics(run.path) is None
    assert readers.load_maps(run.path) is None
    assert readers.load_calibration(run.path) is None
    assert isinstance(readers.read_log_tail(run.path, 5), str)


def test_pickled_arrays_are_never_loaded(run: RunFolder) -> None:
    np.savez(run.path / "maps.npz", maps=np.array([{"an": "object"}], dtype=object))
    assert readers.load_maps(run.path) is None


def test_history_keeps_its_columns_and_unknown_values(run: RunFolder) -> None:
    rows: list[dict[str, Any]] = [
        {"loss": 0.5, "epoch": 1, "own_figure": np.float32(0.25)},
        {"epoch": 2, "loss": float("nan"), "val_loss": None},
    ]
    (run.path / "history.csv").write_bytes(history_csv(rows))
    frame = readers.load_history(run.path)
    assert list(frame.columns) == [*HISTORY_COLUMNS, "own_figure"]
    assert list(frame["epoch"]) == [1, 2]
    assert frame["loss"].isna().tolist() == [False, True]
    assert frame["own_figure"].tolist()[0] == 0.25


def test_only_the_end_of_a_long_log_is_read(run: RunFolder) -> None:
    with (run.path / "log.txt").open("w") as log:
        log.writelines(f"line {n}\n" for n in range(100_000))
    assert readers.read_log_tail(run.path, 2) == "line 99998\nline 99999"


# --- is its process still there? ---


@pytest.fixture
def ended_process() -> ProcessMark:
    """A process that was and is no more."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    known = mark(process.pid)
    assert known is not None
    assert is_alive(known) is True
    process.communicate(b"\n")
    return known


def running(known: ProcessMark | None, **more: Any) -> RunStatus:
    values: dict[str, Any] = {"created": utc_now(), "started": utc_now(), "heartbeat": utc_now(), **more}
    if known is not None:
        values |= {"pid": known.pid, "pid_started": known.started, "pid_token": known.token, "host": known.host}
    return RunStatus("r", "running", **values)


def judge(status: RunStatus, *, cancel_asked: bool = False, launch: dict[str, Any] | None = None, later_s: float = 0.0) -> RunStatus:
    return judged(status, launch=launch, cancel_asked=cancel_asked, now=utc_now() + dt.timedelta(seconds=later_s))


def test_a_living_process_is_running_however_old_its_heartbeat() -> None:
    assert judge(running(mark()), later_s=3600).state == "running"


def test_a_gone_process_is_interrupted_with_what_is_known(ended_process: ProcessMark) -> None:
    status = judge(running(ended_process, memory_mib=3900, memory_free_mib=12))
    assert status.state == "interrupted"
    assert status.error is not None
    assert "The process is gone: killed, or the machine was restarted; last sign of life 20" in status.error
    assert "when it held 3900 MiB and 12 MiB of memory were free. What was written before stays." in status.error


def test_a_gone_process_that_was_cancelled_is_cancelled(ended_process: ProcessMark) -> None:
    assert judge(running(ended_process), cancel_asked=True).state == "cancelled"
    assert judge(running(ended_process, cancel_requested=True)).state == "cancelled"


def test_the_exit_status_its_starter_saw_is_told(ended_process: ProcessMark) -> None:
    assert "ended by SIGKILL (signal 9: kill -9 or the out-of-memory killer)" in str(
        judge(running(ended_process), launch={"returncode": -9, "pid": ended_process.pid}).error
    )
    assert "SIGILL (signal 4: an instruction this CPU lacks)" in str(
        judge(running(ended_process), launch={"returncode": -4, "pid": ended_process.pid}).error
    )
    assert "exit status 3" in str(judge(running(ended_process), launch={"returncode": 3, "pid": ended_process.pid}).error)
    assert "exit status" not in str(judge(running(ended_process), launch={"returncode": 3, "pid": 1}).error), "of a start before this one"


def test_the_out_of_memory_killer_is_named_when_the_kernel_counted_it(ended_process: ProcessMark, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.runs.status.oom_kills", lambda: 5)
    assert "out-of-memory killer most likely ended" in str(judge(running(ended_process, oom_kills=4)).error)
    assert "out-of-memory" not in str(judge(running(ended_process, oom_kills=5)).error)


def test_a_reused_process_id_is_not_taken_for_the_run() -> None:
    me = mark()
    assert me is not None
    assert judge(running(dataclasses.replace(me, started=(me.started or 0) - 1000, token=None))).state == "interrupted"
    assert judge(running(dataclasses.replace(me, token=f"{str(me.token).rpartition('/')[0]}/1"))).state == "interrupted"
    # A clock that was set a little does not matter.
    assert judge(running(dataclasses.replace(me, started=(me.started or 0) + 0.9, token=None))).state == "running"


def test_on_another_machine_only_the_heartbeat_tells() -> None:
    there = ProcessMark(1, 1.0, "node17", "other-boot/pid:[1]/1/99")
    assert judge(running(there), later_s=30).state == "running"
    lost = judge(running(there), later_s=300)
    assert lost.state == "interrupted"
    assert str(lost.error).startswith("No sign of life from node17; last sign of life ")


def test_a_zombie_is_gone() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    known = mark(process.pid)
    assert known is not None
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody took its exit status
    assert is_alive(known) is False
    process.wait()


def test_a_run_whose_process_never_came_is_given_up_after_a_while(run: RunFolder) -> None:
    status = run.status()
    assert judge(status, later_s=START_WITHIN_S - 5).state == "queued"
    late = judge(status, later_s=START_WITHIN_S + 5)
    assert (late.state, late.error) == ("interrupted", "The run was set up but its process never started.")


def test_the_launcher_knows_the_process_before_it_speaks(ended_process: ProcessMark) -> None:
    queued = RunStatus("r", "queued", created=utc_now())
    me = mark()
    assert me is not None
    assert judge(queued, launch={"pid": me.pid, "pid_token": me.token, "host": me.host}, later_s=600).state == "queued"
    gone = judge(queued, launch={"pid": ended_process.pid, "pid_token": ended_process.token, "host": ended_process.host, "returncode": 1})
    assert gone.state == "interrupted"
    assert "exit status 1 before it could say why" in str(gone.error)


def test_durations_count_from_leaving_the_queue() -> None:
    t = utc_now()
    s = dt.timedelta(seconds=1)
    assert RunStatus("r", "queued", created=t).duration_s() is None
    assert RunStatus("r", "finished", started=t, ended=t + 5 * s).duration_s() == 5
    assert RunStatus("r", "running", started=t).duration_s(t + 7 * s) == 7
    assert RunStatus("r", "running", started=t, earlier_s=80).duration_s(t + 7 * s) == 87
    assert RunStatus("r", "queued", created=t, earlier_s=80).duration_s(t + 7 * s) == 80
    assert RunStatus("r", "interrupted", started=t, heartbeat=t + 3 * s).duration_s(t + 100 * s) == 3


def test_times_without_a_zone_count_as_utc_and_nonsense_is_unknown() -> None:
    assert parse_time("2026-01-02T03:04:05") == dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
    assert parse_time("2026-01-02T03:04:05+02:00") == dt.datetime(2026, 1, 2, 1, 4, 5, tzinfo=dt.UTC)
    assert parse_time(5) is None
    assert iso(dt.datetime(2026, 1, 2, tzinfo=dt.UTC)) == "2026-01-02T00:00:00.000+00:00"
    with pytest.raises(ValueError, match="expected a state"):
        status_from_json("r", {})


def test_a_broken_configuration_is_an_option_error(run: RunFolder) -> None:
    (run.path / "config.json").write_text("{")
    with pytest.raises(OptionError, match=r"config\.json"):
        run.config()
    assert run.status().state == "queued"


def test_the_time_a_job_waits_to_be_started_again_is_no_part_of_its_duration(tmp_path: Path, config: CaeConfig) -> None:
    run = RunFolder.create(tmp_path, config)
    t = utc_now() - dt.timedelta(hours=2)
    said = RunStatus(run.run_id, "queued", created=t, started=t, heartbeat=t + dt.timedelta(seconds=9), earlier_s=80)
    run.set_up_again(said, keep_launch=True)
    assert run.status().duration_s() == 89
