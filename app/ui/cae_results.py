"""What a run left: figures, scores with a threshold to move, pictures, curves, settings, files. Also of runs that ended early."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import streamlit as st

from app.core.words import counted
from app.runs.folder import RunFolder, RunStatus, load_history, load_metrics, load_profile, load_scores, read_log_tail
from app.ui import cae_head, cae_judge
from app.ui import charts_run as charts
from app.ui import format as fmt
from app.ui.format import escaped

DETAILS = "cae_details"
LOG_LINES = 400
LOG_HEIGHT = 260
LOG_HEAD = 20_000
REPORT_RULE = "=" * 60

TOO_FEW_STEPS = "there were too few steps after the first ones, which are left out."
SYNTHETIC = "AUROC without labels (defects drawn in)"
METRICS = {
    "image_auroc": ("Image AUROC", "Chance that a defective test picture scores higher than a good one; 0.5 is guessing."),
    "image_ap": ("Average precision", "Area under precision over recall of the test pictures; depends on the share of defective ones."),
    "image_f1": ("F1", "Harmonic mean of precision and recall at the run's own threshold, which comes from held-out good pictures."),
    "pixel_auroc": ("Pixel AUROC", "Chance that a defective pixel scores higher than a good one, over all test pictures with known masks."),
    "aupro": ("AUPRO", "Recall inside each marked region, averaged, integrated over pixel false-positive rates up to 0.3."),
    "aupimo": (
        "AUPIMO",
        "Recall inside each mask where good pictures hardly raise an alarm, false-positive rates 1e-5 to 1e-4. Strict: 0 is common.",
    ),
}
"""Label and explanation of each figure in `metrics.json`."""

FILES = {
    "metrics.json": ("Metrics", "application/json", ":material/analytics:"),
    "scores.csv": ("Scores", "text/csv", ":material/table:"),
    "history.csv": ("History", "text/csv", ":material/show_chart:"),
    "steps.csv": ("Steps", "text/csv", ":material/timeline:"),
    "maps.npz": ("Anomaly maps", "application/octet-stream", ":material/grid_on:"),
    "model.keras": ("Model", "application/octet-stream", ":material/network_node:"),
}


def render(folder: RunFolder, status: RunStatus, colour: str) -> None:
    """Draw an ended run.

    Args:
        folder: of the run.
        status: its state now.
        colour: of the run on every chart.
    """
    cae_head.render(folder, status)
    _say_how_it_ended(folder, status)
    if status.state != "finished":
        cae_head.actions(folder, status)
    metrics = load_metrics(folder.path)
    if metrics is not None or status.state == "finished":
        _tiles(metrics or {}, status)
    scores = load_scores(folder.path)
    if len(scores):
        cae_judge.render(folder, metrics or {}, colour)
    _training(folder, status, colour)
    _machine(folder)
    _files(folder)
    if status.state == "finished":
        cae_head.actions(folder, status)


def usable(folder: RunFolder) -> str:
    """What a run that ended early left, in words."""
    epochs = len(load_history(folder.path))
    if not epochs:
        model = (folder.path / "model.keras").exists()
        rest = "the model file holds the weights of that moment, which have hardly learnt" if model else "there is no model"
        return f"It ended before the first epoch was over: there are no figures, and {rest}."
    left = [name for file, name in (("model.keras", "the model"), ("scores.csv", "scores")) if (folder.path / file).exists()]
    return "Usable: " + ", ".join(["figures of " + counted(epochs, "epoch"), *left]) + "."


def _say_how_it_ended(folder: RunFolder, status: RunStatus) -> None:
    left = usable(folder)
    match status.state:
        case "failed":
            st.error(escaped(f"{status.error or 'The run failed without a reason; the log may tell.'} {left}"), icon=":material/error:")
        case "interrupted":
            st.warning(escaped(f"{status.error or 'Its process is gone.'} {left}"), icon=":material/power_off:")
        case "cancelled":
            st.info(escaped(f"{status.message or 'Cancelled.'} {left}"), icon=":material/cancel:")
        case "unreadable":
            st.error(escaped(str(status.error)), icon=":material/broken_image:")


def _tiles(metrics: dict[str, Any], status: RunStatus) -> None:
    why = metrics.get("not_available") or {}
    first, second = st.columns(4), st.columns(4)
    places = [*first, *second]
    for place, (name, (label, about)) in zip(places, METRICS.items(), strict=False):
        value = metrics.get(name)
        missing = f"Not available: {why.get(name) or 'the run did not get that far.'} – " if value is None else ""
        place.metric(label, fmt.score(value), help=f"{escaped(missing)} {about} {_careful(name, metrics)}".strip(), border=True)
    for reason, labels in missing_figures(metrics).items():
        st.caption(f"Not available: {', '.join(labels)}. {escaped(reason)}")
    synthetic = metrics.get("synthetic_auroc")
    if synthetic is not None:
        st.caption(f"Without any labels: AUROC {fmt.score(synthetic)} between held-out good pictures and the same with defects drawn in.")
    by_maps = metrics.get("image_auroc_maps")
    if by_maps is not None:
        st.caption(
            f"From the error maps alone: image AUROC {fmt.score(by_maps)}. The run's score also counts brightness, contrast and texture "
            "of the whole picture, the more the less the network can rebuild good pictures (option *Whole picture W*)."
        )
    for place, label, value, about in (
        (places[6], "Training", status.train_images_per_s, "Pictures a second; the first steps and validation are left out."),
        (places[7], "Scoring", status.score_images_per_s, "Pictures a second through network, error map and pooling."),
    ):
        reason = TOO_FEW_STEPS if status.state == "finished" else "the run did not get that far."
        help_ = about if value is not None else f"Not measured: {reason}\n\n{about}"
        place.metric(label, fmt.images_per_s(value), help=help_, border=True)


def missing_figures(metrics: Mapping[str, Any]) -> dict[str, list[str]]:
    """Labels of the figures that could not be computed, by the reason that the run gave."""
    found: dict[str, list[str]] = {}
    for name, reason in (metrics.get("not_available") or {}).items():
        label = SYNTHETIC if name == "synthetic_auroc" else METRICS.get(name, (name, ""))[0]
        found.setdefault(str(reason), []).append(label)
    return found


def _careful(name: str, metrics: dict[str, Any]) -> str:
    """What makes AUPIMO less exact than it looks."""
    detail = metrics.get("aupimo_detail") if name == "aupimo" else None
    return escaped(" ".join(map(str, detail.get("warnings") or ()))) if isinstance(detail, dict) else ""


def _training(folder: RunFolder, status: RunStatus, colour: str) -> None:
    history = load_history(folder.path)
    if not len(history):
        return
    with st.container(border=True):
        st.markdown("**Training**")
        left, right = st.columns([3, 2])
        best = status.best_epoch
        left.plotly_chart(
            charts.loss_curves(history, colour=colour, best_epoch=best),
            key="cae_loss",
            alt=f"Training and validation loss over {counted(len(history), 'epoch')}" + (f", best in epoch {best}" if best else ""),
        )
        right.plotly_chart(
            charts.throughput_curve(history, colour=colour), key="cae_throughput", alt="Training images per second over the epochs"
        )
        took = status.duration_s()
        if took is not None:
            st.caption(f"{counted(len(history), 'epoch')}; the whole run took {fmt.duration(took)} from leaving the queue.")


def _machine(folder: RunFolder) -> None:
    """The settings with who set them, the options, and the log; read when somebody opens them."""
    details = st.expander("Path, settings, options, log", key=DETAILS, icon=":material/settings:", on_change="rerun")
    if not details.open:
        return
    with details:
        profile = load_profile(folder.path)
        if profile is None:
            st.caption("No profile: the run ended before TensorFlow was set up.")
        else:
            _settings(profile)
        report = report_in(read_log_head(folder))
        if report:
            st.code(report, language=None)
        config = cae_head.config_of(folder)
        if config is not None:
            st.markdown("**Options**")
            st.json(config.model_dump(mode="json"), expanded=False)
        st.markdown("**Log**")
        text = read_log_tail(folder.path, LOG_LINES)
        st.code(text or "The log is empty.", language=None, height=LOG_HEIGHT if text else "content", wrap_lines=True)


def read_log_head(folder: RunFolder) -> str:
    """The beginning of the run's log, where the report of the device stands; empty when there is none."""
    try:
        with (folder.path / "log.txt").open(encoding="utf-8", errors="replace") as file:
            return file.read(LOG_HEAD)
    except OSError:
        return ""


def report_in(log: str) -> str:
    """The block between the rules of the device report, rules included; empty when the log has none."""
    start, end = log.find(REPORT_RULE), -1
    for _ in range(2):
        end = log.find(REPORT_RULE, (start if end < 0 else end) + len(REPORT_RULE)) if start >= 0 else -1
        if end < 0:
            return ""
    return log[start : end + len(REPORT_RULE)]


def _settings(profile: dict[str, Any]) -> None:
    for sentence in (profile.get("happened"), *(profile.get("warnings") or ())):
        if sentence:
            st.caption(escaped(str(sentence)))
    rows = [
        {
            "setting": str(setting.get("name", "")),
            "value": str(setting.get("value", "")),
            "set by": str(setting.get("set_by", "")),
            "honoured": _yes_no(setting.get("honoured")),
            "how that is known": str(setting.get("how_known") or ""),
        }
        for setting in profile.get("settings") or ()
        if isinstance(setting, dict)
    ]
    versions = [
        f"{name} {profile[key]}" for name, key in (("TensorFlow", "tensorflow_version"), ("Keras", "keras_version")) if profile.get(key)
    ]
    if versions:
        st.markdown(escaped(", ".join(versions)))
    if rows:
        st.dataframe(
            rows,
            hide_index=True,
            height="content",
            key="cae_settings",
            alt="Settings applied for this run, who set them, and whether TensorFlow honours them",
        )


def _yes_no(value: object) -> str:
    return fmt.UNKNOWN if not isinstance(value, bool) else "yes" if value else "no"


def _files(folder: RunFolder) -> None:
    there = [name for name in FILES if (folder.path / name).is_file()]
    if not there:
        return
    with st.container(horizontal=True, gap="small"):
        for name in there:
            label, mime, icon = FILES[name]
            file = folder.path / name
            st.download_button(
                label,
                # Read when it is asked for: maps can be hundreds of megabytes.
                data=_reader(file),
                file_name=f"{folder.run_id}-{name}",
                mime=mime,
                icon=icon,
                key=f"cae_get_{name}",
                on_click="ignore",
                help=f"{name}, {fmt.mib(file.stat().st_size / 2**20) if file.stat().st_size >= 2**20 else 'under 1 MiB'}",
            )


def _reader(file: Path) -> Any:
    return file.read_bytes
