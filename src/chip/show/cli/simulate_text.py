"""How the answer of `chip simulate` looks to people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chip.show.cli.text import Column, amount, digits, duration, ms, number, percent, span, table

METRICS = (
    ("TTFT", "ttft_ms"), ("TPOT", "tpot_ms"), ("ITL", "itl_ms"), ("end to end", "e2e_ms"), ("queue", "queue_ms"),
)  # fmt: skip
PARTS: tuple[Column, ...] = (
    ("", "title"), *((part, part, ms) for part in ("mean", "p50", "p90", "p95", "p99")),
    ("mean, 90 % interval", "interval", span(ms)),
)  # fmt: skip
RATES: tuple[Column, ...] = (
    ("rate/s", "rate_per_s", digits(4)), ("TTFT p50", "ttft_ms.p50", ms), ("TTFT p99", "ttft_ms.p99", ms),
    ("TPOT p50", "tpot_ms.p50", ms), ("TPOT p99", "tpot_ms.p99", ms), ("tok/s", "output_tokens_per_s", amount),
    ("GPU busy", "gpu_busy", percent), ("goodput", "goodput.share", percent),
)  # fmt: skip


def render(a: Mapping[str, Any]) -> str:
    gpus = on(a) if a["gpus"] > a["replicas"] else a["gpu"]
    fleet = f", {a['replicas']} replicas ({a['router']})" if a["replicas"] > 1 else ""
    rate = f"{a['rate_per_s']:.4g} requests/s" if a["rate_per_s"] else "all at once"
    rate = f"{a['users']} users" if a["users"] else rate
    traffic = f"{a['workload']}, {a['requests']} requests, {rate}"
    parts = [
        f"{a['model']} on {gpus}, {a['engine']}, {a['dtype']}{fleet}: {traffic}",
        "",
        table([{"title": title, **(a[key] or {}), "interval": _mean(a, key)} for title, key in METRICS], PARTS),
        "",
        _throughput(a),
        _memory(a),
    ]
    if a["goodput"]:
        promised = ", ".join(f"{k} {v:g} ms" for k, v in a["goodput"]["slo"].items())
        g = a["goodput"]
        parts.append(f"goodput: {percent(g['share'])} of requests, {g['requests_per_s']:.4g}/s, within {promised}")
    return "\n".join(parts)


def on(a: Mapping[str, Any]) -> str:
    """The GPUs of a replica, and how it lies on them where not by tensor parallelism alone."""
    kinds = ", ".join(f"{name} {a[name]}" for name in ("tp", "pp", "ep") if a[name] > 1)
    split = f" ({kinds})" if a["pp"] > 1 or a["ep"] > 1 else ""
    return f"{a['gpus'] // a['replicas']} x {a['gpu']}{split}"


def _mean(a: Mapping[str, Any], key: str) -> Any:
    return a["interval"][key]["mean"] if a[key] and a["interval"] else None


def _throughput(a: Mapping[str, Any]) -> str:
    span = ""
    if a["interval"]:
        low, high = a["interval"]["output_tokens_per_s"]
        span = f" ({number(low, 4)} - {number(high, 4)})"
    energy = f"; {a['energy']['joules_per_output_token']:.3g} J/token" if a["energy"] else ""
    lost = f", {a['rejected']} rejected" if a["rejected"] else ""
    return (
        f"output: {number(a['output_tokens_per_s'], 4)} tok/s{span}, {a['completed']} answered{lost} in "
        f"{duration(a['duration_s'])}; GPU busy {percent(a['gpu_busy'])}{energy}"
    )


def _memory(a: Mapping[str, Any]) -> str:
    kv = a["kv"]
    hits = f"; prefix cache gave {percent(a['cache_hit_rate'])} of prompt tokens" if a["cache_hit_rate"] else ""
    return (
        f"KV cache: {kv['blocks']} blocks, {percent(kv['mean_share'])} used on average, {percent(kv['peak_share'])} at "
        f"most; {a['preemptions']} preemptions in {a['steps']} steps{hits}"
    )


def render_sweep(answers: Sequence[Mapping[str, Any]]) -> str:
    first = answers[0]
    head = f"{first['model']} on {on(first)}, {first['engine']}, {first['dtype']}: {first['workload']}"
    return f"{head}\n\n{table(answers, RATES)}"
