"""The options of `CaeConfig` on a command line: names, help and bounds come from their one declaration."""

from __future__ import annotations

import argparse
from typing import Any, Literal, NoReturn, get_args, get_origin

from app.cae.config import CaeConfig
from app.core.errors import OptionError


class OneSentenceParser(argparse.ArgumentParser):
    """Says what is wrong in one sentence; argparse itself prints the whole usage before it."""

    def error(self, message: str) -> NoReturn:
        raise OptionError(f"{self.prog}: {message}. See {self.prog} --help.")


def add_config_options(parser: argparse.ArgumentParser) -> None:
    """Add every option of `CaeConfig`, grouped as the form groups them. Values stay text here; `CaeConfig` checks them."""
    groups: dict[str, argparse._ArgumentGroup] = {}
    for name, field in CaeConfig.model_fields.items():
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        title = str(extra.get("group", "Options"))
        group = groups.setdefault(title, parser.add_argument_group(title))
        group.add_argument(
            "--" + name.replace("_", "-"),
            dest=name,
            default=None,
            metavar=_metavar(field.annotation),
            help=f"{field.description} (default: {_default(name)})".replace("%", "%%"),
        )


def config_values(args: argparse.Namespace) -> dict[str, Any]:
    """The options that were given, by name."""
    return {name: value for name in CaeConfig.model_fields if (value := getattr(args, name, None)) is not None}


def _metavar(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return "|".join(get_args(annotation))
    kinds = [kind for kind in (get_args(annotation) or (annotation,)) if kind is not type(None)]
    return {int: "N", float: "X", bool: "yes|no"}.get(kinds[0], "TEXT")


def _default(name: str) -> str:
    value = CaeConfig.model_fields[name].default
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "automatic" if value is None else str(value)
