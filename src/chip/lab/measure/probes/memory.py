"""Memory bandwidth of streams far larger than the cache: copy, read, write and mixes. Bytes counted are those moved."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

from chip.lab.measure.bench import Bench, ProbeCase
from chip.lab.measure.device import Device
from chip.lab.measure.journal import Outcome
from chip.lab.measure.timing import Call
from chip.stats import median

Ways = dict[str, Call]  # to do the same: the fastest counts
WRITE_BLOCK_BYTES = 4 * 2**20
BLOCK = 4096  # fp32 elements a program reads at a time: 16 KiB in four 16-byte loads a thread
WARPS = 8
PROGRAMS_PER_SM = 4  # all resident at once whatever registers the compiler takes

# Reads one working set many times in a single launch: torch has no such kernel, and without it the launch hides what a
# small working set can do. Without Triton the probes fall back to reductions and say so.
try:
    import triton
    import triton.language as tl

    @triton.jit  # type: ignore[untyped-decorator]
    def _read_loop(x, out, blocks, total, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        program = tl.program_id(0)
        step = tl.num_programs(0)
        lanes = tl.arange(0, BLOCK)
        sums = tl.zeros((BLOCK,), dtype=tl.float32)
        for i in range(program, total, step):
            at = (i % blocks).to(tl.int64) * BLOCK
            sums += tl.load(x + at + lanes, cache_modifier=".cg")
        tl.store(out + program, tl.sum(sums, axis=0))

except ImportError:  # Triton is optional
    triton = None


class Stream(NamedTuple):
    moved: int  # buffers' worth of bytes, a call
    buffers: int
    ways: Callable[..., Ways]  # of the bench and the buffers


def cases(bench: Bench) -> list[ProbeCase]:
    seconds = bench.budget.warm_s + 1 + 1.2 * bench.budget.rule.max_seconds
    return [ProbeCase(name, (name,), seconds, partial(_measure, name=name)) for name in STREAMS]


def _measure(bench: Bench, name: str) -> Outcome:
    size, (moved, buffers, ways_of) = bench.buffer_bytes(), STREAMS[name]
    ways = ways_of(bench, *(bench.buffer(i, size) for i in range(buffers)))
    if bench.device.kind == "cpu" and bench.budget.mode == "quick":
        ways = dict([next(iter(ways.items()))])  # each way costs seconds there
    best, samples = bench.best_of(ways)
    rates = {way: moved * size / (median(s.samples_ns) * 1e-9) for way, s in samples.items()}
    others = ", ".join(f"{way} {rate / 1e9:.4g}" for way, rate in rates.items())
    method = f"{best}, buffers of {size >> 20} MiB, events; best of GB/s: {others}"
    rate = bench.rate(samples[best], moved * size, "B/s", method)
    return Outcome(ceilings={name: bench.check_memory(rate)})


def _read(bench: Bench, a: torch.Tensor) -> Ways:
    out, whole, half = torch.empty((), device=a.device), a.view(torch.int32), a.numel() // 2
    ways: Ways = {"sum": lambda: torch.sum(a, dim=0, out=out), "amax": lambda: torch.amax(a, dim=0)}
    if bench.device.kind == "cpu":
        ways["dot"] = lambda: torch.dot(a[:half], a[half:])
    else:
        ways["max of integers"] = lambda: torch.amax(whole, dim=0)
    if (loop := reader(bench.device, a, 4 * a.numel())) is not None:
        ways["triton loop"] = loop
    return ways


def _write(bench: Bench, a: torch.Tensor, b: torch.Tensor) -> Ways:
    """Random values, read again and again from a block that stays in cache; 16 bytes an element keep the copy wide."""
    wide = torch.complex128
    block, to = a[: WRITE_BLOCK_BYTES // 4].view(wide), b.view(wide)
    rows = to[: to.numel() // block.numel() * block.numel()].view(-1, block.numel())
    return {f"block of {WRITE_BLOCK_BYTES >> 20} MiB repeated": lambda: rows.copy_(block)}


def reader(device: Device, x: torch.Tensor, total_bytes: int) -> Call | None:
    """A call that reads all of `x` again and again, `total_bytes` in all, past L1; None where Triton cannot."""
    if triton is None or device.kind == "cpu" or x.numel() < BLOCK:
        return None
    blocks, total = x.numel() // BLOCK, total_bytes // (4 * BLOCK)
    programs = device.sm_count * PROGRAMS_PER_SM
    out = torch.empty(programs, device=x.device)
    kernel: Any = _read_loop

    def call() -> None:
        kernel[(programs,)](x, out, blocks, total, BLOCK=BLOCK, num_warps=WARPS)

    try:
        call()
        device.synchronize()
    except Exception:  # no compiler, unsupported device: torch's reductions remain
        return None
    return call


STREAMS = {
    "hbm_copy": Stream(2, 2, lambda _, a, b: {"copy_": lambda: b.copy_(a), "mul": lambda: torch.mul(a, 1.5, out=b)}),
    "hbm_read": Stream(1, 1, _read),
    "hbm_write": Stream(1, 2, _write),
    # one value everywhere, which hardware may write faster than values that differ
    "hbm_fill": Stream(1, 2, lambda _, a, b: {"zero_": lambda: b.zero_(), "fill_": lambda: b.fill_(1.5)}),
    "hbm_mix_2to1": Stream(3, 3, lambda _, a, b, c: {"add": lambda: torch.add(a, b, out=c)}),
    "hbm_mix_3to1": Stream(4, 4, lambda _, a, b, c, d: {"addcmul": lambda: torch.addcmul(a, b, c, out=d)}),
}
