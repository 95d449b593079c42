"""*Score my own pictures*: new pictures through the model of a finished run, by a process of their own; its folder is all that is kept."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from app.cae.datasets import resolve_source
from app.cae.image_files import SUFFIXES
from app.core.errors import AppError, DataError
from app.core.words import counted
from app.runs.folder import RunFolder
from app.runs.launch import cancel_run
from app.runs.score_folder import (
    Scoring,
    Upload,
    find_scoring,
    forget_uploads,
    list_scorings,
    read_scoring,
    refuse_unusable,
    start_scoring,
)
from app.ui import cae_live, score_results, state
from app.ui import format as fmt
from app.ui.cae_text import STATES
from app.ui.format import escaped, shortened
from app.ui.fragments import fragment

SOURCE = "score_source"
UPLOADS = "score_upload"
PATH = "score_path"
START = "score_start"
CHOICE = "score_choice"
CANCEL = "score_cancel"
SCORED = "scored"
"""In the URL: the scoring that this visitor looks at, so that a reload shows it again and nobody else's page does."""
_SAID = "_score_said"
_ROUND = "_score_round"

UPLOAD, TYPED = "Upload", "A path on this machine"
MAX_UPLOADS = 100
MAX_FILE_MIB = 64
MAX_TOTAL_MIB = 512
REFRESH_S = 1.0
SHOWN_LENGTH = 40
NONE = "none"

KEPT = (
    f"Up to {MAX_UPLOADS} files of {{file}} MiB, {MAX_TOTAL_MIB} MiB together; error 413 means that a server in front of this page takes "
    f"less. For more, choose *{TYPED}*. Uploads are removed when they have been scored; scores, heat maps and small previews stay in the "
    "run's folder, for everybody who sees this run, until they are removed below."
)

INSIDE = (
    "A picture or a folder of pictures inside {root}, absolute or relative to it (TWOPATH\\_DATA\\_ROOT names another place). "
    "They stay where they are; scores, heat maps and small previews go to the run's folder."
)


def render(folder: RunFolder, threshold: float) -> None:
    """Draw the section. Call inside the fragment of the threshold.

    Args:
        folder: of an ended run.
        threshold: in force on the page; verdicts follow it.
    """
    with st.container(border=True, key="score_card"):
        st.markdown("**Score my own pictures**")
        try:
            refuse_unusable(folder)
        except AppError as error:
            st.caption(escaped(str(error)))
            return
        _ask(folder)
        scoring = _chosen(folder)
        if scoring is None:
            return
        if scoring.status.live:
            fragment(_live, run_every=REFRESH_S)(scoring.folder)
            return
        score_results.render(scoring, folder, threshold)


def _ask(folder: RunFolder) -> None:
    """Which pictures, and the button."""
    st.session_state.setdefault(SOURCE, UPLOAD)
    source = st.segmented_control(
        "Pictures", [UPLOAD, TYPED], key=SOURCE, required=True, persist_state="session", label_visibility="collapsed"
    )
    left, right = st.columns([5, 1], vertical_alignment="center", gap="medium")
    with left:
        trouble = _uploader(folder) if source == UPLOAD else _path()
    right.button(
        "Score",
        key=START,
        type="primary",
        icon=":material/biotech:",
        width="stretch",
        disabled=trouble is not None,
        on_click=_start,
        args=(folder,),
        help="Starts a process that reads the pictures, runs the model and writes scores and heat maps. It waits for runs on its device.",
    )
    st.caption(KEPT.format(file=max_file_mib()) if source == UPLOAD else INSIDE.format(root=escaped(str(state.data_root()))))
    for sentence in (trouble, st.session_state.pop(_SAID, None)):
        if sentence:
            st.error(escaped(sentence), icon=":material/error:")


def upload_key(run_id: str) -> str:
    """Session key of a run's uploader; another one after each start, so that it is empty again."""
    return f"{UPLOADS}_{run_id}_{st.session_state.get(_ROUND, 0)}"


def _uploader(folder: RunFolder) -> str | None:
    """`None` when there is something to score; else a sentence, empty where nothing is wrong yet."""
    files = st.file_uploader(
        "Pictures to score",
        type=sorted(suffix.removeprefix(".") for suffix in SUFFIXES),
        accept_multiple_files=True,
        max_upload_size=max_file_mib(),
        key=upload_key(folder.run_id),
        label_visibility="collapsed",
    )
    return too_much([file.size for file in files]) if files else ""


def max_file_mib() -> int:
    """What one upload may have, MiB: where the server takes less (`server.maxUploadSize`), it would answer with a bare error 413."""
    return min(MAX_FILE_MIB, int(st.get_option("server.maxUploadSize")))


def too_much(sizes: list[int]) -> str | None:
    """Why uploads of these sizes, in bytes, are not taken; `None` where they are."""
    total = sum(sizes) / 2**20
    if len(sizes) > MAX_UPLOADS:
        return f"Upload: expected at most {MAX_UPLOADS} pictures, got {len(sizes)}. Type the path of a folder on this machine instead."
    if total > MAX_TOTAL_MIB:
        return f"Upload: expected at most {MAX_TOTAL_MIB} MiB together, got {total:.0f} MiB. Score fewer at once."
    return None


def _path() -> str | None:
    """As `_uploader`."""
    root = state.data_root()
    typed = st.text_input(
        "Path of a picture or a folder",
        key=PATH,
        persist_state="session",
        placeholder="pictures/new",
        label_visibility="collapsed",
    )
    if not (typed or "").strip():
        return ""
    try:
        typed_path(str(typed), root)
    except AppError as error:
        return str(error)
    return None


def typed_path(text: str, root: Path) -> Path:
    """The file or folder that a visitor typed.

    Raises:
        DataError: it lies outside `root`, or is not there.
    """
    path = Path(resolve_source(text, root))
    if not path.is_absolute():  # called like a sample data set, which is no path
        path = root.expanduser().resolve() / path
    try:
        there = path.exists()
    except (OSError, ValueError):
        there = False
    if not there:
        raise DataError(f"{text!r}: expected a picture or a folder below {root}, got a path that is not there.")
    return path


def _start(folder: RunFolder) -> None:
    session = st.session_state
    try:
        if session[SOURCE] == UPLOAD:
            files = session[upload_key(folder.run_id)]
            pictures: Path | list[Upload] = [Upload(file.name, file.getvalue()) for file in files]
        else:
            pictures = typed_path(str(session[PATH]), state.data_root())
        place = start_scoring(folder, pictures, device=state.forced_device(), min_vram_mib=state.min_vram_mib())
    except AppError as error:
        session[_SAID] = str(error)
        return
    session[_ROUND] = session.get(_ROUND, 0) + 1
    session[choice_key(folder.run_id)] = place.run_id


def choice_key(run_id: str) -> str:
    """Session key of the scoring of a run that is shown."""
    return f"{CHOICE}_{run_id}"


def _chosen(folder: RunFolder) -> Scoring | None:
    """Draw the list of scorings and return the one to show. Nobody is shown another visitor's unless they choose it."""
    scorings = {scoring.name: scoring for scoring in list_scorings(folder)}
    for scoring in scorings.values():
        forget_uploads(scoring)  # of processes that were killed, and whose starter did not see it
    key = choice_key(folder.run_id)
    if not scorings:
        st.session_state.pop(key, None)
        st.query_params.pop(SCORED, None)
        return None
    asked = str(st.session_state.get(key) or st.query_params.get(SCORED) or NONE)
    labels = {NONE: f"{counted(len(scorings), 'scoring')} so far: choose one", **{name: label(one) for name, one in scorings.items()}}
    state.hold(key, asked if asked in scorings else NONE, labels)
    st.selectbox(
        "Scored so far",
        list(labels),
        format_func=labels.__getitem__,
        key=key,
        persist_state="session",
        label_visibility="collapsed",
    )
    name = str(st.session_state[key])
    if name == NONE:
        st.query_params.pop(SCORED, None)
        return None
    if st.query_params.get(SCORED) != name:
        st.query_params[SCORED] = name
    return find_scoring(folder, name)


def label(scoring: Scoring) -> str:
    """A scoring in the list: when, from where, how many pictures or how it ended."""
    created = scoring.status.created
    when = created.astimezone().strftime("%d %b %H:%M:%S") if created else fmt.UNKNOWN
    # Queued or running: the list is not drawn again when one becomes the other.
    ended = counted(scoring.result["count"], "picture") if scoring.result else "going on" if scoring.status.live else scoring.status.state
    return f"{when} · {shortened(scoring.source, SHOWN_LENGTH)} · {ended}"


def _live(place: RunFolder) -> None:
    scoring = read_scoring(place.path)
    status = scoring.status
    if not status.live:
        st.rerun()
    colour, icon = STATES[status.state]
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.badge(status.state, color=colour, icon=icon)
        st.markdown(escaped(cae_live.progress_words(status)), width="stretch")
        asked = place.cancel_asked()
        st.button(
            "Kill now" if asked else "Cancel",
            key=CANCEL,
            icon=":material/dangerous:" if asked else ":material/stop:",
            on_click=_cancel,
            args=(place,),
            help="Ends the process at once." if asked else "Stops after this batch of pictures.",
        )
    st.progress(status.progress or 0.0)


def _cancel(place: RunFolder) -> None:
    try:
        cancel_run(place)
    except AppError as error:
        st.session_state[_SAID] = str(error)
