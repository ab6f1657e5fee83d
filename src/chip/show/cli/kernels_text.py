"""How `chip kernels` prints what it found: each action has its table, over the rows of its JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from chip.files.measurements import operator
from chip.hardware.roofline import label
from chip.show.cli.text import Column, bandwidth, digits, duration, flops, gib, percent, table, times

Row = Mapping[str, Any]
CATALOG: tuple[Column, ...] = (
    ("name", "name", str), ("language", "language"), ("needs", "needs", str), ("what", "what", str)
)  # fmt: skip
BUILT: tuple[Column, ...] = (
    ("source", "source", str), ("arch", "arch", str),
    ("how", lambda b: "there already" if b["cached"] else "compiled", str), ("library", "library", str),
)  # fmt: skip
CHECKED: tuple[Column, ...] = (
    ("kernel", "kernel", str), ("variant", "variant", str),
    *((status, status, str) for status in ("ok", "failed", "skipped")), ("error / PyTorch's", "ratio", times),
    ("of allowed", "share", percent), ("why skipped", "why"),
)  # fmt: skip
speedup = "{:.3f}x".format
BENCHED: tuple[Column, ...] = (
    ("call", lambda t: _call(t), str), ("by", "measurement.implementation", str),
    ("P50", lambda t: duration(t["p50_s"]) if t["p50_s"] else "failed", str), ("P95", "p95_s", duration),
    ("bandwidth", "bytes_per_s", bandwidth), ("rate", "flops_per_s", flops), ("of copy", "share_of_copy", percent),
    ("speed-up", "speedup_p50", speedup), ("at P95", "speedup_p95", speedup), ("over", "against"),
    ("verdict", "verdict"), ("max error", "max_error", digits(2)), ("J a call", "joules", digits(3)),
)  # fmt: skip
RUNGS: tuple[Column, ...] = (
    ("rung", "rung", str), ("rate", "flops_per_s", flops), ("of cuBLAS", "of_cublas", percent),
    ("its roof", "path", str), ("of roof", "of_roof", percent), ("over the last", "over_last", times),
    ("over the first", "over_first", times),
)  # fmt: skip
TUNED: tuple[Column, ...] = (
    ("kernel", "kernel"), ("call", "call", str), ("config", "config", str),
    ("P50", lambda r: duration(r["p50_s"]) if "p50_s" in r else r["reason"][:60], str),
    ("bandwidth", "bytes_per_s", bandwidth), ("rate", "flops_per_s", flops),
)  # fmt: skip
COUNTERS: tuple[Column, ...] = (
    ("call", "call", str), ("by", "variant", str), ("kernels", lambda r: len(r["kernels"])),
    ("time", "seconds", duration), ("DRAM", "dram_bytes", gib), ("counted", "counted_bytes", gib),
    ("DRAM / counted", "dram_over_counted", "{:.2f}".format), ("L2", "l2_bytes", gib),
    ("DRAM rate", "dram_bytes_per_s", bandwidth), ("rate", "flops_per_s", flops), ("FLOP/B", "intensity", digits(3)),
    ("tensor pipe", "tensor_share", percent),
)  # fmt: skip
catalog, tuned, counters = (partial(table, columns=columns) for columns in (CATALOG, TUNED, COUNTERS))


def sanitized(rows: Sequence[Row]) -> str:
    return table(rows, [(key, key, str) for key in rows[0]] if rows else ())


def built(a: Mapping[str, Any]) -> str:
    return "\n".join([table(a["built"], BUILT), *(f"left out: {stem}, {why}" for stem, why in a["left_out"].items())])


def findings(a: Mapping[str, Any]) -> str:
    """A line for each variant, then whatever failed, with where."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for f in a["findings"]:
        groups.setdefault((f["kernel"], f["variant"]), []).append(f)
    rows = []
    for (kernel, variant), some in groups.items():
        done = [f for f in some if f["status"] == "ok"]
        why = next((f["reason"] for f in some if f["status"] == "skipped"), "") if not done else ""
        rows.append(
            {
                "kernel": kernel,
                "variant": variant,
                **{s: sum(f["status"] == s for f in some) for s in ("ok", "failed", "skipped")},
                "ratio": max((f["error"] / f["native_error"] for f in done if f["native_error"]), default=None),
                "share": max((f["error"] / f["allowed"] for f in done if f["allowed"]), default=None),
                "why": why,
            }
        )
    lines = [f"{a['device']}, seed {a['seed']}", table(rows, CHECKED)]
    for f in a["findings"]:
        if f["status"] == "failed":
            lines += [f"FAILED {f['variant']}: {f['case']}: {f['reason']}", *(f"  {line}" for line in f["picture"])]
    return "\n".join(lines)


def benched(a: Mapping[str, Any]) -> str:
    parts = [table(rows, BENCHED) for rows in a["kernels"].values() if rows]
    for one in a["ladder"]:
        roofs = ", ".join(f"{path} {flops(v)}" for path, v in one["roofs_flops_per_s"].items())
        parts.append(f"{one['call']}; roofs: {roofs}\n" + table(one["rungs"], RUNGS))
    if len(a["ladder"]) > 1:
        parts.append("The first two rungs take up to a second a call: they are timed at the first of these alone.")
    failed = [t for rows in a["kernels"].values() for t in rows if t["measurement"]["status"] == "failed"]
    parts += [f"failed: {_call(t)}, {t['measurement']['implementation']}: {t['measurement']['reason']}" for t in failed]
    return "\n\n".join(parts)


def _call(t: Row) -> str:
    return label(operator(t["measurement"]["op"]))
