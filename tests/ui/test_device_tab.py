"""The Device tab through AppTest: verdict, threshold, forced path, features, and what is said when something is missing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import streamlit as st
from fake_machine import smi_environment
from streamlit.testing.v1 import AppTest

from app.core.facts import Gpu, GpuFacts
from app.core.gpu_trouble import trouble
from app.core.tf_build import TensorFlowBuild, tensorflow_build
from app.ui import device_choice, state

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _fresh_caches() -> Iterator[None]:
    """The sampler and the facts are kept for a process; each test is a machine of its own."""
    st.cache_resource.clear()
    st.cache_data.clear()
    yield
    state.sampler().stop()  # threads of many tests would queue for one nvidia-smi
    st.cache_resource.clear()
    st.cache_data.clear()


def _open(**query: str) -> AppTest:
    app = AppTest.from_file(str(ROOT / "app/dashboard.py"), default_timeout=30)
    for name, value in query.items():
        app.query_params[name] = value
    app.run()
    assert not app.exception
    return app


def _machine(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str) -> None:
    monkeypatch.setenv("PATH", smi_environment(folder, name)["PATH"])


def _words(app: AppTest) -> str:
    """Every sentence on the page, without Markdown's backslashes."""
    kinds = (app.markdown, app.caption, app.warning, app.info, app.error, app.subheader)
    return " ".join(str(element.value) for kind in kinds for element in kind).replace("\\", "")


def test_without_a_gpu_the_page_is_calm_and_says_why() -> None:
    words = _words(_open())
    assert "Using AVX2 CPU path." in words or "Using the CPU path." in words
    assert "With an NVIDIA GPU and its driver" in words


@pytest.mark.parametrize(
    ("threshold", "label", "said"), [("832", "GPU · ", "≥ threshold 832 MiB"), ("2048", "CPU · ", "< threshold 2048 MiB")]
)
def test_a_link_brings_its_threshold(threshold: str, label: str, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _machine(monkeypatch, tmp_path, "A00-low")
    words = _words(_open(min_vram_mib=threshold))
    assert said in words
    assert label in words
    assert "887 MiB free" in words


def test_moving_the_slider_decides_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _machine(monkeypatch, tmp_path, "A00-low")
    app = _open()
    assert "< threshold 2048 MiB" in _words(app)
    app.slider(key="min_vram_mib").set_value(512).run()
    assert "≥ threshold 512 MiB" in _words(app)
    # A build that cannot use the GPU is said at once, not found out by a slow run.
    assert "has no GPU support" in _words(app)


@pytest.mark.parametrize("device", ["auto", "gpu"])
@pytest.mark.parametrize(("has_gpu", "path"), [(True, "GPU"), (False, "CPU")])
def test_verdict_chart_and_badge_agree_about_the_build(
    has_gpu: bool, path: str, device: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A GPU with room, and a TensorFlow that can or cannot use it."""
    _machine(monkeypatch, tmp_path, "A00")
    monkeypatch.setattr(state, "tensorflow_build", lambda: TensorFlowBuild(True, "2.21.0", "tensorflow", has_gpu))
    app = _open(device=device)
    words = _words(app)
    chart = str(app.get("graphviz_chart")[0].proto.spec)
    badges = [str(element.value) for element in app.markdown if "-badge[" in str(element.value)]
    taken = [badge for badge in badges if f"{path} ·" in badge]
    assert len(taken) == 2, "the header's and the verdict's"
    assert re.findall(r'label="(\w+) path", style="rounded,filled"', chart) == [path]
    assert ("has no GPU support" in words) == (not has_gpu)
    assert words.count("has no GPU support") == (not has_gpu), "once is enough"
    assert ("after `make app TF=gpu`: GPU" in words) == (not has_gpu)


def test_forcing_a_path_says_so_and_what_auto_would_have_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _machine(monkeypatch, tmp_path, "A00")
    monkeypatch.setattr(state, "tensorflow_build", lambda: TensorFlowBuild(True, "2.21.0", "tensorflow", has_gpu=True))
    words = _words(_open(device="cpu"))
    assert "The CPU is forced." in words
    assert "Auto would say: GPU" in words


def _four(monkeypatch: pytest.MonkeyPatch, gpus: int = 4) -> None:
    """Four free GPUs, of which the third has least memory, and a TensorFlow that can use them."""
    boards = tuple(
        Gpu(index, f"GPU-0000000{index}-aaaa", "NVIDIA RTX A4000", 16376, 15000 - 100 * (index == 2), compute_capability=(8, 6))
        for index in range(gpus)
    )
    facts = GpuFacts(gpus=boards, source="nvml")
    monkeypatch.setattr(state, "gpu", lambda: facts)
    monkeypatch.setattr(state, "tensorflow_build", lambda: TensorFlowBuild(True, "2.21.0", "tensorflow", has_gpu=True))


def test_each_of_several_gpus_can_be_forced_and_stays_in_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    _four(monkeypatch)
    app = _open()
    assert list(app.selectbox(key="device").options) == ["auto", "CPU", "GPU", *(f"GPU {index} · RTX A4000" for index in range(4))]
    app.selectbox(key="device").set_value("2").run()
    words = _words(app)
    assert "GPU 2 'NVIDIA RTX A4000' is forced." in words
    assert "Auto would say: GPU 0" in words
    assert app.query_params["device"] in ("2", ["2"])
    assert state.run_decision("2").gpu == state.gpu().gpus[2]


@pytest.mark.parametrize("named", ["2", "GPU-00000002-aaaa", "gpu-00000002"])
def test_a_link_names_one_gpu_by_index_or_uuid_for_all_tabs(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _four(monkeypatch)
    app = _open(device=named)
    assert "GPU 2 'NVIDIA RTX A4000' is forced." in _words(app)
    assert app.selectbox(key="device").value == "2"
    cae = _open(device=named, tab="Keras CAE")
    path = str(cae.selectbox(key="cae_path").options[0])
    assert path == f"Path: as on the Device tab ({state.device_in_words(named)})"
    assert "GPU NVIDIA RTX A4000" in _words(cae)


@pytest.mark.parametrize("gpus", [1, 4])
def test_a_link_to_a_gpu_that_is_not_there_says_so(gpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    _four(monkeypatch, gpus)
    app = _open(device="7")
    words = _words(app)
    assert "A GPU is forced (7), but it cannot be used. No GPU matches '7'" in words
    assert app.selectbox(key="device").value == "7"
    app.selectbox(key="device").set_value("auto").run()
    assert "is forced" not in _words(app)


def test_a_link_to_no_device_at_all_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    _four(monkeypatch, 1)
    assert "The link asks for the path 'tpu'; expected auto, cpu, gpu" in _words(_open(device="tpu"))
    assert "The link asks" not in _words(_open(device="CPU"))


def test_slices_of_one_profile_are_told_apart() -> None:
    parent = Gpu(0, "GPU-a", "NVIDIA A100", mig="parent")
    slices = [
        Gpu(0, f"MIG-{name}-5000", "NVIDIA A100 MIG 1g.5gb", mig="1g.5gb", mig_parent_uuid="GPU-a") for name in ("aaaaaaaa", "bbbbbbbb")
    ]
    offered = device_choice.choices([parent, *slices])
    assert list(offered) == ["auto", "cpu", "gpu", "MIG-aaaaaaaa-5000", "MIG-bbbbbbbb-5000"]
    assert len(set(offered.values())) == 5


def test_a_look_that_found_nothing_out_is_unknown_and_not_no(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A driver that does not answer; against it a machine where NVML says that there is none, and one without any tool."""
    hung = GpuFacts(no_gpu_because=trouble("timeout", "nvidia-smi", seconds=5.0).sentence, problems=("nvidia-smi timed out after 5 s.",))
    none = trouble("none", "NVML", detail="No devices").sentence
    for facts, said, edge in (
        (hung, "GPU status unknown", "unknown"),
        (GpuFacts(no_gpu_because=none, problems=(none,)), "no NVIDIA GPU", "no"),
        (GpuFacts(no_gpu_because="no nvidia-smi and no NVML: VRAM cannot be checked."), "no NVIDIA GPU", "no"),
    ):
        monkeypatch.setattr(state, "gpu", lambda facts=facts: facts)
        app = _open()
        assert said in _words(app)
        assert f'q_present -> leave_q_present [label=" {edge} "' in str(app.get("graphviz_chart")[0].proto.spec)


def test_a_paused_panel_stays_paused_after_a_reload() -> None:
    app = _open()
    assert "refresh_s" not in app.query_params
    app.button_group(key="refresh_s").set_value("paused").run()
    assert app.query_params["refresh_s"] in ("paused", ["paused"])
    assert _open(refresh_s="paused").session_state["refresh_s"] == "paused"
    assert _open(refresh_s="5").session_state["refresh_s"] == "5 s"
    assert _open(refresh_s="never").session_state["refresh_s"] == "1 s"


def test_every_gpu_stands_in_the_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _machine(monkeypatch, tmp_path, "A31")
    table = _open().table[0].value
    assert list(table["usable"]) == ["no", "chosen" if tensorflow_build().has_gpu else "would be chosen", "yes"]


def test_a_sick_gpu_is_a_sentence_on_the_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _machine(monkeypatch, tmp_path, "A05")
    app = _open()
    assert any("GPU 0" in str(warning.value) for warning in app.warning)


def test_a_gpu_that_comes_and_goes_does_not_move_the_slider(monkeypatch: pytest.MonkeyPatch) -> None:
    big = GpuFacts(gpus=(Gpu(0, "GPU-a", "NVIDIA A", 49152, 40000),), source="nvml")
    seen = {"now": GpuFacts()}
    monkeypatch.setattr(state, "gpu", lambda: seen["now"])
    app = _open()
    slider = app.slider(key="min_vram_mib").set_value(1984).run()
    for facts, highest in ((big, 49152), (GpuFacts(), 49152), (GpuFacts(gpus=(Gpu(0, "GPU-b", "NVIDIA B", 4096, 4000),)), 49152)):
        seen["now"] = facts
        app.run()
        slider = app.slider(key="min_vram_mib")
        assert (slider.value, slider.max) == (1984, highest)


def test_the_slider_is_not_written_to_while_a_visitor_moves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """E08: a value that the page sends overtakes what the visitor has moved to since; only a new end is worth that."""
    seen = {"now": GpuFacts()}
    monkeypatch.setattr(state, "gpu", lambda: seen["now"])
    app = _open(min_vram_mib="512")
    assert app.slider(key="min_vram_mib").proto.set_value
    app.slider(key="min_vram_mib").set_value(1984).run()
    assert not app.slider(key="min_vram_mib").proto.set_value
    app.run()
    assert not app.slider(key="min_vram_mib").proto.set_value
    seen["now"] = GpuFacts(gpus=(Gpu(0, "GPU-a", "NVIDIA A", 49152, 40000),), source="nvml")
    app.run()
    assert (app.slider(key="min_vram_mib").proto.set_value, app.slider(key="min_vram_mib").value) == (True, 1984)


def test_a_threshold_beyond_the_slider_is_clamped_and_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {"now": GpuFacts()}
    monkeypatch.setattr(state, "gpu", lambda: seen["now"])
    app = _open(min_vram_mib="6016")
    assert app.slider(key="min_vram_mib").value == 6016
    seen["now"] = GpuFacts(gpus=(Gpu(0, "GPU-b", "NVIDIA B", 4096, 4000),))
    app.run()
    assert (app.slider(key="min_vram_mib").value, app.slider(key="min_vram_mib").max) == (4096, 4096)


@pytest.mark.parametrize("nonsense", ["-5", "abc", "1e3", "3000.7", "9" * 5000])
def test_a_link_with_nonsense_falls_back_to_the_default_and_says_so(nonsense: str) -> None:
    app = _open(min_vram_mib=nonsense)
    assert app.slider(key="min_vram_mib").value == 2048
    assert f"The link asks for a threshold of '{nonsense[:8]}" in _words(app)
    assert "2048 MiB is used." in _words(app)
    app.run()
    assert "The link asks" in _words(app)
    app.slider(key="min_vram_mib").set_value(1984).run()
    assert "The link asks" not in _words(app)


def test_a_link_beyond_the_slider_says_what_is_used() -> None:
    app = _open(min_vram_mib="999999")
    highest = int(app.slider(key="min_vram_mib").max or 0)
    said = f"The link asks for a threshold of 999999 MiB, more than the slider offers here; {highest} MiB is used."
    assert said in _words(app)
    app.run()
    assert said in _words(app)
    app.slider(key="min_vram_mib").set_value(1984).run()
    assert "The link asks" not in _words(app)
    assert "The link asks" not in _words(_open(min_vram_mib="512"))


def test_the_dashboard_process_has_not_imported_tensorflow() -> None:
    import sys

    _open()
    assert "tensorflow" not in sys.modules
