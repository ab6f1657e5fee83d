"""The other kernels of a decoder layer: what an operator is timed among in the context `layer`.

In an engine some ten other kernels run between two calls of one kernel. They evict its instructions and operands from
every cache, but not what the kernel right before it wrote. vLLM's attention, where it takes less than 20 us alone,
takes a fifth longer among them (median of 200 shapes on an H200; at most 1.4 times).
"""

from __future__ import annotations

from functools import lru_cache, partial

import torch
import torch.nn.functional as F

from chip.lab.measure.build import Closure, normal

TOKENS = 16
HIDDEN, ON_CPU = 4096, 256  # columns
HEAD_DIM = 64


@lru_cache(maxsize=1)
def layer(device: torch.device) -> tuple[tuple[Closure, ...], tuple[Closure, ...]]:
    """What runs before attention and after it, of one model."""
    hidden, dtype = (HIDDEN, "bf16") if device.type == "cuda" else (ON_CPU, "fp32")
    generator = torch.Generator(device).manual_seed(5)

    def drawn(*shape: int) -> torch.Tensor:
        return normal(shape, dtype, device, generator, hidden**-0.5)

    x, wide = drawn(TOKENS, hidden), drawn(TOKENS, 2 * hidden)
    qkv, out, up = (drawn(n * hidden // 2, hidden) for n in (3, 2, 4))
    down = drawn(hidden, 2 * hidden)
    weight, angles, cache = drawn(hidden), drawn(TOKENS, HEAD_DIM), drawn(4 * TOKENS, hidden)
    heads = x.view(TOKENS, -1, HEAD_DIM)
    positions = torch.arange(TOKENS, device=device) * 3

    def rotate() -> object:
        low, high = heads.chunk(2, -1)
        return heads * angles.cos()[:, None] + torch.cat((-high, low), -1) * angles.sin()[:, None]

    before = (
        lambda: F.rms_norm(x, (hidden,), weight),
        lambda: F.linear(x, qkv),
        rotate,
        lambda: cache.index_copy_(0, positions, x),
    )
    after = (
        lambda: F.linear(x, out),
        lambda: F.layer_norm(x, (hidden,), weight),
        lambda: F.linear(x, up),
        lambda: F.silu(wide) * wide,
        lambda: F.linear(wide, down),
    )
    return before, after


def written(call: Closure) -> tuple[Closure, ...]:
    """Calls that write what this one reads, as the kernel before it does. Weights are not written: those of operators
    over rows have one dimension."""
    cells = [cell.cell_contents for cell in getattr(call, "__closure__", None) or ()]
    inputs = [t for t in cells if isinstance(t, torch.Tensor) and t.dim() > 1]
    return tuple(partial(t.copy_, t.clone()) for t in inputs)
