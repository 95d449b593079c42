"""Whether the pictures that a run asks for are there at all: asked before its folder is made, so that a mistyped name leaves no failed run.

Only names are looked at. What is wrong with the pictures themselves the run says when it reads them.
"""

from __future__ import annotations

from pathlib import Path

from app.core.errors import AppError, OptionError
from app.runs.folder import BUILT_IN_DATA


def missing_data(data: str) -> str | None:
    """Why the pictures of `data` cannot be there, in the sentence with which a run would fail; `None` when they may be.

    A folder is looked for on this machine: do not ask about a run that another machine carries out.
    """
    if data in BUILT_IN_DATA or (data.strip() and _is_folder(data)):
        return None
    from app.cae.datasets import open_dataset
    from app.cae.synthetic import is_synthetic, parse_options

    try:
        if is_synthetic(data):
            parse_options(data, seed=0)
        else:
            open_dataset(data)
    except AppError as error:
        return str(error)
    except (OSError, RuntimeError, ValueError) as error:  # no such user, a name too long
        return f"{data}: expected a folder of pictures, got a name that cannot be looked up ({str(error).rstrip('.')})."
    return None


def refuse_missing_data(data: str) -> None:
    """Raises OptionError with the sentence of `missing_data`."""
    if sentence := missing_data(data):
        raise OptionError(sentence)


def refuse_meaningless_data(data: str) -> None:
    """Raises OptionError where `data` names no pictures on any machine: nothing at all, or a synthetic set that does not exist."""
    from app.cae.synthetic import is_synthetic

    if not data.strip() or is_synthetic(data):
        refuse_missing_data(data)


def _is_folder(data: str) -> bool:
    try:
        return Path(data).expanduser().is_dir()
    except (OSError, RuntimeError, ValueError):
        return False
