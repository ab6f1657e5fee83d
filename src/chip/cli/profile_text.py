"""What `chip profile` shows: one operator in full, a table of many, the hotspots of a model, or all of it as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chip import advice, measurements, stats
from chip.cli.text import duration, percent, si, table
from chip.measurements import operator
from chip.roofline import RooflinePoint, Roofs, label, place
from chip.types import ChipError, Measurement, Program

SCHEMA = "chip.profile/1"
ORDER = ("cold", "hot", "graph", "host", "layer")
Group = dict[str, Measurement]


def groups(found: Sequence[Measurement]) -> list[Group]:
    """Measurements of one operator and implementation together, by context."""
    out: dict[tuple[str, str], Group] = {}
    for m in found:
        op, implementation, _ = measurements.key_of(m)
        out.setdefault((op, implementation), {})[m.context] = m
    return list(out.values())


def point(group: Group, roofs: Roofs | None) -> RooflinePoint | None:
    """The operator under its roof, cold where that was measured."""
    m = next((group[c] for c in ORDER if c in group and group[c].status == "ok"), None)
    if m is None or roofs is None:
        return None
    try:
        return place(m, roofs)
    except ChipError:  # no ceiling for this dtype: times are shown, shares are not
        return None


def rate(p: RooflinePoint) -> str:
    return si(p.flops_per_s, "FLOP/s") if p.bound == "compute" else si(p.bytes_per_s, "B/s")


def _p50(group: Group, context: str) -> str:
    m = group.get(context)
    if m is None or m.status != "ok":
        return "-"
    return duration(stats.median(m.samples_ns) * 1e-9)


def render_table(found: Sequence[Measurement], roofs: Roofs | None) -> str:
    rows = []
    for group in groups(found):
        first = next(iter(group.values()))
        op = operator(first.op)
        cost, p, m = op.cost(), point(group, roofs), group.get("cold", first)
        good = m.samples_ns
        rows.append(
            {
                "op": label(op),
                "impl": first.implementation,
                "cold P50": _p50(group, "cold"),
                "mean": duration(sum(good) / len(good) * 1e-9) if good else "-",
                "P95": duration(stats.quantile(good, 0.95) * 1e-9) if good else "-",
                "hot": _p50(group, "hot"),
                "graph": _p50(group, "graph"),
                "host": _p50(group, "host"),
                "FLOP": si(cost.flops, ""),
                "bytes": si(cost.bytes, "B"),
                "FLOP/B": f"{cost.intensity:.3g}",
                "rate": rate(p) if p else "-",
                "of roof": percent(p.share) if p else "-",
                "bound": p.bound if p else "-",
            }
        )
    right = [c for c in rows[0] if c not in ("op", "impl", "bound")]
    parts = [table(rows, right, keep=("op", "cold P50")), *_failures(found), *_disturbed(found), *_basis(roofs)]
    return "\n".join(parts)


def _failures(found: Sequence[Measurement]) -> list[str]:
    seen: dict[tuple[str, str, str], list[str]] = {}
    for m in found:
        if m.status != "ok":
            seen.setdefault((label(operator(m.op)), m.status, m.reason), []).append(m.context)
    return [f"{status}: {name} ({', '.join(c)}): {reason}" for (name, status, reason), c in seen.items()]


def _disturbed(found: Sequence[Measurement]) -> list[str]:
    """A line where the scheduler, not the operator, set some of the times: they look steady and are wrong."""
    hit = [m for m in found if any(f.startswith("CPU shared") for f in m.flags)]
    if not hit:
        return []
    names = ", ".join(dict.fromkeys(f"{label(operator(m.op))} {m.context}" for m in hit[:4]))
    more = f" and {len(hit) - 4} more" if len(hit) > 4 else ""
    return [
        f"not to be trusted, the CPU was shared: {len(hit)} of {len(found)} times ({names}{more}); measure again alone"
    ]


def _basis(roofs: Roofs | None) -> list[str]:
    if roofs is None:
        return ["shares of a roof need one: --profile FILE from `chip calibrate`"]
    note = "" if roofs.source == "measured" else " (a promise, not measured: `chip calibrate` gives the real ones)"
    return [f"roofs: {roofs.title}{note}"]


def render_one(found: Sequence[Measurement], roofs: Roofs | None) -> str:
    group = groups(found)[0]
    op = operator(found[0].op)
    rows = []
    for context in (c for c in ORDER if c in group and group[c].status == "ok"):
        ns = group[context].samples_ns
        rows.append(
            {
                "context": context,
                "mean": duration(sum(ns) / len(ns) * 1e-9),
                "P50": duration(stats.median(ns) * 1e-9),
                "P95": duration(stats.quantile(ns, 0.95) * 1e-9),
                "runs": len(ns),
                "clock": f"{clock / 1e6:.0f} MHz" if (clock := group[context].clock_hz) else "-",
                "flags": ", ".join(group[context].flags) or "-",
            }
        )
    cost, p = op.cost(), point(group, roofs)
    keep = ("context", "mean", "P50", "P95", "runs")
    out = [f"{label(op)}, {found[0].implementation}, on {found[0].device}", ""]
    out += [table(rows, ("mean", "P50", "P95", "runs"), keep), ""] if rows else []
    out.append(f"work       {si(cost.flops, 'FLOP')}, {si(cost.bytes, 'B')}, {cost.intensity:.4g} FLOP/B")
    if p and roofs:
        ridge = p.compute.value / roofs.memory[p.level].value
        out.append(f"achieves   {si(p.flops_per_s, 'FLOP/s')}, {si(p.bytes_per_s, 'B/s')} ({p.context})")
        out.append(f"roof       {_roof(p)}; ridge point {ridge:.3g} FLOP/B")
        out.append(f"verdict    {advice.verdict(p)}")
        out.append(f"would help {advice.help_for(p, roofs)}")
    return "\n".join([*out, *_failures(found), *_disturbed(found), *_basis(roofs)])


def _roof(p: RooflinePoint) -> str:
    unit = "FLOP/s" if p.bound == "compute" else "B/s"
    return f"{p.roof.name} {si(p.roof.value, unit)}, {percent(p.share)} of it"


def hotspots(found: Sequence[Measurement], program: Program) -> list[dict[str, Any]]:
    """Operators of a step by what they cost in all, the largest first: calls x P50, cold."""
    times = {measurements.key_of(m)[0]: group for group in groups(found) for m in group.values()}
    spots: dict[str, dict[str, Any]] = {}
    for block in program.blocks:
        for call in block.calls:
            key = measurements.key(measurements.record(call.op), "", "")[0]
            spot = spots.setdefault(key, {"op": call.op, "roles": [], "count": 0, "group": times.get(key, {})})
            spot["count"] += block.repeat
            if call.role not in spot["roles"]:
                spot["roles"].append(call.role)
    for spot in spots.values():
        m = spot["group"].get("cold")
        spot["p50_s"] = stats.median(m.samples_ns) * 1e-9 if m and m.status == "ok" else None
        spot["total_s"] = spot["count"] * spot["p50_s"] if spot["p50_s"] is not None else None
    return sorted(spots.values(), key=lambda s: -(s["total_s"] or 0.0))


def render_hotspots(found: Sequence[Measurement], roofs: Roofs | None, program: Program) -> str:
    spots = hotspots(found, program)
    whole = sum(s["total_s"] or 0.0 for s in spots)
    rows = []
    for s in spots:
        p = point(s["group"], roofs)
        rows.append(
            {
                "role": ", ".join(s["roles"]),
                "op": label(s["op"]),
                "calls": s["count"],
                "cold P50": duration(s["p50_s"]) if s["p50_s"] else "-",
                "total": duration(s["total_s"]) if s["total_s"] else "-",
                "share": percent(s["total_s"] / whole) if s["total_s"] else "-",
                "of roof": percent(p.share) if p else "-",
                "bound": p.bound if p else "-",
                "would help": advice.help_for(p, roofs) if p and roofs else "-",
            }
        )
    right = ("calls", "cold P50", "total", "share", "of roof")
    total = f"kernels of one step: {duration(whole)}, one after another, cold, no gaps between them"
    return "\n".join(
        [table(rows, right, keep=("op", "total")), total, *_failures(found), *_disturbed(found), *_basis(roofs)]
    )


def document(found: Sequence[Measurement], device: str, roofs: Roofs | None, program: Program | None) -> dict[str, Any]:
    out: dict[str, Any] = {
        "schema": SCHEMA,
        "device": device,
        "roofs": {"title": roofs.title, "source": roofs.source} if roofs else None,
        "operators": [_entry(group, roofs) for group in groups(found)],
    }
    if program:
        out["hotspots"] = [
            {
                "op": measurements.record(s["op"]),
                "roles": s["roles"],
                "calls": s["count"],
                "p50_us": s["p50_s"] and s["p50_s"] * 1e6,
                "total_us": s["total_s"] and s["total_s"] * 1e6,
            }
            for s in hotspots(found, program)
        ]
    return out


def _entry(group: Group, roofs: Roofs | None) -> dict[str, Any]:
    first = next(iter(group.values()))
    cost, p = operator(first.op).cost(), point(group, roofs)
    return {
        "op": first.op,
        "implementation": first.implementation,
        "contexts": {c: _context(m) for c, m in group.items()},
        "flops": cost.flops,
        "bytes": cost.bytes,
        "intensity": cost.intensity,
        "roofline": point_json(p, roofs) if p and roofs else None,
    }


def _context(m: Measurement) -> dict[str, Any]:
    if m.status != "ok":
        return {"status": m.status, "reason": m.reason}
    ns = m.samples_ns
    return {
        "status": "ok",
        "mean_us": sum(ns) / len(ns) / 1e3,
        "p50_us": stats.median(ns) / 1e3,
        "p95_us": stats.quantile(ns, 0.95) / 1e3,
        "runs": len(ns),
        "clock_hz": m.clock_hz,
        "flags": list(m.flags),
        "method": m.method,
    }


def point_json(p: RooflinePoint, roofs: Roofs) -> dict[str, Any]:
    return {
        "context": p.context,
        "flops_per_s": p.flops_per_s,
        "bytes_per_s": p.bytes_per_s,
        "share_of_roof": p.share,
        "bound": p.bound,
        "level": p.level,
        "roof": p.roof.name,
        "roof_value": p.roof.value,
        "from_cache": p.cached,
        "verdict": advice.verdict(p),
        "would_help": advice.help_for(p, roofs),
    }
