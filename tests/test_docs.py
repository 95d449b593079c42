"""What the README promises exists: commands parse, variables are read, files and pictures are there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from app.main import _parser

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^python -m app\.main (.+?)(?:\s+#.*)?$", README, re.M)


def test_there_are_commands_to_check() -> None:
    assert len(COMMANDS) >= 5


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_of_the_readme_parses(command: str) -> None:
    _parser().parse_args(shlex.split(command))


def test_the_make_commands_exist() -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    for target in re.findall(r"`?make ([a-z]+)", README):
        assert target in targets


def test_each_variable_of_the_readme_is_read_by_the_code() -> None:
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "app").rglob("*.py"))
    named = set(re.findall(r"TWOPATH_[A-Z_]+", README))
    read = set(re.findall(r"TWOPATH_[A-Z_]+", code))
    assert named == read


@pytest.mark.parametrize("page", sorted(path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]))
def test_links_and_pictures_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert ((ROOT / page).parent / target).exists(), target


def test_modules_stay_readable() -> None:
    for path in (ROOT / "app").rglob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 400, path
