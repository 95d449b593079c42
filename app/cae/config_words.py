"""What is wrong with an option, in plain words: pydantic's own speak of types and parsing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_EXPECTED = {
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a whole number that is not that large",
    "float_parsing": "a number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_parsing": "yes or no",
    "bool_type": "yes or no",
    "string_type": "a text",
    "greater_than": "a number above {gt}",
    "greater_than_equal": "{ge} or more",
    "less_than": "a number below {lt}",
    "less_than_equal": "{le} or less",
    "multiple_of": "a multiple of {multiple_of}",
    "literal_error": "{expected}",
}
"""What was expected, by pydantic's name of the error; the braces are filled from its `ctx`."""


def in_plain_words(error: Mapping[str, Any]) -> str:
    """One sentence for one entry of `ValidationError.errors()`: the option, what was expected, what came."""
    name = ".".join(str(part) for part in error["loc"])
    kind, got, context = str(error["type"]), error["input"], error.get("ctx") or {}
    if kind == "extra_forbidden":
        return f"{name}: expected an option that exists (cae --help lists them), got {name!r}."
    if kind not in _EXPECTED:
        message = str(error["msg"]).removeprefix("Value error, ")
        return f"{name}: {message}, got {got!r}." if name else message
    values = {key: f"{value:g}" if isinstance(value, float) else value for key, value in context.items()}
    return f"{name}: expected {_EXPECTED[kind].format(**values)}, got {got!r}."
