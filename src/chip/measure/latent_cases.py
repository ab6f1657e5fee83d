"""Operators of models with a latent cache (DeepSeek), as vLLM runs them: `chip profile --suite latent`."""

from __future__ import annotations

from collections.abc import Iterator

from chip import ops
from chip.measure.sampling import MOST_TOKENS, SamplePoint, interleaved, log_between, spread
from chip.ops.mla_prompt import ABSORBED_TOKENS
from chip.types import Op

HEADS = (16, 128, 64, 32, 16, 8)  # of DeepSeek-V2-Lite, of V2 and V3, and of those on 2 to 16 GPUs
LATENT, ROPE_DIM, NOPE_DIM, VALUE_DIM = 512, 64, 128, 128
STEPS, SHORT, CHUNKS, PROMPTS, PRODUCTS = 66, 26, 16, 34, 60
MOST_CACHED = 2**20  # tokens of one case
ROUTER_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, MOST_TOKENS)
# (hidden, experts, top_k, groups) of DeepSeek-V2-Lite and V2; of V3, GLM-4.5 and GLM-4.5-Air
ROUTERS = {
    "grouped_router": ((2048, 64, 6, 1), (5120, 160, 6, 8)),
    "biased_router": ((7168, 256, 8, 8), (5120, 160, 8, 1), (4096, 128, 8, 1)),
}


def points(dtype: str) -> list[SamplePoint]:
    attention = [_steps(dtype), _short(dtype), _chunks(dtype), _prompts(dtype)]
    groups = [[SamplePoint(op, "fa3") for op in group] for group in attention]
    groups.append([SamplePoint(op) for op in _products(dtype)])
    groups += [[SamplePoint(op, "vllm") for op in _routers(kind, dtype)] for kind in ROUTERS]
    return interleaved(groups)


def _absorbed(batch: int, heads: int, q_len: int, kv_len: int, dtype: str) -> Op:
    width = {"head_dim": LATENT + ROPE_DIM, "v_head_dim": LATENT}
    sizes = {"batch": batch, "heads": heads, "kv_heads": 1, "q_len": q_len, "kv_len": kv_len}
    return ops.build("mla", {**sizes, **width, "dtype": dtype})


def _steps(dtype: str) -> Iterator[Op]:
    for i, (u, v) in enumerate(spread(STEPS, 2)):
        kv_len = round(log_between(v, 32, 32768))
        batch = round(log_between(u, 1, min(512, MOST_CACHED / kv_len)))
        yield _absorbed(batch, HEADS[i % len(HEADS)], 1, kv_len, dtype)


def _short(dtype: str) -> Iterator[Op]:
    for i, (u, v) in enumerate(spread(SHORT, 2)):
        length = round(log_between(v, 8, ABSORBED_TOKENS))
        batch = round(log_between(u, 1, 8192 / length))
        yield _absorbed(batch, HEADS[i % len(HEADS)], length, length, dtype)


def _chunks(dtype: str) -> Iterator[Op]:
    for i, (u, v) in enumerate(spread(CHUNKS, 2)):
        q_len = round(log_between(u, 2, ABSORBED_TOKENS))
        yield _absorbed(1, HEADS[i % len(HEADS)], q_len, q_len + round(log_between(v, 64, 16384)), dtype)


def _prompts(dtype: str) -> Iterator[Op]:
    for i, (u, v) in enumerate(spread(PROMPTS, 2)):
        length, heads = round(log_between(v, 256, 16384)), HEADS[i % len(HEADS)]
        batch = max(1, round(log_between(u, 1, 16384 / length)))
        width = {"head_dim": NOPE_DIM + ROPE_DIM, "v_head_dim": VALUE_DIM, "dtype": dtype}
        sizes = {"batch": batch, "heads": heads, "kv_heads": heads, "q_len": length, "kv_len": length}
        yield ops.build("mla_prompt", {**sizes, **width})


def _products(dtype: str) -> Iterator[Op]:
    """A latent into queries, and back into values."""
    for i, (u,) in enumerate(spread(PRODUCTS, 1)):
        n, k = ((LATENT, NOPE_DIM), (VALUE_DIM, LATENT))[i % 2]
        axes = {"batch": HEADS[i // 2 % len(HEADS)], "m": round(log_between(u, 1, 1024)), "n": n, "k": k}
        yield ops.build("bmm", {**axes, "dtype": dtype})


def _routers(kind: str, dtype: str) -> Iterator[Op]:
    for hidden, experts, top_k, groups in ROUTERS[kind]:
        for tokens in ROUTER_TOKENS:
            axes = {"tokens": tokens, "hidden": hidden, "experts": experts, "top_k": top_k, "groups": groups}
            yield ops.build(kind, {**axes, "dtype": dtype})
