"""How the answer of `chip simulate` looks to people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chip.cli.text import duration, number, percent, table

METRICS = (("TTFT", "ttft_ms"), ("TPOT", "tpot_ms"), ("end to end", "e2e_ms"), ("queue", "queue_ms"))


def render(a: Mapping[str, Any]) -> str:
    gpus = on(a) if a["gpus"] > a["replicas"] else a["gpu"]
    fleet = f", {a['replicas']} replicas ({a['router']})" if a["replicas"] > 1 else ""
    rate = f"{a['rate_per_s']:.4g} requests/s" if a["rate_per_s"] else "all at once"
    rate = f"{a['users']} users" if a["users"] else rate
    traffic = f"{a['workload']}, {a['requests']} requests, {rate}"
    parts = [
        f"{a['model']} on {gpus}, {a['engine']}, {a['dtype']}{fleet}: {traffic}",
        "",
        table([_row(a, title, key) for title, key in METRICS], right=("mean", "p50", "p90", "p95", "p99"), keep=("",)),
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


def _row(a: Mapping[str, Any], title: str, key: str) -> dict[str, str]:
    found = a[key]
    if not found:
        return dict.fromkeys(("", "mean", "p50", "p90", "p95", "p99", "mean, 90 % interval"), "-") | {"": title}
    row = {"": title, **{k: duration(max(0.0, v) / 1e3) for k, v in found.items()}}
    if a["interval"]:
        low, high = a["interval"][key]["mean"]
        row["mean, 90 % interval"] = f"{duration(max(0.0, low) / 1e3)} - {duration(max(0.0, high) / 1e3)}"
    return row


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


def render_sweep(found: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for a in found:
        row = {"rate/s": f"{a['rate_per_s']:.4g}"}
        for title, key, part in (
            ("TTFT p50", "ttft_ms", "p50"), ("TTFT p99", "ttft_ms", "p99"), ("TPOT p50", "tpot_ms", "p50"),
            ("TPOT p99", "tpot_ms", "p99"),
        ):  # fmt: skip
            row[title] = duration(max(0.0, a[key][part]) / 1e3) if a[key] else "-"
        row["tok/s"] = number(a["output_tokens_per_s"], 4)
        row["GPU busy"] = percent(a["gpu_busy"])
        if a["goodput"]:
            row["goodput"] = percent(a["goodput"]["share"])
        rows.append(row)
    first = found[0]
    head = f"{first['model']} on {on(first)}, {first['engine']}, {first['dtype']}: {first['workload']}"
    return f"{head}\n\n{table(rows, right=tuple(rows[0]), keep=tuple(rows[0]))}"
