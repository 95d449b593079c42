"""Numbers with their nouns."""

from __future__ import annotations


def counted(number: int | None, one: str, many: str | None = None) -> str:
    """`1 picture`, `12 pictures`; `– pictures` where the number is not known."""
    if number is None:
        return f"– {many or one + 's'}"
    return f"{number:,} {one if number == 1 else many or one + 's'}".replace(",", "\u202f")
