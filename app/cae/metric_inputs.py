"""What maps and masks must be like; the refusals are those of the AUPIMO reference, in kind and order. NumPy only."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def check_maps_and_masks(maps: NDArray[Any], masks: NDArray[Any]) -> None:
    """
    Raises:
        TypeError: not arrays; maps not of a float type; masks neither integers nor bool.
        ValueError: not (N, H, W); masks with values other than 0 and 1; shapes that differ.
    """
    for name, array in (("maps", maps), ("masks", masks)):
        if not isinstance(array, np.ndarray):
            raise TypeError(f"Expected {name} as a NumPy array, got {type(array).__name__}. Convert it with np.asarray.")
    if maps.ndim != 3:
        raise ValueError(f"Expected anomaly maps of shape (N, H, W), got {maps.ndim} dimensions. Take the channel mean first.")
    if maps.dtype.kind != "f":
        raise TypeError(f"Expected anomaly maps as raw floats, got {maps.dtype}. Quantised maps break the metric: keep the floats.")
    if masks.ndim != 3:
        raise ValueError(f"Expected masks of shape (N, H, W), got {masks.ndim} dimensions.")
    if masks.dtype.kind not in "iub":
        raise TypeError(f"Expected masks as integers or bool, got {masks.dtype}. Convert them with (masks != 0).")
    if masks.dtype.kind != "b" and masks.size and (masks.max() > 1 or masks.min() < 0):
        raise ValueError(f"Expected masks of 0 and 1, got values up to {masks.max()}. Convert them with (masks != 0).")
    if maps.shape != masks.shape:
        raise ValueError(f"Expected maps and masks of the same shape, got {maps.shape} and {masks.shape}. Resize the masks (nearest).")
