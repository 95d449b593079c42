"""1 Data: which pictures to train on, and what is in them."""

from __future__ import annotations

import hashlib
import io
import re
from pathlib import Path

import streamlit as st

from app.cae.archives import extract_zip
from app.cae.datasets import resolve_source
from app.core.errors import AppError, DataError
from app.core.words import counted
from app.runs.uploads import KEPT_DAYS, remove_unused_uploads, touch_upload
from app.ui import cae_look, state
from app.ui.cae_look import Example, Look
from app.ui.cae_text import SOURCES
from app.ui.format import escaped, shortened
from app.ui.pictures import grid

CHOICE = "cae_data"
FOLDER_PATH = "cae_folder"
UPLOAD = "cae_upload"
READ_AGAIN = "cae_read_again"
_UPLOADED = "_cae_uploaded"
_KEPT = "_cae_kept_upload"
LINK = "data"
"""The choice in the URL."""
LONGEST_LINK = 1000
DEFAULT = "elpv-mono"

FOLDER, ZIP = "folder", "zip"
CHOICES = {**SOURCES, FOLDER: "A folder on this machine", ZIP: "Upload a zip"}

PROBLEMS_SHOWN = 3
NAME_LENGTH = 18
NOTES_SHOWN = 20
EXAMPLES_PX = 300


def render(seed: int) -> tuple[str, Look] | None:
    """Draw the section.

    Args:
        seed: of synthetic pictures.

    Returns:
        The data source as `CaeConfig.data` takes it, and the look at it; `None` when there is nothing to train on yet.
    """
    st.subheader("1 Data", anchor=False)
    _tidy_once()
    source = _source()
    if source is None:
        return None
    try:
        with st.spinner("Looking at the pictures …"):
            look = cae_look.look_at(source, seed)
    except AppError as error:
        st.error(escaped(str(error)), icon=":material/folder_off:")
        _read_again()
        return None
    _show(look)
    return source, look


# Once a process: at its first page. Uploads come seldom, and each tidies up too.
@st.cache_resource(show_spinner=False)
def _tidy_once() -> None:
    remove_unused_uploads(state.runs_dir(), state.runs_dir() / state.UPLOADS_FOLDER)


def take_over(source: str) -> None:
    """Choose the data of an earlier run. Call before the section is drawn."""
    if source in SOURCES:
        st.session_state[CHOICE] = source
    else:
        st.session_state[CHOICE], st.session_state[FOLDER_PATH] = FOLDER, source


def _take_link() -> None:
    """In a session where nobody has chosen yet, what the link names: a reload then shows the same pictures."""
    if CHOICE in st.session_state:
        return
    kind, _, rest = st.query_params.get(LINK, DEFAULT)[:LONGEST_LINK].partition(":")
    st.session_state[CHOICE] = kind if kind in CHOICES else DEFAULT
    if kind == FOLDER:
        st.session_state.setdefault(FOLDER_PATH, rest)
    elif kind == ZIP:
        st.session_state.setdefault(_KEPT, rest)


def _into_link(choice: str) -> None:
    """Keep the choice in the URL: `elpv-poly`, `folder:` and what was typed, `zip:` and where the upload lies below the uploads."""
    rest = {FOLDER: st.session_state.get(FOLDER_PATH) or "", ZIP: st.session_state.get(_KEPT) or ""}
    state.keep_in_url(LINK, f"{choice}:{rest[choice]}" if choice in rest else choice, DEFAULT)


def _source() -> str | None:
    _take_link()
    choice = st.selectbox(
        "Pictures",
        list(CHOICES),
        format_func=lambda name: f"{CHOICES[name]} · {name}" if name in SOURCES else CHOICES[name],
        key=CHOICE,
        persist_state="session",
        label_visibility="collapsed",
    )
    source = _typed_folder() if choice == FOLDER else _uploaded_zip() if choice == ZIP else choice
    _into_link(choice)
    return source


def _typed_folder() -> str | None:
    root = state.data_root()
    typed = st.text_input(
        "Folder",
        key=FOLDER_PATH,
        persist_state="session",
        placeholder="pictures/bottle",
        help=f"A path inside {root}, absolute or relative to it (TWOPATH_DATA_ROOT, set when the dashboard starts, names another place); "
        "or a synthetic set of your choice such as synthetic:washer,train=100,seed=3.",
    )
    if not (typed or "").strip():
        st.caption(f"Type the path of a folder inside {escaped(str(root))}: MVTec AD and the like, or a folder of good pictures.")
        return None
    try:
        return str(typed) if _is_upload(str(typed)) else resolve_source(str(typed), root)
    except AppError as error:
        st.error(escaped(str(error)), icon=":material/folder_off:")
        return None


def _is_upload(path: str) -> bool:
    """Whether `path` lies in what visitors uploaded, which an earlier run may name."""
    uploads = (state.runs_dir() / state.UPLOADS_FOLDER).resolve()
    return Path(path).is_absolute() and Path(path).resolve().is_relative_to(uploads)


def _uploaded_zip() -> str | None:
    upload = st.file_uploader(
        "Zip of a folder of pictures", type="zip", key=UPLOAD, label_visibility="collapsed", on_change=_forget_what_was_removed
    )
    known: dict[str, str] = st.session_state.setdefault(_UPLOADED, {})
    kept = _kept_upload()
    if upload is None and kept is not None:
        st.caption(f"{escaped(kept.name)}.zip, uploaded before, is used until another one is chosen.")
        touch_upload(kept)
        return str(kept)
    if upload is None:
        st.caption(
            "A zip of a folder in any layout that is recognised. It is unpacked on this machine, beside the runs, and goes nowhere else; "
            f"{KEPT_DAYS} days after it was last chosen it is removed, unless a run was started with it. "
            f"For more than one upload may have (error 413: a server in front of this page takes less), choose *{CHOICES[FOLDER]}* above."
        )
        return None
    if upload.file_id not in known or not Path(known[upload.file_id]).is_dir():
        try:
            with st.spinner("Checking and unpacking …"):
                known[upload.file_id] = str(unpack(upload.getvalue(), upload.name, state.runs_dir() / state.UPLOADS_FOLDER))
        except AppError as error:
            st.error(escaped(str(error)), icon=":material/folder_zip:")
            return None
    folder = Path(known[upload.file_id])
    touch_upload(folder)
    st.session_state[_KEPT] = f"{folder.parent.name}/{folder.name}"
    return str(folder)


def _forget_what_was_removed() -> None:
    st.session_state.pop(_KEPT, None)


def _kept_upload() -> Path | None:
    """The folder of an upload that is chosen although the browser no longer holds its file: after a reload, or a look at another tab."""
    kept = str(st.session_state.get(_KEPT) or "")
    if not re.fullmatch(r"[0-9a-f]{16}/\w[\w.-]*", kept):
        return None
    folder = state.runs_dir() / state.UPLOADS_FOLDER / kept
    return folder if folder.is_dir() else None


def unpack(content: bytes, name: str, uploads: Path) -> Path:
    """Unpack an uploaded zip to a folder of its own; the same zip is unpacked once. Old uploads that no run refers to are removed.

    Returns:
        The folder, named after the file, below one named after its content.

    Raises:
        DataError: the zip is not safe or not whole, or the folder cannot be written.
    """
    stem = re.sub(r"[^\w.-]+", "-", Path(name).stem).strip("-.")[:60] or "upload"
    folder = uploads / hashlib.sha256(content).hexdigest()[:16] / stem
    touch_upload(folder)
    remove_unused_uploads(uploads.parent, uploads)
    if not folder.is_dir():
        try:
            extract_zip(io.BytesIO(content), folder)
        except OSError as error:
            raise DataError(f"{name}: cannot be unpacked in {uploads} ({error.strerror or error}).") from None
        except DataError:
            # Another visitor who uploaded the same may have been faster.
            if not folder.is_dir():
                raise
    return folder


def _show(look: Look) -> None:
    masks = "with masks" if "masks" in look.counts.columns else "no masks"
    colours = "grey" if look.channels == 1 else "colour"
    st.caption(
        f"{escaped(look.name)} · layout {escaped(look.layout)} · {escaped(look.sizes)}, {colours} · {masks}",
        help="\n".join(f"- {escaped(note)}" for note in look.notes[:NOTES_SHOWN]) or None,
    )
    st.dataframe(look.counts, hide_index=True, height="content", key="cae_counts", alt="Pictures of each class in each split")
    if look.examples:
        _examples(look.examples, "test pictures" if (look.rows["split"] == "test").any() else "training pictures")
    _problems(look.problems)


def _examples(examples: tuple[Example, ...], what: str) -> None:
    """Good pictures in the upper row, defective ones in the lower: one picture, so that enlarging it shows all of them."""
    rows = [row for good in (True, False) if (row := [example for example in examples if (example.defect == "good") is good])]
    kinds = [", ".join(dict.fromkeys(shortened(example.defect, NAME_LENGTH) for example in row)) for row in rows]
    names = "; ".join(f"{example.name}, {example.defect}" for example in examples)
    outline = "; masks outlined" if any(example.outlined for example in examples) else ""
    st.image(
        grid([[example.picture for example in row] for row in rows]),
        caption=escaped(f"{what}: {' · '.join(kinds)}{outline}"),
        width=EXAMPLES_PX,
        alt=f"Examples: {names}",
    )


def _problems(problems: tuple[str, ...]) -> None:
    if not problems:
        return
    left_out = f"{counted(len(problems), 'problem')} found; what cannot be used is left out."
    st.warning(left_out + "".join(f"\n- {escaped(problem)}" for problem in problems[:PROBLEMS_SHOWN]), icon=":material/report:")
    if len(problems) > PROBLEMS_SHOWN:
        with st.expander(f"All {len(problems)} problems", key="cae_problems"):
            st.markdown("\n".join(f"- {escaped(problem)}" for problem in problems[:500]))
    _read_again()


def _read_again() -> None:
    st.button(
        "Read again", icon=":material/refresh:", key=READ_AGAIN, on_click=cae_look.forget, type="tertiary", help="after files were mended"
    )
