"""Synthetic inspection pictures: textures and one object, with defects and their masks, seeded.

A data set is named `synthetic`, or `synthetic:` followed by comma-separated choices:

    synthetic:brushed                     another texture
    synthetic:washer,train=100,seed=3     the object category, more pictures, a fixed seed
    synthetic:weave,size=256,defects=scratch+blob,contrast=0.2,defect_size=0.1,grey=1

Pictures are PNG files in MVTec AD layout below the user's cache folder, one folder for each set of choices, written whole or not at all,
so that everything downstream reads them as it reads any folder. `app.cae.drawing.add_defect` also draws on real pictures.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from app.cae.checks import checked
from app.cae.drawing import DEFECTS, TEXTURES, Field, add_defect
from app.cae.layouts import find_layout
from app.cae.tables import Dataset
from app.core.errors import DataError

VERSION = 1
"""Part of the cache key: raise it when the same choices give other pictures."""


@dataclass(frozen=True)
class SyntheticOptions:
    """What to draw."""

    texture: str = "weave"
    """One of `TEXTURES`; `washer` is an object on a background."""
    train: int = 60
    """Good training pictures."""
    good: int = 20
    """Good test pictures."""
    defective: int = 20
    """Defective test pictures, the kinds taking turns."""
    size: int = 128
    """Side, px."""
    defects: tuple[str, ...] = ("scratch", "spot", "blob", "missing", "colour")
    """Some of `DEFECTS`."""
    contrast: float = 0.5
    """How far a defect's pixels go from the clean picture, 0..1."""
    defect_size: float = 0.15
    """Extent of a defect as a share of the side."""
    grey: bool = False
    """One channel."""
    seed: int = 0


def is_synthetic(text: str) -> bool:
    """Whether `text` names a synthetic data set rather than a folder."""
    return text == "synthetic" or text.startswith("synthetic:")


def synthetic_dataset(text: str, *, seed: int = 0, cache: Path | None = None) -> Dataset:
    """The data set called `text`; `seed` counts where the text gives none.

    Raises:
        DataError: a choice is unknown or out of bounds, or the cache folder cannot be written.
    """
    options = parse_options(text, seed=seed)
    dataset = checked(find_layout(synthetic_folder(options, cache)), text)
    note = f"Synthetic pictures: {options.texture}, seed {options.seed}, defects {', '.join(options.defects)}."
    return replace(dataset, name=text, layout="synthetic", notes=(note, *dataset.notes))


def parse_options(text: str, *, seed: int = 0) -> SyntheticOptions:
    """The choices that `text` names.

    Raises:
        DataError: unknown name, not a number, or out of bounds.
    """
    chosen: dict[str, Any] = {"seed": seed}
    kinds = {field.name: type(getattr(SyntheticOptions(), field.name)) for field in fields(SyntheticOptions)}
    for word in filter(None, (part.strip() for part in text.partition(":")[2].split(","))):
        name, equals, value = (part.strip() for part in word.partition("="))
        if not equals:
            name, value = "texture", name
        if name not in kinds:
            raise DataError(f"{text}: expected one of {', '.join(kinds)}, got {name!r}.")
        try:
            chosen[name] = tuple(value.split("+")) if kinds[name] is tuple else kinds[name](int(value) if kinds[name] is bool else value)
        except ValueError:
            raise DataError(f"{text}: {name} expects a number, got {value!r}.") from None
    options = SyntheticOptions(**chosen)
    _check(options, text)
    return options


def synthetic_folder(options: SyntheticOptions, cache: Path | None = None) -> Path:
    """Folder with the pictures of `options`, made if it is not there yet.

    Raises:
        DataError: the cache folder cannot be written.
    """
    key = hashlib.sha256(repr((VERSION, sorted(asdict(options).items()))).encode()).hexdigest()[:12]
    parent = cache or default_cache()
    target = parent / f"{options.texture}-{options.seed}-{key}"
    if target.is_dir():
        return target
    try:
        parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{key}-", dir=parent))
        try:
            write_pictures(options, made)
            made.chmod(0o755)
            # Another process may have been quicker: its pictures are the same ones.
            with contextlib.suppress(OSError):
                made.rename(target)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    except OSError as error:
        raise DataError(f"{parent}: synthetic pictures cannot be written there ({error.strerror}). Set TWOPATH_CACHE_DIR.") from None
    if not target.is_dir():
        raise DataError(f"{target}: expected a folder of synthetic pictures, which could not be made. Set TWOPATH_CACHE_DIR.")
    return target


def default_cache(environ: Mapping[str, str] = os.environ) -> Path:
    """TWOPATH_CACHE_DIR, else twopath below XDG_CACHE_HOME or ~/.cache, else below the temporary folder; `synthetic` in it."""
    own = environ.get("TWOPATH_CACHE_DIR")
    if own:
        return Path(own) / "synthetic"
    base = Path(environ["XDG_CACHE_HOME"]) if environ.get("XDG_CACHE_HOME") else Path("~/.cache").expanduser()
    try:
        (base / "twopath").mkdir(parents=True, exist_ok=True)
    except OSError:
        base = Path(tempfile.gettempdir())
    return base / "twopath" / "synthetic"


def write_pictures(options: SyntheticOptions, root: Path) -> None:
    """All pictures and masks of `options` below `root`, in MVTec AD layout; the same bytes for the same options."""
    random = np.random.default_rng(options.seed)
    draw = TEXTURES[options.texture]
    for split, count in (("train", options.train), ("test", options.good)):
        for place in range(count):
            _save(draw(options.size, random)[0], root / split / "good" / f"{place:03}.png", options)
    for place in range(options.defective):
        kind = options.defects[place % len(options.defects)]
        clean, ground = draw(options.size, random)
        picture, mask = add_defect(clean, ground, kind, options.contrast, options.defect_size, random)
        _save(picture, root / "test" / kind / f"{place:03}.png", options)
        file = root / "ground_truth" / kind / f"{place:03}_mask.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(mask.astype(np.uint8) * np.uint8(255)).save(file)


def _check(options: SyntheticOptions, text: str) -> None:
    if options.texture not in TEXTURES:
        raise DataError(f"{text}: expected a texture out of {', '.join(TEXTURES)}, got {options.texture!r}.")
    unknown = [kind for kind in options.defects if kind not in DEFECTS]
    if unknown or not options.defects:
        raise DataError(f"{text}: expected defects out of {', '.join(DEFECTS)}, joined by +, got {'+'.join(unknown) or 'none'!r}.")
    bounds: dict[str, tuple[float, float]] = {
        "train": (1, 10_000),
        "good": (0, 10_000),
        "defective": (0, 10_000),
        "size": (16, 1024),
        "contrast": (0.01, 1.0),
        "defect_size": (0.01, 0.5),
        "seed": (0, 2**63 - 1),
    }
    for name, (least, most) in bounds.items():
        value = getattr(options, name)
        if not least <= value <= most:
            raise DataError(f"{text}: {name} expects {least:g} to {most:g}, got {value:g}.")


def _save(picture: Field, file: Path, options: SyntheticOptions) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(np.rint(picture * 255).astype(np.uint8))
    (image.convert("L") if options.grey else image).save(file)
