"""The Compare tab: all runs in a table, the ticked ones over one another, GPU against CPU, what differs, and the way out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
import streamlit as st

from app.runs.folder import RunFolder, load_history
from app.runs.keeping import deleted_runs
from app.runs.pairs import Pair, RunFacts, config_differences, equal_tasks, find_pairs, missing_halves, read_run_facts
from app.runs.status import LIVE_STATES
from app.runs.table import runs_table
from app.ui import charts_compare as charts
from app.ui import compare_actions as actions
from app.ui import compare_export as export
from app.ui import compare_table as tables
from app.ui import format as fmt
from app.ui import state
from app.ui.charts_compare import shortened
from app.ui.charts_results import bars
from app.ui.fragments import fragment
from app.ui.palette import RunStyle, path_badge, run_styles

CURVE, X_AXIS, LOG, SMOOTHING, ZOOM = "curve", "x", "log", "smooth", "zoom"
"""Switches over the curves; their keys are their names in the URL."""
TABLE_REFRESH_S = 3.0
CURVES_REFRESH_S = 2.0
MOST_DRAWN = 40
"""More curves than this cannot be told apart, and make the page slow."""
MOST_PAIRS = 2
MOST_MISSING = 3
CURVES_CHART = "compare_curves_chart"
_LOST_AT_REFRESH = ["zoom2d", "pan2d", "select2d", "zoomIn2d", "zoomOut2d", "autoScale2d", "resetScale2d"]
_LIVE_IDS = "_compare_live"
_VIEW = "_compare_view"
_READ_FILES = ("config.json", "status.json", "profile.json", "metrics.json", "history.csv")


def render() -> None:
    """Draw the tab. Table and curves refresh by themselves only while a run is live."""
    with st.container():  # always there, so that the table below keeps its order and its place
        actions.show_what_was_said()
    frame = runs_table(state.runs_dir())
    if frame.empty:
        _nothing_yet()
        return
    tables.settle(frame)
    styles = _styles(frame)
    live = _live_ids(frame)
    st.session_state[_LIVE_IDS] = live
    fragment(_table, run_every=TABLE_REFRESH_S if live else None)([frame], styles)
    chosen = tables.ticked_ids(frame)
    there = set(frame["run_id"])
    ticked = [run_id for run_id in chosen if run_id in there]
    labels = tables.run_labels(frame)
    actions.vanished([run_id for run_id in chosen if run_id not in there], ticked)
    actions.bar(frame, ticked, labels, lambda: _downloads(ticked, styles))
    if not ticked:
        _nothing_ticked()
        return
    _compare(frame, ticked, labels, styles)


def _compare(frame: pd.DataFrame, ticked: list[str], labels: Mapping[str, str], styles: Mapping[str, RunStyle]) -> None:
    drawn = ticked[:MOST_DRAWN]
    if len(ticked) > len(drawn):
        st.info(f"{len(ticked)} runs are ticked; the first {len(drawn)} are drawn. The export holds all.", icon=":material/filter_alt:")
    live = bool(set(drawn) & set(_live_ids(frame)))
    with st.container(border=True, key="compare_curves"):
        fragment(_curves, run_every=CURVES_REFRESH_S if live else None)(drawn, labels, styles, live)
    facts = [_facts(run_id) for run_id in drawn]
    others = _partners(frame, facts)
    _pairs(facts, others, labels)
    with st.container(border=True, key="compare_results"):
        _results(facts, labels)
    with st.container(border=True, key="compare_differences"):
        _differences(facts, labels)


def _nothing_yet() -> None:
    with st.container(border=True, key="compare_empty"):
        st.subheader("No runs yet", anchor=False)
        st.markdown("Runs started on the Keras CAE tab or by `python -m app.main cae` appear here, to be compared over weeks.")
        with st.container(horizontal=True):
            st.button("Train a first one", type="primary", icon=":material/play_arrow:", on_click=_to_cae, key="compare_to_cae")
            binned = deleted_runs(state.runs_dir())
            if binned and st.button(f"Restore {len(binned)} from the bin", icon=":material/restore_from_trash:", key="compare_restore_all"):
                actions.restore([folder.run_id for folder in binned])
        st.caption(f"Looked in {actions.plain(str(state.runs_dir()))}")


def _to_cae() -> None:
    st.session_state[state.TAB] = state.TABS[1]


def _nothing_ticked() -> None:
    with st.container(border=True, key="compare_nothing_ticked"):
        st.markdown(":gray[Nothing is ticked. Tick two or more runs in the table to lay their curves over one another.]")


def _table(first: list[pd.DataFrame], styles: Mapping[str, RunStyle]) -> None:
    """Fragment. `first` holds the frame of the page's own run once; a refresh reads anew."""
    refreshed = not first
    frame = runs_table(state.runs_dir()) if refreshed else first.pop()
    if refreshed and not actions.annotating() and (frame.empty or _live_ids(frame) != st.session_state.get(_LIVE_IDS)):
        # A run has come or ended: pairs, results and the rhythm of the refreshes depend on that.
        st.rerun()
    if tables.table(frame, styles if set(frame["run_id"]) <= set(styles) else _styles(frame)) and refreshed:
        st.rerun()


def _live_ids(frame: pd.DataFrame) -> list[str]:
    return sorted(frame.loc[frame["state"].isin(LIVE_STATES), "run_id"])


def _styles(frame: pd.DataFrame) -> dict[str, RunStyle]:
    """Runs in the bin keep their place, so that deleting one does not recolour the others."""
    return run_styles([*frame["run_id"], *(folder.run_id for folder in deleted_runs(state.runs_dir()))])


def _curves(run_ids: list[str], labels: Mapping[str, str], styles: Mapping[str, RunStyle], live: bool) -> None:
    """Fragment: all switches in one row, the curves below."""
    zoom = charts.Zoom.from_text(st.query_params.get(ZOOM))
    quantity, x_axis, log, smoothing = _switches()
    runs = [_curve(run_id, labels, styles) for run_id in run_ids]
    divisor = charts.time_unit(runs)[0] if x_axis == "seconds" else 1.0
    st.session_state.setdefault(_VIEW, {}).update(x_axis=x_axis, log=log, smoothing=smoothing)
    what = charts.QUANTITIES[quantity]
    if not charts.has_values(runs, quantity):
        with st.container(height=430, border=False, vertical_alignment="center", horizontal_alignment="center"):
            later = f" yet: {what.label.lower()} comes with the first epoch" if live else ""
            st.markdown(f":gray[No ticked run has a curve of this{later}.]")
        return
    st.plotly_chart(
        charts.curves(runs, quantity, x_axis, log=log, smoothing=smoothing, zoom=zoom),
        key=CURVES_CHART,
        width="stretch",
        config={"displaylogo": False, "modeBarButtonsToRemove": _LOST_AT_REFRESH},
        on_select=lambda: _zoom_in(x_axis, quantity, divisor),
        selection_mode="box",
        alt=f"{what.label} over {charts.X_AXES[x_axis].lower()} of {', '.join(labels[run.run_id] for run in runs[:8])}",
    )
    best = "★ the epoch whose weights were kept" if what.column == "val_loss" else ""
    words = [what.legend, "pale: not smoothed" if smoothing else "", best, "drag a box to zoom in"]
    legend, whole = st.columns([5, 1], vertical_alignment="center")
    legend.caption(" · ".join(word for word in words if word))
    whole.button(
        "Whole curves",
        icon=":material/zoom_out_map:",
        on_click=_zoom_out,
        disabled=zoom is None,
        type="tertiary",
        key="compare_zoom_out",
        width="stretch",
    )


def _zoom_in(x_axis: str, quantity: str, divisor: float) -> None:
    boxes = st.session_state[CURVES_CHART]["selection"].get("box") or []
    zoom = charts.Zoom.from_box(boxes[-1], x_axis, quantity, divisor) if boxes else None
    if zoom is not None:
        st.query_params[ZOOM] = zoom.to_text()


def _zoom_out() -> None:
    st.query_params.pop(ZOOM, None)


def _switches() -> tuple[str, str, bool, float]:
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        quantity = st.segmented_control(
            "Curve",
            list(charts.QUANTITIES),
            default="loss",
            format_func=lambda name: charts.QUANTITIES[name].label,
            required=True,
            key=CURVE,
            bind="query-params",
        )
        x_axis = st.segmented_control(
            "Over",
            list(charts.X_AXES),
            default="epoch",
            format_func=charts.X_AXES.__getitem__,
            required=True,
            key=X_AXIS,
            bind="query-params",
        )
        smoothing = st.slider(
            "Smoothing",
            0.0,
            0.95,
            0.0,
            0.05,
            key=SMOOTHING,
            width=170,
            bind="query-params",
            help="weight of what came before (moving average)",
        )
        log = st.toggle("Log scale", key=LOG, bind="query-params")
    return quantity or "loss", x_axis or "epoch", bool(log), float(smoothing)


def _pairs(facts: Sequence[RunFacts], others: Sequence[RunFacts], labels: Mapping[str, str]) -> None:
    ticked = [run.run_id for run in facts]
    pairs = find_pairs([*facts, *others], ticked)
    for place, pair in enumerate(pairs[:MOST_PAIRS]):
        with st.container(border=True, key=f"pair_{place}"):
            _pair(pair, labels)
    if len(pairs) > MOST_PAIRS:
        with st.expander(f"{len(pairs) - MOST_PAIRS} more pairs"):
            st.dataframe(_pair_summary(pairs[MOST_PAIRS:], labels), hide_index=True, key="more_pairs", alt="Speed-ups of the other pairs")
    missing = missing_halves([*facts, *others], ticked)
    if missing:
        with st.container(border=True, key="compare_missing"):
            st.subheader("Without a partner on the other path" if pairs else "GPU against CPU", anchor=False)
            actions.missing_halves(missing[:MOST_MISSING], labels, [*facts, *others], ticked)


def _pair(pair: Pair, labels: Mapping[str, str]) -> None:
    base, other = pair.base, pair.other
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.subheader("GPU against CPU" if pair.across_devices else "Two paths of one device", anchor=False, width="content")
        _badge(other)
        st.markdown(":gray[against]", width="content")
        _badge(base)
    for column, (label, value, both) in zip(st.columns(4), _headline(pair), strict=True):
        column.metric(label, value, both, delta_color="off", delta_arrow="off")
    for column, run in zip(st.columns(2, gap="medium"), (other, base), strict=True):
        badge = f":{path_badge(run.selected_device)}-badge[{_device(run)}]"
        name, reason = actions.plain(labels.get(run.run_id, run.run_id)), actions.plain(run.reason or "Its reason is not known.")
        column.markdown(f"{badge} **{name}**  \n:gray[{reason}]")
    with st.expander("All figures and settings"):
        paths = [run.path or _device(run) for run in (base, other)]
        names = {"what": "", "base": f"{paths[0]} (base)", "other": paths[1], "difference": "Difference"}
        rows = [*export.pair_rows(pair), *((*row, "") for row in pair.different_settings())]
        st.dataframe(
            pd.DataFrame(rows, columns=list(names)),
            hide_index=True,
            width="stretch",
            height="content",
            column_config={column: st.column_config.TextColumn(name) for column, name in names.items()},
            alt="The pair in figures",
        )


def _headline(pair: Pair) -> list[tuple[str, str, str]]:
    """(label, difference, both values) of what one asks first."""
    base, other = pair.base, pair.other
    rates = [(run.train_images_per_s, run.score_images_per_s) for run in (other, base)]
    return [
        ("Training", export.times(pair.train_speedup), f"{fmt.significant(rates[0][0])} against {fmt.images_per_s(rates[1][0])}"),
        ("Scoring", export.times(pair.score_speedup), f"{fmt.significant(rates[0][1])} against {fmt.images_per_s(rates[1][1])}"),
        (
            "Best validation loss",
            export.signed(pair.difference("best_val_loss"), 4),
            f"{fmt.significant(other.best_val_loss)} against {fmt.significant(base.best_val_loss)}",
        ),
        (
            "Image AUROC",
            export.signed(pair.difference("image_auroc")),
            f"{fmt.score(other.metrics.get('image_auroc'))} against {fmt.score(base.metrics.get('image_auroc'))}",
        ),
    ]


def _badge(run: RunFacts) -> None:
    st.badge(run.path or _device(run), color=path_badge(run.selected_device))


def _device(run: RunFacts) -> str:
    return (run.selected_device or fmt.UNKNOWN).upper()


def _pair_summary(pairs: Sequence[Pair], labels: Mapping[str, str]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "run": [labels.get(pair.other.run_id, pair.other.run_id) for pair in pairs],
            "path": [pair.other.path for pair in pairs],
            "against": [labels.get(pair.base.run_id, pair.base.run_id) for pair in pairs],
            "its path": [pair.base.path for pair in pairs],
            "training": [export.times(pair.train_speedup) for pair in pairs],
            "scoring": [export.times(pair.score_speedup) for pair in pairs],
            "image AUROC": [export.signed(pair.difference("image_auroc")) for pair in pairs],
        }
    )


def _results(facts: Sequence[RunFacts], labels: Mapping[str, str]) -> None:
    st.subheader("Results", anchor=False)
    st.plotly_chart(
        bars(facts, labels),
        key="compare_bars",
        width="stretch",
        config={"displayModeBar": False},
        alt="Metrics and throughput of the ticked runs side by side",
    )


def _differences(facts: Sequence[RunFacts], labels: Mapping[str, str]) -> None:
    st.subheader("What differs", anchor=False)
    rows = config_differences(facts)
    if len(facts) < 2:
        st.markdown(":gray[Tick a second run to see in what their configurations differ.]")
    elif not rows:
        st.markdown(":gray[Nothing: these runs were asked the same and took the same path.]")
    else:
        table = pd.DataFrame([[label, *values] for _, label, values in rows], columns=["Option", *(run.run_id for run in facts)])
        text = st.column_config.TextColumn
        names = {run.run_id: text(shortened(labels[run.run_id]), width="medium", help=actions.plain(labels[run.run_id])) for run in facts}
        st.dataframe(table, hide_index=True, column_config=names, alt="Options that differ between the ticked runs")


def _downloads(ticked: Sequence[str], styles: Mapping[str, RunStyle]) -> None:
    """Files are made when a button is pressed, from what the folders hold then. That happens outside of any page: no Streamlit in there."""
    runs_dir, view = state.runs_dir(), st.session_state.setdefault(_VIEW, {})

    def rows() -> pd.DataFrame:
        frame = runs_table(runs_dir)
        frame["run"] = frame["run_id"].map(tables.run_labels(frame))
        return frame.set_index("run_id", drop=False).reindex([run_id for run_id in ticked if run_id in set(frame["run_id"])])

    def curves(frame: pd.DataFrame) -> list[charts.Curve]:
        named = zip(frame["run_id"], frame["run"], strict=True)
        return [_as_curve(run_id, label, styles, _read_history(runs_dir / run_id)) for run_id, label in named]

    def facts(frame: pd.DataFrame) -> list[RunFacts]:
        return [read_run_facts(RunFolder(runs_dir / run_id)) for run_id in frame["run_id"]]

    def report() -> bytes:
        frame = rows()
        runs = facts(frame)
        return export.html_report(frame, curves(frame), runs, find_pairs(runs, ticked), **view)

    def table() -> bytes:
        frame = rows()
        return export.runs_csv(frame, {run.run_id: run for run in facts(frame)})

    kinds = (
        ("Report with charts (HTML)", report, "report", "html", "text/html"),
        ("Runs (CSV)", table, "runs", "csv", "text/csv"),
        ("Curves (CSV)", lambda: export.curves_csv(curves(rows())), "curves", "csv", "text/csv"),
    )
    for label, make, kind, suffix, mime in kinds:
        name = actions.file_name(kind, suffix)
        st.download_button(label, make, name, mime, key=f"compare_{kind}_{suffix}", on_click="ignore", width="stretch")
    st.caption("The report is one file that opens without a network.")


def _partners(frame: pd.DataFrame, facts: Sequence[RunFacts]) -> list[RunFacts]:
    """Runs that are not ticked but were asked for the same as a ticked one."""
    ticked = {run.run_id for run in facts}
    keys = {run.task_key for run in facts if run.task_key}
    folders = [RunFolder(Path(path)) for run_id, path in zip(frame["run_id"], frame["run_folder"], strict=True) if run_id not in ticked]
    return [_facts(folder.run_id) for folder in equal_tasks(folders, keys)]


def _curve(run_id: str, labels: Mapping[str, str], styles: Mapping[str, RunStyle]) -> charts.Curve:
    folder = state.runs_dir() / run_id
    return _as_curve(run_id, labels.get(run_id, run_id), styles, _history(str(folder), _stamp(folder, "history.csv")))


def _as_curve(run_id: str, label: str, styles: Mapping[str, RunStyle], history: pd.DataFrame) -> charts.Curve:
    known = history[["epoch", "val_loss"]].dropna()
    # The lowest of the curve itself: a run that is under way has not said its last word about it.
    best = float(known["epoch"].iloc[int(known["val_loss"].argmin())]) if len(known) else None
    return charts.Curve(run_id, label, styles.get(run_id, RunStyle("#6F6F6F", "solid")), history, best)


def _read_history(folder: Path) -> pd.DataFrame:
    """One row an epoch; of an epoch that a resumed run did twice the later one."""
    return load_history(folder).drop_duplicates("epoch", keep="last").sort_values("epoch").reset_index(drop=True)


def _facts(run_id: str) -> RunFacts:
    folder = state.runs_dir() / run_id
    return _read_facts(str(folder), tuple(_stamp(folder, name) for name in _READ_FILES))


@st.cache_data(max_entries=512, ttl=600, show_spinner=False)
def _read_facts(folder: str, stamps: tuple[tuple[int, int], ...]) -> RunFacts:  # noqa: ARG001 - the stamps tell when to read again
    return read_run_facts(RunFolder(Path(folder)))


@st.cache_data(max_entries=256, ttl=600, show_spinner=False)
def _history(folder: str, stamp: tuple[int, int]) -> pd.DataFrame:  # noqa: ARG001
    return _read_history(Path(folder))


def _stamp(folder: Path, name: str) -> tuple[int, int]:
    try:
        stat = (folder / name).stat()
    except OSError:
        return (0, 0)
    return (stat.st_mtime_ns, stat.st_size)
