"""One prediction as people read it: the figures, memory and the longest lines; every line with --breakdown."""

from __future__ import annotations

from typing import Any

from chip.predictor.basis import NOT_USABLE, are_doubted
from chip.show.cli.text import Column, amount, digits, gib, moved, ms, number, percent, signed, span, table, us, work

LONGEST = 4  # lines of a phase in the short view
# TPOT is the mean step after the last first token. Where prompts come in several steps, requests that have theirs
# early wait longer for the next ones; their mean is shown beside it if it differs by more than this share.
SHOWN_APART = 0.02
PHASES = (("ttft", "TTFT", "to the first token"), ("tpot", "TPOT", "a decode step (mean)"))
FIGURES = (  # title, key, unit where its values have none, how these look
    ("TTFT", "ttft_ms", "", ms),
    ("TPOT", "tpot_ms", "", ms),
    ("end to end", "e2e_ms", "", ms),
    ("throughput", "tokens_per_s", " tok/s", amount),
    ("energy", "energy_j_per_token", " J/tok", digits(3)),
)
HEADLINE: tuple[Column, ...] = (
    ("", "title"), ("predicted", "value", str), ("90 % interval", "interval", str), ("bound by", "bound", str)
)  # fmt: skip
LINES: tuple[Column, ...] = (
    ("role", "role"), ("op", "op"), ("calls", "count", digits(6)), ("time", "us", us), ("share", "share", percent),
    ("bound", "bound", str), ("FLOP/B", "intensity", number), ("x ridge", "of_ridge", number),
    ("work", "flops", work), ("moved", "bytes", moved), ("source", "source"),
)  # fmt: skip
PARTS = (
    ("weights", "weights_bytes"),
    ("KV cache", "kv_bytes"),
    ("activations", "activation_bytes"),
    ("CUDA context", "context_bytes"),
)


def render(a: dict[str, Any], breakdown: bool = False) -> str:
    split = [f"{name} {a[name]}" for name in ("tp", "pp", "ep") if a[name] > 1]
    gpus = f"{a['gpus']} x {a['gpu']} ({', '.join(split)})" if a["gpus"] > 1 else a["gpu"]
    parts = [
        f"{a['model']} on {gpus}, {a['engine']}, {_dtype(a)}: {a['batch']} x ({a['prompt']} in, {a['output']} out)",
        *(f"note: {note}" for note in a["notes"]),
        "",
        _headline(a),
        "",
        *_memory(a["memory"]),
        "sources: "
        + ", ".join(f"{percent(v)} {k}" for k, v in a["sources"].items())
        + f"; ridge point {a['ridge_flop_per_byte']:g} FLOP/B",
    ]
    phases = [(short, title, a["breakdown"][key]) for key, short, title in PHASES if a["breakdown"][key]]
    if not breakdown:
        parts += [f"{short}: {_longest(lines)}" for short, _, lines in phases]
        return "\n".join([*parts, _nearest(a), "every line of it: --breakdown"])

    def row(line: dict[str, Any]) -> dict[str, Any]:
        intensity = line["flops"] / line["bytes"] if line["bytes"] else 0.0
        return {**line, "intensity": intensity, "of_ridge": intensity / a["ridge_flop_per_byte"]}

    for _, title, lines in phases:
        parts += ["", f"where the time goes: {title}", table(map(row, lines), LINES)]
    return "\n".join(parts)


def _nearest(a: dict[str, Any]) -> str:
    """The nearest run that a prediction was held against, and how far off it was."""
    if not a["nearest_validated"]:
        count = f"{a['gpus']} GPUs" if a["gpus"] > 1 else "one GPU"
        return f"nearest validated run: none of {a['engine']} in {_dtype(a)} on {count} of this kind"
    r = a["nearest_validated"][0]
    gpus = f"{r['tp']} x {r['gpu']}" if r["tp"] > 1 else r["gpu"]
    engine = f"{r['engine']} {r['version']}".rstrip()
    names = (("TTFT", "ttft_error"), ("TPOT", "tpot_error"), ("end to end", "e2e_error"))
    errors = ", ".join(f"{title} {signed(r[key])}" for title, key in names if key in r)
    what = f"{r['model']} on {gpus}, {engine}, {r['batch']} x ({r['prompt']} in, {r['output']} out)"
    return f"nearest validated run: {what}: {errors}"


def _longest(lines: list[dict[str, Any]]) -> str:
    """The longest lines of a phase with their shares, and what the others come to."""
    shown = [f"{line['role']} {percent(line['share'])}" for line in lines[:LONGEST]]
    others = lines[LONGEST:]
    if others:
        shown.append(f"{len(others)} more {percent(sum(line['share'] for line in others))}")
    return ", ".join(shown)


def _dtype(a: dict[str, Any]) -> str:
    return f"{a['dtype']}, fp8 KV cache" if a["kv_dtype"] == "fp8" else str(a["dtype"])


def _headline(a: dict[str, Any]) -> str:
    rows, doubted = [], are_doubted(a["notes"])
    for title, key, unit, form in FIGURES:
        if a.get(key) is None:
            continue
        bound = a["bound"].get(key.removesuffix("_ms"), "")
        interval = NOT_USABLE if doubted else span(form)(a["interval"][key])
        rows.append({"title": title, "value": form(a[key]) + unit, "interval": interval, "bound": bound})
        of_request = a.get("request_tpot_ms") if key == "tpot_ms" else None
        if of_request and abs(of_request / a[key] - 1) > SHOWN_APART:
            rows.append({"title": "TPOT, requests", "value": ms(of_request)})
    return table(rows, HEADLINE, keep=("",))


def _memory(m: dict[str, Any]) -> list[str]:
    """What each part takes, rounded so that the parts as printed come to the total as printed."""
    verdict = "fits" if m["fits"] else "DOES NOT FIT"
    scale, unit = (2**30, "GiB") if m["total_bytes"] >= 2**30 else (2**20, "MiB")
    digits = 1 if m["total_bytes"] >= 10 * scale else 2
    on_cpu = not m["context_bytes"]
    parts = [(name, key) for name, key in PARTS if m[key] or not on_cpu]
    printed = _parts([m[key] / scale for _, key in parts], digits)
    notes = {"kv_bytes": f" ({m['kv_bytes_per_token'] / 1024:.4g} KiB/token)"}
    sum_of = " + ".join(f"{name} {x:.{digits}f}{notes.get(key, '')}" for (name, key), x in zip(parts, printed))
    total = f"{sum(printed):.{digits}f} {unit}"
    where = "memory" if on_cpu else "memory a GPU"
    return [
        f"{where}: {total} of {gib(m['capacity_bytes'])}: {verdict}, largest batch {m['max_batch']}",
        f"  {sum_of} = {total}",
    ]


def _parts(values: list[float], digits: int) -> list[float]:
    """Rounded down, and those with the largest remainders up, so that their sum is the rounded sum."""
    step = 10**digits
    floors = [int(v * step) for v in values]
    left = round(sum(values) * step) - sum(floors)
    largest = sorted(range(len(values)), key=lambda i: floors[i] - values[i] * step)
    for i in largest[:left]:
        floors[i] += 1
    return [n / step for n in floors]
