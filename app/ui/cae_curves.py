"""Behind the figures: ROC, precision-recall and PIMO curves, each class, and what others published on the same pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st
from numpy.typing import NDArray

from app.cae.pimo import pimo_curves, thresholds_at_fpr
from app.runs.folder import RunFolder, load_dataset_summary
from app.ui import charts_run as charts
from app.ui import format as fmt
from app.ui import verdicts
from app.ui.cae_maps import maps_of, stamp_of
from app.ui.format import escaped
from app.ui.published import Published, published_for

PIMO_BOUNDS = (1e-5, 1e-4)
PIMO_LEVELS = 80
FIGURES = ("image_auroc", "pixel_auroc", "aupro", "aupimo")


def render(folder: RunFolder, frame: pd.DataFrame, metrics: dict[str, Any], threshold: float, colour: str) -> None:
    """Draw the section. `frame` is `verdicts.judged` at `threshold`."""
    labels, values = frame["label"].to_numpy(np.int64), frame["score"].to_numpy(np.float64)
    if len(set(labels.tolist())) < 2:
        st.caption("ROC and precision-recall curves need good and defective test pictures.")
    else:
        _image_curves(labels, values, threshold, colour)
    _pimo(folder, colour)
    _classes(frame, metrics)
    _published(folder, metrics)


def _image_curves(labels: NDArray[np.int64], values: NDArray[np.float64], threshold: float, colour: str) -> None:
    left, right = st.columns(2)
    left.plotly_chart(
        charts.roc(labels, values, colour=colour, threshold=threshold),
        key="cae_roc",
        alt="ROC curve of the test pictures with the threshold's operating point",
    )
    right.plotly_chart(
        charts.precision_recall(labels, values, colour=colour, threshold=threshold),
        key="cae_pr",
        alt="Precision over recall of the test pictures with the threshold's operating point",
    )


def _pimo(folder: RunFolder, colour: str) -> None:
    found = pimo_of(str(folder.path), stamp_of(folder.path / "maps.npz"))
    if isinstance(found, str):
        st.caption(f"No PIMO curves: {escaped(found)}")
        return
    fpr, recalls = found
    st.plotly_chart(
        charts.pimo(fpr, recalls, bounds=PIMO_BOUNDS, colour=colour),
        key="cae_pimo",
        alt=f"PIMO curves of {len(recalls)} defective pictures: recall inside the mask over the false-positive rate on good pictures",
    )
    st.caption("PIMO curves: recall inside each mask against false alarms on good pictures. AUPIMO is the mean area in the grey band.")


@st.cache_data(max_entries=8, ttl=900, show_spinner=False)
def pimo_of(folder: str, stamp: int) -> tuple[NDArray[np.float64], NDArray[np.float64]] | str:
    """(false-positive rates (K,), recalls (N, K) of the defective pictures), both rising in false-positive rate; or why there are none."""
    maps = maps_of(folder, stamp)
    if maps is None or not maps.has_mask.any():
        return "they need test pictures with masks." if maps is not None else f"{Path(folder).name} keeps no anomaly maps."
    values, masks = maps.maps[maps.has_mask], maps.masks[maps.has_mask]
    try:
        levels = np.logspace(0, np.log10(PIMO_BOUNDS[0]), PIMO_LEVELS)
        curves = pimo_curves(values, masks, thresholds=thresholds_at_fpr(values, masks, levels))
    except (TypeError, ValueError, RuntimeError) as error:
        return str(error)
    order = np.argsort(curves.shared_fpr)
    positive = order[curves.shared_fpr[order] > 0]
    recalls = curves.per_image_tprs[:, positive]
    return curves.shared_fpr[positive], recalls[~np.isnan(recalls).any(axis=1)]


def _classes(frame: pd.DataFrame, metrics: dict[str, Any]) -> None:
    table = verdicts.by_class(frame)
    kinds = metrics.get("per_defect") or {}
    table["auroc"] = [fmt.score((kinds.get(name) or {}).get("image_auroc")) for name in table["defect"]]
    table["share"] = table["share"] * 100
    st.dataframe(
        table,
        hide_index=True,
        height="content",
        key="cae_classes",
        column_config={
            "defect": "class",
            "called": "called defective",
            "share": st.column_config.NumberColumn("share called defective", format="%.0f %%"),
            "median": st.column_config.NumberColumn("median score", format="%.4g"),
            "auroc": st.column_config.TextColumn("image AUROC against good", alignment="right"),
        },
        alt="For each class: pictures, how many are called defective, median score, image AUROC",
    )


def _published(folder: RunFolder, metrics: dict[str, Any]) -> None:
    found = published_for(load_dataset_summary(folder.path))
    if found is None:
        return
    others, protocol = found
    own = Published("this run", **{name: metrics.get(name) for name in FIGURES})
    rows = [{"method": one.method, **{name: fmt.score(getattr(one, name)) for name in FIGURES}} for one in (own, *others)]
    names = {"image_auroc": "image AUROC", "pixel_auroc": "pixel AUROC", "aupro": "AUPRO", "aupimo": "AUPIMO"}
    st.markdown("**Published on MVTec AD**")
    st.dataframe(
        pd.DataFrame(rows).rename(columns=names),
        hide_index=True,
        height="content",
        key="cae_published",
        alt="Figures published on MVTec AD beside those of this run",
    )
    st.caption(protocol)
