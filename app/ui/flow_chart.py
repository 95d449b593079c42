"""The decision as a flow chart in Graphviz's language: a pure function of the `Decision`, taken branch in the path's colour.

The questions stand in one column; whoever answers *no* leaves it to the right, for the CPU. One leaf a question keeps the lines
from crossing, however many questions there are. Where a GPU is forced, its own questions make the column in place of auto's.
"""

from __future__ import annotations

import textwrap

from app.core.device_policy import Decision, Question
from app.ui.palette import path_colour

LINE_CHARACTERS = 32
INK = {"light": "#17212b", "dark": "#e6edf3"}
FAINT = {"light": "#9aa6b1", "dark": "#5d6b79"}
PRESENT = "present"
"""Key of the question whether there is a GPU."""
LEAVES = {"cpu": "CPU path", "gpu": "GPU path", "auto": "by free memory"}


def flow_chart(decision: Decision, theme: str = "light", *, gpu_unknown: bool = False) -> str:
    """Graphviz source: one node a question, leaves for the paths; what was not reached is faint.

    `theme` is `light` or `dark`: the chart has no background of its own, so its ink must suit the page. `gpu_unknown`: no GPU is known
    because nobody could tell, which is written in place of the first question's *no*.
    """
    theme = theme if theme in INK else "light"
    lines = [
        "digraph decision {",
        'rankdir=TB; bgcolor="transparent"; nodesep=0.3; ranksep=0.24; margin=0.02;',
        'node [shape=box, style="rounded", fontname="Helvetica", fontsize=12, margin="0.14,0.07"];',
        f'node [color="{FAINT[theme]}", fontcolor="{FAINT[theme]}"];',
        f'edge [fontname="Helvetica", fontsize=11, arrowsize=0.6, color="{FAINT[theme]}", fontcolor="{FAINT[theme]}"];',
    ]
    for question in _column(decision):
        lines += _question(question, decision, theme, "unknown" if gpu_unknown and question.key == PRESENT else "no")
    end_reached = decision.selected_device == "gpu"
    lines.append(_leaf("gpu", "gpu", end_reached))
    return "\n".join([*lines, "}"])


def flow_chart_in_words(decision: Decision, *, gpu_unknown: bool = False) -> str:
    """The taken way as a sentence, for those who cannot see the chart."""
    steps = [
        f"{question.text} {'unknown' if gpu_unknown and (question.key, question.branch) == (PRESENT, 'no') else question.branch}"
        for question in decision.chart
        if question.branch
    ]
    return "; ".join([*steps, f"so {LEAVES[decision.selected_device]}"])


def _column(decision: Decision) -> tuple[Question, ...]:
    """The questions to draw: all of auto's, or those that a forced GPU had to answer."""
    return tuple(question for question in decision.chart if question.branch) if _gpu_forced(decision) else decision.chart


def _gpu_forced(decision: Decision) -> bool:
    return any(question.key == "usable" for question in decision.chart)


def _question(question: Question, decision: Decision, theme: str, no: str) -> list[str]:
    """The node, the way down the column and the way out of it. `no` is the word for that answer."""
    colour = path_colour(decision.selected_device)
    name, leaf = _name(question.key), f"leave_{_name(question.key)}"
    forced = question.key == "forced" and not _gpu_forced(decision)
    down, out = ("no", "yes") if forced else ("yes", "no")
    leads_to = "auto" if question.key == "forced" and not forced else "cpu"
    look = f', color="{colour}", fontcolor="{INK[theme]}", penwidth=1.6' if question.branch else ""
    target = _name(question.no_leads_to if forced else question.yes_leads_to)
    way_out = _edge(name, leaf, no if out == "no" else out, question.branch == out, colour, "weight=1")
    return [
        f"{name} [label={_text(question.text)}, tooltip={_text(question.answer or 'not reached')}, group=spine{look}];",
        _edge(name, target, down, down == question.branch, colour, "weight=9"),
        *([] if forced and question.branch != "yes" else [_leaf(leaf, leads_to, question.branch == out)]),
        *([] if forced and question.branch != "yes" else [way_out]),
        "" if forced and question.branch != "yes" else f"{{rank=same; {name}; {leaf};}}",
    ]


def _edge(start: str, end: str, words: str, taken: bool, colour: str, rest: str) -> str:
    look = f'color="{colour}", fontcolor="{colour}", penwidth=2.2, ' if taken else ""
    return f'{start} -> {end} [label=" {words} ", {look}{rest}];'


def _leaf(name: str, path: str, chosen: bool) -> str:
    group = ", group=spine" if name == "gpu" else ""
    if not chosen:
        return f'{name} [label="{LEAVES[path]}"{group}];'
    colour = path_colour(path)
    return f'{name} [label="{LEAVES[path]}", style="rounded,filled", fillcolor="{colour}", color="{colour}", fontcolor="#ffffff"{group}];'


def _name(key: str) -> str:
    return key if key in LEAVES else f"q_{key.replace(' ', '_').replace('-', '_')}"


def _text(words: str) -> str:
    wrapped = "\\n".join(textwrap.wrap(words.replace("\\", "/").replace('"', "'"), LINE_CHARACTERS))
    return f'"{wrapped}"'
