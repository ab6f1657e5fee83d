"""Names that are nearly the one that was given, for "did you mean". The library that finds them is imported when a name
is wrong: no right answer waits for it."""

from __future__ import annotations

from collections.abc import Iterable


def get_close_matches(word: str, possibilities: Iterable[str], n: int = 3, cutoff: float = 0.6) -> list[str]:
    import difflib

    return difflib.get_close_matches(word, list(possibilities), n, cutoff)
