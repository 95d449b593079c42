"""Who may import whom, and that the dashboard's process never imports TensorFlow."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MODULES = sorted((ROOT / "app").rglob("*.py"))
FORBIDDEN = {
    "core": ("app.cae", "app.runs", "app.ui", "streamlit"),
    "cae": ("app.runs", "app.ui", "streamlit"),
    "runs": ("app.ui", "streamlit"),
}
MAY_TOUCH_TENSORFLOW = {"app/core/tf_readback.py", "app/cae/cae_keras.py"}


def _imports(tree: ast.AST) -> Iterator[tuple[ast.stmt, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in line {node.lineno}"
            yield node, node.module or ""
            yield from ((node, f"{node.module}.{alias.name}") for alias in node.names)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_arrows_run_one_way(path: Path) -> None:
    room = path.relative_to(ROOT / "app").parts[0]
    for node, name in _imports(ast.parse(path.read_text(encoding="utf-8"))):
        for banned in FORBIDDEN.get(room, ()):
            assert name != banned, f"{path}:{node.lineno} imports {name}"
            assert not name.startswith(banned + "."), f"{path}:{node.lineno} imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_tensorflow_is_imported_only_inside_functions_of_its_rooms(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    at_top = {id(node) for node in tree.body}
    for node, name in _imports(tree):
        if name.split(".")[0] in ("tensorflow", "keras", "torch", "jax"):
            assert path.relative_to(ROOT).as_posix() in MAY_TOUCH_TENSORFLOW, f"{path}:{node.lineno}"
            assert id(node) not in at_top, f"{path}:{node.lineno} imports {name} at module level"


def test_importing_every_room_brings_no_tensorflow() -> None:
    modules = [path for path in MODULES if path.stem not in ("__init__", "dashboard")]
    names = [path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".") for path in modules]
    code = (
        f"import importlib, sys\nfor name in {names!r}: importlib.import_module(name)\n"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'tensorflow', 'keras'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_no_pickle_no_shell_and_no_path_of_a_machine() -> None:
    for path in MODULES:
        text = path.read_text(encoding="utf-8")
        assert "shell=True" not in text, path
        assert "import pickle" not in text, path
        assert "allow_pickle=True" not in text, path
        assert "sys.path" not in text, path
