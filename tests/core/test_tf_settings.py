"""Environment variables: what the app sets, what it keeps of the user's, and what it says about odd values (B13, B14)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded_machines import environment_of

from app.core import tf_readback
from app.core.tf_settings import (
    Setting,
    ThreadPlan,
    is_inert,
    onednn_wanted,
    plan_threads,
    planned_settings,
    read_thread_count,
    setting_warnings,
    with_readback,
)


def settings_for(environ: dict[str, str], *, path: str = "cpu", cores: int = 12, **asked: int) -> dict[str, Setting]:
    threads = plan_threads(cores, asked.get("intra"), asked.get("inter"), environ)
    found = planned_settings(path="gpu" if path == "gpu" else "cpu", threads=threads, gpu="GPU-abc", environ=environ)
    return {setting.name: setting for setting in found}


def test_cpu_path_of_a_clean_machine() -> None:
    found = settings_for({})
    assert {name: setting.value for name, setting in found.items()} == {
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_ENABLE_ONEDNN_OPTS": "1",
        "TF_NUM_INTRAOP_THREADS": "12",
        "TF_NUM_INTEROP_THREADS": "12",
        "OMP_NUM_THREADS": "12",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    assert {setting.set_by for setting in found.values()} == {"app"}
    assert all(setting.changes and setting.how_known for setting in found.values())
    assert setting_warnings(tuple(found.values())) == ()


def test_gpu_path_shows_one_gpu_by_uuid_in_nvidia_smis_order() -> None:
    found = settings_for({}, path="gpu")
    assert found["CUDA_VISIBLE_DEVICES"].value == "GPU-abc"
    assert found["CUDA_DEVICE_ORDER"].value == "PCI_BUS_ID"


def test_a_gpu_nobody_can_tell_about_leaves_visibility_alone() -> None:
    found = planned_settings(path="gpu", threads=ThreadPlan(2, 2), gpu=None, environ={})
    assert "CUDA_VISIBLE_DEVICES" not in {setting.name for setting in found}


def test_what_the_user_has_set_is_kept_and_named_as_his() -> None:
    environ = {"TF_ENABLE_ONEDNN_OPTS": "0", "CUDA_VISIBLE_DEVICES": "2,0", "ONEDNN_MAX_CPU_ISA": "AVX2", "TF_NUM_INTRAOP_THREADS": " 7 "}
    found = settings_for(environ)
    for name, value in environ.items():
        assert (found[name].value, found[name].set_by, found[name].note) == (value, "user", None)
    assert not any(is_inert(setting) for setting in found.values())


@pytest.mark.parametrize(
    ("case", "count", "inert"),
    [
        ("B13-empty", None, True),
        ("B13-list", 4, False),
        ("B13-all", None, True),
        ("B13-float", None, True),
        ("B13-zero", None, True),
        ("B13-neg", None, True),
        ("B13-space", 4, False),
    ],
)
def test_odd_omp_num_threads_is_kept_and_reported(case: str, count: int | None, inert: bool) -> None:
    environ = environment_of(case)
    assert read_thread_count(environ["OMP_NUM_THREADS"]).count == count
    setting = settings_for(environ)["OMP_NUM_THREADS"]
    assert (setting.value, setting.set_by) == (environ["OMP_NUM_THREADS"], "user")
    assert is_inert(setting) is inert
    warnings = setting_warnings((setting,))
    if case == "B13-space":
        assert warnings == ()
    else:
        assert len(warnings) == 1
        assert warnings[0].startswith(f"OMP_NUM_THREADS={environ['OMP_NUM_THREADS']} (set by the user): It is ")


def test_unreadable_thread_numbers_of_tensorflow_are_set_over_through_its_api() -> None:
    """B14: TensorFlow passes `xyz` over, but aborts the process for a negative intra-op number (measured)."""
    environ = environment_of("B14-threads")
    assert plan_threads(12, None, None, environ) == ThreadPlan(12, 12, intra_through_config=True, inter_through_config=True)
    found = settings_for(environ)
    intra, inter = found["TF_NUM_INTRAOP_THREADS"], found["TF_NUM_INTEROP_THREADS"]
    assert (intra.value, inter.value) == ("xyz", "-1")
    assert is_inert(intra)
    assert is_inert(inter)
    assert len(setting_warnings((intra, inter))) == 2
    assert {(setting.honoured, setting.how_known) for setting in (intra, inter)} == {
        (False, "measured: what tf.config.threading sets wins over the variable")
    }


@pytest.mark.parametrize(
    ("environ", "asked", "expected"),
    [
        ({}, (None, None), ThreadPlan(12, 12)),
        ({}, (4, 1), ThreadPlan(4, 1)),
        ({"TF_NUM_INTRAOP_THREADS": "6"}, (None, None), ThreadPlan(6, 12)),
        ({"TF_NUM_INTRAOP_THREADS": "6"}, (4, None), ThreadPlan(4, 12, intra_through_config=True)),
        ({"TF_NUM_INTRAOP_THREADS": "4"}, (4, None), ThreadPlan(4, 12)),
        ({"TF_NUM_INTRAOP_THREADS": "4,3"}, (None, None), ThreadPlan(12, 12, intra_through_config=True)),
        ({"TF_NUM_INTEROP_THREADS": "0"}, (None, 3), ThreadPlan(12, 3, inter_through_config=True)),
    ],
)
def test_an_option_wins_over_the_environment_and_the_environment_over_the_cores(
    environ: dict[str, str], asked: tuple[int | None, int | None], expected: ThreadPlan
) -> None:
    assert plan_threads(12, *asked, environ) == expected


@pytest.mark.parametrize(
    ("value", "wanted"),
    [("1", True), ("true", True), ("TRUE", True), ("0", False), ("false", False), ("2", None), ("", None), (None, None)],
)
def test_onednn_switch_has_two_positions(value: str | None, wanted: bool | None) -> None:
    assert onednn_wanted(value) is wanted


def test_two_is_no_wider_onednn() -> None:
    setting = settings_for({"TF_ENABLE_ONEDNN_OPTS": "2"})["TF_ENABLE_ONEDNN_OPTS"]
    assert is_inert(setting)
    assert setting.note is not None
    assert "knows only 0, 1, true and false" in setting.note


def test_an_instruction_set_onednn_does_not_know_is_reported() -> None:
    setting = settings_for({"ONEDNN_MAX_CPU_ISA": "AVX3"})["ONEDNN_MAX_CPU_ISA"]
    assert is_inert(setting)
    assert setting.honoured is False
    assert setting.note == "oneDNN does not know 'AVX3' and passes it over."
    assert settings_for({"ONEDNN_MAX_CPU_ISA": "avx512_core"})["ONEDNN_MAX_CPU_ISA"].note is None


def test_reading_back_says_whether_a_setting_is_in_force() -> None:
    found = tuple(settings_for({"CUDA_VISIBLE_DEVICES": "0"}).values())
    told = {
        setting.name: setting
        for setting in with_readback(
            found, onednn_on=False, compute_threads=12, inter_op=12, built_with_gpu=True, hidden_by_call="kept; hidden"
        )
    }
    assert told["TF_ENABLE_ONEDNN_OPTS"].honoured is False
    assert told["TF_NUM_INTEROP_THREADS"].honoured is True
    assert told["TF_NUM_INTEROP_THREADS"].how_known == "read back: the process has 12 tf_Compute threads"
    assert told["CUDA_VISIBLE_DEVICES"].how_known == "kept; hidden"
    assert told["OMP_NUM_THREADS"].honoured is False


def test_a_build_without_gpu_support_reads_no_cuda_variable() -> None:
    found = tuple(settings_for({}).values())
    told = with_readback(found, onednn_on=None, compute_threads=None, inter_op=12, built_with_gpu=False, hidden_by_call=None)
    assert told[0].name == "CUDA_VISIBLE_DEVICES"
    assert (told[0].honoured, told[0].how_known) == (None, "this TensorFlow build has no GPU support, so nothing reads it")


@pytest.mark.parametrize(
    ("text", "count", "odd"),
    [
        ("8", 8, False),
        (" 4 ", 4, False),
        ("4,3,2", 4, True),
        ("2, 2", 2, True),
        ("", None, True),
        ("xyz", None, True),
        ("1.0", None, True),
        ("0", None, True),
        ("-1", None, True),
        (",4", None, True),
        ("1e3", None, True),
        ("٣", None, True),
        ("9" * 5000, None, True),
    ],
)
def test_a_thread_count_of_any_spelling(text: str, count: int | None, odd: bool) -> None:
    found = read_thread_count(text)
    assert (found.count, found.problem is not None) == (count, odd)


@given(st.text(max_size=30))
def test_no_thread_count_breaks_it(text: str) -> None:
    found = read_thread_count(text)
    assert found.count is None or found.count >= 1
    assert found.count is not None or found.problem


def _named_threads(folder: Path, names: list[str]) -> None:
    for number, name in enumerate(names):
        (folder / str(number)).mkdir(exist_ok=True)
        (folder / str(number) / "comm").write_text(f"{name}\n")


def test_the_pool_is_counted_when_its_threads_have_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Right after the start some threads still bear the process's name; each look finds one more with its own."""
    monkeypatch.setattr(tf_readback, "_TASKS", tmp_path)
    named = iter(range(1, 5))

    def one_more_has_its_name(seconds: float) -> None:
        _named_threads(tmp_path, ["tf_Compute"] * min(4, next(named)))

    _named_threads(tmp_path, ["python"] * 5)
    monkeypatch.setattr(tf_readback.time, "sleep", one_more_has_its_name)
    assert tf_readback.compute_threads(4, limit_s=60) == 4


@pytest.mark.parametrize(("expected", "limit_s", "found"), [(None, 60, 2), (2, 60, 2), (1, 60, 2), (9, 0.0, 2)])
def test_counting_the_pool_ends(expected: int | None, limit_s: float, found: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf_readback, "_TASKS", tmp_path)
    _named_threads(tmp_path, ["tf_Compute", "python", "tf_Compute"])
    (tmp_path / "gone").mkdir()
    assert tf_readback.compute_threads(expected, limit_s) == found


def test_where_threads_cannot_be_seen_the_pool_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf_readback, "_TASKS", tmp_path / "none")
    assert tf_readback.compute_threads(4, limit_s=60) is None
