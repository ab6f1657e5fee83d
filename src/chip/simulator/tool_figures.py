"""The figures of a run under the names, and by the definitions, of `vllm bench serve --save-result`.

TPOT is a request's time after its first token over its other tokens; ITL is one value for each chunk after the first,
over all requests; percentiles are interpolated, as numpy's are. Beside them, for which that tool has no names: tokens a
second as a user sees them (the mean of 1 / TPOT) and for each GPU (prompts and answers).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import sqrt
from typing import Any

from chip.simulator import figures, gaps
from chip.simulator.figures import Counted
from chip.simulator.fleet import ServedRequests
from chip.simulator.workload import Workload

NAMES = {"ttft": "ttft", "tpot": "tpot", "e2e": "e2el"}
QUANTILES = {"median": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


def spread(name: str, values: Counted) -> dict[str, float]:
    """Mean, deviation and percentiles of seconds, in milliseconds; nothing of no values."""
    if not values:
        return {}
    ends = list(accumulate(n for _, n in values))
    mean = sum(v * n for v, n in values) / ends[-1]
    variance = sum(n * (v - mean) ** 2 for v, n in values) / ends[-1]
    out = {f"mean_{name}_ms": 1e3 * mean, f"std_{name}_ms": 1e3 * sqrt(max(0.0, variance))}
    return out | {f"{p}_{name}_ms": 1e3 * quantile(values, ends, q) for p, q in QUANTILES.items()}


def quantile(values: Counted, ends: Sequence[int], q: float) -> float:
    """Linear between order statistics. `ends`: how many values there are up to each."""
    at = q * (ends[-1] - 1)
    low, high = (values[bisect_right(ends, min(int(at) + i, ends[-1] - 1))][0] for i in (0, 1))
    return low + (high - low) * (at - int(at))


def figures_of(
    w: Workload, done: ServedRequests, duration_s: float, gpus: int, goodput: Mapping[str, Any] | None
) -> dict[str, Any]:
    answered = [i for i in range(len(w)) if done.last_s[i] >= 0]
    prompts, outputs = (sum(lengths[i] for i in answered) for lengths in (w.prompt, done.output))
    per_s = 1 / duration_s if duration_s else 0.0
    by_metric = figures.latencies(done)
    out: dict[str, Any] = {
        "num_prompts": len(w), "failed": len(w) - len(answered), "duration": duration_s,
        "request_rate": w.rate_per_s if w.rate_per_s and not w.users else "inf", "max_concurrency": w.users or None,
        "total_input_tokens": prompts, "total_output_tokens": outputs,
        "request_throughput": len(answered) * per_s, "output_throughput": outputs * per_s,
        "total_token_throughput": (prompts + outputs) * per_s,
        "request_goodput": goodput["requests_per_s"] if goodput else None,
    }  # fmt: skip
    for metric, name in NAMES.items():
        out |= spread(name, [(s, 1) for s in sorted(by_metric[metric])])
    out |= spread("itl", gaps.seconds(e.gaps for e in done.engines))
    users = [1 / s for s in by_metric["tpot"] if s > 0]
    out["tokens_per_s_per_user"] = sum(users) / len(users) if users else None
    out["total_tokens_per_s_per_gpu"] = (prompts + outputs) * per_s / gpus
    out["tokens_per_s_per_gpu"] = outputs * per_s / gpus
    return out
