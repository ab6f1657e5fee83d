"""What CHIP knows, as rows: models, GPUs, operators, engines and hosts, for `chip list` and `chip serve`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from chip import engine_support, hardware
from chip import engines as runtimes
from chip import hosts as known_hosts
from chip import ops as operators
from chip.models import library
from chip.predict import basis
from chip.records import MISSING


def models() -> list[dict[str, Any]]:
    rows = []
    for name in library.names():
        d = library.find(name)
        rows.append(
            {
                "name": name,
                "architecture": d.architecture,
                "parameters": d.params(),
                "active": d.active_params(),
                "layers": d.layer_count,
                "hidden": d.hidden,
            }
        )
    return rows


def gpus() -> list[dict[str, Any]]:
    measured = hardware.profile_names()
    rows = []
    for name in hardware.spec_names():
        s = hardware.spec(name)
        best = s.ceilings.get("matmul_bf16") or s.ceilings["matmul_fp16"]
        rows.append(
            {
                "name": name,
                "title": s.title,
                "aliases": list(s.aliases),
                "memory_bytes": s.memory_bytes.value,
                "hbm_bytes_per_s": s.ceilings["hbm"].value,
                "matmul_16bit_flop_per_s": best.value,
                "measured": name in measured,
                "rests_on": basis.of_gpu(hardware.find(name)),
                "too_old_for": [e for e in runtimes.names() if engine_support.too_old(e, s)],
            }
        )
    return rows


def ops() -> list[dict[str, Any]]:
    rows = []
    for name in operators.names():
        axes = operators.axes(operators.get(name))
        rows.append(
            {
                "name": name,
                "axes": " ".join(axes),
                "required": " ".join(n for n, f in axes.items() if f.default is MISSING),
                "what": " ".join(doc_of(name).split("\n\n")[0].split()),
            }
        )
    return rows


def doc_of(kind: str) -> str:
    return (import_module(f"chip.ops.{kind}").__doc__ or "").strip()


def engines() -> list[dict[str, Any]]:
    return [{"name": n, "what": runtimes.get(n).TITLE} for n in runtimes.names()]


def hosts() -> list[dict[str, Any]]:
    """Those that predictions can be asked for by name."""
    rows = []
    for name in known_hosts.names():
        ns = known_hosts.find(name).launch_ns
        what = "of the bundled terms, in the middle of those measured: stands for a host that nobody measured"
        if ns:
            what = f"launched a small kernel in {ns / 1e3:.3g} us, beside the runs of an H200"
        rows.append({"name": name, "launch_ns": ns or None, "what": what})
    return rows


ROWS = {"models": models, "gpus": gpus, "ops": ops, "engines": engines, "hosts": hosts}
