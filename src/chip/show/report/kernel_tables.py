"""Our kernels as tables for a page, from the rows of the summary's table `kernels`: a line for each shape or rung."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from chip.units import duration, percent, si

Row = Mapping[str, Any]
Lines = list[list[str]]


def lengths(rows: Iterable[Row]) -> Lines:
    """One kernel beside the other, a line for each shape."""
    by = _by(rows, "shape", "kernel")
    kernels = _seen(by)
    said = "P50, of copy bandwidth, over the best of PyTorch and torch.compile"
    head = ["rows x columns", *(f"`{kernel}`: {said}" if not i else f"`{kernel}`" for i, kernel in enumerate(kernels))]
    return [head, *([shape, *(_told(found.get(k)) for k in kernels)] for shape, found in by.items())]


def steps(rows: Iterable[Row]) -> Lines:
    """The steps of a kernel against PyTorch's own expression, a line for each shape; the last one is judged."""
    by = _by(rows, "shape", "step")
    names = _seen(by)
    lines = [["shape", "composed", "best of others", *names, f"{names[-1]} over composed", "of copy bandwidth"]]
    for shape, found in by.items():
        last = found[names[-1]]
        times = [last["pytorch_p50_us"], last["baseline_p50_us"], *(found[n]["optimised_p50_us"] for n in names)]
        shown = [duration(t * 1e-6) for t in times]
        lines.append([shape, *shown, f"{last['over_pytorch']:.2f}x", percent(last["share_of_roof"])])
    return lines


def ladder(rows: Iterable[Row]) -> Lines:
    """The rungs of the shape that has most of them, in each dtype, and cuBLAS as the last."""
    by = _by(rows, "shape", "dtype", "step")
    most = max(map(len, by.values()))
    names = ["rung", "dtype", "GFLOP/s", "of PyTorch's cuBLAS", "of its own roof", "over the rung before"]
    lines = [[*names, "over the first"]]
    for (_, dtype), rungs in by.items():
        if len(rungs) < most:
            continue
        rates: list[float] = []
        for step, row in rungs.items():
            rate = row["flops_per_s"]
            over = [f"{rate / rates[i]:.2f}x" for i in (-1, 0)] if rates else ["-", "-"]
            shares = [percent(row["over_pytorch"]), percent(row["share_of_roof"])]
            lines.append([step, dtype, f"{rate / 1e9:,.0f}", *shares, *over])
            rates.append(rate)
        theirs = row["flops"] / (row["pytorch_p50_us"] * 1e-6)
        lines.append(["cuBLAS", dtype, f"{theirs / 1e9:,.0f}", percent(1.0), "-", "-", f"{theirs / rates[0]:.2f}x"])
    return lines


def products(rows: Iterable[Row]) -> Lines:
    """The rungs on tensor cores over all products: rate, share of PyTorch's cuBLAS; of the last also over the best."""
    by = _by(rows, "shape", "dtype", "step")
    names = [n for n in _seen(by) if all(n in found for found in by.values())]
    lines = [["m x n x k", "dtype", "PyTorch's cuBLAS", *names, f"{names[-1]} over the best of cuBLAS and cublasLt"]]
    for (shape, dtype), found in by.items():
        last = found[names[-1]]
        shown = [f"{si(found[n]['flops_per_s'], 'FLOP/s')}, {percent(found[n]['over_pytorch'])}" for n in names]
        theirs = last["flops"] / (last["pytorch_p50_us"] * 1e-6)
        lines.append([shape, dtype, si(theirs, "FLOP/s"), *shown, f"{last['speedup_p50']:.3f}x"])
    return lines


def _told(row: Row | None) -> str:
    if not row:
        return ""
    time, share = duration(row["optimised_p50_us"] * 1e-6), percent(row["share_of_roof"])
    clear = "" if row["verdict"] == "faster" else f", {row['verdict']}"
    return f"{time}, {share}, {row['speedup_p50']:.2f}x{clear}"


def _by(rows: Iterable[Row], *keys: str) -> dict[Any, dict[str, Row]]:
    """Rows by all but the last key, then by the last; of repeated ones the first."""
    found: dict[Any, dict[str, Row]] = {}
    for row in rows:
        at = tuple(row[k] for k in keys[:-1])
        found.setdefault(at if len(at) > 1 else at[0], {}).setdefault(str(row[keys[-1]]), row)
    return found


def _seen(by: Mapping[Any, Mapping[str, Row]]) -> list[str]:
    return list(dict.fromkeys(name for found in by.values() for name in found))
