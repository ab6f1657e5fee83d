"""The operators that quantised models run, as the `quant` suite measures them: dense layers of common models in each
format, the roundings before them, attention over an fp8 cache, and experts. All as vLLM calls them on Hopper."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, zip_longest

from chip.measure.sampling import SamplePoint
from chip.ops.add_rms_norm_quant import AddRmsNormQuant
from chip.ops.fp8_attention import Fp8Attention
from chip.ops.kv_append_fp8 import KvAppendFp8
from chip.ops.packed_experts import PackedExperts
from chip.ops.packed_linear import PackedLinear
from chip.ops.quantize import Quantize
from chip.ops.rms_norm_quant import RmsNormQuant
from chip.ops.scaled_experts import ScaledExperts
from chip.ops.scaled_linear import ScaledLinear
from chip.ops.silu_mul_quant import SiluMulQuant

# (n, k) of merged q, k and v; o; merged gate and up; down
MATRICES = {
    "llama-3.1-8b": ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)),
    "qwen2.5-7b": ((4608, 3584), (3584, 3584), (37888, 3584), (3584, 18944)),
    "qwen3-32b": ((10240, 5120), (5120, 8192), (51200, 5120), (5120, 25600)),
    "llama-3.1-70b": ((10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672)),
    "llama-3.2-1b": ((3072, 2048), (2048, 2048), (16384, 2048), (2048, 8192)),
}
TOKENS = (1, 2, 4, 8, 16, 32, 64, 96, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
FEW_TOKENS = (1, 16, 128, 1024, 8192)
ROWS = (1, 8, 32, 64, 128, 256, 512, 1024, 4096, 16384)
NORM_COLS, GATED_COLS = (2048, 4096, 5120, 8192), (8192, 14336, 25600)
INPUT_COLS = (4096, 8192, 14336)
HEADS = ((32, 8, 128), (28, 4, 128), (64, 8, 128), (32, 32, 128))
DECODE = tuple((batch, kv) for batch in (1, 8, 32, 128, 256) for kv in (512, 2048, 8192))
PREFILL = ((1, 512), (1, 1024), (1, 2048), (1, 4096), (1, 8192), (4, 1024), (8, 2048))
# (experts, top_k, hidden, intermediate) of Qwen3-30B-A3B, Mixtral-8x7B, and DeepSeek-V3 on eight GPUs
EXPERTS = ((128, 8, 2048, 768), (8, 2, 4096, 14336), (256, 8, 7168, 256))
# gpt-oss-20b and 120b with the sizes that vLLM pads them to for Marlin
FP4_EXPERTS = ((32, 4, 3072, 2944), (128, 4, 3072, 2944))
EXPERT_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384)
BLOCK = 128


def points() -> list[SamplePoint]:
    """Every point, kinds in turn, so that a run cut short has some of each."""
    groups = (
        _scaled("fp8", 0, 0, tuple(MATRICES)),
        _scaled("fp8", BLOCK, BLOCK, ("llama-3.1-8b", "qwen3-32b", "llama-3.1-70b")),
        _packed("machete", tuple(MATRICES)),
        _packed("marlin", ("llama-3.1-8b", "llama-3.1-70b")),
        _scaled("int8", 1, 0, ("llama-3.1-8b", "qwen2.5-7b")),
        _rounded(),
        _fused(0, "compiled"),
        _fused(BLOCK, "vllm"),
        _attention(),
        _writes(),
        _experts(),
        _beside(),
    )
    return [p for p in chain.from_iterable(zip_longest(*groups)) if p is not None]


def _shapes(models: tuple[str, ...]) -> Iterator[tuple[int, int, int]]:
    """(m, n, k): tokens far apart before those between, so that a run cut short has decode steps and prompts."""
    for m in (*TOKENS[::4], *reversed(TOKENS[2::4]), *TOKENS[1::2]):
        for model in models:
            yield from ((m, n, k) for n, k in MATRICES[model])


def _scaled(dtype: str, block_n: int, block_k: int, models: tuple[str, ...]) -> Iterator[SamplePoint]:
    """A scale for each token, or for each group of its values where weights have blocks."""
    for m, n, k in _shapes(models):
        op = ScaledLinear(m, n, k, dtype, block_n=block_n, block_k=block_k, group=block_k)
        yield SamplePoint(op, "cutlass", "cold")


def _packed(implementation: str, models: tuple[str, ...]) -> Iterator[SamplePoint]:
    for m, n, k in _shapes(models):
        yield SamplePoint(PackedLinear(m, n, k, "bf16", "int4", group=128), implementation, "cold")


def _beside() -> Iterator[SamplePoint]:
    """What engines fall back to, and rarer formats, for the shapes of one model."""
    for m in FEW_TOKENS:
        for n, k in MATRICES["llama-3.1-8b"]:
            yield SamplePoint(ScaledLinear(m, n, k), "torch", "cold")
            yield SamplePoint(ScaledLinear(m, n, k, per_tensor=True), "cutlass", "cold")
            yield SamplePoint(ScaledLinear(m, n, k, block_n=BLOCK, block_k=BLOCK, group=BLOCK), "triton", "cold")
            yield SamplePoint(ScaledLinear(m, n, k, block_n=BLOCK, block_k=BLOCK, group=BLOCK), "deepgemm", "cold")
            yield SamplePoint(PackedLinear(m, n, k, "bf16", "int4", group=128, zeros=True), "machete", "cold")
            yield SamplePoint(PackedLinear(m, n, k, "bf16", "int8", group=128), "machete", "cold")
            yield SamplePoint(PackedLinear(m, n, k, "bf16", "fp8"), "marlin", "cold")


def _rounded() -> Iterator[SamplePoint]:
    for rows in ROWS:
        for cols in INPUT_COLS:
            yield SamplePoint(Quantize(rows, cols), "compiled", "hot")
            yield SamplePoint(Quantize(rows, cols), "vllm", "hot")
            yield SamplePoint(Quantize(rows, cols, group=BLOCK), "vllm", "hot")
            yield SamplePoint(Quantize(rows, cols, to="int8"), "vllm", "hot")
            yield SamplePoint(Quantize(rows, cols, per_tensor=True, static=True), "compiled", "hot")


def _fused(group: int, implementation: str) -> Iterator[SamplePoint]:
    for rows in ROWS:
        for cols in NORM_COLS:
            yield SamplePoint(AddRmsNormQuant(rows, cols, group=group), implementation, "hot")
        for cols in GATED_COLS:
            yield SamplePoint(SiluMulQuant(rows, cols, group=group), implementation, "hot")
        yield SamplePoint(RmsNormQuant(rows, NORM_COLS[1], group=group), implementation, "hot")


def _attention() -> Iterator[SamplePoint]:
    for heads, kv_heads, dim in HEADS:
        for batch, kv in DECODE:
            yield SamplePoint(Fp8Attention(batch, heads, kv_heads, dim, 1, kv), "fa3", "cold")
        for batch, kv in PREFILL:
            yield SamplePoint(Fp8Attention(batch, heads, kv_heads, dim, kv, kv), "fa3", "cold")


def _writes() -> Iterator[SamplePoint]:
    for rows in ROWS:
        for heads in (2, 8, 32):
            yield SamplePoint(KvAppendFp8(rows, 256 * heads), "paged", "hot")


def _experts() -> Iterator[SamplePoint]:
    for tokens in EXPERT_TOKENS:
        for experts, top_k, hidden, inner in EXPERTS:
            axes = (tokens, hidden, inner, experts, top_k)
            yield SamplePoint(ScaledExperts(*axes, block_n=BLOCK, block_k=BLOCK, group=BLOCK), "vllm", "cold")
            yield SamplePoint(ScaledExperts(*axes, per_tensor=True), "vllm", "cold")
            yield SamplePoint(PackedExperts(*axes, group=BLOCK), "marlin", "cold")
        for experts, top_k, hidden, inner in FP4_EXPERTS:
            axes = (tokens, hidden, inner, experts, top_k)
            yield SamplePoint(PackedExperts(*axes, weight_dtype="fp4", group=32), "marlin", "cold")
