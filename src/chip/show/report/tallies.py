"""Many rows in few bars: what the sections of operators, comparisons and provenance have to show at a glance."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from chip import stats
from chip.show.report.pairs import IN_TURN, OTHER, REPEAT
from chip.show.report.summary import Summary, Value

ALL = "all"
LONG_US = 10.0  # operators that take less wait for their launch, not for a roof
FEW = 5  # operators of a kind that a median needs
PAIRS = 2  # of runs of two engines, likewise
COMPARED = ("TTFT", "TPOT")


def add(out: Summary) -> None:
    for row in chain(_operators(out), _engines(out), _files(out)):
        out.add("tallies", **dict(zip(("section", "name", "value", "unit", "count"), row)))


Row = tuple[str, str, Value, str, int]


def _operators(out: Summary) -> Iterator[Row]:
    """Share of their roof that long operators reach, by kind."""
    shares: dict[str, list[float]] = {ALL: []}
    for row in out.rows("operators", status="ok", context="cold"):
        share, us = row["share_of_roof"], row["p50_us"]
        if isinstance(share, float) and isinstance(us, (int, float)) and us >= LONG_US:
            shares[ALL].append(share)
            shares.setdefault(str(row["op"]), []).append(share)
    for name in sorted(shares, key=lambda n: (n != ALL, -len(shares[n]))):
        if len(shares[name]) >= FEW:
            yield "operators", name, stats.median(shares[name]), "share", len(shares[name])


def _engines(out: Summary) -> Iterator[Row]:
    """Time of one engine over another's, of the same model and scenario; what was measured in turn comes first."""
    ratios: dict[tuple[str, str], list[float]] = {}
    for row in out.rows("comparisons"):
        first, second = (str(row[side]).split()[0] for side in ("first", "second"))
        kind, ratio = str(row["kind"]), row["ratio"]
        if kind == REPEAT or first == second or row["metric"] not in COMPARED or not isinstance(ratio, float):
            continue
        if kind == OTHER and first > second:
            first, second, ratio = second, first, 1 / ratio
        said = f", {IN_TURN}" if kind == IN_TURN else ""
        ratios.setdefault((kind, f"{row['metric']} of {second} over {first}{said}"), []).append(ratio)
    for kind, name in sorted(ratios, key=lambda key: (key[0] != IN_TURN, -len(ratios[key]), key)):
        if len(ratios[kind, name]) >= PAIRS:
            yield "compared", name, stats.median(ratios[kind, name]), "x", len(ratios[kind, name])


def _files(out: Summary) -> Iterator[Row]:
    """Files that were read, by what they are, with their records."""
    files: dict[str, list[int]] = {ALL: []}
    for row in out.rows("sources", status="read"):
        records = row["records"] if isinstance(row["records"], int) else 0
        files[ALL].append(records)
        files.setdefault(str(row["schema"]).removeprefix("chip.").split("/")[0], []).append(records)
    for name in sorted(files, key=lambda n: (n != ALL, -len(files[n]), n)):
        if files[name]:
            yield "provenance", name, len(files[name]), "files", sum(files[name])
