"""Run each unique kernel of a recorded step again, on random data of the recorded shape and stride: first alone, then
in its place, all of them in the model's order as one CUDA graph.

WHAT is a trace or kernel_signatures.json from `chip capture`, a trace of another profiler (of a CPU too), a list of
kernels, one JSON object a line, or a MODEL, which is then recorded first and explained afterwards. Neither the model
nor transformers is needed for a file. Each kernel runs in a worker process: one that crashes or hangs costs itself
only. Run the same command again to go on.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chip.files import artifact, output
from chip.show.cli import capture, explain, options
from chip.show.cli.text import Column, disturbed, table, us
from chip.show.report.figure_file import output_of
from chip.types import ChipError

if TYPE_CHECKING:
    from chip.files.traces import Trace
    from chip.lab.measure.replay.pool import ReplayJournal, WorkerPool
    from chip.lab.replay.results import Replay
    from chip.lab.replay.signatures import KernelWorkload

HELP = "run a recorded step's kernels again, each alone; with a model: capture, replay and explain in one go"
EPILOG = """\
  chip replay tinyllama-1.1b --engine hf-graph --batch 8 --prompt 512 --phase decode
  chip replay artifacts/trace.json --tier 2 --runs 200
  chip replay kernel_signatures.json --cache cold -o there.json
  chip replay my-kernels.jsonl --device cpu
  chip replay my/config.json --device cpu --prompt 16 --output-dir artifacts/tiny
"""
RULES = ("producer", "cold", "hot")
PEEK = 2**16
TRACE = "trace.json"  # of a model, in the folder


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("what", metavar="WHAT", help="trace, kernel_signatures.json, list of kernels, or a model")
    capture.add_step(parser)
    add("--tier", default="", help="1 (runtime), 2 (cuBLAS), 3 (framework), or several with commas [all]")
    rule = "inputs as warm as in the model, all cold, or all hot [%(default)s]"
    add("--cache", choices=RULES, default="producer", help=rule)
    add("--warmup", type=int, default=10, help="calls before the first sample [%(default)s]")
    add("--runs", type=int, default=100, help="samples of each kernel [%(default)s]")
    add("--timeout", type=float, default=60.0, metavar="SECONDS", help="for one kernel [%(default)s]")
    folder = {"default": Path("artifacts/replay"), "help": "for all that is written [%(default)s]"}
    options.add_file(parser, "--output-dir", metavar="FOLDER", **folder)
    options.add_file(parser, "-o", "--output", help="the replay [replay.json in the folder]")
    options.add_file(parser, "--plot", help="with a model: the account as a waterfall")


def outputs(args: argparse.Namespace) -> list[output.Output]:
    from chip.lab.replay.results import JOURNAL, Replay

    path, kind = _path(args), kind_of(Path(args.what))
    beside: list[output.Output] = [(_journal(path), JOURNAL), (_log(path), output.LOG)]
    recorded = capture.traced(args.output_dir / TRACE, args.engine) if kind == "model" else []
    explained = explain.reports(args.output_dir) if kind in ("model", "trace") else []
    return [(path, Replay.SCHEMA), *beside, *recorded, *explained, output_of(args.plot)]


def _path(args: argparse.Namespace) -> Path:
    folder: Path = args.output_dir
    return args.output or folder / "replay.json"


def run(args: argparse.Namespace) -> int:
    wanted = _check(args)
    folder, path = args.output_dir, _path(args)
    from chip.lab.measure.device import default_device
    from chip.lab.measure.replay import pool
    from chip.lab.replay import results

    args.device = args.device or default_device()
    options.choose_energy_probe(args)
    spare = args.device != "cpu" and args.cache == "producer" and not wanted
    workers = pool.WorkerPool(pool.command(args.device), _log(path), spare)
    with output.locked(path):
        try:
            trace, workload, source, about = _workload(args, folder, _journal(path), workers)
            replay, environment = _replay(args, trace, workload, wanted, source, path, workers)
        finally:
            workers.stop()
        results.write(path, replay, environment, (source,))
    print(f"replay: wrote {path}", file=sys.stderr)
    if trace is not None and trace.timings:
        file, replay = results.read(path)
        report = explain.write(trace, replay, about, (source, file.id), folder, "")
        explain.show(report, args.plot, args.json)
    else:
        answer = document(workload, replay)
        print(json.dumps(answer, indent=1) if args.json else render(answer, replay))
    return 1 if any(k.status == "failed" for k in replay.kernels) else 0


def _check(args: argparse.Namespace) -> tuple[int, ...]:
    try:
        wanted = tuple(int(t) for t in args.tier.split(",")) if args.tier else ()
    except ValueError:
        wanted = (0,)
    if any(t not in (1, 2, 3) for t in wanted):
        raise ChipError(f"--tier {args.tier}: tiers are 1, 2 and 3, or several with commas")
    capture.check_step(args)
    if args.runs < 3 or args.warmup < 0 or not args.timeout > 0:  # which a NaN is not
        raise ChipError("--runs must be at least 3, --warmup at least 0 and --timeout above 0")
    return wanted


def _workload(
    args: argparse.Namespace, folder: Path, journal: Path, workers: WorkerPool
) -> tuple[Trace | None, KernelWorkload, str, dict[str, Any]]:
    """(trace where there is one, its kernels, id of what they come from, environment)."""
    from chip.files import codec, traces
    from chip.lab.measure.replay import pool
    from chip.lab.replay import foreign, kernel_list, signatures

    path = Path(args.what)
    kind = kind_of(path)
    if kind == "signatures":
        file, workload = signatures.read(path)
        return None, workload, file.id, file.environment
    if kind == "trace":
        file, trace = traces.read(path)
        return trace, signatures.workload_of(trace), file.id, file.environment
    if kind in ("chrome", "list"):
        trace = kernel_list.trace_of(path) if kind == "list" else foreign.trace_of(path)
        ident = artifact.new(traces.Trace.SCHEMA, codec.to_json(trace), {}).id
        return trace, signatures.workload_of(trace), ident, {}
    begun = folder / TRACE
    if not pool.begun(journal, {"asked": _asked(args)}):
        capture.record(args, args.what, begun, others=workers)
    else:
        print(f"replay: going on with {begun}", file=sys.stderr)
    file, trace = traces.read(begun)
    return trace, signatures.workload_of(trace), file.id, file.environment


def _journal(path: Path) -> Path:
    return path.parent / f"{path.name}.jsonl"


def _log(path: Path) -> Path:
    return path.parent / f"{path.name}.log"


def _asked(args: argparse.Namespace) -> dict[str, Any]:
    """Which step is recorded first; of a file none is."""
    if kind_of(Path(args.what)) != "model":
        return {}
    from chip.decoders import library
    from chip.files import identity

    names = ("what", "engine", "phase", "batch", "prompt", "no_cache", "dtype", "sdpa", "device")
    config = artifact.read_json(library.locate(args.what)[0])
    return {"config": identity.of_config(config), **{name: getattr(args, name) for name in names}}


def kind_of(path: Path) -> str:
    """trace, signatures, chrome, list or model, by the first bytes of a file."""
    from chip.lab.replay import kernel_list

    if not path.is_file():
        return "model"
    with artifact.opened_bytes(path, sys.maxsize) as file:
        head = file.read(PEEK)
    if kernel_list.is_list(head):
        return "list"
    if head[:2] == b"\x1f\x8b" or b'"traceEvents"' in head or head.lstrip()[:1] == b"[":
        return "chrome"
    if b"chip.kernel_signatures/" in head[:200]:
        return "signatures"
    if b"chip.trace/" in head[:200]:
        return "trace"
    return "model"


def _replay(
    args: argparse.Namespace,
    trace: Trace | None,
    workload: KernelWorkload,
    wanted: tuple[int, ...],
    source: str,
    path: Path,
    workers: WorkerPool,
) -> tuple[Replay, dict[str, Any]]:
    from chip.lab.measure.device import open_device
    from chip.lab.measure.environment import environment
    from chip.lab.measure.replay import pool
    from chip.lab.measure.replay.unit import ReplaySettings
    from chip.lab.replay import kernel_list, signatures
    from chip.lab.replay.results import Replay

    device = open_device(args.device)
    if workload.source != kernel_list.SOURCE and (device.kind == "cpu") != (workload.source == "operators"):
        raise ChipError(
            f"{args.what}: was recorded on {workload.device or 'a GPU'} as {workload.source}; it cannot be replayed on "
            f"{device.name}"
        )
    if kind_of(Path(args.what)) != "model":  # a capture has looked already
        options.refuse_busy(args, device)
    load = not (trace and device.boost_hz and trace.at_full_clock(device.boost_hz))
    settings = ReplaySettings(args.cache, args.warmup, args.runs, args.energy_seconds, load)
    units = signatures.units_of(workload, wanted)
    about = environment(device)
    header = {
        "source": source, "device": device.title, "torch": about["torch"], "rule": args.cache,
        "warmup": args.warmup, "runs": args.runs, "tiers": list(wanted), "energy": args.energy_seconds,
        "energy_probe": args.energy_probe, "asked": _asked(args),
    }  # fmt: skip
    journal = pool.ReplayJournal(_journal(path), header)
    kernels = pool.replay_units(units, workers, journal, settings, args.timeout)
    notes = () if workload.device in ("", device.title) else (f"captured on {workload.device}",)
    replay = Replay(workload.title, device.title, args.cache, args.warmup, args.runs, kernels, notes)
    if trace is not None and trace.timings and device.kind == "cuda" and args.cache == "producer" and not wanted:
        replay = _in_places(trace, replay, workers, journal)
    journal.path.unlink(missing_ok=True)
    if all(k.status == "ok" for k in kernels) and not replay.notes:
        workers.log.unlink(missing_ok=True)
    return replay, about


def _in_places(trace: Trace, replay: Replay, workers: WorkerPool, journal: ReplayJournal) -> Replay:
    """With each kernel in its place in the sequence of the step, or a note why not."""
    from chip.lab.measure.replay import pool
    from chip.lab.replay.sequence import sequence_of

    step = sequence_of(trace, replay.kernels)
    ran = step if isinstance(step, str) else pool.replay_sequence(step, workers, journal)
    if isinstance(ran, str):
        return replace(replay, notes=(*replay.notes, f"no sequence, so kernels alone and gaps of bursts: {ran}"))
    placed = replay.with_places(*ran)
    lost = sum(k.status == "ok" and k.placed_ns is None for k in placed.kernels)
    note = f"sequence: {lost} of {len(placed.kernels)} kernels were not seen in their places and are taken alone"
    return replace(placed, notes=(*placed.notes, note)) if lost else placed


def document(workload: KernelWorkload, replay: Replay) -> dict[str, Any]:
    from chip.files import codec

    head = {"schema": "chip.replay_summary/1", "title": replay.title, "disturbed": replay.disturbed}
    rest = {k: v for k, v in codec.to_json(replay).items() if k != "kernels"}
    done = {k.key: k for k in replay.kernels}
    rows = []
    for s in workload.signatures:
        k = done.get(s.key)
        ok = k is not None and k.status == "ok"
        rows.append(
            {
                "kernel": s.kernel.name,
                "tier": s.tier,
                "launches": s.launches,
                "captured_us": s.median_ns / 1e3,
                "alone_us": k.median_ns / 1e3 if k is not None and ok else None,
                "placed_us": k.placed_ns / 1e3 if k is not None and ok and k.placed_ns is not None else None,
                "reason": "" if ok else k.reason if k else s.reason or "not asked for",
            }
        )
    return {**head, "kernels": rows, **rest}


COLUMNS: tuple[Column, ...] = (
    ("kernel", lambda r: capture.short(r["kernel"]), str), ("tier", "tier"), ("launches", "launches"),
    ("captured", "captured_us", us), ("alone", "alone_us", us), ("", lambda r: r["reason"][:60]),
)  # fmt: skip


def render(a: dict[str, Any], replay: Replay) -> str:
    done = sum(r["alone_us"] is not None for r in a["kernels"])
    head = [disturbed(a["disturbed"], "replay")] if a["disturbed"] else []
    head.append(f"{a['title']} on {replay.device}: {done} of {len(a['kernels'])} kernels replayed")
    return "\n\n".join([*head, table(a["kernels"], COLUMNS)])
