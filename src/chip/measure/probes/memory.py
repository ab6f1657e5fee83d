"""Memory bandwidth of streams far larger than the cache: copy, read, write and mixes. Bytes counted are those moved."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from chip.measure.bench import Bench, ProbeCase
from chip.measure.journal import Outcome
from chip.measure.timing import Call
from chip.measure.triton_read import reader
from chip.stats import median

Variants = dict[str, Call]
WRITE_BLOCK_BYTES = 4 * 2**20


def cases(bench: Bench) -> list[ProbeCase]:
    seconds = bench.budget.warm_s + 1 + 1.2 * bench.budget.rule.max_seconds
    makers: dict[str, tuple[int, Callable[[Bench, int], Variants]]] = {
        "hbm_copy": (2, _copy),
        "hbm_read": (1, _read),
        "hbm_write": (1, _write),
        "hbm_fill": (1, _fill),
        "hbm_mix_2to1": (3, _two_to_one),
        "hbm_mix_3to1": (4, _three_to_one),
    }
    return [
        ProbeCase(name, (name,), seconds, partial(_stream, name=name, buffers=count, variants=make))
        for name, (count, make) in makers.items()
    ]


def _stream(bench: Bench, name: str, buffers: int, variants: Callable[[Bench, int], Variants]) -> Outcome:
    size = bench.buffer_bytes()
    ways = variants(bench, size)
    if bench.device.kind == "cpu" and bench.budget.mode == "quick":
        ways = dict([next(iter(ways.items()))])  # each way costs seconds there
    best, found = bench.best_of(ways)
    rates = {way: buffers * size / (median(s.samples_ns) * 1e-9) for way, s in found.items()}
    others = ", ".join(f"{way} {rate / 1e9:.4g}" for way, rate in rates.items())
    method = f"{best}, buffers of {size >> 20} MiB, events; best of GB/s: {others}"
    best_rate = bench.rate(found[best], buffers * size, "B/s", method)
    return Outcome(ceilings={name: bench.check_memory(best_rate)})


def _copy(bench: Bench, size: int) -> Variants:
    a, b = bench.buffer(0, size), bench.buffer(1, size)
    return {"copy_": lambda: b.copy_(a), "mul": lambda: torch.mul(a, 1.5, out=b)}


def _read(bench: Bench, size: int) -> Variants:
    a = bench.buffer(0, size)
    out = torch.empty((), device=a.device)
    whole = a.view(torch.int32)
    ways: Variants = {
        "sum": lambda: torch.sum(a, dim=0, out=out),
        "amax": lambda: torch.amax(a, dim=0),
    }
    if bench.device.kind == "cpu":
        ways["dot"] = lambda: torch.dot(a[: a.numel() // 2], a[a.numel() // 2 :])
    else:
        ways["max of integers"] = lambda: torch.amax(whole, dim=0)
    if (loop := reader(bench.device, a, size)) is not None:
        ways["triton loop"] = loop
    return ways


def _write(bench: Bench, size: int) -> Variants:
    """Random values, read again and again from a block that stays in cache; 16 bytes an element keep the copy wide."""
    wide = torch.complex128
    block = bench.buffer(0, size)[: WRITE_BLOCK_BYTES // 4].view(wide)
    b = bench.buffer(1, size).view(wide)
    rows = b[: b.numel() // block.numel() * block.numel()].view(-1, block.numel())
    return {f"block of {WRITE_BLOCK_BYTES >> 20} MiB repeated": lambda: rows.copy_(block)}


def _fill(bench: Bench, size: int) -> Variants:
    """One value everywhere, which hardware may write faster than values that differ."""
    b = bench.buffer(1, size)
    return {"zero_": lambda: b.zero_(), "fill_": lambda: b.fill_(1.5)}


def _two_to_one(bench: Bench, size: int) -> Variants:
    a, b, c = (bench.buffer(i, size) for i in range(3))
    return {"add": lambda: torch.add(a, b, out=c)}


def _three_to_one(bench: Bench, size: int) -> Variants:
    a, b, c, d = (bench.buffer(i, size) for i in range(4))
    return {"addcmul": lambda: torch.addcmul(a, b, c, out=d)}
