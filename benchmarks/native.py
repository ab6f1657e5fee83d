"""The native engine and its kernels on this machine, in one run: right, how fast, and what each kernel buys.

    python benchmarks/native.py OUT.json                    every part that OUT.json lacks, for five minutes at most
    python benchmarks/native.py OUT.json --parts engine,hf  some parts, again if they are there
    python benchmarks/native.py OUT.json --device cpu --tiny

Parts, each kept when it is done, so the same command goes on where it was stopped:

check      every new kernel against float64, tails and all
few        products of 1 to 64 rows: ours beside cuBLAS, cublasLt's best, and the copy bandwidth of this run
many       products of 128 to 4096 rows: the wgmma rung by its rule and by every config, beside cublasLt's best
attention  prefill beside PyTorch's flash backend, decode over pages beside flash over dense keys
rows       norms and silu_mul at the widths of real models, as a share of copy bandwidth
exact      bf16 logits: the engine's error and transformers' own, against fp32; greedy tokens side by side
engine     Llama-3.1-8B, random weights, prompt 512, batch 1, 8, 32: kernels torch, triton, chip, in turn
ladder     from PyTorch to all of ours, one launch after another: the decode step's time on the device
hf         transformers, eager, at the same points
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import environment
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from chip import stats
from chip.decoders import library
from chip.files import artifact, output
from chip.lab.kernels import check, hgemm, plans, skinny
from chip.lab.kernels.subjects import subject
from chip.lab.kernels.triton import (
    add_rms_norm,
    language,
    layer_norm,
    paged_decode_attention,
    prefill_attention,
    rms_norm,
    rope_store,
    rows,
    silu_mul,
    skinny_gemm,
)
from chip.lab.measure import timing
from chip.lab.measure.build import normal
from chip.lab.measure.device import Device, default_device, open_device
from chip.lab.measure.stopping import StopRule, collect_interleaved
from chip.lab.run import Job, get
from chip.lab.run.native import spec, torch_launches, weights
from chip.lab.run.native.batch import build
from chip.lab.run.native.engine import DTYPES, NativeEngine, NativeSettings
from chip.lab.run.native.pages import PageTable
from chip.lab.run.native.requests import NativeRequest, SamplingParams
from chip.lab.run.native.scheduler import StepShare
from chip.lab.run.native.session import NativeSteps
from chip.ops.attention import Attention
from chip.ops.linear import Linear
from chip.ops.moves import Rope
from chip.types import ChipError, Scenario

RULE = StopRule(0.01, 8, 20, 0.06)
MODEL, EXACT_MODEL = "llama-3.1-8b", "llama-3.2-1b"
SHAPES = {"qkv": (6144, 4096), "out": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336),
          "qwen2.5-14b gate": (13824, 5120)}  # fmt: skip
WIDTHS = (2048, 2560, 3072, 3584, 4096, 5120, 8192)
GATED_WIDTHS = (5632, 8960, 11008, 13824, 14336, 18944)
LADDER = ("rms_norm", "add_rms_norm", "rope_store", "decode_attention", "linear_few", "gate_up_few")
PROMPT, BATCHES, STEPS, REPEATS = 512, (1, 8, 32), 24, 4
TINY = {"vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256}  # fmt: skip


class Bench:
    """What every part needs: the device, sizes, and calls timed in turn."""

    def __init__(self, device: Device, tiny: bool) -> None:
        self.device, self.tiny, self.on_gpu = device, tiny, device.kind == "cuda"
        self.generator = torch.Generator(device.torch_device).manual_seed(1)
        self.dtype = "bf16" if self.on_gpu else "fp32"
        self._copy: float | None = None
        self.ours = language.label(device.kind).replace(language.OURS, "ours")  # or that PyTorch stands in for it

    @property
    def copy_bytes_per_s(self) -> float:
        """Read and written, of a large copy: what bandwidth is compared with here."""
        if self._copy is None:
            count = (1 << 20) if self.tiny else (1 << 29)
            a, b = (normal((count,), self.dtype, self.device.torch_device, self.generator) for _ in range(2))
            copy = timing.events(self.device, [lambda: b.copy_(a)], 4)  # in a graph it would be the copy engine's
            took = stats.median(collect_interleaved({"copy": copy}, RULE)["copy"].samples_ns) * 1e-9
            self._copy = 2 * a.numel() * a.element_size() / took
        return self._copy

    def sets(self, make: Callable[[], Any], read_bytes: float) -> list[Any]:
        """As many inputs as keep them out of cache when used in turn."""
        count = min(64, timing.cold_copies(self.device, read_bytes)) if self.on_gpu else 2
        return [make() for _ in range(count)]

    def race(self, calls: dict[str, Sequence[Callable[[], Any]]]) -> dict[str, dict[str, Any]]:
        """Median seconds of each, sampled in turn; a call that fails has its reason instead."""
        takes, found = {}, {}
        with torch.inference_mode():
            for name, closures in calls.items():
                try:
                    closures[0]()
                    self.device.synchronize()
                    inner = timing.inner_for(self.device, closures, 1e-3)
                    turns = len(closures) * max(1, round(inner / len(closures)))
                    how = timing.graph if self.on_gpu else timing.events
                    takes[name] = how(self.device, closures, turns)
                except Exception as e:  # one variant must not end the others
                    found[name] = {"failed": f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}"[:200]}
            samples = collect_interleaved(takes, RULE, self.device)
        for name, s in samples.items():
            found[name] = {"p50_s": stats.median(s.samples_ns) * 1e-9, "samples": len(s.samples_ns)}
        return found

    def shares(self, timed: dict[str, dict[str, Any]], moved_bytes: float) -> dict[str, dict[str, Any]]:
        for row in timed.values():
            if "p50_s" in row:
                row["of_copy"] = moved_bytes / row["p50_s"] / self.copy_bytes_per_s
        return timed

    def config(self, name: str = MODEL) -> dict[str, Any]:
        raw = artifact.read_json(library.locate(name)[0])
        return {**raw, **TINY} if self.tiny else raw


def bound(call: Callable[..., Any], sets: Sequence[Any], **more: Any) -> list[Callable[[], Any]]:
    return [lambda tensors=tensors: call(*tensors, **more) for tensors in sets]


def flash(on_gpu: bool) -> Any:
    return sdpa_kernel(SDPBackend.FLASH_ATTENTION) if on_gpu else nullcontext()


# -- right ------------------------------------------------------------------------------------------------------------
def part_check(b: Bench) -> dict[str, Any]:
    names = ["rope_store", "paged_decode_attention", "prefill_attention", "skinny_gemm", "skinny", "hgemm"]
    names += ["rms_norm", "add_rms_norm"]
    found: dict[str, Any] = {}
    for name in names:
        s = subject(name, b.device, "wgmma" if name == "hgemm" else "", configs=name == "hgemm")
        findings = list(check.check(s, b.device, seed=5, count=2 if b.tiny else 6))
        counts = {status: sum(f.status == status for f in findings) for status in ("ok", "failed", "skipped")}
        wrong = [f"{f.variant} {f.case}: {f.reason}" for f in findings if f.status == "failed"]
        found[name] = {**counts, "wrong": wrong[:10]}
    if b.on_gpu:
        found["few, all forms"] = check_few(b)
        found["wgmma, shared tiles"] = check_splits(b)
    return found


def held(got: torch.Tensor, want: torch.Tensor, own: torch.Tensor) -> str:
    """Nothing, or how far it is off: twice the error of PyTorch's own is allowed."""
    error = check.distance(got, want)
    allowed = 2 * check.distance(own, want) + check.rounding(got.dtype) * float(want.abs().max())
    return "" if error <= allowed else f"error {error:.3g}, allowed {allowed:.3g}"


def check_few(b: Bench) -> dict[str, Any]:
    """Gated or not, with bias or not, early or not, k divided or not: every launch twice, so that counters are used."""
    wrong, count = [], 0
    for m in (1, 3, 8, 9, 16, 17, 32, 33, 64):
        for n, k in ((640, 4096), (100, 2048), (4096, 4096)):
            x, w, bias = (normal(s, "bf16", b.device.torch_device, b.generator) for s in ((m, k), (2 * n, k), (2 * n,)))
            for gated in (False, True):
                for add in (None, bias):
                    args = (x, w, add)
                    want, own = skinny_gemm.reference(*args, gated), skinny_gemm.native(*args, gated)
                    rungs = [(r, c) for r in skinny.RUNGS for c in (0, *skinny.CONFIGS[r])]
                    calls = {f"{r}:{c} overlap {o}": (r, c, o) for r, c in rungs for o in (False, True)}
                    for title, (rung, config, overlap) in calls.items():
                        if rung == skinny.WGMMA and gated and n % 8:
                            continue
                        for _ in range(2):
                            got = skinny.run(rung, *args, gated=gated, config=config, overlap=overlap)
                            why, count = held(got, want, own), count + 1
                            if why:
                                wrong.append(f"{m}x{n}x{k} gated {gated} bias {add is not None} {title}: {why}")
                    why, count = held(skinny_gemm.run(*args, gated=gated), want, own), count + 1
                    if why:
                        wrong.append(f"triton {m}x{n}x{k} gated {gated} bias {add is not None}: {why}")
    return {"ok": count - len(wrong), "failed": len(wrong), "wrong": wrong[:20]}


def check_splits(b: Bench) -> dict[str, Any]:
    wrong, count = [], 0
    for m, n, k in ((65, 4096, 4096), (128, 1000, 4096), (200, 520, 1096), (256, 6144, 4096), (512, 6144, 4096)):
        x, w = (normal(s, "bf16", b.device.torch_device, b.generator) for s in ((m, k), (n, k)))
        want, own = hgemm.reference(x, w), hgemm.native(x, w)
        for config in (0, *hgemm.CONFIGS[hgemm.WGMMA]):
            for overlap in (False, True):
                try:
                    why = held(hgemm.run(hgemm.WGMMA, x, w, config=config, overlap=overlap), want, own)
                except ChipError as e:
                    why = str(e)
                count += 1
                if why:
                    wrong.append(f"{m}x{n}x{k} config {config} overlap {overlap}: {why}")
    return {"ok": count - len(wrong), "failed": len(wrong), "wrong": wrong[:20]}


# -- kernels ----------------------------------------------------------------------------------------------------------
def shapes_of(b: Bench) -> dict[str, tuple[int, int]]:
    return {"small": (48, 64)} if b.tiny else SHAPES


def products(b: Bench, m: int, n: int, k: int) -> tuple[Linear, list[tuple[torch.Tensor, torch.Tensor]]]:
    op = Linear(m, n, k, b.dtype)
    make = lambda: hgemm.inputs(op, b.device.torch_device, b.generator)  # noqa: E731
    return op, b.sets(make, op.cost().read_bytes)  # type: ignore[return-value]


def part_few(b: Bench) -> list[dict[str, Any]]:
    found = []
    for m in (1, 4) if b.tiny else (1, 8, 16, 32, 64):
        for name, (n, k) in shapes_of(b).items():
            op, sets = products(b, m, n, k)
            calls: dict[str, Any] = {
                "torch": bound(F.linear, sets),
                "triton" if b.on_gpu else b.ours: bound(skinny_gemm.run, sets),
            }
            if b.on_gpu:
                calls |= {lt: bound(call, sets) for lt, call in hgemm.rivals(*sets[0]).items()}
                for rung in skinny.RUNGS:
                    given = [(rung, *s) for s in sets]
                    calls[rung] = bound(skinny.run, given)
                    calls[f"{rung}, early"] = bound(skinny.run, given, overlap=True)
                    if name == "gate_up":
                        calls[f"{rung}, gated"] = bound(skinny.run, given, gated=True)
                given = [(skinny.WGMMA, *s) for s in sets]
                for config in skinny.CONFIGS[skinny.WGMMA]:
                    calls[f"{skinny.WGMMA}:{config}"] = bound(skinny.run, given, config=config)
                if name == "gate_up":
                    calls["torch gated"] = bound(skinny_gemm.native, sets, gated=True)
            timed = b.shares(b.race(calls), op.cost().bytes)
            found.append({"product": name, "m": m, "n": n, "k": k, "timed": timed})
    return found


def part_many(b: Bench) -> list[dict[str, Any]]:
    found = []
    for m in (80,) if b.tiny else (128, 256, 512, 1024, 4096):
        for name, (n, k) in shapes_of(b).items():
            op, sets = products(b, m, n, k)
            calls: dict[str, Any] = {"torch": bound(F.linear, sets)}
            if b.on_gpu:
                calls |= {lt: bound(call, sets) for lt, call in hgemm.rivals(*sets[0]).items()}
                given = [(hgemm.WGMMA, *s) for s in sets]
                calls["wgmma"] = bound(hgemm.run, given)
                calls["wgmma, early"] = bound(hgemm.run, given, overlap=True)
                few = m <= 1024  # what is large is tuned already
                calls |= {f"wgmma:{c}, early": bound(hgemm.run, given, config=c, overlap=True)
                          for c in hgemm.CONFIGS[hgemm.WGMMA] if few}  # fmt: skip
            timed = b.race(calls)
            for row in timed.values():
                if "p50_s" in row:
                    row["flops_per_s"] = op.cost().flops / row["p50_s"]
            found.append({"product": name, "m": m, "n": n, "k": k, "timed": timed})
    return found


def part_attention(b: Bench) -> dict[str, list[dict[str, Any]]]:
    return {"prefill": prefills(b), "decode": decodes(b), "rope_store": ropes(b)}


def prefills(b: Bench) -> list[dict[str, Any]]:
    found = []
    calls_of = [Attention(2, 4, 2, 16, 70, 70, dtype="fp32")] if b.tiny else prefill_attention.BENCH
    for op in calls_of:
        sets = b.sets(
            lambda op=op: prefill_attention.inputs(op, b.device.torch_device, b.generator), op.cost().read_bytes
        )
        dense = []
        for q, keys, values, table, _, _ in sets:
            k, v = (prefill_attention._dense(t, table, op.kv_len).contiguous() for t in (keys, values))
            dense.append((q.transpose(1, 2).contiguous(), k, v))
        grouped = op.heads != op.kv_heads
        with flash(b.on_gpu):
            calls = {"flash": bound(F.scaled_dot_product_attention, dense, is_causal=True, enable_gqa=grouped)}
            calls[b.ours] = bound(prefill_attention.run, sets)
            for warps, stages in ((8, 3), (8, 4), (4, 3)) if b.on_gpu else ():
                calls[f"ours, {warps} warps, {stages} stages"] = [
                    lambda s=s, w=warps, st=stages: prefill_attention.launch(
                        s[0].flatten(0, 1), s[1], s[2], s[3], s[5], torch.empty_like(s[0]).flatten(0, 1), w, st
                    )
                    for s in sets
                ]
            timed = b.race(calls)
        for row in timed.values():
            if "p50_s" in row:
                row["flops_per_s"] = op.cost().flops / row["p50_s"]
        found.append({"batch": op.batch, "tokens": op.q_len, "head_dim": op.head_dim, "timed": timed})
    return found


def decodes(b: Bench) -> list[dict[str, Any]]:
    found = []
    for op in [Attention(2, 4, 2, 16, 1, 70, dtype="fp32")] if b.tiny else paged_decode_attention.BENCH:
        make = lambda op=op: paged_decode_attention.inputs(op, b.device.torch_device, b.generator)  # noqa: E731
        sets = b.sets(make, op.cost().read_bytes)
        dense = []
        for q, keys, values, table, _ in sets:
            k, v = (paged_decode_attention._gathered(t, table)[:, :, : op.kv_len].contiguous() for t in (keys, values))
            dense.append((q[:, :, None], k, v))
        grouped = op.heads != op.kv_heads
        with flash(b.on_gpu):
            calls = {"flash, dense": bound(F.scaled_dot_product_attention, dense, enable_gqa=grouped)}
            calls["gather + sdpa"] = bound(paged_decode_attention.native, sets)
            for splits in (0, 1, 2, 4, 8, 16) if b.on_gpu else (0,):
                name = f"ours, {splits} shares" if splits else b.ours
                calls[name] = bound(paged_decode_attention.run, sets, splits=splits)
            timed = b.race({k: v for k, v in calls.items() if k != "gather + sdpa"})
        timed |= b.race({"gather + sdpa": calls["gather + sdpa"]})
        found.append({"batch": op.batch, "tokens": op.kv_len, "timed": b.shares(timed, op.cost().bytes)})
    return found


def ropes(b: Bench) -> list[dict[str, Any]]:
    found = []
    for op in [Rope(4, 5, 16, "fp32")] if b.tiny else rope_store.BENCH:
        sets = b.sets(
            lambda op=op: rope_store.inputs(op, b.device.torch_device, b.generator)[:6], 2 * op.cost().read_bytes
        )
        calls: dict[str, list[Any]] = {b.ours: [], "torch": []}
        for qkv, cos, sin, positions, slots, like in sets:
            heads = qkv.shape[1] // op.head_dim - 2 * like.shape[1]
            out = torch.empty((op.rows, heads, op.head_dim), dtype=qkv.dtype, device=qkv.device), like, like.clone()
            calls[b.ours].append(lambda a=(qkv, cos, sin, positions, slots, like), o=out: rope_store.run(*a, out=o))
            given = (qkv, None, None, 1e-6, cos, sin, positions, slots, out[1], out[2])
            calls["torch"].append(lambda a=given: torch_launches.rope_store(*a))
        found.append({"tokens": op.rows, "timed": b.race(calls)})
    return found


def part_rows(b: Bench) -> list[dict[str, Any]]:
    found = []
    plan = [(m, w) for m in (rms_norm, add_rms_norm, layer_norm) for w in ((64,) if b.tiny else WIDTHS)]
    plan += [(silu_mul, w) for w in ((96,) if b.tiny else GATED_WIDTHS)]
    for module, width in plan:
        kind = type(module.BENCH[0])
        op = kind(16, width, b.dtype) if b.tiny else rows.mebibytes(kind, 128, (width,))[0]
        sets = b.sets(lambda m=module, o=op: m.inputs(o, b.device.torch_device, b.generator), op.cost().read_bytes)
        calls = {"torch": bound(module.native, sets), b.ours: bound(module.run, sets)}
        if b.on_gpu and module is not silu_mul and width & (width - 1):  # the plans that tuning would try for such rows
            calls |= {f"ours: {p}": bound(module.run, sets, plan=p) for p in plans.dividing(width)}
        timed = b.race(calls)
        found.append({"kernel": module.KIND, "width": width, "timed": b.shares(timed, op.cost().bytes)})
    return found


# -- the engine -------------------------------------------------------------------------------------------------------
class OfModel(weights.WeightSource):
    """Weights of a transformers model."""

    def __init__(self, model: Any) -> None:
        self.held = dict(model.state_dict())

    def fill(self, to: torch.Tensor, name: str) -> None:
        to.copy_(self.held[name])


def settings(b: Bench, kernels: str, rows_: int, **more: Any) -> NativeSettings:
    prompt = 20 if b.tiny else PROMPT
    context = prompt + STEPS + 80
    kept = {"kernels": kernels, "dtype": b.dtype, "device": b.device.name, "max_context": context, "max_rows": rows_}
    return NativeSettings(**{**kept, "kv_tokens": rows_ * (context + 64), **more})


def last_logits(engine: NativeEngine, prompt: Sequence[int]) -> torch.Tensor:
    """Logits after every token of a prompt: one prefill for all but the last few, then decode steps."""
    request = NativeRequest("one", tuple(prompt), SamplingParams(1), table=PageTable())
    engine.allocator.grow(request.table, len(prompt))
    found = []
    with torch.inference_mode():
        first = max(1, len(prompt) - 8)
        for new in (first, *(1,) * (len(prompt) - first)):
            inputs = build([StepShare(request, new)], engine.settings.page_tokens, engine.device)
            inputs.last = None
            found.append(engine.decoder.logits(inputs)[-1].float())
            request.computed += new
    engine.allocator.release(request.table)
    return torch.stack(found)


def part_exact(b: Bench) -> dict[str, Any]:
    """bf16 (on a CPU too) against fp32 with the same weights, rounded to bf16 first."""
    from chip.lab.run.model import from_config

    raw = {**b.config(EXACT_MODEL), "eos_token_id": None}
    device = b.device.torch_device
    reference = from_config(raw, torch.bfloat16, b.device.name).float().eval()
    theirs = from_config(raw, torch.bfloat16, b.device.name).eval()
    theirs.load_state_dict(reference.state_dict())
    made = spec.read(raw, EXACT_MODEL)
    loaded = weights.load(made, OfModel(theirs), torch.bfloat16, device)
    draw = torch.Generator().manual_seed(3)
    prompts = [
        torch.randint(0, made.vocab, (n,), generator=draw).tolist() for n in ((9, 21) if b.tiny else (64, 200, 500))
    ]
    out: dict[str, Any] = {}
    for kernels in ("torch", "triton", "chip"):
        engine = NativeEngine(raw, EXACT_MODEL, settings(b, kernels, 4, dtype="bf16"), loaded=loaded)
        ours_error, their_error, tokens = 0.0, 0.0, []
        for prompt in prompts:
            ids = torch.tensor([prompt], device=device)
            with torch.inference_mode():
                want, native = (m(ids).logits[0, -9:].float() for m in (reference, theirs))
            got = last_logits(engine, prompt)[-len(want) :]
            want, native = want[-len(got) :], native[-len(got) :]
            ours_error = max(ours_error, float((got - want).abs().max()))
            their_error = max(their_error, float((native - want).abs().max()))
            tokens.append(side_by_side(b, engine, reference, prompt))
        within = ours_error <= 2 * their_error
        out[kernels] = {
            "error": ours_error,
            "transformers_error": their_error,
            "within_twice": within,
            "greedy": tokens,
        }
        del engine
    return out


def side_by_side(
    b: Bench, engine: NativeEngine, reference: Any, prompt: Sequence[int], count: int = 24
) -> dict[str, Any]:
    """Greedy tokens of the engine and of fp32 transformers: equal up to where, and how near both logits were there."""
    request = NativeRequest("greedy", tuple(prompt), SamplingParams(count))
    engine.run([request])
    ids = torch.tensor([[*prompt, *request.output]], device=b.device.torch_device)
    with torch.inference_mode():
        logits = reference(ids).logits[0, len(prompt) - 1 : -1].float()
    best = logits.argmax(-1).tolist()
    same = next((i for i, (x, y) in enumerate(zip(best, request.output)) if x != y), count)
    if same == count:
        return {"equal": count, "of": count}
    gap = float(logits[same, best[same]] - logits[same, request.output[same]])
    return {"equal": same, "of": count, "gap_there": gap}


class Measured:
    """One engine at one batch size: prefill and decode steps by the host's clock, and the graph's own time."""

    def __init__(self, b: Bench, engine: NativeEngine, batch: int) -> None:
        self.b, self.engine, self.batch = b, engine, batch
        draw = torch.Generator().manual_seed(7)
        prompt = 20 if b.tiny else PROMPT
        ids = torch.randint(0, engine.spec.vocab, (batch, prompt), generator=draw).tolist()
        self.steps = NativeSteps(engine, ids, STEPS + 8)
        self.ttft_s: list[float] = []
        self.step_s: list[float] = []
        self.device_s: list[float] = []
        if engine.graphs:
            with torch.inference_mode():
                engine.graphs.ready(batch)

    def once(self, count: int = STEPS) -> None:
        sync = self.b.device.synchronize
        self.steps.rewind()
        sync()
        marks = [time.perf_counter()]
        self.steps.prefill()
        sync()
        marks.append(time.perf_counter())
        for _ in range(count):
            self.steps.decode()
            sync()
            marks.append(time.perf_counter())
        self.ttft_s.append(marks[1] - marks[0])
        self.step_s += [y - x for x, y in pairwise(marks[1:])]
        if self.engine.graphs:
            self.device_s.append(self._replayed(8))
        self.steps.rewind()

    def _replayed(self, count: int) -> float:
        """Seconds of a step between events: the next steps of the same requests, tokens fed on the device."""
        graph = self.engine.graphs.ready(self.batch)  # type: ignore[union-attr]
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        for _ in range(count):
            graph.replay()
        last.record()
        last.synchronize()
        self.engine.graphs.forget()  # type: ignore[union-attr]
        return first.elapsed_time(last) * 1e-3 / count

    def row(self) -> dict[str, Any]:
        found = {"ttft_s": stats.median(self.ttft_s), "tpot_s": stats.median(self.step_s)}
        return {**found, "step_device_s": stats.median(self.device_s)} if self.device_s else found


def loaded_model(b: Bench) -> tuple[dict[str, Any], weights.Weights]:
    raw = b.config()
    made = spec.read(raw, MODEL)
    device = b.device.torch_device
    with torch.inference_mode():
        return raw, weights.load(made, weights.Random(device), DTYPES[b.dtype], device)


def part_engine(b: Bench) -> dict[str, Any]:
    raw, loaded = loaded_model(b)
    batches = (1, 3) if b.tiny else BATCHES
    chosen = {k: settings(b, k, max(batches)) for k in ("torch", "triton", "chip")}
    chosen["chip, one after another"] = settings(b, "chip", max(batches), overlap=False)
    engines = {name: NativeEngine(raw, MODEL, s, loaded=loaded) for name, s in chosen.items()}
    runs = {(name, n): Measured(b, engine, n) for name, engine in engines.items() for n in batches}
    for measured in runs.values():
        measured.once(4)  # warm
        measured.ttft_s, measured.step_s, measured.device_s = [], [], []
    for _ in range(REPEATS):
        for measured in runs.values():
            measured.once()
    rows_ = [{"kernels": name, "batch": n, **measured.row()} for (name, n), measured in runs.items()]
    read = loaded.bytes - loaded.embed.numel() * loaded.embed.element_size() * (loaded.head is not loaded.embed)
    return {"prompt": 20 if b.tiny else PROMPT, "rows": rows_, "weights_read_bytes": read,
            "launches": {name: e.launches.rows() for name, e in engines.items()}}  # fmt: skip


def part_ladder(b: Bench) -> list[dict[str, Any]]:
    raw, loaded = loaded_model(b)
    batches = (1, 3) if b.tiny else BATCHES
    found = []
    for i in range(len(LADDER) + 1):
        only = frozenset(LADDER[:i])
        engine = NativeEngine(raw, MODEL, settings(b, "chip", max(batches), only=only), loaded=loaded)
        for n in batches:
            measured = Measured(b, engine, n)
            measured.once(2)
            measured.ttft_s, measured.step_s, measured.device_s = [], [], []
            for _ in range(2):
                measured.once(8)
            found.append({"added": LADDER[i - 1] if i else "PyTorch alone", "batch": n, **measured.row()})
        del engine
        gc.collect()
        b.device.empty_cache()
    return found


def part_hf(b: Bench) -> list[dict[str, Any]]:
    prompt, output = (20, 4) if b.tiny else (PROMPT, 9)
    job = Job(MODEL, b.config(), dtype=b.dtype, device=b.device.name, max_context=prompt + output,
              sdpa="flash" if b.on_gpu else "", energy_s=0.0, max_seconds=8.0)  # fmt: skip
    found = []
    with get("hf-eager").open(job) as session:
        for n in (1, 3) if b.tiny else BATCHES:
            run = session.measure(Scenario(n, prompt, output, b.dtype), 2)
            found.append({"batch": n, "ttft_s": run.ttft_s, "tpot_s": run.tpot_s})
    return found


# -- parts, one after another -----------------------------------------------------------------------------------------
PARTS: dict[str, Callable[[Bench], Any]] = {
    "check": part_check, "engine": part_engine, "few": part_few, "attention": part_attention, "ladder": part_ladder,
    "exact": part_exact, "many": part_many, "rows": part_rows, "hf": part_hf,
}  # fmt: skip
SCHEMA = "chip.benchmark_native/1"


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--parts", default="", help=f"of {', '.join(PARTS)} [those the file lacks]")
    parser.add_argument("--device", default="", help="cuda:N or cpu [the first GPU, else the CPU]")
    parser.add_argument("--tiny", action="store_true", help="sizes for a CPU: to see that it runs")
    parser.add_argument("--minutes", type=float, default=5.0, help="begin no part after this long [%(default)g]")
    args = parser.parse_args(words)
    asked = [p for p in args.parts.split(",") if p]
    if unknown := [p for p in asked if p not in PARTS]:
        parser.error(f"no part {unknown[0]!r}; parts: {', '.join(PARTS)}")
    device = open_device(args.device or default_device())
    kept = artifact.read_json(args.file) if args.file.exists() else {"schema": SCHEMA, "parts": {}}
    about = {**environment.describe(), "device": device.title, "torch": torch.__version__, "cuda": torch.version.cuda}
    bench, end = Bench(device, args.tiny), time.monotonic() + 60 * args.minutes
    for name in asked or [p for p in PARTS if p not in kept["parts"]]:
        if time.monotonic() > end:
            print(f"native: {name} and what follows left for the next run (--minutes)", file=sys.stderr)
            break
        began = time.monotonic()
        print(f"native: {name}", file=sys.stderr)
        try:
            result = PARTS[name](bench)
        except Exception as e:  # a part that fails must not take the others with it
            if device.lost():
                raise
            traceback.print_exc()
            result = {"failed": f"{type(e).__name__}: {e}"[:500]}
            print(f"native: {name} failed: {result['failed']}", file=sys.stderr)
        kept["parts"][name] = {"took_s": round(time.monotonic() - began, 1), "made": about, "result": result}
        kept["copy_bytes_per_s"] = bench.copy_bytes_per_s
        output.write(args.file, json.dumps(kept, indent=1) + "\n", output.ANY)
        gc.collect()
        device.empty_cache()
    bad = [n for n, p in kept["parts"].items() if isinstance(p["result"], dict) and p["result"].get("failed")]
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
