"""The cards at the top: at most one from each part, each a value of another table of the summary."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from chip.report.summary import Summary

Row = dict[str, Any]


def add(out: Summary) -> None:
    for find in (
        _accuracy,
        _worst,
        _operators,
        _product,
        _fastest,
        _frugal,
        _bandwidth,
        _compute,
        _kernel,
        _replay,
        _roofs,
        _engines,
        _files,
    ):
        find(out)


def _number(row: Row, key: str) -> bool:
    return isinstance(row[key], int | float) and not isinstance(row[key], bool)


def _best(rows: Iterable[Row], key: str, pick: Callable[..., Row] = max) -> Row | None:
    usable = [row for row in rows if _number(row, key)]
    return pick(usable, key=lambda row: row[key]) if usable else None


def _accuracy(out: Summary) -> None:
    """The first class that has points: they come in the order of their weight."""
    row = next((r for r in out.rows("accuracy", kind="class") if _number(r, "median_percent")), None)
    if row:
        out.add(
            "headlines",
            name="Error of predictions, median",
            value=row["median_percent"],
            unit="%",
            detail=f"{row['name']}, {row['points']} points",
            section="accuracy",
            source=row["source"],
        )


def _worst(out: Summary) -> None:
    """The miss of our own predictions that is furthest off, either way."""
    own: list[Row] = [r for r in out.rows("predictions", who="chip") if _number(r, "error_percent")]
    row = max(own, key=lambda r: abs(r["error_percent"])) if own else None
    if row:
        out.add(
            "headlines",
            name="Worst miss of a prediction",
            value=row["error_percent"],
            unit="%",
            detail=f"{row['metric']} of {row['model']}, {row['engine']}, batch {row['batch']}, prompt {row['prompt']}",
            section="accuracy",
            source=row["source"],
        )


def _operators(out: Summary) -> None:
    products = [r for r in out.rows("accuracy", kind="operator") if str(r["name"]).startswith("linear ")]
    if row := _best(products, "points"):  # of the kernel that was measured most
        out.add(
            "headlines",
            name="Error of a matrix product, median",
            value=row["median_percent"],
            unit="%",
            detail=f"{row['points']} shapes, each predicted by a fit that had not seen it",
            section="accuracy",
            source=row["source"],
        )


def _product(out: Summary) -> None:
    row = _best(out.rows("operators", op="linear", dtype="bf16", status="ok", context="cold"), "flops_per_s")
    if row:
        share = row["share_of_roof"]
        reached = f", {100 * float(share):.0f} % of its roof" if isinstance(share, float) else ""
        out.add(
            "headlines",
            name="Fastest matrix product",
            value=row["flops_per_s"],
            unit="FLOP/s",
            detail=f"{row['label']}{reached}",
            section="roofline",
            source=row["source"],
        )


def _where(row: Row) -> str:
    return f"{row['model']} on {row['gpu']}, {row['engine']}, {row['dtype']}, batch {row['batch']}"


def _runs(out: Summary) -> list[Row]:
    """Of models as they are; those that were cut down to calibrate an engine only where there are no others."""
    done = list(out.rows("runs", status="ok"))
    return [row for row in done if row["bundled"]] or done


def _fastest(out: Summary) -> None:
    row = _best(_runs(out), "tokens_per_s")
    if row:
        value = row["tokens_per_s"]
        same = {"unit": "tok/s", "section": "runs", "source": row["source"]}
        out.add("headlines", name="Highest throughput", value=value, detail=_where(row), **same)


def _frugal(out: Summary) -> None:
    row = _best(_runs(out), "joules_per_token", min)
    if row:
        value = row["joules_per_token"]
        same = {"unit": "J/tok", "section": "runs", "source": row["source"]}
        out.add("headlines", name="Least energy a token", value=value, detail=_where(row), **same)


def _ceiling(out: Summary, name: str, title: str) -> None:
    row = next(out.rows("ceilings", group="ceiling", name=name), None)
    if row:
        share = row["share_of_datasheet"]
        promised = f", {100 * float(share):.0f} % of the datasheet" if isinstance(share, float) else ""
        out.add(
            "headlines",
            name=title,
            value=row["value"],
            unit=row["unit"],
            detail=f"{row['device']}{promised}",
            section="calibration",
            source=row["source"],
        )


def _bandwidth(out: Summary) -> None:
    _ceiling(out, "hbm_copy", "Memory bandwidth, copy")


def _compute(out: Summary) -> None:
    _ceiling(out, "matmul_bf16_settled", "bf16 products, settled clocks")


def _kernel(out: Summary) -> None:
    row = _best(out.rows("kernels"), "speedup_p50")
    if row:
        out.add(
            "headlines",
            name="Best kernel of our own",
            value=row["speedup_p50"],
            unit="x",
            detail=f"{row['kernel']} {row['shape']} against {row['baseline']}",
            section="kernels",
            source=row["source"],
        )


def _replay(out: Summary) -> None:
    row = _best(out.rows("replays"), "error_percent", lambda rows, key: max(rows, key=lambda r: abs(key(r))))
    if row:
        out.add(
            "headlines",
            name="Kernels against the whole step, at worst",
            value=row["error_percent"],
            unit="%",
            detail=row["title"],
            section="replay",
            source=row["source"],
        )


def _tally(out: Summary, section: str, name: str, detail: str) -> None:
    """The first of a section's, which stands for most rows."""
    row = next(out.rows("tallies", section=section), None)
    if row:
        value = {"value": row["value"], "unit": row["unit"], "section": section}
        out.add("headlines", name=name.format(**row), detail=detail.format(**row), **value)


def _roofs(out: Summary) -> None:
    _tally(out, "operators", "Share of their roof, median", "{count} operators of 10 us or more, operands not in cache")


def _engines(out: Summary) -> None:
    _tally(out, "compared", "{name}, median", "{count} pairs of runs of one model and scenario")


def _files(out: Summary) -> None:
    devices = {r["device"] for r in out.rows("sources", status="read") if r["device"]}
    on = ", ".join(sorted(map(str, devices))) or "no named device"
    _tally(out, "provenance", "Files read", "{count} records, measured on " + on.replace("{", "").replace("}", ""))
