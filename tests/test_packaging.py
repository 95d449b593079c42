"""pixi.toml, pyproject.toml, Makefile and constraints agree with each other and with what the README promises."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet


def _toml(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


@pytest.fixture
def pixi(root: Path) -> dict[str, Any]:
    return _toml(root / "pixi.toml")


@pytest.fixture
def project(root: Path) -> dict[str, Any]:
    return dict(_toml(root / "pyproject.toml")["project"])


def test_pixi_manifest_fits_the_schema(pixi: dict[str, Any], root: Path) -> None:
    schema = json.loads((root / "tests/data/pixi-schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(pixi, schema)


def test_pixi_has_four_environments_and_never_both_builds_in_one_solve_group(pixi: dict[str, Any]) -> None:
    environments = pixi["environments"]
    assert {name: set(value["features"]) for name, value in environments.items()} == {
        "default": {"gpu"},
        "dev": {"dev", "gpu"},
        "ci": {"cpu"},
        "ci-dev": {"dev", "cpu"},
    }
    for group in ("default", "ci"):
        features = set().union(*(value["features"] for value in environments.values() if value["solve-group"] == group))
        assert len(features & {"gpu", "cpu"}) == 1


def test_pixi_runs_on_linux_from_conda_forge_without_a_cuda_gate(pixi: dict[str, Any]) -> None:
    # The schema accepts any text as a platform; pixi does not.
    assert pixi["workspace"]["platforms"] == ["linux-64"]
    assert pixi["workspace"]["channels"] == ["conda-forge"]
    assert "system-requirements" not in pixi["feature"]["gpu"]


def test_pixi_takes_the_local_package_with_the_extra_of_each_tier(pixi: dict[str, Any], project: dict[str, Any]) -> None:
    assert "pypi-dependencies" not in pixi
    for feature in ("gpu", "cpu"):
        package = pixi["feature"][feature]["pypi-dependencies"][project["name"]]
        assert package == {"path": ".", "editable": True, "extras": [feature, "samples"]}
    # TensorFlow's range is written once, in pyproject.toml.
    assert "tensorflow" not in json.dumps(pixi["feature"])


def test_pixi_and_pyproject_name_the_same_developer_tools(pixi: dict[str, Any], project: dict[str, Any]) -> None:
    declared = {(item := Requirement(text)).name: str(item.specifier) for text in project["optional-dependencies"]["dev"]}
    assert pixi["feature"]["dev"]["pypi-dependencies"] == declared


def test_pixi_tasks(pixi: dict[str, Any]) -> None:
    assert {"app", "cae"} <= set(pixi["tasks"])
    assert {"test", "lint"} <= set(pixi["feature"]["dev"]["tasks"])
    for task in pixi["feature"]["dev"]["tasks"].values():
        assert task["default-environment"] in pixi["environments"]


def test_pixi_python_lies_within_what_the_package_requires(pixi: dict[str, Any], project: dict[str, Any]) -> None:
    allowed = SpecifierSet(project["requires-python"])
    wanted = SpecifierSet(pixi["dependencies"]["python"])
    assert all(f"3.{minor}" in allowed for minor in range(8, 20) if f"3.{minor}" in wanted)


def test_metadata_is_static_and_tensorflow_stands_only_in_the_extras(project: dict[str, Any]) -> None:
    assert "dynamic" not in project
    assert not [text for text in project["dependencies"] if "tensorflow" in text]
    names = {Requirement(text).name for text in project["dependencies"]}
    assert {"streamlit", "plotly", "pandas", "nvidia-ml-py", "psutil", "numpy", "pillow", "scikit-learn", "scipy", "pydantic"} <= names
    assert "pynvml" not in names


def test_constraints_pin_every_dependency_and_name_no_address(root: Path, project: dict[str, Any]) -> None:
    text = (root / "constraints.txt").read_text(encoding="utf-8")
    assert "://" not in text
    pins = {_plain(line.split("==")[0]) for line in text.splitlines() if "==" in line}
    extras = project["optional-dependencies"]
    for requirement in [*project["dependencies"], *extras["cpu"], *extras["gpu"], *extras["dev"], *extras["samples"]]:
        assert _plain(Requirement(requirement).name) in pins, requirement


def test_every_dependency_is_defended_in_the_architecture(root: Path, project: dict[str, Any]) -> None:
    text = (root / "docs/architecture.md").read_text(encoding="utf-8")
    for requirement in project["dependencies"]:
        assert f"`{Requirement(requirement).name}`" in text, requirement


def test_both_commands_use_the_constraints(root: Path) -> None:
    makefile = (root / "Makefile").read_text(encoding="utf-8")
    assert makefile.count("-c constraints.txt") == makefile.count("pip install -q")
    assert "make test" in (root / ".ci/run").read_text(encoding="utf-8")


def test_page_settings(root: Path) -> None:
    settings = _toml(root / ".streamlit/config.toml")
    assert settings["server"]["address"] == "localhost"
    assert settings["browser"]["gatherUsageStats"] is False
    assert {"light", "dark"} <= set(settings["theme"])
    assert not re.search(r"https?://", (root / ".streamlit/config.toml").read_text(encoding="utf-8"))


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
