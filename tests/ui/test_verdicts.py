"""What a threshold makes of scores."""

from __future__ import annotations

import numpy as np
import pandas as pd
from cae_runs import DEFECT_SCORES, GOOD_SCORES, HELD_OUT_SCORES, THRESHOLD, score_table

from app.ui import verdicts


def _judged(threshold: float = THRESHOLD) -> pd.DataFrame:
    return verdicts.judged(verdicts.test_rows(score_table()), threshold)


def test_only_test_pictures_are_judged_and_keep_their_row() -> None:
    frame = verdicts.test_rows(score_table())
    assert len(frame) == len(GOOD_SCORES) + sum(map(len, DEFECT_SCORES.values()))
    assert frame["row"].tolist() == list(range(len(frame)))
    np.testing.assert_allclose(verdicts.held_out_scores(score_table()), HELD_OUT_SCORES)


def test_a_picture_without_a_score_is_left_out() -> None:
    table = score_table()
    table.loc[2, "score"] = np.nan
    assert 2 not in verdicts.test_rows(table)["row"].tolist()


def test_verdicts_equal_those_the_run_wrote() -> None:
    assert _judged()["verdict"].tolist() == score_table().query("split == 'test'")["verdict"].tolist()


def test_a_score_at_the_threshold_is_good() -> None:
    assert (_judged(9.25)["verdict"] == "good").all()


def test_ranks_run_from_the_most_anomalous() -> None:
    ordered = verdicts.most_anomalous(_judged())
    assert ordered["rank"].tolist() == list(range(1, 15))
    assert ordered["score"].iloc[0] == 9.25
    assert verdicts.least_anomalous(_judged())["score"].iloc[0] == 0.5


def test_mistakes_are_the_missed_and_the_false_alarms() -> None:
    assert verdicts.mistakes(_judged())["score"].tolist() == [2.1, 3.4]
    assert verdicts.mistakes(_judged(5.0))["score"].tolist() == [2.1, 4.5]
    assert verdicts.mistakes(_judged(1.0))["score"].tolist() == [3.4, 2.6, 2.2, 1.9, 1.4, 1.1]


def test_every_outcome_has_a_name() -> None:
    assert [verdicts.outcome(*case) for case in ((1, "defective"), (1, "good"), (0, "defective"), (0, "good"))] == [
        "found",
        "missed",
        "false alarm",
        "passed",
    ]


def test_classes_are_counted_good_first() -> None:
    table = verdicts.by_class(_judged())
    assert table[["defect", "pictures", "called"]].values.tolist() == [["good", 8, 1], ["scratch", 3, 2], ["spot", 3, 3]]
