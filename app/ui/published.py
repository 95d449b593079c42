"""Published figures to hold a run against, with what differs in protocol. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_TEXTURES = ("carpet", "grid", "leather", "tile", "wood")
_OBJECTS = ("bottle", "cable", "capsule", "hazelnut", "metal_nut", "pill", "screw", "toothbrush", "transistor", "zipper")
MVTEC_CATEGORIES = frozenset((*_TEXTURES, *_OBJECTS))


@dataclass(frozen=True)
class Published:
    """A method's figures as published; `None` where its authors give none."""

    method: str
    image_auroc: float | None = None
    pixel_auroc: float | None = None
    aupro: float | None = None
    aupimo: float | None = None


MVTEC_AD = (
    Published("autoencoder, SSIM loss (Bergmann et al., CVPR 2019)", pixel_auroc=0.87),
    Published("autoencoder, L2 loss (Bergmann et al., CVPR 2019)", pixel_auroc=0.82),
    Published("PatchCore, WR50", 0.990, 0.981, 0.935, 0.672),
    Published("EfficientAD-S", image_auroc=0.982, aupimo=0.648),
    Published("PaDiM, R18", aupimo=0.258),
)
"""Means over the 15 categories of MVTec AD."""

MVTEC_PROTOCOL = (
    "Published figures are means over all 15 categories at the authors' own picture sizes, and PatchCore, EfficientAD and PaDiM build on "
    "networks trained on ImageNet; this run is one category at {size} px and has seen nothing but its pictures."
)


def published_for(dataset: Mapping[str, Any] | None) -> tuple[tuple[Published, ...], str] | None:
    """The figures published for a run's data set (`dataset.json`) and a sentence on the protocol; `None` where none are known."""
    if not dataset or dataset.get("layout") != "MVTec AD" or str(dataset.get("name", "")).casefold() not in MVTEC_CATEGORIES:
        return None
    return MVTEC_AD, MVTEC_PROTOCOL.format(size=dataset.get("image_size", "other"))
