"""How numbers and tables look to people: the command line and the report format with these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

SI = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def si(value: float, unit: str) -> str:
    """1.23e12, "FLOP/s" -> "1.23 TFLOP/s"."""
    for scale, prefix in SI:
        if abs(value) >= scale:
            return f"{value / scale:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def gib(value: float) -> str:
    for scale, unit in ((2**30, "GiB"), (2**20, "MiB")):
        if value >= scale:
            return f"{value / scale:.1f} {unit}"
    return f"{value / 2**10:.1f} KiB"


def duration(seconds: float) -> str:
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= scale:
            return f"{seconds / scale:.4g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def number(value: float, digits: int = 3) -> str:
    """A few digits, never as a power of ten where people read it: 2490, 12.3, 0.0041."""
    if value >= 10 ** (digits - 1):
        return f"{value:.0f}"
    return f"{value:.{digits}g}" if value >= 1e-3 or not value else "<0.001"


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def table(rows: Sequence[Mapping[str, Any]], right: Sequence[str] = (), keep: Sequence[str] = ()) -> str:
    """Aligned columns; a column that says the same in every row is left out and named once below.

    `right` names the columns to align right, `keep` those shown even when they do not vary.
    """
    if not rows:
        return "(nothing)"
    columns = list(rows[0])
    constant = [c for c in columns if c not in keep and len(rows) > 1 and len({str(r[c]) for r in rows}) == 1]
    shown = [c for c in columns if c not in constant]
    cells = [shown, *([str(r[c]) for c in shown] for r in rows)]
    width = [max(len(row[i]) for row in cells) for i in range(len(shown))]

    def line(row: Sequence[str]) -> str:
        parts = (v.rjust(w) if c in right else v.ljust(w) for v, w, c in zip(row, width, shown))
        return "  ".join(parts).rstrip()

    out = [line(cells[0]), "  ".join("-" * w for w in width), *map(line, cells[1:])]
    same = [f"{c} {rows[0][c]}" for c in constant if str(rows[0][c])]
    if same:
        out.append("all rows: " + ", ".join(same))
    return "\n".join(out)
