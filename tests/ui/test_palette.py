"""The same run looks the same on every chart."""

from __future__ import annotations

from app.ui.palette import OKABE_ITO, path_colour, run_styles

IDS = [f"20261129-1200{second:02d}-data-{second:04x}" for second in range(20)]


def test_a_run_keeps_its_style_when_newer_runs_come() -> None:
    before = run_styles(IDS[:5])
    after = run_styles(IDS)
    assert all(after[run_id] == before[run_id] for run_id in IDS[:5])


def test_runs_look_different_from_each_other() -> None:
    styles = run_styles(IDS)
    assert len(set(styles.values())) == len(IDS)
    assert len({styles[run_id].colour for run_id in IDS[:8]}) == len(OKABE_ITO)


def test_the_two_paths_have_one_colour_each() -> None:
    assert path_colour("gpu") == "#11aa77"
    assert path_colour("cpu") == "#1177aa"
    assert path_colour(None) not in ("#11aa77", "#1177aa")
