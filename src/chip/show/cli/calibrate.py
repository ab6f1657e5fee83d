"""Measure what a device really does: compute, memory and launch ceilings, power, and calibration factors.

With --engine: measure what an engine and this host add to the operators of a model, on small models with random
weights. The terms lie beside the profile (my-gpu.json -> my-gpu.vllm.json), where `--gpu my-gpu.json` finds them.

With --host: measure the launch latency of this host alone, in 20 seconds, for `chip predict --host FILE` on any GPU.

With --from: fit a host's few terms to results of vllm bench serve, AIPerf, guidellm, ... or of `chip bench --server`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chip.engines.profile import EngineProfile
from chip.files import artifact, output
from chip.hardware.hosts import host_path
from chip.show.cli import options
from chip.show.cli.text import Column, digits, disturbed, duration, gib, once, percent, si, table
from chip.types import DISTURBED, Ceiling, ChipError, HardwareProfile, HardwareSpec, HostProfile, Measurement

if TYPE_CHECKING:
    from chip.lab.measure.calibrate import Calibration, CaseDone
    from chip.lab.measure.device import Device

HELP = "measure this machine's GPU or CPU into a hardware profile"
EPILOG = """\
  chip calibrate                              # the first GPU, or the CPU where there is none; about a minute
  chip calibrate --device cuda:1 --full -o my-gpu.json
  chip calibrate --device cpu --json > cpu.json
  chip calibrate --device cpu --retry         # waits for an idle machine
  chip predict llama-3.1-8b --gpu my-gpu.json
  chip calibrate --host -o my-host.json       # the host alone: chip predict MODEL --host my-host.json
  chip calibrate --from mine.json -o my-host.json   # of vllm bench serve: chip simulate MODEL --host my-host.json
  chip calibrate --engine hf-graph --gpu my-gpu.json
  chip calibrate --engine vllm --gpu my-gpu.json --python /opt/vllm/bin/python
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--device", metavar="NAME", help="cuda:N or cpu (default: cuda:0, or cpu without a GPU)")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--quick", dest="mode", action="store_const", const="quick", help="within 90 s, a CPU 3 minutes (default)"
    )
    mode.add_argument("--full", dest="mode", action="store_const", const="full", help="within five minutes")
    parser.set_defaults(mode="quick")
    where = "profile to write (default: DEVICE.profile.json; of an engine: beside the GPU's)"
    options.add_file(parser, "-o", "--output", help=where)
    options.add(parser, "--force", "--energy-probe")
    retry = "wait so long for an idle machine, and measure again what was disturbed [60]"
    add("--retry", metavar="MINUTES", type=float, nargs="?", const=60.0, default=0.0, help=retry)
    add("--restart", action="store_true", help="forget what an interrupted run left")
    add("--only", metavar="PROBE", action="append", default=[], help="run one probe (repeatable)")
    add("--json", action="store_true", help="print the profile's JSON on stdout instead of the table")
    add("--host", action="store_true", help="the launch latency of this host alone, or of --runs")
    results = "up to six runs of benchmarking clients on one machine: fit its host's terms to them, without a device"
    add("--from", dest="results", metavar="RESULT", type=Path, nargs="+", default=[], help=results)
    add("--model", default="", help="with --from: the model that the results call otherwise")
    engine = parser.add_argument_group("an engine and its host")
    engine.add_argument("--engine", default="", help="vllm, hf-eager, hf-graph or native")
    engine.add_argument("--gpu", default="", help="the device's profile (default: the bundled one of its name)")
    runs = "fit these recorded runs, of one host or several"
    engine.add_argument("--runs", metavar="FILE", type=Path, nargs="+", help=runs)
    options.add(engine, "--python", "--engine-setting")


def outputs(args: argparse.Namespace) -> list[output.Output]:
    """Where --output is left out, its default is known when the device is."""
    if args.host or args.results:
        return [(args.output or Path("host.json"), HostProfile.SCHEMA)]
    if args.output is None:
        return []
    if args.engine:
        return [(args.output, EngineProfile.SCHEMA)]
    return _outputs(args.output)


def _outputs(path: Path) -> list[output.Output]:
    from chip.lab.measure.calibrate import operators_path
    from chip.lab.measure.journal import SCHEMA as JOURNAL
    from chip.lab.measure.journal import journal_path

    return [
        (path, HardwareProfile.SCHEMA), (host_path(path), HostProfile.SCHEMA), (journal_path(path), JOURNAL),
        (operators_path(path), Measurement.SCHEMA),
    ]  # fmt: skip


def run(args: argparse.Namespace) -> int:
    from chip.show.cli import calibrate_engine, calibrate_from, calibrate_host

    if args.results:
        return calibrate_from.run(args)
    if args.model:
        raise ChipError("--model goes with --from")
    if args.host:
        return calibrate_host.run(args)
    if calibrate_engine.asked(args):
        return calibrate_engine.run(args)
    device = options.device(args)
    options.choose_energy_probe(args)
    options.refuse_busy(args, device)

    from chip.lab.measure import calibrate, disturbance
    from chip.lab.measure.budget import budget_for
    from chip.lab.measure.journal import journal_path
    from chip.lab.measure.probes import ORDER

    if unknown := set(args.only) - set(ORDER):
        raise ChipError(f"no probe {unknown.pop()!r}; probes: {', '.join(ORDER)}")
    budget = budget_for(device, args.mode)
    path = args.output or Path(f"{calibrate.slug(device.title)}.profile.json")
    output.check_all(_outputs(path), ())
    idle = _waits(60 * args.retry, device) if args.retry else None
    if idle:
        idle()
    if busy := disturbance.busy(device.kind == "cuda"):
        say(doubt(busy))
    about = f"{device.title}, {device.sm_count} {device.sm_word}, {gib(device.memory_bytes)}"
    say(f"{about}: --{args.mode}, into {path}")
    with output.locked(path):
        found = calibrate.calibrate(device, budget, journal_path(path), tell, args.restart, tuple(args.only), idle=idle)
        calibrate.save(path, device, found, budget)
    for flag in found.profile.flags:
        say(doubt(flag))
    say(f"wrote {path} and {host_path(path)}")
    print(artifact.read_text(path).rstrip() if args.json else summary(found))
    return 1 if any(why.startswith(("failed", "error")) for why in found.profile.missing.values()) else 0


def _waits(limit_s: float, device: Device) -> Callable[[], bool]:
    """Waits for an idle machine and says whether there is one, `limit_s` in all."""
    from chip.lab.measure import disturbance

    until = time.monotonic() + limit_s

    def idle() -> bool:
        disturbance.wait(until - time.monotonic(), device.kind == "cuda", say)
        return time.monotonic() < until

    return idle


def doubt(flag: str) -> str:
    """A flag of a whole calibration, as people read it."""
    return disturbed(flag.removeprefix(DISTURBED), "calibrate")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def tell(p: CaseDone) -> None:
    """How far it is: a line a case."""
    o = p.outcome
    values = {**o.ceilings, **o.factors, **o.terms, **o.power}
    sizes = sum(m.status == "ok" for each in o.measured.values() for m in each)
    found = quantity(next(iter(values.values()))) if values else f"{sizes} sizes" if sizes else ""
    found = found or next(iter(o.missing.values()), "")[:60]
    what = "already measured" if p.resumed else f"{p.seconds:.1f} s"
    left = f"about {p.left_s:.0f} s left" if p.left_s >= 1 else "done"
    say(f"[{p.number:2}/{p.count}] {p.case:<32} {found:<24} {what}, {left}")


def quantity(c: Ceiling | None, value: float | None = None) -> str:
    """A value in its unit, as people read it."""
    if c is None:
        return ""
    v = c.value if value is None else value
    if c.unit.startswith("J/"):
        return f"{v * 1e12:.3g} p{c.unit}"
    if c.unit == "1":
        return f"{v:.3f}"
    return duration(v) if c.unit == "s" else gib(v) if c.unit == "B" else si(v, c.unit)


def summary(found: Calibration) -> str:
    """What the profile says, beside the datasheet."""
    p = found.profile
    parts = ["\n".join(map(doubt, p.flags))] if p.flags else []
    parts.append(f"{p.device}: {found.seconds:.0f} s of measuring")
    parts.append(table(_ceilings(p, found.spec), CEILINGS))
    levels = [n for n in ("hbm_read", "l2_read") if n in p.ceilings]
    ridges: list[Column] = [("roof", str, str)]
    ridges += [(f"over {at}", partial(_ridge, p.ceilings, at), digits(3)) for at in levels]
    if rows := [n for n in p.ceilings if n.startswith("matmul_")] if levels else []:
        parts.append("ridge points, FLOP/B\n" + table(rows, ridges))
    if p.factors:
        parts.append("calibration factors, realistic / ideal\n" + intervals(p.factors, "factor"))
    if p.power:
        parts.append("power\n" + intervals(p.power, "power"))
    terms = ", ".join(f"{name} {quantity(c)}" for name, c in found.host.terms.items())
    parts.append(f"host ({found.host.cpu}): {terms or 'not measured'}")
    if p.missing:
        reasons = once(p.missing.items())
        parts.append("missing\n" + "\n".join(f"  {', '.join(names)}: {why}" for why, names in reasons.items()))
    return "\n\n".join(parts)


def _ridge(ceilings: Mapping[str, Ceiling], level: str, roof: str) -> float:
    return ceilings[roof].value / ceilings[level].value


CEILINGS: tuple[Column, ...] = (
    ("ceiling", "name", str), ("boost", "boost", quantity), ("settled", "settled", quantity),
    ("datasheet", "datasheet", str), ("share", "share", percent), ("interval", "interval", str),
    ("flags", "flags", str),
)  # fmt: skip


def _ceilings(p: HardwareProfile, spec: HardwareSpec | None) -> Iterator[dict[str, Any]]:
    for name, c in p.ceilings.items():
        promised = spec.ceilings.get("hbm" if name.startswith("hbm_") else name) if spec else None
        if not name.endswith("_settled"):
            yield {
                "name": name,
                "boost": c,
                "settled": p.ceilings.get(f"{name}_settled"),
                "datasheet": quantity(c, promised.value) if promised else None,
                "share": c.value / promised.value if promised else None,
                "interval": f"{quantity(c, c.low)} .. {quantity(c, c.high)}",
                "flags": ", ".join(c.flags),
            }


def intervals(found: Mapping[str, Ceiling], title: str) -> str:
    """Measured values with their intervals and how they were had."""
    columns: tuple[Column, ...] = (
        (title, lambda row: row[0], str), ("value", lambda row: row[1], quantity),
        *((end, lambda row, end=end: quantity(row[1], getattr(row[1], end)), str) for end in ("low", "high")),
        ("method", lambda row: row[1].method if len(row[1].method) < 90 else row[1].method[:87] + "...", str),
    )  # fmt: skip
    return table(found.items(), columns)
