"""What CHIP knows, as rows: models, GPUs, operators, engines and hosts, for `chip list` and `chip serve`."""

from __future__ import annotations

from dataclasses import MISSING
from inspect import cleandoc
from typing import Any

from chip import decoders
from chip import engines as runtimes
from chip import ops as operators
from chip.decoders import library, multimodal
from chip.hardware import gpus as hardware
from chip.hardware import hosts as known_hosts
from chip.predictor import basis
from chip.types import HardwareSpec


def models() -> list[dict[str, Any]]:
    return [
        {
            "name": name, "architecture": d.architecture, "parameters": d.params(), "active": d.active_params(),
            "layers": d.layer_count, "hidden": d.hidden,
        }
        for name, d in ((n, library.find(n)) for n in library.names())
    ]  # fmt: skip


def gpus() -> list[dict[str, Any]]:
    return [_gpu(name, hardware.spec(name)) for name in hardware.spec_names()]


def _gpu(name: str, s: HardwareSpec) -> dict[str, Any]:
    return {
        "name": name,
        "title": s.title,
        "aliases": list(s.aliases),
        "memory_bytes": s.memory_bytes.value,
        "hbm_bytes_per_s": s.ceilings["hbm"].value,
        "matmul_16bit_flop_per_s": (s.ceilings.get("matmul_bf16") or s.ceilings["matmul_fp16"]).value,
        "measured": name in hardware.profile_names(),
        "rests_on": basis.of_gpu(hardware.find(name)),
        "too_old_for": [e for e in runtimes.names() if runtimes.get(e).too_old(s)],
    }


def ops() -> list[dict[str, Any]]:
    rows = []
    for name in operators.names():
        axes = operators.axes(operators.get(name))
        required = " ".join(n for n, f in axes.items() if f.default is MISSING)
        what = " ".join(doc_of(name).split("\n\n")[0].split())
        rows.append({"name": name, "axes": " ".join(axes), "required": required, "what": what})
    return rows


def doc_of(kind: str) -> str:
    """What an operator is: the docstring of its class."""
    return cleandoc(operators.get(kind).__doc__ or "")


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


CHECKED_AGAINST = {  # what the description of a family's models is held against
    "standard": "parameters of transformers, where it has the class",
    "latent": "parameters of transformers, where it has the class",
    "hybrid": "parameters of transformers; states rest on the roofline",
}


def architectures() -> list[dict[str, Any]]:
    """Every class that is answered, with what its description is held against; then those whose language part is."""
    by_operator = "transformers, operator by operator"
    rows = [
        {"name": name, "family": family, "held_against": CHECKED_AGAINST.get(family, by_operator)}
        for name, family in sorted(decoders.architectures().items())
    ]
    for name, language in multimodal.LANGUAGE.items():
        of_class = f"as {language}" if language else "by its section's class or type"
        rows.append({"name": name, "family": "multimodal", "held_against": f"the language part {of_class}"})
    return rows


ROWS = {"architectures": architectures, "models": models, "gpus": gpus, "ops": ops, "engines": engines, "hosts": hosts}
