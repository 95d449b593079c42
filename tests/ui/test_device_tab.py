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
from app.core.tf_build import TensorFlowBuild, tensorflow_build
from app.ui import state

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
    assert ("with a TensorFlow that supports GPUs" in words) == (not has_gpu)


def test_forcing_a_path_says_so_and_what_auto_would_have_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _machine(monkeypatch, tmp_path, "A00")
    monkeypatch.setattr(state, "tensorflow_build", lambda: TensorFlowBuild(True, "2.21.0", "tensorflow", has_gpu=True))
    words = _words(_open(device="cpu"))
    assert "The CPU is forced." in words
    assert "Auto would say: GPU" in words


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


@pytest.mark.parametrize("nonsense", ["-5", "many", "1e9", ""])
def test_a_link_with_nonsense_falls_back_to_the_default(nonsense: str) -> None:
    assert _open(min_vram_mib=nonsense).slider(key="min_vram_mib").value == 2048


def test_the_dashboard_process_has_not_imported_tensorflow() -> None:
    import sys

    _open()
    assert "tensorflow" not in sys.modules
