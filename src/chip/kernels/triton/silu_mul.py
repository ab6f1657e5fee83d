"""SiLU(gate) * up: one kernel where PyTorch runs two, so that the activation never travels to memory and back."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from chip.kernels.triton import rows
from chip.kernels.triton.language import jit, tl, usable
from chip.ops.silu_mul import SiluMul

KIND = "silu_mul"
BENCH = [SiluMul(4096, 11008), SiluMul(4096, 14336), SiluMul(16384, 5632)]
BLOCK, WARPS = 4096, 4  # elements a program: four 16-byte loads a thread of each input


@jit
def _silu_mul(gate, up, out, cols, gate_step, up_step, out_step, blocks, BLOCK: tl.constexpr):
    row = (tl.program_id(0) // blocks).to(tl.int64)
    col = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    g = tl.load(gate + row * gate_step + col, mask=col < cols, eviction_policy="evict_first").to(tl.float32)
    u = tl.load(up + row * up_step + col, mask=col < cols, eviction_policy="evict_first").to(tl.float32)
    tl.store(out + row * out_step + col, g / (1 + tl.exp(-g)) * u, mask=col < cols)


def run(gate: torch.Tensor, up: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    if not usable(gate):
        return native(gate, up)
    out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device) if out is None else out
    if gate.is_contiguous() and up.is_contiguous() and out.is_contiguous():  # then rows do not matter
        flat = [t.view(1, -1) for t in (gate, up, out)]
    else:
        flat = [rows.flat(t) for t in (gate, up, out)]
    count, cols = flat[0].shape
    blocks = -(-cols // BLOCK)
    steps = [t.stride(0) for t in flat]
    _silu_mul[(count * blocks,)](*flat, cols, *steps, blocks, BLOCK, num_warps=WARPS)
    return out


def inputs(op: SiluMul, device: torch.device, generator: torch.Generator, pad: int = 0) -> tuple[torch.Tensor, ...]:
    return rows.random_rows(op, device, generator, pad), rows.random_rows(op, device, generator, pad)


def native(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return F.silu(gate) * up


def reference(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return native(gate.double(), up.double())
