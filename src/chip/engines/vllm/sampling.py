"""vLLM's sampler beyond the largest logit (0.26, without FlashInfer): what it launches over fp32 logits.

Read off its code, kernel by kernel; nothing of it was measured yet. Top-k and top-p search the values that they keep by
a Triton kernel instead of sorting the vocabulary, which takes some passes over it.
"""

from __future__ import annotations

from chip.ops.sampling import SamplingPass
from chip.types import Block, Call, Program

# (reads, writes) of each kernel, in values of fp32 for each logit
PASSES: dict[str, tuple[tuple[int, int], ...]] = {
    # counts of the tokens in prompt and answer as int64, their masks, then repetition, frequency and presence
    "penalties": ((0, 2), (2, 1), (0, 2), (2, 1), (2, 1), (2, 1), (2, 1), (1, 1), (2, 1)),
    "temperature": ((1, 1), (2, 1), (0, 1), (2, 1)),  # scaled, softmax, exponential noise, divided by it
    "select": ((4, 1),),  # the values that top-k, top-p or both keep
    "logprobs": ((2, 1), (4, 0), (1, 1), (1, 0)),  # log-softmax, the largest ones, the rank of the chosen one
}


def passes(parts: tuple[str, ...]) -> tuple[tuple[int, int], ...]:
    """Of all kernels beside that which takes the largest value."""
    names = ["penalties"] if "penalties" in parts else []
    if any(part in parts for part in ("temperature", "top-k", "top-p")):
        names.append("temperature")
    if "top-k" in parts or "top-p" in parts:
        names.append("select")
    if "logprobs" in parts:
        names.append("logprobs")
    return tuple(one for name in names for one in PASSES[name])


def sampled(last: Program, parts: tuple[str, ...], vocab: int) -> Program:
    calls = (Call("sampling_passes", SamplingPass(1, vocab, reads, writes)) for reads, writes in passes(parts))
    return Program((*last.blocks, Block(1, tuple(calls))))
