"""Front door of the data: a name or a folder to a data set, a data set to pictures in memory."""

from __future__ import annotations

from pathlib import Path

from app.cae.checks import checked
from app.cae.elpv import NAMES as ELPV_NAMES
from app.cae.elpv import open_elpv
from app.cae.layouts import find_layout
from app.cae.pictures import Pictures, detect_channels, load_pictures
from app.cae.synthetic import is_synthetic, synthetic_dataset
from app.cae.tables import Dataset, describe, split_digest, split_validation
from app.core.errors import DataError


def open_dataset(source: str | Path, *, seed: int = 0) -> Dataset:
    """The data set called `source`.

    Args:
        source: "elpv-mono", "elpv-poly", "synthetic" (or "synthetic:weave,…", see `app.cae.synthetic`), or a folder in one of the
            layouts of `app.cae.layouts`.
        seed: of the synthetic pictures, where the name gives none. Splits do not depend on it.

    Raises:
        DataError: there is no such data set, or no picture in it can be used for training.
    """
    text = str(source)
    if text in ELPV_NAMES:
        return open_elpv(text)
    if is_synthetic(text):
        return synthetic_dataset(text, seed=seed)
    if not text.strip():
        raise DataError("data: expected elpv-mono, elpv-poly, synthetic or a folder, got nothing.")
    return checked(find_layout(Path(text).expanduser().absolute()), text)


def resolve_source(text: str, data_root: Path) -> str:
    """What a visitor of the page typed as data source, held inside `data_root`.

    Names of samples pass. A relative folder is taken from `data_root`; links are resolved before the check.

    Raises:
        DataError: the folder lies outside.
    """
    name = text.strip()
    if name in ELPV_NAMES or is_synthetic(name):
        return name
    root = data_root.expanduser().resolve()
    try:
        folder = (root / Path(name).expanduser()).resolve()
    except (OSError, RuntimeError, ValueError):
        raise DataError(f"{text!r}: expected a folder below {root}.") from None
    if not folder.is_relative_to(root):
        raise DataError(
            f"{text!r}: expected a folder below {root}, got one outside. Put the folder there, or start the app with another data root "
            "(TWOPATH_DATA_ROOT)."
        )
    return str(folder)


__all__ = [
    "Dataset",
    "Pictures",
    "describe",
    "detect_channels",
    "load_pictures",
    "open_dataset",
    "resolve_source",
    "split_digest",
    "split_validation",
]
