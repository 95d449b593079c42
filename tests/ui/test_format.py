"""Numbers with their units; unknown is a dash."""

from __future__ import annotations

import math

import pytest

from app.ui import format as fmt


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0 MiB"),
        (887, "887 MiB"),
        (2048, "2048 MiB"),
        (10239, "10239 MiB"),
        (10240, "10.0 GiB"),
        (24576, "24.0 GiB"),
    ],
)
def test_memory(value: float | None, text: str) -> None:
    assert fmt.mib(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "–"), (math.nan, "–"), (104.26, "104 images/s"), (9.876, "9.88 images/s"), (1234.5, "1230 images/s")]
)
def test_throughput_has_three_significant_digits(value: float | None, text: str) -> None:
    assert fmt.images_per_s(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (-1, "–"),
        (0, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (72, "1 min 12 s"),
        (3600, "1 h 00 min"),
        (7500, "2 h 05 min"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert fmt.duration(seconds) == text


@pytest.mark.parametrize(("value", "text"), [(0.9034, "0.903"), (None, "–"), (math.nan, "–"), (1.0, "1.000")])
def test_scores_have_three_decimals(value: float | None, text: str) -> None:
    assert fmt.score(value) == text


@pytest.mark.parametrize(("value", "text"), [(0.00123456, "0.00123"), (123456, "1.23e+05"), (0, "0"), (-2.5, "-2.50"), (None, "–")])
def test_significant_digits(value: float | None, text: str) -> None:
    assert fmt.significant(value) == text
