"""Imported operator times of an H200 against our own records of one: the ratio by kind and duration.

    python benchmarks/imported_h200.py [--points DIR] [--exact] [--json]

A shape of ours that the imported points lack is interpolated: time over the time of an ideal device, in logarithms, one
axis after the other (products: n, k, m; attention: batch, then length; experts: tokens), all other axes equal. With
`--exact` only shapes that both have count. `--points` takes the folder of
`chip import aiconfigurator --system h200_sxm --all -o DIR`, which has fifty times as many points as the bundle.
"""

from __future__ import annotations

import argparse
import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from math import exp, log
from pathlib import Path
from typing import Any

from chip import ops, stats
from chip.files import measurements
from chip.hardware import gpus
from chip.hardware.tables import points_csv
from chip.types import Op
from chip.units import table

RECORDS = Path(__file__).parents[1] / "results" / "h200"
FILES = ("tables.jsonl", "paged.jsonl", "operators-1.jsonl", "operators-2.jsonl")
OURS = {"linear": "torch", "attention": "fa3", "moe_experts": "vllm"}  # the implementation that vLLM runs
EDGES_US = (0, 10, 50, 200, 1000, float("inf"))
Tree = dict[Any, Any]  # axis value -> Tree, down to the time


def path_of(kind: str, at: dict[str, int]) -> tuple[tuple[Any, ...], tuple[int, ...]] | None:
    """What must be equal, and what is interpolated, outermost first; None for what no table has."""
    if kind == "linear":
        return (), (at["n"], at["k"], at["m"])
    if kind == "moe_experts":
        return tuple(at[a] for a in ("hidden", "intermediate", "experts", "top_k")), (at["tokens"],)
    new, length = at["q_len"], at["kv_len"]
    same = (*(at[a] for a in ("heads", "kv_heads", "head_dim", "window")), new == 1)
    return (same, (at["batch"], length)) if new in (1, length) else None


def op_at(kind: str, same: Sequence[Any], smooth: Sequence[int]) -> Op:
    if kind == "linear":
        n, k, m = smooth
        return ops.build(kind, {"m": m, "n": n, "k": k})
    if kind == "moe_experts":
        axes = dict(zip(("hidden", "intermediate", "experts", "top_k"), same))
        return ops.build(kind, {**axes, "tokens": smooth[0]})
    heads, kv_heads, head_dim, window, decode = same
    batch, length = smooth
    axes = {"batch": batch, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "window": window}
    return ops.build(kind, {**axes, "q_len": 1 if decode else length, "kv_len": length})


def ideal_us(op: Op) -> float:
    """The datasheet's roof and two microseconds of launch: only its shape matters."""
    cost, sheet = op.cost(), gpus.spec("h200").ceilings
    return 2 + 1e6 * max(cost.flops / sheet["matmul_bf16"].value, cost.bytes / sheet["hbm"].value)


def tree_of(kind: str, found: points_csv.Table) -> dict[tuple[Any, ...], Tree]:
    roots: dict[tuple[Any, ...], Tree] = defaultdict(dict)
    for row in found.rows:
        where = path_of(kind, dict(zip(found.axes, row.at)))
        if row.dtype != "bf16" or where is None:
            continue
        same, smooth = where
        node = roots[same]
        for value in smooth[:-1]:
            node = node.setdefault(value, {})
        node[smooth[-1]] = row.us
    return roots


def interpolate(node: Tree, smooth: Sequence[int], share: Callable[[tuple[int, ...]], float]) -> float | None:
    """Logarithm of time over ideal; None outside the points. `share` gives the ideal time of a shape."""

    def at(node: Any, done: tuple[int, ...]) -> float | None:
        if len(done) == len(smooth):
            return log(node / share(done))
        want, levels = smooth[len(done)], sorted(node)
        if want in node:
            return at(node[want], (*done, want))
        i = bisect_right(levels, want)
        if i in (0, len(levels)):
            return None
        low, high = levels[i - 1], levels[i]
        a, b = at(node[low], (*done, low)), at(node[high], (*done, high))
        if a is None or b is None:
            return None
        return a + (b - a) * log(want / low) / log(high / low)

    return at(node, ())


def ratios(folder: Path, exact: bool) -> Iterator[tuple[str, str, float, float]]:
    """(kind, phase, our time in us, imported over ours) of every record that both have."""
    held = [m for f in FILES for m in measurements.ok(measurements.read(RECORDS / f)[1])]
    for kind, implementation in OURS.items():
        roots = tree_of(kind, points_csv.read(folder / f"{kind}.csv"))
        for m in held:
            plain = m.op.get("dtype") == "bf16" and not m.op.get("bias") and m.op.get("causal", True)
            if (m.op["op"], m.implementation, m.context) != (kind, implementation, "cold") or not plain:
                continue
            where = path_of(kind, {k: v for k, v in m.op.items() if isinstance(v, int)})
            if where is None or where[0] not in roots:
                continue
            same, smooth = where
            found = interpolate(roots[same], smooth, lambda s, kind=kind, same=same: ideal_us(op_at(kind, same, s)))
            if found is None or (exact and not _has(roots[same], smooth)):
                continue
            ours_us = stats.median(m.samples_ns) / 1e3
            phase = {"attention": "decode" if same and same[-1] is True else "prefill"}.get(kind, "")
            yield kind, phase, ours_us, exp(found) * ideal_us(op_at(kind, same, smooth)) / ours_us


def _has(node: Any, smooth: Sequence[int]) -> bool:
    for value in smooth:
        if value not in node:
            return False
        node = node[value]
    return True


def rows_of(found: Sequence[tuple[str, str, float, float]]) -> list[dict[str, Any]]:
    groups: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    for kind, phase, us, ratio in found:
        bin_ = bisect_right(EDGES_US, us) - 1
        groups[kind, phase, bin_].append(ratio)
        groups[kind, phase, -1].append(ratio)
    out = []
    for (kind, phase, bin_), held in sorted(groups.items()):
        span = "all" if bin_ < 0 else f"{EDGES_US[bin_]:g} - {EDGES_US[bin_ + 1]:g} us"
        low, mid, high = (stats.quantile(held, q) for q in (0.1, 0.5, 0.9))
        out.append(
            {"operator": kind, "phase": phase, "ours": span, "points": len(held)}
            | {"p10": round(low, 3), "median": round(mid, 3), "p90": round(high, 3)}
        )
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=Path, default=gpus.IMPORTED / "h200", help="[the bundled ones]")
    parser.add_argument("--exact", action="store_true", help="only shapes that both have")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = rows_of(list(ratios(args.points, args.exact)))
    print(json.dumps(rows, indent=1) if args.json else table(rows, right=("points", "p10", "median", "p90")))


if __name__ == "__main__":
    main()
