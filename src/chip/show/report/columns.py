"""The tables of a summary and their columns: names, units and meanings that other programs may rely on.

This is the one list. `summary.json` has these tables with these columns in this order, `summary.csv` all of them side
by side, the page draws nothing else, and docs/report.md prints it (a test compares them).
"""

from __future__ import annotations

import textwrap
from typing import NamedTuple

SCHEMA = "chip.summary/1"


class Column(NamedTuple):
    name: str
    unit: str  # "" for text and plain numbers; "share" is 0 to 1
    meaning: str


def _columns(text: str) -> tuple[Column, ...]:
    """One `name | unit | meaning` a line."""
    rows = [[part.strip() for part in line.split("|")] for line in text.strip().splitlines()]
    return tuple(Column(*row) for row in rows)


_SOURCE = "source | | the file it was read from"
_SCENARIO = """
dtype | | weights and activations
batch | count | requests submitted at once
prompt | count | tokens of each prompt
output | count | tokens generated for each
tp | count | GPUs that share each layer
"""
TABLES: dict[str, tuple[Column, ...]] = {
    "headlines": _columns("""
        name | | what the card says
        value | | the number, in `unit`
        unit | | of the value
        detail | | where it holds
        section | | the part of the page that has the rest
        source | | the file it was read from
    """),
    "tallies": _columns("""
        section | | the part of the page that shows it
        name | | what is counted or taken the median of
        value | | the number, in `unit`
        unit | | of the value
        count | count | rows that it stands for; of files, their records
    """),
    "spreads": _columns("""
        name | | engine, metric and what bounds the runs; before it the predictor, where it is not chip
        who | | chip, or another predictor with its version
        engine | | of the runs
        metric | | tpot, ttft, e2e or joules_per_token
        bound | | as measured: gpu or host
        points | count | predictions held against measurements
        p5 | | quantile of predicted over measured
        p25 | | quantile of predicted over measured
        median | | of predicted over measured
        p75 | | quantile of predicted over measured
        p95 | | quantile of predicted over measured
    """),
    "runs": _columns(f"""
        model | | bundled name, or the name of the config
        bundled | | whether it is a model as published, of those bundled with chip
        gpu | | device as its driver names it
        engine | | engine that ran it
        variant | | what else was chosen
        {_SCENARIO.strip()}
        status | | ok, skipped or failed
        reason | | why it is not ok
        repeats | count | request batches timed
        tokens_per_s | tok/s | output tokens of the batch over the end-to-end time, P50
        latency_p50_ms | ms | end to end, until the last token of the batch
        latency_p95_ms | ms | the same, P95
        ttft_p50_ms | ms | until every request has its first token
        ttft_p95_ms | ms | the same, P95
        tpot_p50_ms | ms | mean decode step of a repeat, P50 over repeats
        tpot_p95_ms | ms | single decode steps, P95 over all of them
        vram_bytes | B | peak memory: of the process on the device, else as allocated
        joules_per_token | J/tok | energy of the device over output tokens, idle subtracted
        busy_prefill | share | of the prefill that the device worked
        busy_decode | share | of the decode steps that the device worked
        waits | | what the device waited for
        weights | | random or files
        engine_version | | of the engine
        flags | | what makes a reader careful
        question | | the same for the explorer, as its address holds it
        {_SOURCE}
    """),
    "comparisons": _columns(f"""
        model | | of both runs
        point | | scenario of both runs
        kind | | in turn: two engines on one GPU; other engine (or variant); repeat: the same engine and variant again
        first | | engine, variant and file of the one
        second | | of the other
        metric | | TTFT, TPOT, end to end, peak memory, J/token
        unit | | of the two values
        first_value | | P50 of the first
        second_value | | P50 of the second
        ratio | 1 | second over first
        low | 1 | least ratio that the samples allow
        high | 1 | greatest ratio that the samples allow
        verdict | | of the second: faster, slower, less, more or unclear
        {_SOURCE}
    """),
    "predictions": _columns(f"""
        who | | chip, or another predictor with its version
        model | | of the run
        gpu | | the prediction is for
        engine | | of the run
        variant | | of the run
        {_SCENARIO.strip()}
        metric | | ttft, tpot, e2e, tokens_per_s, joules_per_token ...
        unit | | of predicted and measured
        predicted | | by `who`
        low | | of the 90 % interval
        high | | of the 90 % interval
        measured | | by the run
        error_percent | % | predicted over measured, less one
        inside | | whether the interval holds what was measured
        bound | | as measured: gpu or host
        called | | what the prediction said bounds it
        {_SOURCE}
    """),
    "accuracy": _columns(f"""
        kind | | class (has a target), group (engine and metric), peer, stage (of the ablation), unseen, operator
        who | | chip, or another predictor with its version
        name | | class, engine and metric, or operator
        points | count | predictions held against measurements
        median_percent | % | median of the absolute error
        p90_percent | % | 90th percentile of the absolute error
        bias_percent | % | median of the signed error
        coverage | share | of points inside their 90 % interval
        target_median_percent | % | asked for
        target_p90_percent | % | asked for
        met | | whether both targets are
        chip_median_percent | % | of chip over the same points, beside a peer
        chip_p90_percent | % | of chip over the same points, beside a peer
        {_SOURCE}
    """),
    "roofs": _columns(f"""
        device | | as its driver names it
        kind | | compute, memory or launch
        name | | bf16, vector fp32, HBM, L2 ...
        value | | of the roof
        unit | | FLOP/s, B/s or s
        settled | | what the clocks leave of it under sustained load
        basis | | measured or datasheet
        {_SOURCE}
    """),
    "ceilings": _columns(f"""
        device | | as its driver names it; of host terms, the CPU
        group | | ceiling, factor (realistic over ideal), power or host
        name | | of the ceiling
        value | | measured
        low | | of its interval
        high | | of its interval
        unit | | of value, low and high
        datasheet | | what the vendor promises, in the same unit
        share_of_datasheet | share | measured over promised
        samples | count | behind the value
        clock_hz | Hz | SM clock while it was measured
        watts | W | power while it was measured
        celsius | °C | temperature while it was measured
        method | | how it was had
        flags | | what makes a reader careful
        {_SOURCE}
    """),
    "curves": _columns(f"""
        device | | as its driver names it
        curve | | name of the measured function
        x_name | | along
        x_unit | | along
        x | | along
        y_name | | up
        y_unit | | up
        y | | up
        {_SOURCE}
    """),
    "operators": _columns(f"""
        op | | kind of operator
        label | | kind and shape in short
        implementation | | torch, flash, cudnn ...
        context | | cold, hot, graph or host
        dtype | | of the operator
        device | | as its driver names it
        status | | ok, skipped or failed
        reason | | why it is not ok
        p50_us | us | median time
        p95_us | us | 95th percentile
        mean_us | us | mean
        samples | count | behind these
        flops | FLOP | work
        bytes | B | every input read once, every output written once
        intensity | FLOP/B | work over bytes
        flops_per_s | FLOP/s | achieved
        bytes_per_s | B/s | achieved
        share_of_roof | share | time at its roof over time taken
        bound | | compute, memory or launch
        roof | | the one that bounds it
        verdict | | in words
        would_help | | what would make it faster
        clock_hz | Hz | SM clock while it was measured
        watts | W | power while it was measured
        flags | | what makes a reader careful
        axes | | the operator as JSON
        {_SOURCE}
    """),
    "kernels": _columns(f"""
        kernel | | ours
        step | | of a ladder; empty where there is one kernel only
        language | | triton or cuda
        shape | | it was run with
        dtype | | it was run with
        device | | as its driver names it
        baseline | | the best of PyTorch, torch.compile and cuBLAS
        baseline_p50_us | us | of the baseline
        baseline_p95_us | us | of the baseline
        optimised_p50_us | us | of our kernel
        optimised_p95_us | us | of our kernel
        speedup_p50 | x | baseline over ours, P50
        speedup_p95 | x | baseline over ours, P95
        verdict | | ours is faster, slower or unclear
        max_abs_error | | of ours, against float64
        flops | FLOP | work
        bytes | B | moved at least
        intensity | FLOP/B | work over bytes
        flops_per_s | FLOP/s | achieved by ours
        baseline_flops_per_s | FLOP/s | achieved by the baseline
        bytes_per_s | B/s | achieved by ours
        share_of_roof | share | of its own roof: a rung's instructions, else the copy bandwidth
        joules_per_call | J | energy of one call, idle included
        pytorch_p50_us | us | of PyTorch's own call: composed operators, flash attention, cuBLAS
        over_pytorch | x | that over ours
        {_SOURCE}
    """),
    "replays": _columns(f"""
        title | | model, engine and step
        device | | as its driver names it
        whole | | how the step was run whole: graph or eager
        full_model_us | us | the step, run whole
        from_kernels_us | us | its kernels replayed, in their places where these are known, and the gaps between them
        error_percent | % | that over the whole, less one
        busy_error_percent | % | the kernels without gaps over the time in which kernels ran, less one
        unexplained_percent | % | of the whole that no measured term explains
        launches_covered | share | of launches that were replayed
        time_covered | share | of GPU time that was replayed
        kernel_error_percent | % | median over unique kernels of replayed against captured, without sign
        kernel_error_us | us | the same as a time: met when within 4 % or 0.2 us
        same_kernel | share | of the matrix products' time, replayed by the very kernel that was captured
        energy_low_percent | % | energy of the kernels measured over that of the whole, less one
        energy_high_percent | % | the same if the rest of the kernels draws as much
        {_SOURCE}
    """),
    "replay_tiers": _columns(f"""
        title | | model, engine and step
        tier | | tier1_cuda_runtime, tier2_cublas, tier3_framework
        method | | how its kernels were run again
        unique_kernels | count | in the tier
        launches | count | in the step
        captured_us | us | of all its launches, in the model
        total_us | us | of all its launches, replayed
        {_SOURCE}
    """),
    "replay_terms": _columns(f"""
        title | | model, engine and step
        order | count | place in the waterfall
        term | | from the sum of kernels to wall time
        us | us | signed
        total | | whether it is a level and not a step
        {_SOURCE}
    """),
    "replay_kernels": _columns(f"""
        title | | model, engine and step
        kernel | | name
        tier | | it belongs to
        launches | count | in the step
        captured_us | us | in the model
        replayed_us | us | in its place where that is known, else alone
        error_percent | % | replayed over captured, less one
        {_SOURCE}
    """),
    "sources": _columns("""
        file | | as it was given
        schema | | what it says it is
        id | | of its content
        made | | when
        status | | read, repeated (the same as another file), not shown, not understood or refused
        reason | | why it was not read
        records | count | in it
        device | | measured on
        chip | | version that wrote it
        torch | | version
        cuda | | version
        driver | | version
        python | | version
        cpu | | of the host
        inputs | | ids of the files it was made from
        environment | | all that was recorded, as JSON
    """),
}


def all_columns() -> list[str]:
    """The columns of `summary.csv`: the table a row belongs to, then every column, in the order of first mention."""
    return ["table", *dict.fromkeys(c.name for columns in TABLES.values() for c in columns)]


def document() -> str:
    """The tables as Markdown, for the docs."""
    parts = []
    for name, columns in TABLES.items():
        told = [f"`{c.name}`{f' [{c.unit}]' if c.unit else ''} {c.meaning}" for c in columns]
        text = textwrap.fill("; ".join(told) + ".", 140, break_on_hyphens=False, break_long_words=False)
        parts.append(f"### {name}\n\n{text}\n")
    return "\n".join(parts)
