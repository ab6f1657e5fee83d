"""How `chip kernels` prints what it found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from chip.cli.text import duration, gib, percent, si, table
from chip.measurements import operator
from chip.roofline import label

if TYPE_CHECKING:
    from chip.kernels.attempt import Finding
    from chip.kernels.bench import TimedKernel


def catalog(rows: Sequence[Mapping[str, Any]]) -> str:
    return table(
        [{k: r[k] for k in ("name", "language", "needs", "what")} for r in rows], keep=("name", "needs", "what")
    )


def built(found: Sequence[Mapping[str, Any]], left_out: Mapping[str, str]) -> str:
    rows = [
        {
            "source": b["source"],
            "arch": b["arch"],
            "how": "there already" if b["cached"] else "compiled",
            "library": b["library"],
        }
        for b in found
    ]
    lines = [table(rows, keep=("source", "arch", "how", "library"))]
    return "\n".join([*lines, *(f"left out: {stem}, {why}" for stem, why in left_out.items())])


def findings(found: Sequence[Finding], device: str, seed: int) -> str:
    """A line for each variant, then whatever failed, with where."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for f in found:
        groups.setdefault((f.kernel, f.variant), []).append(f)
    rows = []
    for (kernel, variant), some in groups.items():
        count = {s: sum(f.status == s for f in some) for s in ("ok", "failed", "skipped")}
        ratios = [f.error / f.native_error for f in some if f.status == "ok" and f.native_error]
        shares = [f.error / f.allowed for f in some if f.status == "ok" and f.allowed]
        rows.append(
            {
                "kernel": kernel,
                "variant": variant,
                **count,
                "error / PyTorch's": f"{max(ratios):.2f}" if ratios else "-",
                "of allowed": percent(max(shares)) if shares else "-",
                "why skipped": next((f.reason for f in some if f.status == "skipped"), "") if not count["ok"] else "",
            }
        )
    if not any(row["why skipped"] for row in rows):
        rows = [{k: v for k, v in row.items() if k != "why skipped"} for row in rows]
    right = ("ok", "failed", "skipped", "error / PyTorch's", "of allowed")
    lines = [f"{device}, seed {seed}", table(rows, right, keep=("kernel", "variant", *right))]
    for f in found:
        if f.status == "failed":
            lines += [f"FAILED {f.variant}: {f.case}: {f.reason}", *(f"  {line}" for line in f.picture)]
    return "\n".join(lines)


def benched(found: Mapping[str, Sequence[TimedKernel]], ladder: Sequence[Mapping[str, Any]]) -> str:
    parts = [table([_row(t) for t in rows], RIGHT, keep=KEEP) for rows in found.values() if rows]
    parts += [climbed(one) for one in ladder]
    if len(ladder) > 1:
        parts.append("The first two rungs take up to a second a call: they are timed at the first of these alone.")
    failed = [t for rows in found.values() for t in rows if t.measurement.status == "failed"]
    parts += [f"failed: {_call(t)}, {t.measurement.implementation}: {t.measurement.reason}" for t in failed]
    return "\n\n".join(parts)


RIGHT = ("P50", "P95", "bandwidth", "rate", "of copy", "speed-up", "at P95", "max error", "J a call")
KEEP = ("call", "by", "P50")


def _call(t: TimedKernel) -> str:
    return label(operator(t.measurement.op))


def _row(t: TimedKernel) -> dict[str, Any]:
    return {
        "call": _call(t),
        "by": t.measurement.implementation,
        "P50": duration(t.p50_s) if t.p50_s else "failed",
        "P95": duration(t.p95_s) if t.p95_s else "",
        "bandwidth": si(t.bytes_per_s, "B/s") if t.bytes_per_s else "",
        "rate": si(t.flops_per_s, "FLOP/s") if t.flops_per_s else "",
        "of copy": percent(t.share_of_copy) if t.share_of_copy else "",
        "speed-up": f"{t.speedup_p50:.3f}x" if t.speedup_p50 else "",
        "at P95": f"{t.speedup_p95:.3f}x" if t.speedup_p95 else "",
        "over": t.against,
        "verdict": t.verdict,
        "max error": f"{t.max_error:.2g}" if t.max_error is not None else "",
        "J a call": f"{t.joules:.3g}" if t.joules else "",
    }


def climbed(one: Mapping[str, Any]) -> str:
    def share(value: float | None) -> str:
        return percent(value) if value is not None else "-"

    def times(value: float | None) -> str:
        return f"{value:.2f}x" if value is not None else "-"

    rows = [
        {
            "rung": r["rung"],
            "rate": si(r["flops_per_s"], "FLOP/s"),
            "of cuBLAS": share(r["of_cublas"]),
            "its roof": r["path"],
            "of roof": share(r["of_roof"]),
            "over the last": times(r["over_last"]),
            "over the first": times(r["over_first"]),
        }
        for r in one["rungs"]
    ]
    roofs = ", ".join(f"{path} {si(v, 'FLOP/s')}" for path, v in one["roofs_flops_per_s"].items())
    right = ("rate", "of cuBLAS", "of roof", "over the last", "over the first")
    return f"{one['call']}; roofs: {roofs}\n" + table(rows, right, keep=tuple(rows[0]) if rows else ())


def tuned(found: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        {
            "kernel": r["kernel"],
            "call": r["call"],
            "config": r["config"],
            "P50": duration(r["p50_s"]) if "p50_s" in r else r["reason"][:60],
            "bandwidth": si(r["bytes_per_s"], "B/s") if "p50_s" in r else "",
            "rate": si(r["flops_per_s"], "FLOP/s") if "p50_s" in r else "",
        }
        for r in found
    ]
    return table(rows, ("P50", "bandwidth", "rate"), keep=("call", "config", "P50"))


def counters(found: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        {
            "call": r["call"],
            "by": r["variant"],
            "kernels": len(r["kernels"]),
            "time": duration(r["seconds"]),
            "DRAM": gib(r["dram_bytes"]),
            "counted": gib(r["counted_bytes"]),
            "DRAM / counted": f"{r['dram_over_counted']:.2f}",
            "L2": gib(r["l2_bytes"]),
            "DRAM rate": si(r["dram_bytes_per_s"], "B/s"),
            "rate": si(r["flops_per_s"], "FLOP/s"),
            "FLOP/B": f"{r['intensity']:.3g}",
            "tensor pipe": percent(r["tensor_share"]),
        }
        for r in found
    ]
    return table(rows, tuple(rows[0])[2:] if rows else (), keep=("call", "by", "time"))


def sanitized(found: Sequence[Mapping[str, Any]]) -> str:
    return table([dict(r) for r in found], ("errors",), keep=("variant", "tool", "errors"))
