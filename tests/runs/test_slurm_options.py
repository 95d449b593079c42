"""Settings for SLURM, and the batch script that is made from them. No SLURM is asked."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any

import pytest

from app.core.errors import OptionError, RunError
from app.runs import slurm_submit
from app.runs.slurm_options import VARIABLES, SlurmSettings, add_slurm_options, make_settings, options_text, settings_from


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_slurm_options(parser)
    return parser.parse_args(arguments)


def script(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch, settings: SlurmSettings, command: tuple[str, ...] = ("program",), **options: Any
) -> str:
    """What would be given to sbatch."""
    texts: list[str] = []
    monkeypatch.setattr(slurm_submit, "slurm_missing", lambda: None)
    monkeypatch.setattr("shutil.which", lambda name, **_: f"/bin/{name}")
    monkeypatch.setattr(slurm_submit, "_sbatch", lambda folder, text, environment: texts.append(text) or "7")
    assert slurm_submit.submit(run_folder, command, settings, **options) == "7"
    return texts[0]


def flags(text: str) -> dict[str, str]:
    lines = [shlex.split(line.removeprefix("#SBATCH --"))[0] for line in text.splitlines() if line.startswith("#SBATCH")]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def test_nothing_given_leaves_everything_to_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = flags(script(tmp_path / "run1", monkeypatch, make_settings({})))
    assert asked == {
        "chdir": str(Path(__file__).resolve().parents[2]),
        "job-name": "twopath-run1",
        "nodes": "1",
        "open-mode": "append",
        "output": str(tmp_path / "run1" / "log.txt"),
        "signal": "USR2@90",  # submitit's; it reaches no batch process
    }


def test_every_setting_becomes_one_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = make_settings(
        {
            "partition": "gpu,long",
            "gpus": "a100:2",
            "cpus": "8",
            "memory": "24G",
            "time": "1-02:30",
            "account": "lab",
            "extra": ["qos=high", "--exclusive"],
        }
    )
    assert settings.minutes() == 26.5 * 60
    asked = flags(script(tmp_path / "r%j", monkeypatch, settings))
    assert {
        name: asked[name] for name in ("partition", "gpus-per-node", "cpus-per-task", "mem", "time", "account", "qos", "exclusive")
    } == {
        "partition": "gpu,long",
        "gpus-per-node": "a100:2",
        "cpus-per-task": "8",
        "mem": "24G",
        "time": "1-02:30",
        "account": "lab",
        "qos": "high",
        "exclusive": "",
    }
    assert asked["output"].endswith("/r%%j/log.txt"), "sbatch would put the job's number there"
    assert asked["signal"] == "B:TERM@60", "asked to stop a minute before the limit"


def test_a_run_on_the_cpu_asks_for_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "gpus-per-node" not in flags(script(tmp_path, monkeypatch, SlurmSettings(gpus="1"), with_gpus=False))
    assert "gpus-per-node" not in flags(script(tmp_path, monkeypatch, SlurmSettings(gpus="0")))


def test_the_run_is_the_batch_process_and_its_folder_no_word_of_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWOPATH_CACHE_DIR", "a b;$(touch x)")
    text = script(tmp_path / "it is; $(touch x)", monkeypatch, SlurmSettings(), ("python", "-m", "app.main", "a; b"))
    assert text.rstrip().splitlines()[-1] == "exec python -m app.main 'a; b'"
    exported = next(line for line in text.splitlines() if "TWOPATH_CACHE_DIR" in line)
    assert shlex.split(exported) == ["export", f"TWOPATH_CACHE_DIR={Path('a b;$(touch x)').absolute()}"]
    with pytest.raises(RunError, match="without quotes, backslashes and line breaks"):
        script(tmp_path / "a\nb", monkeypatch, SlurmSettings())


def test_a_name_is_no_line_of_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = script(tmp_path / "run1", monkeypatch, SlurmSettings(), job_name="twopath-a\ntouch x\n#'-0", in_turn=True)
    assert "touch x" not in text.splitlines()
    assert flags(text)["job-name"] == "twopath-a_touch_x___-0"


def test_the_environment_gives_what_is_not_given() -> None:
    environ = {"TWOPATH_SLURM_PARTITION": "short", "TWOPATH_SLURM_CPUS": "4", "TWOPATH_SLURM_EXTRA": "qos=low exclusive"}
    assert make_settings({"partition": "long"}, environ).given() == {
        "partition": "long",
        "cpus": 4,
        "extra": {"qos": "low", "exclusive": ""},
    }
    assert options_text(make_settings({}, environ).extra) == "qos=low exclusive"
    assert set(VARIABLES) == set(SlurmSettings.model_fields)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"partition": "a b"}, "slurm partition: expected partition (queue), or several with commas, got 'a b'."),
        ({"partition": "x\n#SBATCH --wrap=id"}, "slurm partition: expected"),
        ({"gpus": "two"}, "slurm gpus: expected GPUs a run gets on its node: a number, or type:number"),
        ({"cpus": 0}, "slurm cpus: expected number of CPUs a run gets, 1 to 4096, got 0."),
        ({"memory": "lots"}, "slurm memory: expected memory a run gets: a number with K, M, G or T (MiB without), got 'lots'."),
        ({"time": "soon"}, "slurm time: expected minutes, HH:MM:SS or D-HH:MM:SS, got 'soon'."),
        ({"extra": ["output=/etc/passwd"]}, "slurm extra: expected no output, since everything goes to the run's log."),
        ({"extra": ["arra=0-3"]}, "slurm extra: expected options of sbatch in full, got 'arra', which it takes for array."),
        ({"extra": ["erro=/etc/passwd"]}, "slurm extra: expected options of sbatch in full, got 'erro', which it takes for error."),
        ({"extra": ["export-file=x"]}, "slurm extra: expected no export-file, since the run needs the variables it was started with."),
        ({"extra": "mem=1G"}, "slurm extra: expected no mem, since there is a setting of its own for it (memory)."),
        ({"extra": ["; rm -rf=1"]}, "slurm extra: expected KEY=VALUE with a long option of sbatch as KEY, got '; rm -rf'."),
        ({"extra": ["comment=a'b"]}, "slurm extra: expected a value of comment without quotes, backslashes and control characters"),
        ({"extra": ["comment=a\nb"]}, "slurm extra: expected a value of comment without quotes, backslashes and control characters"),
        ({"nodes": 2}, "slurm nodes: expected no such setting, got 2."),
    ],
)
def test_what_does_not_fit_is_one_sentence(values: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError) as caught:
        make_settings(values, {})
    assert str(caught.value).startswith(words)


def test_a_setting_without_the_launcher_is_refused() -> None:
    assert settings_from(parsed()) is None
    with pytest.raises(OptionError, match="--slurm-option: expected --launcher slurm beside it"):
        settings_from(parsed("--slurm-option", "qos=x"))
    settings = settings_from(parsed("--launcher", "slurm", "--slurm-option", "qos=x", "--slurm-option", "exclusive", "--slurm-gpus", "1"))
    assert settings is not None
    assert settings.given() == {"gpus": "1", "extra": {"qos": "x", "exclusive": ""}}


def test_variables_that_contradict_do_not_reach_sbatch(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SBATCH_PARTITION", "SBATCH_ACCOUNT", "SBATCH_OPEN_MODE", "SLURM_JOB_ID", "SLURM_CPUS_PER_TASK", "SLURM_CONF"):
        monkeypatch.setenv(name, "x")
    given = slurm_submit._environment(SlurmSettings(partition="long"))
    assert [name for name in given if name.startswith(("SBATCH_", "SLURM_"))] == ["SBATCH_ACCOUNT", "SLURM_CONF"], (
        "the user's own account stays"
    )


@pytest.mark.parametrize(
    ("variable", "settings", "with_gpus", "stays"),
    [
        ("SBATCH_OUTPUT", {}, True, False),
        ("SBATCH_ERROR", {}, True, False),
        ("SBATCH_EXPORT", {}, True, False),
        ("SBATCH_MEM_PER_NODE", {"memory": "2G"}, True, False),
        ("SBATCH_MEM_PER_CPU", {"memory": "2G"}, True, False),
        ("SBATCH_MEM_PER_CPU", {}, True, True),
        ("SBATCH_QOS", {"extra": "qos=long"}, True, False),
        ("SBATCH_QOS", {}, True, True),
        ("SBATCH_GPUS", {}, False, False),
        ("SBATCH_GPUS", {}, True, True),
    ],
)
def test_only_variables_that_would_win_over_what_is_asked_for_go(
    variable: str, settings: dict[str, Any], with_gpus: bool, stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "x")
    assert (variable in slurm_submit._environment(make_settings(settings, {}), with_gpus=with_gpus)) is stays
