"""Measure what a device really does: compute, memory and launch ceilings, power, and calibration factors.

With --engine: measure what an engine and this host add to the operators of a model, on small models with random
weights. The terms lie beside the profile (my-gpu.json -> my-gpu.vllm.json), where `--gpu my-gpu.json` finds them.

With --host: measure the launch latency of this host alone, in 20 seconds, for `chip predict --host FILE` on any GPU.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chip import output
from chip.cli import energy_probe
from chip.cli.text import duration, gib, si, table
from chip.engine_profile import EngineProfile
from chip.hosts import host_path
from chip.types import DISTURBED, Ceiling, HardwareProfile, HardwareSpec, HostProfile

if TYPE_CHECKING:
    from chip.measure.calibrate import Calibration, CaseDone

HELP = "measure this machine's GPU or CPU into a hardware profile"
EPILOG = """\
  chip calibrate                              # the first GPU, or the CPU where there is none; about a minute
  chip calibrate --device cuda:1 --full -o my-gpu.json
  chip calibrate --device cpu --json > cpu.json
  chip predict llama-3.1-8b --gpu my-gpu.json
  chip calibrate --host -o my-host.json       # the host alone: chip predict MODEL --host my-host.json
  chip calibrate --engine hf-graph --gpu my-gpu.json
  chip calibrate --engine vllm --gpu my-gpu.json --python /opt/vllm/bin/python
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", metavar="NAME", help="cuda:N or cpu (default: cuda:0, or cpu without a GPU)")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--quick", dest="mode", action="store_const", const="quick", help="within a minute (default)")
    mode.add_argument("--full", dest="mode", action="store_const", const="full", help="within five minutes")
    parser.set_defaults(mode="quick")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=output.path,
        help="profile to write (default: DEVICE.profile.json; of an engine: beside the GPU's)",
    )
    parser.add_argument("--force", action="store_true", help="measure a GPU that others are using")
    parser.add_argument("--restart", action="store_true", help="forget what an interrupted run left")
    parser.add_argument("--only", metavar="PROBE", action="append", default=[], help="run one probe (repeatable)")
    energy_probe.add_option(parser)
    parser.add_argument("--json", action="store_true", help="print the profile's JSON on stdout instead of the table")
    parser.add_argument("--host", action="store_true", help="the launch latency of this host alone, or of --runs")
    engine = parser.add_argument_group("an engine and its host")
    engine.add_argument("--engine", default="", help="vllm, hf-eager, hf-graph or native")
    engine.add_argument("--gpu", default="", help="the device's profile (default: the bundled one of its name)")
    engine.add_argument(
        "--runs", metavar="FILE", type=Path, nargs="+", help="fit these recorded runs, of one host or several"
    )
    engine.add_argument("--python", metavar="FILE", default="", help="interpreter of the engine's own environment")
    engine.add_argument(
        "--engine-setting", metavar="KEY=VALUE", action="append", default=[], help="for the engine; may be repeated"
    )


def outputs(args: argparse.Namespace) -> list[output.Output]:
    """Where --output is left out, its default is known when the device is."""
    if args.host:
        return [(args.output or Path("host.json"), HostProfile.SCHEMA)]
    if args.output is None:
        return []
    if args.engine:
        return [(args.output, EngineProfile.SCHEMA)]
    return _outputs(args.output)


def _outputs(path: Path) -> list[output.Output]:
    from chip.measure.journal import SCHEMA as JOURNAL
    from chip.measure.journal import journal_path

    return [(path, HardwareProfile.SCHEMA), (host_path(path), HostProfile.SCHEMA), (journal_path(path), JOURNAL)]


def run(args: argparse.Namespace) -> int:
    from chip.cli import calibrate_engine_text as engine

    if args.host:
        from chip.cli import calibrate_host_text as host

        return host.run(args)
    if engine.asked(args):
        return engine.run(args)
    from chip.measure.device import default_device, open_device, refuse_busy

    device = open_device(args.device or default_device())
    energy_probe.choose(args)
    if not args.force:
        refuse_busy(device)

    from chip.measure import calibrate, disturbance
    from chip.measure.budget import budget_for
    from chip.measure.journal import journal_path
    from chip.measure.probes import ORDER
    from chip.types import ChipError

    if unknown := set(args.only) - set(ORDER):
        raise ChipError(f"no probe {unknown.pop()!r}; probes: {', '.join(ORDER)}")
    budget = budget_for(device, args.mode)
    path = args.output or Path(f"{calibrate.slug(device.title)}.profile.json")
    output.check_all(_outputs(path), ())
    talk = Talk()
    if device.kind == "cpu" and (found_busy := disturbance.busy()):
        talk.say(doubt(found_busy))
    talk.say(
        f"{device.title}, {device.sm_count} {device.sm_word}, {gib(device.memory_bytes)}: --{args.mode}, into {path}"
    )
    with output.locked(path):
        try:
            found = calibrate.calibrate(device, budget, journal_path(path), talk.tell, args.restart, tuple(args.only))
        finally:
            talk.close()
        calibrate.save(path, device, found, budget)
    for flag in found.profile.flags:
        talk.say(doubt(flag))
    talk.say(f"wrote {path} and {host_path(path)}")
    print(path.read_text(encoding="utf-8").rstrip() if args.json else summary(found))
    return 1 if any(why.startswith(("failed", "error")) for why in found.profile.missing.values()) else 0


def doubt(flag: str) -> str:
    """A flag of a whole calibration, as people read it."""
    return f"DISTURBED: {flag.removeprefix(DISTURBED)}; calibrate again when the machine is idle"


class Talk:
    """Progress on stderr: a bar on a terminal that has tqdm, else a line a case."""

    def __init__(self) -> None:
        self.bar: Any = None
        if sys.stderr.isatty():
            try:
                from tqdm import tqdm
            except ImportError:
                return
            self.bar = tqdm(file=sys.stderr, leave=False, bar_format="{desc} |{bar}| {n_fmt}/{total_fmt} {postfix}")

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def tell(self, p: CaseDone) -> None:
        left = f"about {p.left_s:.0f} s left" if p.left_s >= 1 else "done"
        if self.bar is not None:
            self.bar.total, self.bar.n = p.count, p.number
            self.bar.set_description_str(f"{p.case:<32}", refresh=False)
            self.bar.set_postfix_str(left)
            return
        what = "already measured" if p.resumed else f"{p.seconds:.1f} s"
        self.say(f"[{p.number:2}/{p.count}] {p.case:<32} {_found(p):<24} {what}, {left}")

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


def _found(p: CaseDone) -> str:
    o = p.outcome
    numbers = {**o.ceilings, **o.factors, **o.terms, **o.power}
    if numbers:
        return quantity(next(iter(numbers.values())))
    return next(iter(o.missing.values()), "")[:60]


def quantity(c: Ceiling, value: float | None = None) -> str:
    """A value in its unit, as people read it."""
    v = c.value if value is None else value
    if c.unit == "s":
        return duration(v)
    if c.unit == "B":
        return gib(v)
    if c.unit == "1":
        return f"{v:.3f}"
    if c.unit.startswith("J/"):
        return f"{v * 1e12:.3g} p{c.unit}"
    return si(v, c.unit)


def summary(found: Calibration) -> str:
    """What the profile says, beside the datasheet."""
    p, parts = found.profile, []
    if found.profile.flags:
        parts.append("\n".join(map(doubt, found.profile.flags)))
    parts.append(f"{p.device}: {found.seconds:.0f} s of measuring")
    parts.append(
        table(_ceiling_rows(p, found.spec), right=("boost", "settled", "datasheet", "share"), keep=("ceiling",))
    )
    if ridges := _ridge_rows(p):
        parts.append("ridge points, FLOP/B\n" + table(ridges, right=tuple(ridges[0])[1:], keep=tuple(ridges[0])))
    if p.factors:
        parts.append("calibration factors, realistic / ideal\n" + _interval_table(p.factors, "factor"))
    if p.power:
        parts.append("power\n" + _interval_table(p.power, "power"))
    parts.append(_host(found.host))
    if p.missing:
        parts.append("missing\n" + "\n".join(f"  {', '.join(names)}: {why}" for why, names in _by_reason(p.missing)))
    return "\n\n".join(parts)


def _by_reason(missing: dict[str, str]) -> list[tuple[str, list[str]]]:
    found: dict[str, list[str]] = {}
    for name, why in missing.items():
        found.setdefault(why, []).append(name)
    return list(found.items())


def _ceiling_rows(p: HardwareProfile, spec: HardwareSpec | None) -> list[dict[str, str]]:
    rows = []
    for name, c in p.ceilings.items():
        if name.endswith("_settled"):
            continue
        settled = p.ceilings.get(f"{name}_settled")
        promised = spec.ceilings.get("hbm" if name.startswith("hbm_") else name) if spec else None
        rows.append(
            {
                "ceiling": name,
                "boost": quantity(c),
                "settled": quantity(settled) if settled else "",
                "datasheet": quantity(c, promised.value) if promised else "",
                "share": f"{100 * c.value / promised.value:.1f} %" if promised else "",
                "interval": f"{quantity(c, c.low)} .. {quantity(c, c.high)}",
                "flags": ", ".join(c.flags),
            }
        )
    empty = {key for key in (rows[0] if rows else ()) if not any(row[key] for row in rows)}
    return [{key: cell for key, cell in row.items() if key not in empty} for row in rows]


def _ridge_rows(p: HardwareProfile) -> list[dict[str, str]]:
    levels = [n for n in ("hbm_read", "l2_read") if n in p.ceilings]
    names = [n for n in p.ceilings if n.startswith("matmul_")] if levels else []
    return [
        {"roof": n, **{f"over {at}": f"{p.ceilings[n].value / p.ceilings[at].value:.3g}" for at in levels}}
        for n in names
    ]


def _interval_table(found: dict[str, Ceiling], title: str) -> str:
    rows = [
        {
            title: name,
            "value": quantity(c),
            "low": quantity(c, c.low),
            "high": quantity(c, c.high),
            "method": c.method if len(c.method) < 90 else c.method[:87] + "...",
        }
        for name, c in found.items()
    ]
    return table(rows, right=("value", "low", "high"), keep=(title, "value", "low", "high", "method"))


def _host(host: HostProfile) -> str:
    terms = ", ".join(f"{name} {quantity(c)}" for name, c in host.terms.items())
    return f"host ({host.cpu}): {terms or 'not measured'}"
