"""Answers as people read them: tables declared by their columns over rows of the JSON, and amounts in their units."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any

from chip import units
from chip.units import duration, gib, number, percent, si

__all__ = ["duration", "gib", "number", "percent", "si"]
Key = str | Callable[[Any], Any]
Column = tuple[str, Key] | tuple[str, Key, Callable[[Any], str]]  # title, where the value is, how it looks

flops, bandwidth, work, moved = (partial(si, unit=unit) for unit in ("FLOP/s", "B/s", "FLOP", "B"))


AMOUNT = re.compile(r"-?|[<+-]?[\d.,]+(%|x| \S+)?")  # or none


def ms(value: float) -> str:
    return duration(max(0.0, value) / 1e3)


def us(value: float) -> str:
    return duration(value / 1e6)


def digits(count: int) -> Callable[[float], str]:
    """So many significant ones."""
    return lambda value: f"{value:.{count}g}"


def amount(value: float) -> str:
    return number(value, 4)


def times(value: float) -> str:
    return f"{value:.2f}x"


def signed(share: float) -> str:
    return f"{100 * share:+.1f} %"


def signed_percent(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2f} %"


def yes(value: bool) -> str:
    return "yes" if value else "NO"


def span(form: Callable[[float], str]) -> Callable[[Sequence[float]], str]:
    """An interval, from its lower to its upper end."""
    return lambda ends: f"{form(ends[0])} - {form(ends[1])}"


def value_at(row: Any, key: Key) -> Any:
    """`a.b` is `b` in `a`; None where either is missing."""
    if callable(key):
        return key(row)
    if key in row:
        return row[key]
    for part in key.split("."):
        row = row.get(part) if row else None
    return row


def table(rows: Iterable[Any], columns: Sequence[Column], keep: Collection[str] = (), markdown: bool = False) -> str:
    """Numbers stand at the right. An empty column is left out; a plain one that says the same in every row is named
    once below (in Markdown it is left out), unless `keep` has its title."""
    rows = list(rows)
    shown: list[dict[str, str]] = [{} for _ in rows]
    right, always = [], [*keep]
    for title, key, *form in columns:
        values = [value_at(row, key) for row in rows]
        if all(value is None or value == "" for value in values):
            continue
        if markdown and not form and len(rows) > 1 and len(set(values)) == 1:
            continue
        if form:
            always.append(title)
        for cells, value in zip(shown, values):
            cells[title] = "-" if value is None else form[0](value) if form and value != "" else str(value)
        if all(AMOUNT.fullmatch(cells[title]) for cells in shown):
            right.append(title)
    if not markdown or not rows:
        return units.table(shown, right, always)
    lines = [[*shown[0]], ["---:" if title in right else "---" for title in shown[0]]]
    return "\n".join(f"| {' | '.join(line)} |" for line in [*lines, *(row.values() for row in shown)])


def once(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Remarks, each once, with the titles that it is about: of (title, remark)."""
    titles: dict[str, list[str]] = {}
    for title, remark in pairs:
        titles.setdefault(remark, []).append(title)
    return titles


def disturbed(why: str, again: str) -> str:
    """The first line of what a machine gave that others used; `again` is the command to repeat."""
    return f"DISTURBED: {why}; {again} again when the machine is idle"
