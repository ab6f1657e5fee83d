"""Pictures of traffic as SVG text: queue, batch and KV use over time; latency against rate; plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, floor, log10
from typing import Any

from chip.show.report.figure_file import SIGNATURE

WIDTH, PANEL, LEFT, RIGHT, TOP, GAP = 860, 150, 84, 24, 58, 46
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#8C6D00", "#56B4E9")
INK, FAINT, GRID, PROMISE = "#1f2937", "#6b7280", "#e5e7eb", "#b91c1c"
Series = tuple[str, str, Sequence[tuple[float, float]]]  # name, colour, points


def svg(simulations: Sequence[Mapping[str, Any]], timelines: Mapping[str, Any]) -> str:
    """One simulation over time, or several rates against each other."""
    return _over_rates(simulations) if len(simulations) > 1 else _over_time(simulations[0], timelines)


def _over_time(a: Mapping[str, Any], timelines: Mapping[str, Any]) -> str:
    panels: list[str] = []
    names = (("waiting", "requests waiting"), ("running", "requests running"), ("kv_share", "KV cache used"))
    for key, title in names:
        lines: list[Series] = []
        for i, one in enumerate(timelines["replicas"]):
            name = f"replica {i}" if len(timelines["replicas"]) > 1 else ""
            lines.append((name, COLOURS[i % len(COLOURS)], list(zip(one["t_s"], one[key]))))
        panels.append(_panel(len(panels), title, lines, log=False, least_top=1.0))
    rate = f"{a['rate_per_s']:.4g} requests/s" if a["rate_per_s"] else "all at once"
    rate = f"{a['users']} users" if a["users"] else rate
    title = f"{a['model']} on {a['gpus'] // a['replicas']} x {a['gpu']}, {a['engine']}: {a['workload']}, {rate}"
    return _page(title, panels, "seconds")


def _over_rates(found: Sequence[Mapping[str, Any]]) -> str:
    panels: list[str] = []
    slo = (found[0]["goodput"] or {}).get("slo", {})
    for metric, title in (("ttft", "TTFT, ms"), ("tpot", "TPOT, ms")):
        lines: list[Series] = []
        for i, part in enumerate(("p50", "p90", "p99")):
            points = [(a["rate_per_s"], a[f"{metric}_ms"][part]) for a in found if a[f"{metric}_ms"]]
            lines.append((part, COLOURS[i], sorted(points)))
        panels.append(_panel(len(panels), title, lines, log=True, line=slo.get(metric)))
    rates = [(a["rate_per_s"], a["output_tokens_per_s"]) for a in found]
    panels.append(_panel(2, "output tokens/s", [("", COLOURS[0], sorted(rates))], log=False))
    first = found[0]
    gpus = first["gpus"] // first["replicas"]
    title = f"{first['model']} on {gpus} x {first['gpu']}, {first['engine']}: {first['workload']}"
    return _page(title, panels, "requests/s")


def pareto(plan: Mapping[str, Any]) -> str:
    """Each choice: what a fleet for the asked rate costs (or its GPUs) against what one replica can serve."""
    ok = [c for c in plan["choices"] if c["status"] == "ok"]
    priced = bool(ok) and all(c["cost_per_hour"] is not None for c in ok)
    points = [(c["max_rate_per_s"], c["cost_per_hour"] if priced else c["gpus"]) for c in ok]
    gpus = list(dict.fromkeys(c["gpu"] for c in ok))
    best, front = float("inf"), []
    for x, y in sorted(points, reverse=True):
        if y < best:
            best = y
            front.append((x, y))
    top = _nice(max((y for _, y in points), default=1.0))
    right = _nice(max((x for x, _ in points), default=1.0))
    body = _axes(0, "cost an hour" if priced else "GPUs of the fleet", right, 0.0, top, False, 3)
    scale = _Scale(0, right, 0.0, top, False, 3)
    path = " ".join(f"{scale.x(x):.1f},{scale.y(y):.1f}" for x, y in front)
    body += f'<polyline points="{path}" fill="none" stroke="{FAINT}" stroke-dasharray="4 3"/>'
    for c, (x, y) in zip(ok, points):
        colour = COLOURS[gpus.index(c["gpu"]) % len(COLOURS)]
        px, py = scale.x(x), scale.y(y)
        body += f'<circle cx="{px:.1f}" cy="{py:.1f}" r="4.5" fill="{colour}"/>'
        label = escape(c["title"])
        body += f'<text x="{px + 7:.1f}" y="{py - 5:.1f}" font-size="11" fill="{INK}">{label}</text>'
    promised = ", ".join(f"{k} {v:g} ms" for k, v in plan["slo"].items())
    title = f"{plan['model']}: {plan['rate_per_s']:g} requests/s of {plan['workload']} within {promised}"
    return _page(title, [body], "requests/s that one replica serves", rows=3)


class _Scale:
    def __init__(self, row: int, right: float, bottom: float, top: float, log: bool, rows: int = 1) -> None:
        self.base = TOP + row * (PANEL + GAP) + PANEL * rows + GAP * (rows - 1)
        self.height = PANEL * rows + GAP * (rows - 1)
        self.right, self.bottom, self.top, self.log = right or 1.0, bottom, top, log

    def x(self, value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * value / self.right

    def y(self, value: float) -> float:
        low, high = self.bottom, self.top
        if self.log:
            value, low, high = log10(max(value, low)), log10(low), log10(high)
        return self.base - self.height * (value - low) / ((high - low) or 1.0)


def _panel(
    row: int, title: str, lines: Sequence[Series], log: bool, line: float | None = None, least_top: float = 0.0
) -> str:
    xs = [x for _, _, points in lines for x, _ in points]
    ys = [y for _, _, points in lines for _, y in points] + ([line] if line else [])
    right = max(xs, default=1.0)
    if log:
        ys = [y for y in ys if y > 0] or [1.0]
        bottom, top = 10.0 ** floor(log10(min(ys))), 10.0 ** ceil(log10(max(ys)))
        top = top if top > bottom else 10 * bottom
    else:
        bottom, top = 0.0, max(_nice(max(ys, default=1.0)), 0.0) or least_top
    scale = _Scale(row, right, bottom, top, log)
    out = _axes(row, title, right, bottom, top, log)
    for i, (name, colour, points) in enumerate(lines):
        path = " ".join(f"{scale.x(x):.1f},{scale.y(y):.1f}" for x, y in points)
        out += f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>'
        if name:
            at = WIDTH - RIGHT - 90 * (len(lines) - i)
            above = scale.base - scale.height - 7
            out += f'<text x="{at}" y="{above:.1f}" font-size="12" fill="{colour}">{escape(name)}</text>'
    if line:
        y = scale.y(line)
        across = f'x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"'
        out += f'<line {across} stroke="{PROMISE}" stroke-dasharray="6 4"/>'
        out += f'<text x="{LEFT + 6}" y="{y - 4:.1f}" font-size="11" fill="{PROMISE}">SLO {line:g} ms</text>'
    return out


def _axes(row: int, title: str, right: float, bottom: float, top: float, log: bool, rows: int = 1) -> str:
    scale = _Scale(row, right, bottom, top, log, rows)
    high = scale.base - scale.height
    out = f'<text x="{LEFT}" y="{high - 7:.1f}" font-size="12" fill="{INK}" font-weight="bold">{escape(title)}</text>'
    ticks = (
        [10.0**k for k in range(round(log10(bottom)), round(log10(top)) + 1)]
        if log
        else [bottom + (top - bottom) * i / 4 for i in range(5)]
    )
    for tick in ticks:
        y = scale.y(tick)
        out += f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{GRID}"/>'
        out += f'<text x="{LEFT - 8}" y="{y + 4:.1f}" font-size="11" fill="{FAINT}" text-anchor="end">{tick:.4g}</text>'
    for value in _ticks(right):
        x = scale.x(value)
        out += (
            f'<text x="{x:.1f}" y="{scale.base + 16:.1f}" font-size="11" fill="{FAINT}" text-anchor="middle">'
            f"{value:.4g}</text>"
        )
    return out


def _page(title: str, panels: Sequence[str], x_title: str, rows: int = 0) -> str:
    height = TOP + (rows or len(panels)) * (PANEL + GAP) + 16
    return (
        f"<!-- {SIGNATURE} -->\n"
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'font-family="system-ui, sans-serif"><rect width="100%" height="100%" fill="white"/>'
        f'<text x="{LEFT}" y="20" font-size="14" font-weight="bold" fill="{INK}">{escape(title)}</text>'
        + "".join(panels)
        + f'<text x="{WIDTH - RIGHT}" y="{height - 8}" font-size="12" fill="{FAINT}" text-anchor="end">'
        f"{escape(x_title)}</text></svg>\n"
    )


def _ticks(right: float) -> list[float]:
    """Round numbers from 0 up to the right end, six at most beside 0."""
    if right <= 0:
        return [0.0]
    scale = 10.0 ** floor(log10(right / 6))
    each = next(m * scale for m in (1, 2, 2.5, 5, 10, 20) if m * scale * 6 >= right)
    return [each * i for i in range(floor(right / each * (1 + 1e-9)) + 1)]


def _nice(value: float) -> float:
    """The next round number."""
    if value <= 0:
        return 0.0
    scale = 10.0 ** floor(log10(value))
    return next(m * scale for m in (1, 1.5, 2, 3, 4, 5, 6, 8, 10, 15) if m * scale >= value)
