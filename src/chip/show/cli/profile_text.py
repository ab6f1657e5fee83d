"""What `chip profile` shows: one operator in full, a table of many, the hotspots of a model, or all of it as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chip import stats
from chip.explain import advice
from chip.files import measurements
from chip.files.measurements import operator
from chip.hardware.roofline import RooflinePoint, Roofs, label, place
from chip.show.cli.text import Column, bandwidth, digits, duration, flops, moved, percent, table, us, work
from chip.types import ChipError, Measurement, Program

SCHEMA = "chip.profile/1"
ORDER = ("cold", "hot", "graph", "host", "layer")
Group = dict[str, Measurement]


def groups(measured: Sequence[Measurement]) -> list[Group]:
    """Measurements of one operator and implementation together, by context."""
    out: dict[tuple[str, str], Group] = {}
    for m in measured:
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
    return flops(p.flops_per_s) if p.bound == "compute" else bandwidth(p.bytes_per_s)


PLACED: tuple[Column, ...] = (
    ("rate", lambda row: row["point"] and rate(row["point"]), str), ("of roof", "roofline.share_of_roof", percent),
    ("bound", "roofline.bound", str),
)  # fmt: skip
OPERATORS: tuple[Column, ...] = (
    ("op", "label", str), ("impl", "implementation"), ("cold P50", "contexts.cold.p50_us", us),
    ("mean", "first.mean_us", us), ("P95", "first.p95_us", us),
    *((context, f"contexts.{context}.p50_us", us) for context in ("hot", "graph", "host")), ("FLOP", "flops", work),
    ("bytes", "bytes", moved), ("FLOP/B", "intensity", digits(3)), *PLACED,
)  # fmt: skip
CONTEXTS: tuple[Column, ...] = (
    ("context", "context", str), ("mean", "mean_us", us), ("P50", "p50_us", us), ("P95", "p95_us", us),
    ("runs", "runs", str), ("clock", "clock_hz", lambda hz: f"{hz / 1e6:.0f} MHz"),
    ("flags", lambda row: ", ".join(row["flags"])),
)  # fmt: skip
HOTSPOTS: tuple[Column, ...] = (
    ("role", lambda row: ", ".join(row["roles"])), ("op", lambda row: label(row["op"]), str), ("calls", "count"),
    ("cold P50", "p50_s", duration), ("total", "total_s", duration), ("share", "share", percent), *PLACED[1:],
    ("would help", "roofline.would_help"),
)  # fmt: skip


def render_table(measured: Sequence[Measurement], roofs: Roofs | None) -> str:
    rows = []
    for group in groups(measured):
        row = _entry(group, roofs)
        first = row["contexts"].get("cold", next(iter(row["contexts"].values())))
        rows.append({**row, "label": label(operator(row["op"])), "first": first, "point": point(group, roofs)})
    return "\n".join([table(rows, OPERATORS), *_remarks(measured, roofs)])


def render_one(measured: Sequence[Measurement], roofs: Roofs | None) -> str:
    group = groups(measured)[0]
    op, row, p = operator(measured[0].op), _entry(group, roofs), point(group, roofs)
    done = [{"context": c, **row["contexts"][c]} for c in ORDER if c in group and group[c].status == "ok"]
    out = [f"{label(op)}, {measured[0].implementation}, on {measured[0].device}", ""]
    out += [table(done, CONTEXTS), ""] if done else []
    out.append(f"work       {work(row['flops'])}, {moved(row['bytes'])}, {row['intensity']:.4g} FLOP/B")
    if p and roofs:
        ridge = p.compute.value / roofs.memory[p.level].value
        form = flops if p.bound == "compute" else bandwidth
        out.append(f"achieves   {flops(p.flops_per_s)}, {bandwidth(p.bytes_per_s)} ({p.context})")
        out.append(
            f"roof       {p.roof.name} {form(p.roof.value)}, {percent(p.share)} of it; ridge point {ridge:.3g} FLOP/B"
        )
        out.append(f"verdict    {advice.verdict(p)}")
        out.append(f"would help {advice.help_for(p, roofs)}")
    return "\n".join([*out, *_remarks(measured, roofs)])


def render_hotspots(measured: Sequence[Measurement], roofs: Roofs | None, program: Program) -> str:
    spots = hotspots(measured, program)
    whole = sum(s["total_s"] or 0.0 for s in spots)
    for s in spots:
        p = point(s["group"], roofs)
        s["share"] = s["total_s"] / whole if s["total_s"] else None
        s["roofline"] = point_json(p, roofs) if p and roofs else None
    total = f"kernels of one step: {duration(whole)}, one after another, cold, no gaps between them"
    return "\n".join([table(spots, HOTSPOTS), total, *_remarks(measured, roofs)])


def _remarks(measured: Sequence[Measurement], roofs: Roofs | None) -> list[str]:
    """What failed; times that look steady and are wrong, since the scheduler set them; what the roofs are."""
    failed: dict[tuple[str, str, str], list[str]] = {}
    for m in measured:
        if m.status != "ok":
            failed.setdefault((m.status, label(operator(m.op)), m.reason), []).append(m.context)
    lines = [f"{status}: {name} ({', '.join(c)}): {reason}" for (status, name, reason), c in failed.items()]
    hit = [f"{label(operator(m.op))} {m.context}" for m in measured if any(f.startswith("CPU shared") for f in m.flags)]
    if hit:
        more = f" and {len(hit) - 4} more" if len(hit) > 4 else ""
        which = f"{len(hit)} of {len(measured)} times ({', '.join(dict.fromkeys(hit[:4]))}{more})"
        lines.append(f"not to be trusted, the CPU was shared: {which}; measure again alone")
    if roofs is None:
        return [*lines, "shares of a roof need one: --profile FILE from `chip calibrate`"]
    note = "" if roofs.source == "measured" else " (a promise, not measured: `chip calibrate` gives the real ones)"
    return [*lines, f"roofs: {roofs.title}{note}"]


def hotspots(measured: Sequence[Measurement], program: Program) -> list[dict[str, Any]]:
    """Operators of a step by what they cost in all, the largest first: calls x P50, cold."""
    times = {measurements.key_of(m)[0]: group for group in groups(measured) for m in group.values()}
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


def document(
    measured: Sequence[Measurement], device: str, roofs: Roofs | None, program: Program | None
) -> dict[str, Any]:
    out: dict[str, Any] = {
        "schema": SCHEMA,
        "device": device,
        "roofs": {"title": roofs.title, "source": roofs.source} if roofs else None,
        "operators": [_entry(group, roofs) for group in groups(measured)],
    }
    if program:
        out["hotspots"] = [
            {"op": measurements.record(s["op"]), "roles": s["roles"], "calls": s["count"]}
            | {f"{name}_us": s[f"{name}_s"] and s[f"{name}_s"] * 1e6 for name in ("p50", "total")}
            for s in hotspots(measured, program)
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
    times = {"mean_us": sum(ns) / len(ns) / 1e3, "p50_us": stats.median(ns) / 1e3}
    times |= {"p95_us": stats.quantile(ns, 0.95) / 1e3, "runs": len(ns)}
    return {"status": "ok", **times, "clock_hz": m.clock_hz, "flags": list(m.flags), "method": m.method}


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
