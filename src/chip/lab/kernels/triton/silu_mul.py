"""SiLU(gate) * up: one kernel where PyTorch runs two, so that the activation never travels to memory and back."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F

from chip.lab.kernels import plans
from chip.lab.kernels.triton import rows
from chip.lab.kernels.triton.language import early, exp, jit, overlapped, tl, usable
from chip.ops.elementwise import Elementwise, SiluMul

KIND = "silu_mul"
BENCH = [SiluMul(4096, 11008), SiluMul(4096, 14336), SiluMul(16384, 5632)]
# 16 bytes of each input a thread: 64 warps an SM hide the latency
ONE_LOAD = plans.LaunchPlan(warps=4, chunk=1024, evict="")
SIZES = ((4, 1024), (8, 2048), (2, 512), (4, 2048), (8, 4096), (4, 4096))  # warps and columns
CANDIDATES = [replace(ONE_LOAD, warps=warps, chunk=chunk) for warps, chunk in SIZES]
CANDIDATES += [replace(ONE_LOAD, evict="evict_first"), replace(ONE_LOAD, cache=".cg")]
FLAT_ELEMENTS = 2**31 - 2**16  # below this 32 bits number every element


@jit
def _silu_mul(
    gate, up, out, cols, gate_step, up_step, out_step, blocks, FLAT: tl.constexpr, BLOCK: tl.constexpr,
    EVICT: tl.constexpr, CACHE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    if OVERLAP:
        overlapped()
    block = tl.program_id(0)
    if not FLAT:
        row = (block // blocks).to(tl.int64)
        block %= blocks
        gate += row * gate_step
        up += row * up_step
        out += row * out_step
    col = block * BLOCK + tl.arange(0, BLOCK)
    g = tl.load(gate + col, mask=col < cols, eviction_policy=EVICT, cache_modifier=CACHE).to(tl.float32)
    u = tl.load(up + col, mask=col < cols, eviction_policy=EVICT, cache_modifier=CACHE).to(tl.float32)
    tl.store(out + col, g / (1 + exp(-g)) * u, mask=col < cols, eviction_policy=EVICT, cache_modifier=CACHE)


def run(
    gate: torch.Tensor,
    up: torch.Tensor,
    out: torch.Tensor | None = None,
    plan: plans.LaunchPlan | None = None,
    overlap: bool = False,
) -> torch.Tensor:
    if not usable(gate):
        return native(gate, up)
    out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device) if out is None else out
    contiguous = gate.is_contiguous() and up.is_contiguous() and out.is_contiguous()
    flat = contiguous and gate.numel() <= FLAT_ELEMENTS  # then rows do not matter
    tensors = [t.view(1, -1) if flat else rows.flat(t) for t in (gate, up, out)]
    count, cols = tensors[0].shape
    p = plan or plans.tuned(KIND, plans.ANY) or ONE_LOAD
    blocks = -(-cols // p.chunk)
    steps = [t.stride(0) for t in tensors]
    _silu_mul[(count * blocks,)](
        *tensors, cols, *steps, blocks, flat, p.chunk, p.evict, p.cache, overlap, num_warps=p.warps, **early(overlap)
    )
    return out


def inputs(op: Elementwise, device: torch.device, generator: torch.Generator, pad: int = 0) -> tuple[torch.Tensor, ...]:
    return rows.random_rows(op, device, generator, pad), rows.random_rows(op, device, generator, pad)


def native(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return F.silu(gate) * up


def reference(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return native(gate.double(), up.double())
