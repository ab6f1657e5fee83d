"""A kernel that reads one working set many times in a single launch: torch has none, and without it the launch hides
what a small working set can do. Optional: without Triton the probes fall back to reductions and say so."""

from __future__ import annotations

from typing import Any

import torch

from chip.measure.device import Device
from chip.measure.timing import Call

BLOCK = 4096  # fp32 elements a program reads at a time: 16 KiB in four 16-byte loads a thread
WARPS = 8
PROGRAMS_PER_SM = 4  # all resident at once whatever registers the compiler takes

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
