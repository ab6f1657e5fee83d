"""Explain a step: where the time of its kernels goes, or how single kernels add up to the time of the whole.

TRACE alone is anyone's: of torch's profiler, of vLLM's or SGLang's /start_profile, an export of Nsight Systems (sqlite
or JSON), or of `chip capture`. Its kernels are named by operator and placed under the roof of the GPU. --model,
--engine and the sizes of the step say what was expected, and tell kernels inside of CUDA graphs by their order.

With REPLAY, from `chip replay`, TRACE is from `chip capture`, and the account goes term by term. RUN, from `chip
bench`, adds the same step in a whole request. Writes comparison_report.json and full_model_timing.json beside the
replay.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from chip.files import output
from chip.show.cli import options
from chip.show.cli.capture import short
from chip.show.cli.text import Column, disturbed, percent, signed, signed_percent, table, us
from chip.show.report.figure_file import output_of
from chip.types import DISTURBED, ChipError

HELP = "anyone's trace under the roofline; or single kernels against the whole step, term by term"
EPILOG = """\
  chip explain trace.json.gz --gpu h200
  chip explain vllm.pt.trace.json.gz --gpu h200 --model llama-3.1-8b --engine vllm --batch 8 --prompt 512
  chip explain artifacts/replay/trace.json artifacts/replay/replay.json
  chip explain trace.json replay.json runs.json --plot waterfall.png
"""
REPORT, TIMING = "comparison_report.json", "full_model_timing.json"
BAR = 40  # characters of the longest bar


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("trace", metavar="TRACE", help="of any profiler, or from `chip capture`")
    add("replay", metavar="REPLAY", nargs="?", default="", help="from `chip replay`")
    add("runs", metavar="RUN", nargs="?", default="", help="from `chip bench`: the same step in a whole request")
    options.add_file(parser, "--output-dir", metavar="FOLDER", help="for the two reports [where REPLAY is]")
    options.add_file(parser, "--plot", help="the account as a waterfall: .png, .svg or .pdf")
    add("--json", action="store_true", help="the report on stdout")
    alone = parser.add_argument_group("a trace alone")
    alone.add_argument("--gpu", default="", help="whose roofs [the bundled one of the trace's device, else h200]")
    alone.add_argument("--model", default="", help="what ran, where the trace does not say so")
    alone.add_argument("--engine", default="vllm", help="that ran it [vllm]")
    alone.add_argument("--phase", choices=("prefill", "decode"), default="decode", help="the steps to look at [decode]")
    alone.add_argument("--batch", type=int, default=1, help="requests of a step [1]")
    alone.add_argument("--prompt", type=int, default=1024, help="tokens of each before the output [1024]")
    alone.add_argument("--dtype", default="", help="number format that it ran in [bf16]")


def outputs(args: argparse.Namespace) -> list[output.Output]:
    if not args.replay:
        return []
    return [*reports(_folder(args)), output_of(args.plot)]


def reports(folder: Path) -> list[output.Output]:
    from chip.explain import account as explain

    return [(folder, output.FOLDER), (folder / REPORT, explain.SCHEMA), (folder / TIMING, explain.TIMING_SCHEMA)]


def _folder(args: argparse.Namespace) -> Path:
    return args.output_dir or Path(args.replay).parent


def run(args: argparse.Namespace) -> int:
    from chip.files import traces
    from chip.lab.replay import results

    if not args.replay:
        from chip.show.cli import explain_trace

        return explain_trace.run(args)
    file, trace = traces.read(Path(args.trace))
    replayed, replay = results.read(Path(args.replay))
    if replay.title != trace.title:
        raise ChipError(f"{args.replay}: is of {replay.title}; {args.trace} is of {trace.title}")
    report = write(trace, replay, file.environment, (file.id, replayed.id), _folder(args), args.runs)
    show(report, args.plot, args.json)
    return 0


def write(
    trace: Any, replay: Any, environment: dict[str, Any], inputs: tuple[str, ...], folder: Path, runs: str
) -> Any:
    """The report, written with the timings of the whole beside it."""
    from chip.explain import account as explain

    report = explain.explain(trace, replay, _run_of(runs, trace) if runs else None)
    for name, data in ((REPORT, report), (TIMING, explain.timing_document(trace))):
        text = json.dumps({**data, "environment": environment, "inputs": list(inputs)}, indent=1)
        output.write(folder / name, text + "\n", data["schema"])
    print(f"explain: wrote {folder / REPORT} and {folder / TIMING}", file=sys.stderr)
    return report


def _run_of(path: str, trace: Any) -> Any:
    """The run of the trace's model, engine, batch and prompt."""
    from chip.files import runs

    _, file = runs.read(Path(path))
    for one in file.runs:
        same = (one.model, one.engine, one.scenario.batch, one.scenario.prompt) == (
            trace.model, trace.engine, trace.batch, trace.prompt,
        )  # fmt: skip
        if same and one.status == "ok" and (trace.phase == "prefill" or one.decodes):
            return one
    raise ChipError(f"{path}: holds no run of {trace.title}")


def show(report: dict[str, Any], plot: Path | None, as_json: bool) -> None:
    if plot:
        from chip.show.report import waterfall

        waterfall.save(plot, report)
    print(json.dumps(report, indent=1) if as_json else render(report))


def render(report: dict[str, Any]) -> str:
    covered, kernels = report["coverage"], report["kernels"]
    flags = [n for n in report["notes"] if n.startswith(DISTURBED)]
    lines = [
        *[disturbed(n.removeprefix(DISTURBED), "measure") for n in flags],
        f"{report['title']} on {report['device']} (captured: {report['source']}, cache: {report['cache_rule']})",
        "",
        f"whole step ({report['full_model']})    {us(report['full_model_inference_us'])}",
        f"from its kernels      {us(report['predicted_from_kernels_us'])}"
        f", {signed_percent(report['error_percent'])}"
        f" (of GPU-busy time {signed_percent(report['error_percent_gpu_busy'])},"
        f" of eager wall time {signed_percent(report['error_percent_eager'])})",
        f"replayed              {percent(covered['launches'])} of launches, {percent(covered['gpu_time'])} of GPU time",
    ]
    if report["sequence"]:
        order = report["sequence"]
        lines.append(
            f"in the model's order  {us(order['us'])} for {order['launches']} launches as one graph,"
            f" {order['gap_us']:.2f} us between two"
        )
    if kernels:
        met = "within" if kernels["median_within_4_percent_or_0.2_us"] else "beyond"
        lines.append(
            f"kernel by kernel      median error {kernels['median_abs_error_percent']:.1f} %"
            f" ({kernels['median_abs_error_us']:.2f} us), {met} 4 % or 0.2 us; one by one within it:"
            f" {percent(kernels['within_4_percent_or_0.2_us'])} of kernels,"
            f" {percent(kernels['time_within_4_percent_or_0.2_us'])} of their time"
        )
    tiers = [{"tier": name, **t} for name, t in report["tier_breakdown"].items()]
    parts = ["\n".join(lines), waterfall_text(report["breakdown"]), table(tiers, TIERS)]
    parts.append("worst kernels, by what their error costs the step\n" + table(report["worst_kernels"], WORST))
    if report["energy"]:
        e = report["energy"]
        parts.append(
            f"energy: {e['kernels_j']:.4g} J in kernels of {percent(e['share_of_gpu_time'])} of GPU time,"
            f" {e['kernels_scaled_j']:.4g} J if the rest draws as much; {e['full_model_j']:.4g} J in the whole step:"
            f" {signed_percent(e['kernels_error_percent'])} to {signed_percent(e['error_percent'])}"
        )
    lost = [f"not replayed: {short(x['kernel'])} x{x['launches']}: {x['reason']}" for x in report["not_replayed"]]
    notes = lost + [f"note: {n}" for n in report["notes"] if n not in flags]
    return "\n\n".join(parts) + ("\n\n" + "\n".join(notes) if notes else "")


TIERS: tuple[Column, ...] = (
    ("tier", "tier", str), ("method", "method", str), ("launches", "launches", str),
    ("unique", "unique_kernels", str), ("replayed", "replayed_kernels", str), ("captured", "captured_us", us),
    ("replay", "total_us", us), ("alone", "alone_us", us), ("same kernel", "same_kernel_share", percent),
)  # fmt: skip
WORST: tuple[Column, ...] = (
    ("kernel", lambda r: short(r["kernel"], 50), str), ("tier", "tier"), ("launches", "launches"),
    ("captured", "captured_us", us), ("replay", "replayed_us", us), ("alone", "alone_us", us),
    ("error", "error_percent", signed_percent), ("of the step", "error_of_step_us", "{:+.1f} us".format),
)  # fmt: skip
WATERFALL: tuple[Column, ...] = (
    ("from single kernels to the whole", "label", str),
    ("time", lambda r: f"{r['us']:.1f} us" if r.get("total") else f"{r['us']:+.1f} us", str),
    ("share", "share", signed), ("", "bar", str),
)  # fmt: skip


def waterfall_text(rows: list[dict[str, Any]]) -> str:
    """Each term with a bar from where the sum so far stands to where it leads."""
    top = next((r["us"] for r in rows if r.get("total")), 0.0) or 1.0
    shown, at = [], 0.0
    for row in rows:
        begin, end = (0.0, row["us"]) if row.get("total") else (at, at + row["us"])
        at = end
        low, high = (min(max(0, round(BAR * x / top)), BAR + 10) for x in sorted((begin, end)))
        mark = "#" if row.get("total") else "+" if end > begin else "-" if end < begin else ""
        shown.append({**row, "share": row["us"] / top, "bar": " " * low + mark * max(1, high - low)})
    return table(shown, WATERFALL)
