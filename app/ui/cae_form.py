"""2 Options: a preset and, folded, every option of `CaeConfig`, made from its one declaration.

Fields do not rerun the page when they change; their values come with the next click, so ten changed options cost one rerun and
*Train and score* always takes what is shown. That is why number fields carry no bounds: a bounded one keeps a number outside of them to
the browser, and a run would start with the value before it. `make_config` judges instead, and `problem` says what it found.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

import streamlit as st
from pydantic.fields import FieldInfo

from app.cae.config import CaeConfig, make_config
from app.core.errors import OptionError
from app.core.words import counted
from app.ui import state
from app.ui.cae_text import PRESETS
from app.ui.format import escaped

PRESET = "cae_preset"
PRESET_LINK = "preset"
OPTIONS_LINK = "options"
"""Their names in the URL, where a reload finds preset and what was changed against it: `epochs:3,augment:texture`."""
LONGEST_LINK = 1000
LARGEST = 2**53
"""Whole numbers from here on are none to a browser."""
AUTO = "auto"
"""An empty field in the URL."""
DEFAULT_PRESET = "recommended"
DETAILS = "cae_all_options"
UPDATE = "cae_update"
RESET = "cae_reset"
NOT_FITTING = "does not fit"
ELSEWHERE = ("data", "preset", "device", "min_vram_mib")
"""Options that have places of their own on the page."""

ABOUT_PRESETS = {
    "quick": "The recommended recipe with few steps: minutes become seconds, to see whether everything works.",
    "recommended": "Standardised pictures, half of them masked, calibrated scores: the recipe that detected best on real sets.",
    "thorough": "The recommended recipe with three times the steps; on some sets detection still improves.",
    "documented": "The network as it is usually described: raw pictures, 0.84 SSIM, no calibration. To compare with; detects worse.",
}


@dataclass(frozen=True)
class Option:
    """One field of the form."""

    name: str
    label: str
    group: str
    help: str
    kind: Literal["choice", "switch", "int", "float"]
    choices: tuple[str, ...] = ()
    low: float = 0
    high: float = 0
    step: float = 1
    optional: bool = False


def options() -> list[Option]:
    """Every option the form shows, in the order of its declaration."""
    return [_option(name, field) for name, field in CaeConfig.model_fields.items() if name not in ELSEWHERE]


def key(name: str) -> str:
    """Session key of an option's field."""
    return f"cae_option_{name}"


def preset_values(preset: str) -> dict[str, Any]:
    """What `preset` gives to each option of the form."""
    config = make_config({"preset": preset}).model_dump()
    return {option.name: config[option.name] for option in options()}


def chosen_preset() -> str:
    preset = st.session_state.get(PRESET)
    return preset if preset in PRESETS else DEFAULT_PRESET


def values() -> dict[str, Any]:
    """The options as the fields show them, preset included; empty fields are left out, which is `auto`."""
    preset = chosen_preset()
    own = preset_values(preset)
    shown = {name: st.session_state.get(key(name), value) for name, value in own.items()}
    return {"preset": preset, **{name: value for name, value in shown.items() if value is not None}}


def problem() -> str | None:
    """What is wrong with the options as the fields show them, in one sentence; `None` where they are fine."""
    try:
        make_config(values())
    except OptionError as error:
        return str(error)
    return None


def seed() -> int:
    """The seed of the split as its field shows it; the preset's where that is none that can be."""
    option = next(option for option in options() if option.name == "seed")
    shown = values()[option.name]
    return shown if isinstance(shown, int) and option.low <= shown <= option.high else preset_values(chosen_preset())[option.name]


def take_over(config: CaeConfig) -> None:
    """Fill the form with the options of an earlier run. Call before the form is drawn."""
    st.session_state[PRESET] = config.preset
    _fill({name: getattr(config, name) for name in preset_values(config.preset)})


def render() -> None:
    """Draw the section."""
    st.subheader("2 Options", anchor=False)
    _take_link()
    # Pills, since they wrap well where the column is narrow.
    st.pills(
        "Preset",
        list(PRESETS),
        format_func=PRESETS.__getitem__,
        key=PRESET,
        required=True,
        persist_state="session",
        on_change=_reset,
        label_visibility="collapsed",
    )
    preset = chosen_preset()
    state.keep_in_url(PRESET_LINK, preset, DEFAULT_PRESET)
    st.caption(ABOUT_PRESETS[preset])
    own, wrong = preset_values(preset), problem()
    shown = {option: st.session_state.get(key(option.name), own[option.name]) for option in options()}
    changes = {option: value for option, value in shown.items() if value != own[option.name]}
    changed = [option.label for option in changes]
    state.keep_in_url(OPTIONS_LINK, ",".join(f"{option.name}:{_in_link(value)}" for option, value in changes.items()), "")
    at_fault = next((option for option in options() if wrong and wrong.startswith(f"{option.name}:")), None)
    label = f"All options · {len(changed)} changed" if changed else "All options"
    if at_fault:
        label += f" · {at_fault.label} {NOT_FITTING}"
    with st.expander(label, key=DETAILS, icon=":material/tune:"):
        # The caption has a place whether it is there or not: the browser draws anew what moves, and a number half typed would be lost.
        about = st.container()
        if changed:
            about.caption(f"{counted(len(changed), 'option differs', 'options differ')} from {PRESETS[preset]}: {', '.join(changed)}.")
        for group in dict.fromkeys(option.group for option in options()):
            here = at_fault is not None and at_fault.group == group
            with st.expander(f"{group} · {NOT_FITTING}" if here else group, key=f"cae_group_{group}", expanded=False):
                _group([option for option in options() if option.group == group], own, wrong, at_fault)
        with st.container(horizontal=True):
            st.button("Update estimate", key=UPDATE, icon=":material/calculate:")
            st.button("Back to preset", key=RESET, icon=":material/undo:", on_click=_reset, disabled=not changed)


def _take_link() -> None:
    """In a session where nobody has chosen yet, what the link names; what is no option, or no value that one could have, is left out."""
    if PRESET in st.session_state:
        return
    linked = st.query_params.get(PRESET_LINK)
    st.session_state[PRESET] = linked if linked in PRESETS else DEFAULT_PRESET
    known = {option.name: option for option in options()}
    for part in st.query_params.get(OPTIONS_LINK, "")[:LONGEST_LINK].split(","):
        name, _, text = part.partition(":")
        if name in known:
            with contextlib.suppress(ValueError):
                st.session_state[key(name)] = _from_link(known[name], text)


def _in_link(value: Any) -> str:
    return AUTO if value is None else str(value)


def _from_link(option: Option, text: str) -> Any:
    """Raises ValueError where `text` is no value of the field; bounds are judged by `make_config`."""
    if option.optional and text == AUTO:
        return None
    if option.kind == "int" and abs(int(text)) < LARGEST:
        return int(text)
    if option.kind == "float" and math.isfinite(float(text)):
        return float(text)
    allowed = {"choice": option.choices, "switch": ("True", "False")}.get(option.kind, ())
    if text not in allowed:
        raise ValueError(text)
    return text == "True" if option.kind == "switch" else text


def _group(members: list[Option], own: Mapping[str, Any], wrong: str | None, at_fault: Option | None) -> None:
    """Fields in two columns, row by row; under the one at fault stands what is wrong."""
    for first in range(0, len(members), 2):
        for column, option in zip(st.columns(2), members[first : first + 2], strict=False):
            with column:
                _field(option, own[option.name], rerun=wrong is not None)
                if wrong and option == at_fault:
                    st.caption(f":red[{escaped(wrong)}]")


def _field(option: Option, default: Any, *, rerun: bool) -> None:
    """One field. `rerun`: draw the page again once it changes; so what is wrong goes away as soon as it is put right."""
    st.session_state.setdefault(key(option.name), default)
    when = "rerun" if rerun else "ignore"
    common: dict[str, Any] = {"key": key(option.name), "help": option.help, "on_change": when, "persist_state": "session"}
    if option.kind == "choice":
        st.selectbox(option.label, option.choices, **common)
        return
    if option.kind == "switch":
        st.checkbox(option.label, **common)
        return
    whole = option.kind == "int"
    number = int if whole else float
    # A field that may be empty must say so by value=None; for the others the session state holds the value, and emptied they show 0.
    common |= {"value": None} if option.optional else {}
    st.number_input(
        option.label,
        step=number(option.step),
        format="%d" if whole else "%g",
        placeholder="auto",
        **common,
    )


def _reset() -> None:
    _fill(preset_values(chosen_preset()))


def _fill(given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        st.session_state[key(name)] = value


def _option(name: str, field: FieldInfo) -> Option:
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    about = str(field.description)
    label, group = str(extra.get("label", name)), str(extra.get("group", "Options"))
    if get_origin(field.annotation) is Literal:
        return Option(name, label, group, about, "choice", choices=get_args(field.annotation))
    types = get_args(field.annotation) or (field.annotation,)
    if bool in types:
        return Option(name, label, group, f"{about[:1].upper()}{about[1:]}.", "switch")
    kind: Literal["int", "float"] = "int" if int in types else "float"
    low, high, multiple = _bounds(field)
    return Option(
        name,
        label,
        group,
        f"{about[:1].upper()}{about[1:]}. {_range_in_words(low, high, multiple)}",
        kind,
        low=low,
        high=high,
        step=multiple or (1 if kind == "int" else _float_step(field.default, high)),
        optional=type(None) in types,
    )


def _bounds(field: FieldInfo) -> tuple[float, float, float | None]:
    """(least, largest, multiple of). Open ends are taken as closed: they are for words; `make_config` judges."""
    found: dict[str, Any] = {}
    for limit in field.metadata:
        for name in ("ge", "gt", "le", "lt", "multiple_of"):
            if hasattr(limit, name):
                found[name] = getattr(limit, name)
    return found.get("ge", found.get("gt")), found.get("le", found.get("lt")), found.get("multiple_of")  # type: ignore[return-value]


def _range_in_words(low: float, high: float, multiple: float | None) -> str:
    steps = f", in steps of {multiple:g}" if multiple else ""
    return f"{low:,g} to {high:,g}{steps}.".replace(",", "\u202f") if not multiple else f"{low:g} to {high:g}{steps}."


def _float_step(default: Any, high: float) -> float:
    """A step that suits the size of the option: 0.05 for shares, 0.5 and 1 for what goes higher, one leading digit for small values."""
    size = abs(float(default or 0.1))
    if size >= 0.1:
        return 0.05 if high <= 1 else 0.5 if size < 10 else 1.0
    return float(10.0 ** math.floor(math.log10(size)))
