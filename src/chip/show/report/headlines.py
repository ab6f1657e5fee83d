"""The cards at the top: at most one from each part, each a value of another table of the summary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from chip.show.report.summary import Summary

Row = dict[str, Any]


class Card(NamedTuple):
    row: Row | None  # that has the value; there is no card without it
    key: str
    section: str
    unit: str  # of the value, or the column that names it
    name: str
    detail: str  # in columns of the row


def add(out: Summary) -> None:
    for row, key, section, unit, name, detail in _cards(out):
        if row:
            row = {k: "" if v is None else v for k, v in row.items()}
            about = {"name": name.format(**row), "detail": detail.format(**row), "section": section}
            out.add("headlines", value=row[key], unit=row.get(unit, unit), source=row.get("source") or None, **about)


def _cards(out: Summary) -> Iterator[Card]:
    classes = (r for r in out.rows("accuracy", kind="class") if _number(r, "median_percent"))
    first = next(classes, None)  # they come in the order of their weight
    what = "{name}, {points} points"
    yield Card(first, "median_percent", "accuracy", "%", "Error of predictions, median", what)
    every = [r for r in out.rows("accuracy", kind="class") if _number(r, "median_percent")]
    yield Card(_best(every, "median_percent"), "median_percent", "accuracy", "%", "Worst class, median", what)
    worst = _best(out.rows("predictions", who="chip"), "error_percent", size=abs)
    point = "{metric} of {model}, {engine}, batch {batch}, prompt {prompt}"
    yield Card(worst, "error_percent", "accuracy", "%", "Worst miss of a prediction", point)
    products = [r for r in out.rows("accuracy", kind="operator") if str(r["name"]).startswith("linear ")]
    unseen = "{points} shapes, each predicted by a fit that had not seen it"
    linear = _best(products, "points")  # of the kernel that was measured most
    yield Card(linear, "median_percent", "accuracy", "%", "Error of a matrix product, median", unseen)
    cold = {"status": "ok", "context": "cold"}
    fastest = _best(out.rows("operators", op="linear", dtype="bf16", **cold), "flops_per_s")
    reached = "{label}" + _share(fastest, "share_of_roof", "its roof")
    yield Card(fastest, "flops_per_s", "roofline", "FLOP/s", "Fastest matrix product", reached)
    done = list(out.rows("runs", status="ok"))
    runs = [row for row in done if row["bundled"]] or done  # models that were cut down only where there are no others
    where = "{model} on {gpu}, {engine}, {dtype}, batch {batch}"
    yield Card(_best(runs, "tokens_per_s"), "tokens_per_s", "runs", "tok/s", "Highest throughput", where)
    frugal = _best(runs, "joules_per_token", size=lambda joules: -joules)
    yield Card(frugal, "joules_per_token", "runs", "J/tok", "Least energy a token", where)
    ceilings = {"hbm_copy": "Memory bandwidth, copy", "matmul_bf16_settled": "bf16 products, settled clocks"}
    for name, title in ceilings.items():
        row = next(out.rows("ceilings", group="ceiling", name=name), None)
        detail = "{device}" + _share(row, "share_of_datasheet", "the datasheet")
        yield Card(row, "value", "calibration", "unit", title, detail)
    kernel = _best(out.rows("kernels"), "speedup_p50")
    yield Card(kernel, "speedup_p50", "kernels", "x", "Best kernel of our own", "{kernel} {shape} against {baseline}")
    norm = _best(out.rows("kernels", kernel="layer_norm"), "bytes_per_s")
    of_copy = "{shape}" + _share(norm, "share_of_roof", "a copy's rate")
    yield Card(norm, "bytes_per_s", "kernels", "B/s", "Layer norm, our kernel", of_copy)
    replay = _best(out.rows("replays"), "error_percent", size=abs)
    yield Card(replay, "error_percent", "replay", "%", "Kernels against the whole step, at worst", "{title}")
    devices = sorted({str(r["device"]) for r in out.rows("sources", status="read") if r["device"]})
    on = ", ".join(devices).replace("{", "").replace("}", "") or "no named device"
    for section, title, detail in (  # the first tally of a section stands for most rows
        ("operators", "Share of their roof, median", "{count} operators of 10 us or more, operands not in cache"),
        ("compared", "{name}, median", "{count} pairs of runs of one model and scenario"),
        ("provenance", "Files read", "{count} records, measured on " + on),
    ):
        yield Card(next(out.rows("tallies", section=section), None), "value", section, "unit", title, detail)


def _number(row: Row, key: str) -> bool:
    return isinstance(row[key], int | float) and not isinstance(row[key], bool)


def _best(rows: Iterable[Row], key: str, size: Any = float) -> Row | None:
    return max((row for row in rows if _number(row, key)), key=lambda row: size(row[key]), default=None)


def _share(row: Row | None, key: str, of: str) -> str:
    share = row[key] if row else None
    return f", {100 * share:.0f} % of {of}" if isinstance(share, float) else ""
