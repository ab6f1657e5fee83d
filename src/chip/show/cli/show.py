"""Show one thing whole: a model, a GPU, an operator or an engine by its name, or a file of runs as `chip bench` did."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import MISSING, fields, is_dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from chip import engines, ops
from chip.catalog import doc_of
from chip.decoders import library
from chip.decoders.decoder import Decoder, Moe
from chip.dtypes import Precision, precision
from chip.files import artifact, codec, runs
from chip.hardware import gpus as hardware
from chip.show.cli import bench_text
from chip.show.cli.calibrate import quantity
from chip.show.cli.text import Column, gib, si, table
from chip.types import Ceiling, ChipError

HELP = "one model, GPU, operator or engine in full, or a file of runs"
SM_WORDS = {"nvidia": "SMs", "amd": "CUs"}
EPILOG = """\
  chip show llama-3.1-8b
  chip show h200
  chip show h200 --json > my-gpu.json     # a datasheet to edit and pass as --gpu my-gpu.json
  chip show attention
  chip show my-runs.json                  # what `chip bench` showed; --markdown for a README
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="anything that `chip list` names, or a file")
    parser.add_argument("--markdown", action="store_true", help="a file of runs as a table for a README")


def run(args: argparse.Namespace) -> int:
    if _is_runs(args.name):
        measured = runs.read(Path(args.name))[1].runs
        shown = bench_text.markdown(measured) if args.markdown else bench_text.render(measured)
        print(json.dumps(bench_text.document(measured, args.name), indent=1) if args.json else shown)
        return 0
    if args.markdown:
        raise ChipError(f"--markdown is for a file of runs, and {args.name!r} is none")
    data, text = _find(args.name)
    print(json.dumps(data, indent=1) if args.json else text)
    return 0


def _is_runs(name: str) -> bool:
    if not name.endswith(".json") or not os.path.isfile(name):
        return False
    raw = artifact.read_json(Path(name))
    return isinstance(raw, dict) and str(raw.get("schema", "")).startswith("chip.runs/")


def _find(name: str) -> tuple[Any, str]:
    lowered = name.lower()
    if lowered in library.names():
        return _model(lowered)
    if lowered in ops.names():
        return _op(lowered)
    if lowered in engines.names():
        return _engine(lowered)
    if lowered in hardware.spec_names():
        return _gpu(lowered)
    if os.path.isdir(name):
        return _model(name)
    if name.endswith(".json"):
        raw = artifact.read_json(Path(name))
        is_gpu = isinstance(raw, dict) and str(raw.get("schema", "")).startswith("chip.hardware")
        return _gpu(name) if is_gpu else _model(name)
    if hardware.is_known(name):
        return _gpu(name)
    known = (*library.names(), *ops.names(), *engines.names(), *hardware.spec_names())
    near = get_close_matches(lowered[:80], known, 3, 0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "`chip list models|gpus|ops|engines` shows what there is"
    raise ChipError(f"nothing is called {name[:80]!r}; {hint}")


def _model(name: str) -> tuple[Any, str]:
    path, _ = library.locate(name)
    d = library.find(name)
    p, stored = precision("bf16"), replace(precision(d.dtype), per_layer=True)
    layers = [{"count": n, **codec.to_json(layer)} for n, layer in d.layers]
    data = {
        "name": d.name,
        "architecture": d.architecture,
        "parameters": d.params(),
        "active_parameters": d.active_params(),
        "dtype": d.dtype,
        "quantization": d.quantization,
        "weight_bytes": d.weight_bytes(stored),
        "weight_bytes_bf16": d.weight_bytes(p),
        "kv_bytes_per_token_bf16": d.kv_bytes(1, p),
        "hidden": d.hidden,
        "vocab": d.vocab,
        "max_context": d.max_context,
        "state_bytes_per_sequence_bf16": d.state_bytes(p),
        "draft_parameters": d.draft_params(),
        "encoder_parameters": d.encoder.params if d.encoder else 0,
        "layers": layers,
        "config": artifact.read_json(path),
    }
    lines = [
        f"{d.name} ({d.architecture})",
        f"  parameters  {d.params():,}"
        + (f", {d.active_params():,} active" if d.active_params() != d.params() else ""),
        f"  weights     {gib(d.weight_bytes(p))} in bf16",
        *(
            [f"              {gib(d.weight_bytes(stored))} as the config has them: {d.quantization}"]
            if d.quantization
            else []
        ),
        *(f"              {title}" for title in _formats(d)),
        f"  KV cache    {d.kv_bytes(1, p) / 1024:.4g} KiB a token in bf16",
        *_beside(d, p),
        f"  hidden      {d.hidden}, vocabulary {d.vocab}, context {d.max_context or 'not stated'}",
    ]
    for n, layer in d.layers:
        lines.append(f"  {f'{n} layer' if n == 1 else f'{n} layers':<11} attention {_brief(layer.attn)}")
        lines += [f"              {'experts' if isinstance(layer.mlp, Moe) else 'mlp':<9} {_brief(layer.mlp)}"]
    return data, "\n".join(lines)


def _beside(d: Decoder, p: Precision) -> list[str]:
    """States, heads that predict more tokens, and an encoder, where there are such."""
    states, told = d.state_bytes(p), []
    if states:
        told.append(f"  states      {states / 2**20:.4g} MiB a sequence in bf16")
    if d.drafts:
        told.append(f"  drafts      {d.draft_params():,} parameters that predict more tokens, loaded only for that")
    if d.encoder:
        told.append(f"  encoder     {d.encoder.params:,} parameters for images, {d.encoder.merge} patches a token")
    return told


def _formats(d: Decoder) -> list[str]:
    """Each format of the config, and which layers have it."""
    roles: dict[str, dict[str, None]] = {}
    for _, layer in d.layers:
        for role, kind in layer.formats:
            roles.setdefault(kind.title, {})[role] = None
    return [f"{title} ({', '.join(kind)})" for title, kind in roles.items()]


def _brief(part: Any) -> str:
    """The fields of a part of a layer that are not at their default."""
    shown = [(f.name, getattr(part, f.name)) for f in fields(part) if getattr(part, f.name) != f.default]
    return " ".join(k if v is True else f"{k}=({_brief(v)})" if is_dataclass(v) else f"{k}={v}" for k, v in shown)


def _gpu(name: str) -> tuple[Any, str]:
    h = hardware.find(name)
    sheet = h.spec.ceilings if h.spec else {}
    measured = h.profile.ceilings if h.profile else {}
    data = codec.to_json(h.profile)
    if h.spec:
        data = {"schema": h.spec.SCHEMA, **codec.to_json(h.spec)}
        data |= {"measured": {key: _measured(c) for key, c in measured.items()}} if measured else {}
    rows = []
    for key in dict.fromkeys([*sheet, *measured]):
        got = measured.get(key)
        promised = sheet.get("hbm" if key.startswith("hbm_") and got else key)
        row = {"key": key, "got": got, "promised": promised.value if promised else None}
        row["kept"] = got.value / promised.value if got and promised else None
        rows.append({**row, "source": promised.source if promised else got.method if got else ""})
    columns: tuple[Column, ...] = (
        ("ceiling", "key", str), ("datasheet", lambda r: r["promised"] and si(r["promised"], _unit(r["key"]))),
        ("measured", "got", quantity), ("kept", "kept", "{:.0%}".format), ("source", "source"),
    )  # fmt: skip
    head = [h.title]
    if h.spec:
        s = h.spec
        usable = f" ({s.usable_bytes.value / 2**30:.2f} usable)" if s.usable_bytes else ""
        head.append(
            f"  {s.vendor} {s.architecture} {s.compute_capability}, {s.sm_count} {SM_WORDS.get(s.vendor, 'cores')} at "
            f"{si(s.boost_clock_hz.value, 'Hz')}, {gib(s.memory_bytes.value)}{usable}, L2 {gib(s.l2_bytes.value)}, "
            f"{s.power_w.value:g} W"
        )
        head += [f"  {n}: {si(k.bytes_per_s.value, 'B/s')} one way" for n, k in s.links.items()]
    return data, "\n".join([*head, "", table(rows, columns)])


def _measured(c: Ceiling) -> dict[str, Any]:
    """Without the raw samples, which are in the profile's file."""
    return {k: v for k, v in codec.to_json(c).items() if k != "samples"}


def _unit(ceiling: str) -> str:
    return "B/s" if ceiling.startswith("hbm") else "FLOP/s"


def _op(name: str) -> tuple[Any, str]:
    cls = ops.get(name)
    axes = {
        f.name: {"type": str(f.type), **({} if f.default is MISSING else {"default": f.default})}
        for f in ops.axes(cls).values()
    }
    data = {"name": name, "what": doc_of(name), "axes": axes}
    rows = [{"axis": k, "default": "(required)", **v} for k, v in axes.items()]
    columns: tuple[Column, ...] = (("axis", "axis", str), ("type", "type", str), ("default", "default", str))
    return data, f"{name}\n{doc_of(name)}\n\n{table(rows, columns)}"


def _engine(name: str) -> tuple[Any, str]:
    e = engines.get(name)
    doc = (getattr(e, "__doc__", "") or "").strip()
    return {"name": name, "title": e.TITLE, "what": doc}, f"{name}: {e.TITLE}\n\n{doc}"
