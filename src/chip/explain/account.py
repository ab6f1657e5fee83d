"""From kernels run alone to the time of the whole model: a signed account, each term measured on its own.

  isolated     every kernel alone, all its inputs cold                          replay, profiler's clock
  cache        the same with inputs as warm as in the model, less the above     replay
  switch       in its place in the sequence of the step, less the above and     replay
               less the sequence's clock: other code and data in the caches
  spread       all launches of a kernel in the sequence, less as many times     replay; capture where a kernel has
               their median                                                     no place in the sequence
  missing      captured time of kernels that could not be replayed              capture
  gaps         what the graph of the sequence takes beyond its kernels          replay, events around graphs
  clock        longer under unbroken load than in bursts, at the model's clock  replay, events around graphs
  overlap      kernels that ran at the same time                                capture
  host         the step launched by the host, less the step as a graph; without  capture, host clock
               a graph: less the time in which kernels ran; left out where that is more
What is left is printed as unexplained. Without a sequence there is no switch, and gaps are those of bursts of a kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from chip import stats
from chip.files.runs import Run
from chip.files.traces import Timing, Trace
from chip.lab.replay import signatures, tiers
from chip.lab.replay.results import Replay, Replayed, Sequenced
from chip.lab.replay.signatures import Signature
from chip.types import DISTURBED

SCHEMA = "chip.comparison_report/1"
TIMING_SCHEMA = "chip.full_model_timing/1"
WORST = 10
CLOSE_SHARE, CLOSE_NS = 0.04, 200  # a kernel is met when within either


class KernelPair(NamedTuple):
    """A unique kernel, as captured and as replayed, or why it was not."""

    signature: Signature
    replayed: Replayed

    @property
    def ok(self) -> bool:
        return self.replayed.status == "ok"

    @property
    def same_name(self) -> bool:
        """Whether the kernel that was captured ran again."""
        return tiers.plain(self.replayed.name) == tiers.plain(self.signature.kernel.name)

    @property
    def error_ns(self) -> float:
        return self.replayed.model_ns - self.signature.median_ns

    @property
    def close(self) -> bool:
        return abs(self.error_ns) <= max(CLOSE_NS, CLOSE_SHARE * self.signature.median_ns)

    def total_ns(self, each: float | None) -> float:
        return self.signature.launches * (each or 0.0)

    @property
    def spread_ns(self) -> float:
        """All launches above as many times their median, in the sequence or else as captured."""
        if self.replayed.placed_ns is not None:
            return self.total_ns(self.replayed.spread_ns)
        return self.signature.total_ns - self.total_ns(self.signature.median_ns)


def explain(trace: Trace, replay: Replay, run: Run | None = None) -> dict[str, Any]:
    """The comparison report."""
    workload = signatures.workload_of(trace)
    by_key = {k.key: k for k in replay.kernels}
    absent = {s.key: Replayed(s.key, "skipped", s.reason or "not asked for") for s in workload.signatures}
    pairs = [KernelPair(s, by_key.get(s.key, absent[s.key])) for s in workload.signatures]
    done = [p for p in pairs if p.ok]
    terms = _terms(trace, pairs, replay.sequence)
    full_ns = _whole_ns(trace, "graph") or _whole_ns(trace, "eager")
    predicted_ns = sum(terms.get(name, 0.0) for name in ("isolated", "cache", "switch", "gaps", "clock"))
    predicted_ns += sum(p.total_ns(p.replayed.spread_ns) for p in done)
    eager_ns, whole = _whole_ns(trace, "eager"), trace.timings.get("graph") or trace.timings.get("eager")
    disturbed = {"the capture": trace.disturbed, "the replay": replay.disturbed}
    missing = [f"{what}: {why}" for what, why in trace.missing.items()]
    report = {
        "schema": SCHEMA,
        "title": trace.title,
        "device": trace.device,
        "source": trace.source,
        "cache_rule": replay.rule,
        "sequence": _sequence(replay.sequence),
        "full_model": "graph" if "graph" in trace.timings else "eager",
        "full_model_inference_us": _us(full_ns),
        "predicted_from_kernels_us": _us(predicted_ns),
        "error_percent": _percent(predicted_ns, full_ns),
        "error_percent_gpu_busy": _percent(predicted_ns - terms.get("gaps", 0.0), trace.busy_ns),
        "error_percent_eager": _percent(predicted_ns, eager_ns),
        "full_model_noise_percent": round(100 * stats.noise(whole.samples_ns), 3) if whole else None,
        "coverage": _coverage(pairs),
        "tier_breakdown": _tiers(pairs),
        "kernels": _kernels(done),
        "worst_kernels": _worst(done),
        "breakdown": _breakdown(terms, full_ns, trace),
        "unexplained_percent": round(100 * terms["unexplained"] / full_ns, 3) if full_ns else None,
        "clock_hz": {name: t.clock_hz for name, t in trace.timings.items()},
        "energy": _energy(whole, pairs),
        "not_replayed": [_lost(p) for p in pairs if not p.ok],
        "notes": [
            *(f"{DISTURBED}{what}: {why}" for what, why in disturbed.items() if why),
            *missing,
            *replay.notes,
            *_host_notes(trace),
        ],
    }
    return report if run is None else {**report, "run": _run(run, trace, predicted_ns)}


def _host_ns(trace: Trace) -> float | None:
    """The step launched by the host, less the step as a graph or, without one, the time in which kernels ran. None
    where the step took less than that: then what the host adds cannot be told."""
    eager_ns = _whole_ns(trace, "eager")
    least_ns = _whole_ns(trace, "graph") or trace.busy_ns
    return eager_ns - least_ns if eager_ns > least_ns else None


def _host_notes(trace: Trace) -> list[str]:
    eager_ns, graph_ns = _whole_ns(trace, "eager"), _whole_ns(trace, "graph")
    if not eager_ns or _host_ns(trace) is not None:
        return []
    than = f"{graph_ns / 1e6:.4g} ms as a graph" if graph_ns else f"{trace.busy_ns / 1e6:.4g} ms of its operators"
    when = "" if graph_ns else ", which were timed one by one while they were recorded"
    return [f"host: its part cannot be told: the step took {eager_ns / 1e6:.4g} ms, less than the {than}{when}"]


def _whole_ns(trace: Trace, name: str) -> float:
    return stats.median(trace.timings[name].samples_ns) if name in trace.timings else 0.0


def _terms(trace: Trace, pairs: Sequence[KernelPair], sequence: Sequenced | None) -> dict[str, float]:
    """Nanoseconds of each term; they add up to the whole by definition of `unexplained`."""
    in_graph = "graph" in trace.timings
    model_hz = trace.timings["graph"].clock_hz if in_graph else None
    whole_ns = _whole_ns(trace, "graph") or _whole_ns(trace, "eager")
    done = [(p, p.replayed) for p in pairs if p.ok]
    terms = {
        "isolated": sum(p.total_ns(r.median_ns if r.cold_ns is None else r.cold_ns) for p, r in done),
        "cache": sum(p.total_ns(r.median_ns - r.cold_ns) for p, r in done if r.cold_ns is not None),
        "spread": sum(p.spread_ns for p, _ in done),
        "missing": float(sum(p.signature.total_ns for p in pairs if not p.ok)),
    }
    if sequence is not None:  # what its clock costs is a term of its own
        hz = sequence.timing.clock_hz or model_hz
        placed = [(p, at_clock(r, hz) if in_graph else 0.0) for p, r in done if r.placed_ns is not None]
        terms["switch"] = sum(p.total_ns(p.replayed.model_ns - p.replayed.median_ns - ns) for p, ns in placed)
    if in_graph:
        terms["gaps"] = sum(p.total_ns(r.gap_ns if sequence is None else sequence.gap_ns) for p, r in done)
        terms["clock"] = sum(p.total_ns(at_clock(r, model_hz)) for p, r in done)
    if trace.source != "operators":
        terms["overlap"] = 0.0 - trace.overlap_ns  # and no -0.0
    if not in_graph and (host_ns := _host_ns(trace)) is not None:
        terms["host"] = host_ns
    terms["unexplained"] = whole_ns - sum(terms.values())
    return terms


def at_clock(kernel: Replayed, hz: float | None) -> float:
    """What a clock adds to a kernel measured in bursts: between none and what unbroken load added."""
    extra = kernel.load_ns or 0.0
    if hz is None or kernel.burst_hz is None or kernel.load_hz is None:
        return extra
    fell = kernel.burst_hz - kernel.load_hz
    if fell <= 0.01 * kernel.burst_hz:
        return 0.0  # the clock stayed: what differs is noise
    return extra * min(1.0, max(0.0, (kernel.burst_hz - hz) / fell))


LABELS = {
    "isolated": "kernels alone, cold",
    "cache": "cache state",
    "switch": "after other kernels",
    "spread": "launches unlike their median",
    "missing": "not replayed",
    "gaps": "gaps between kernels",
    "clock": "clock under load",
    "overlap": "overlap of kernels",
    "host": "host",
    "unexplained": "unexplained",
}


def _breakdown(terms: dict[str, float], full_ns: float, trace: Trace) -> list[dict[str, Any]]:
    """Rows from the sum of isolated kernels to the wall time; a total is a row whose value is the sum so far."""
    rows = [{"term": name, "label": LABELS[name], "us": _us(terms[name])} for name in LABELS if name in terms]
    if "graph" not in trace.timings:
        return [*rows, {"term": "full_model", "label": "step, launched by the host", "us": _us(full_ns), "total": True}]
    rows.append({"term": "full_model", "label": "step as a CUDA graph", "us": _us(full_ns), "total": True})
    if eager_ns := _whole_ns(trace, "eager"):
        if (host_ns := _host_ns(trace)) is not None:
            rows.append({"term": "host", "label": LABELS["host"], "us": _us(host_ns)})
        rows.append({"term": "eager", "label": "step, launched by the host", "us": _us(eager_ns), "total": True})
    return rows


def _sequence(sequence: Sequenced | None) -> dict[str, Any] | None:
    """The step without the model: all calls in order as one graph."""
    if sequence is None:
        return None
    return {
        "us": _us(stats.median(sequence.timing.samples_ns)),
        "kernels_us": _us(sequence.kernels_ns),
        "launches": sequence.launches,
        "gap_us": _us(sequence.gap_ns),
        "clock_hz": sequence.timing.clock_hz,
    }


def _coverage(pairs: Sequence[KernelPair]) -> dict[str, float]:
    done = [p.signature for p in pairs if p.ok]
    return {
        "launches": sum(s.launches for s in done) / (sum(p.signature.launches for p in pairs) or 1),
        "gpu_time": sum(s.total_ns for s in done) / (sum(p.signature.total_ns for p in pairs) or 1),
        "unique_kernels": len(done) / (len(pairs) or 1),
    }


def _tiers(pairs: Sequence[KernelPair]) -> dict[str, Any]:
    rows = {}
    for tier, name in tiers.TIERS.items():
        mine = [p for p in pairs if p.signature.tier == tier]
        done = [p for p in mine if p.ok]
        time_ns = sum(p.signature.total_ns for p in done)
        same_ns = sum(p.signature.total_ns for p in done if p.same_name)
        rows[name] = {
            "method": tiers.METHODS[tier],
            "unique_kernels": len(mine),
            "launches": sum(p.signature.launches for p in mine),
            "replayed_kernels": len(done),
            "total_us": _us(sum(p.total_ns(p.replayed.model_ns + p.replayed.spread_ns) for p in done)),
            "alone_us": _us(sum(p.total_ns(p.replayed.median_ns) for p in done)),
            "captured_us": _us(sum(p.signature.total_ns for p in mine)),
            "same_kernel_share": round(same_ns / time_ns, 4) if time_ns else None,
        }
    return rows


def _kernels(done: Sequence[KernelPair]) -> dict[str, Any]:
    """How well single kernels agree, by the same timer on both sides."""
    done = [p for p in done if p.signature.median_ns]
    if not done:
        return {}
    share = stats.median([abs(p.error_ns) / p.signature.median_ns for p in done])
    error_ns = stats.median([abs(p.error_ns) for p in done])
    time_ns = sum(p.signature.total_ns for p in done) or 1
    return {
        "median_abs_error_percent": round(100 * share, 3),
        "median_abs_error_us": round(error_ns / 1e3, 4),
        "median_within_4_percent_or_0.2_us": share <= CLOSE_SHARE or error_ns <= CLOSE_NS,
        "within_4_percent_or_0.2_us": round(sum(p.close for p in done) / len(done), 4),
        "time_within_4_percent_or_0.2_us": round(sum(p.signature.total_ns for p in done if p.close) / time_ns, 4),
    }


def _worst(done: Sequence[KernelPair]) -> list[dict[str, Any]]:
    """Kernels whose error costs the step most."""
    return [
        {
            "kernel": p.signature.kernel.name,
            "replayed_as": p.replayed.name,
            "tier": p.signature.tier,
            "launches": p.signature.launches,
            "captured_us": _us(p.signature.median_ns),
            "replayed_us": _us(p.replayed.model_ns),
            "alone_us": _us(p.replayed.median_ns),
            "error_percent": _percent(p.replayed.model_ns, p.signature.median_ns),
            "error_of_step_us": _us(p.total_ns(p.error_ns)),
        }
        for p in sorted(done, key=lambda p: -abs(p.total_ns(p.error_ns)))[:WORST]
    ]


def _lost(p: KernelPair) -> dict[str, Any]:
    return {
        "kernel": p.signature.kernel.name,
        "launches": p.signature.launches,
        "captured_us": _us(p.signature.total_ns),
        "reason": p.replayed.reason,
    }


def _energy(timing: Timing | None, pairs: Sequence[KernelPair]) -> dict[str, Any] | None:
    """Joules of the kernels that were repeated for it, compared with the whole step's. The others are smaller and draw
    less, but how much was not measured."""
    metered = [(p, p.replayed.joules) for p in pairs if p.replayed.joules is not None]
    if timing is None or timing.joules is None or not metered:
        return None
    share = sum(p.signature.total_ns for p, _ in metered) / (sum(p.signature.total_ns for p in pairs) or 1)
    joules = sum(p.signature.launches * each for p, each in metered)
    return {
        "full_model_j": timing.joules,
        "kernels_j": joules,
        "kernels_error_percent": _percent(joules, timing.joules),  # as if the rest drew nothing
        "share_of_gpu_time": round(share, 4),
        "kernels_scaled_j": joules / share,  # as if it drew what these draw
        "error_percent": _percent(joules / share, timing.joules),
    }


def _run(run: Run, trace: Trace, predicted_ns: float) -> dict[str, Any]:
    """The same step in a benchmark of the whole engine."""
    step_s = run.tpot_s if trace.phase == "decode" and run.decodes else run.ttft_s
    return {
        "model": run.model,
        "engine": run.engine,
        "scenario": run.scenario.name,
        "step_us": step_s * 1e6,
        "error_percent": _percent(predicted_ns, step_s * 1e9),
    }


def _us(ns: float) -> float:
    return round(ns / 1e3, 4)


def _percent(predicted: float, measured: float) -> float | None:
    return round(100 * (predicted / measured - 1), 3) if measured else None


def timing_document(trace: Trace) -> dict[str, Any]:
    """full_model_timing.json: the whole step by each clock."""
    return {
        "schema": TIMING_SCHEMA,
        "title": trace.title,
        "device": trace.device,
        "gpu_busy_us": _us(trace.busy_ns),
        "sum_of_kernels_us": _us(trace.gpu_ns),
        **{
            name: {
                "median_us": _us(stats.median(t.samples_ns)),
                "interval_us": [_us(v) for v in stats.median_interval(t.samples_ns)],
                "samples_ns": list(t.samples_ns),
                "clock_hz": t.clock_hz,
                "watts": t.watts,
                "joules": t.joules,
                "method": t.method,
                "flags": list(t.flags),
            }
            for name, t in trace.timings.items()
        },
        "missing": trace.missing,
    }
