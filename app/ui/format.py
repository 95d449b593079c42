"""Numbers as a reader wants them: always with their unit, `–` for what is not known; text that is safe in Markdown, names that fit."""

from __future__ import annotations

import math

UNKNOWN = "–"


def mib(value: float | None) -> str:
    """Memory: MiB whole, as on the command line and in reasons, GiB with one decimal from 10 GiB up."""
    if value is None:
        return UNKNOWN
    if value >= 10 * 1024:
        return f"{value / 1024:.1f} GiB"
    return f"{value:.0f} MiB"


def images_per_s(value: float | None) -> str:
    """Throughput with three significant digits."""
    return UNKNOWN if not _finite(value) else f"{significant(value)} images/s"


def score(value: float | None) -> str:
    """AUROC and its relatives: three decimals."""
    return UNKNOWN if not _finite(value) else f"{value:.3f}"


def percent(value: float | None) -> str:
    return UNKNOWN if not _finite(value) else f"{value:.0f} %"


def duration(seconds: float | None) -> str:
    """`48 s`, `1 min 12 s`, `2 h 05 min`."""
    if not _finite(seconds) or seconds is None or seconds < 0:
        return UNKNOWN
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def significant(value: float | None, digits: int = 3) -> str:
    """`value` with that many significant digits and no exponent between 0.001 and 10 000."""
    if not _finite(value) or value is None:
        return UNKNOWN
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    if not -4 < magnitude < 5:
        return f"{value:.{digits - 1}e}"
    return f"{round(value, digits - 1 - magnitude):.{max(0, digits - 1 - magnitude)}f}"


def _finite(value: float | None) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def escaped(text: str) -> str:
    """A sentence with names of files and GPUs in it is text, not Markdown."""
    for character in ("\\", "*", "_", "`", "$", "[", "]", "<", "~", ":", "#", "|"):
        text = text.replace(character, "\\" + character)
    return " ".join(text.split())


def shortened(text: str, limit: int) -> str:
    """`text` with its middle left out where it is longer than `limit`: both ends of a file name tell something."""
    if len(text) <= limit:
        return text
    front = (limit - 1 + 1) // 2
    return f"{text[:front]}…{text[len(text) - (limit - 1 - front) :]}"
