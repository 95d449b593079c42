"""The Device tab through AppTest: verdict, threshold, forced path, features, and what is said when something is missing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import streamlit as st
from fake_machine import smi_environment
from streamlit.testing.v1 import AppTest

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


def test_forcing_a_path_says_so_and_what_auto_would_have_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _machine(monkeypatch, tmp_path, "A00")
    words = _words(_open(device="cpu"))
    assert "The CPU is forced." in words
    assert "Auto would say: GPU" in words


def test_every_gpu_stands_in_the_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _machine(monkeypatch, tmp_path, "A31")
    table = _open().table[0].value
    assert list(table["usable"]) == ["no", "chosen", "yes"]


def test_a_sick_gpu_is_a_sentence_on_the_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _machine(monkeypatch, tmp_path, "A05")
    app = _open()
    assert any("GPU 0" in str(warning.value) for warning in app.warning)


@pytest.mark.parametrize("nonsense", ["-5", "many", "1e9", ""])
def test_a_link_with_nonsense_falls_back_to_the_default(nonsense: str) -> None:
    assert _open(min_vram_mib=nonsense).slider(key="min_vram_mib").value == 2048


def test_the_dashboard_process_has_not_imported_tensorflow() -> None:
    import sys

    _open()
    assert "tensorflow" not in sys.modules
