"""Products of quantised operands: `torch`, torch._scaled_mm; as vLLM calls them (from an environment that has vLLM):
`cutlass` (fp8 by tensor, token and block; int8), `triton` and `deepgemm` (fp8 in blocks)."""

from __future__ import annotations

import torch

from chip.measure.build import Closure, Unsupported, normal, torch_dtype
from chip.measure.vllm_ops import QUANTISATION, custom_ops, module, scales
from chip.ops.scaled_linear import ScaledLinear

BLOCK = 128
ALIGNED = 16


def implementations(op: ScaledLinear, device_type: str) -> tuple[str, ...]:
    return ("torch",) if device_type == "cpu" else ("torch", "cutlass", "triton", "deepgemm")


def build(op: ScaledLinear, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    if op.weight_dtype not in ("", op.dtype) or op.dtype not in ("fp8", "int8"):
        raise Unsupported(f"no product of {op.dtype} with {op.weight_dtype or op.dtype} weights is called here")
    blocks = bool(op.block_k)
    if blocks and (op.block_n, op.block_k, op.group) != (BLOCK, BLOCK, BLOCK):
        raise Unsupported(f"blocks are called as {BLOCK}x{BLOCK} with groups of {BLOCK}, not others")
    if implementation == "torch":
        return _torch(op, device, generator)
    if implementation == "cutlass":
        return _cutlass_blocks(op, device, generator) if blocks else _cutlass(op, device, generator)
    if not blocks:
        raise Unsupported(f"{implementation} is called for blocks of weights only")
    return _triton(op, device, generator) if implementation == "triton" else _deepgemm(op, device, generator)


def operand(rows: int, cols: int, dtype: str, device: torch.device, generator: torch.Generator) -> torch.Tensor:
    """Random, of the magnitudes that a quantised tensor has."""
    if dtype == "int8":
        return torch.randint(-127, 128, (rows, cols), device=device, generator=generator, dtype=torch.int8)
    return normal((rows, cols), dtype, device, generator, scale=60.0)  # far from where fp8 ends


def _scales(op: ScaledLinear, device: torch.device, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the tokens (one for all of them, or one each) and of the weights (one for all, or one for each output)."""
    of_tokens = scales((1, 1) if op.per_tensor else (op.m, 1), torch.float32, device, generator)
    return of_tokens, scales((op.n, 1) if op.block_n else (1, 1), torch.float32, device, generator)


def _torch(op: ScaledLinear, device: torch.device, generator: torch.Generator) -> Closure:
    if op.dtype != "fp8" or op.block_k:
        raise Unsupported("torch._scaled_mm is called for fp8 with scales by tensor, token and output")
    x, weight = (operand(rows, op.k, op.dtype, device, generator) for rows in (op.m, op.n))
    of_tokens, of_weights = _scales(op, device, generator)
    out, turned = torch_dtype("bf16"), weight.t()
    bias = normal((op.n,), "bf16", device, generator) if op.bias else None
    if op.per_tensor and not op.block_n:
        a, b = of_tokens.squeeze(), of_weights.squeeze()
    else:  # both by row: a scale of the whole matrix is repeated
        a, b = of_tokens.expand(op.m, 1).contiguous(), of_weights.view(1, -1).expand(1, op.n).contiguous()
    return lambda: torch._scaled_mm(x, turned, a, b, bias=bias, out_dtype=out)


def _cutlass(op: ScaledLinear, device: torch.device, generator: torch.Generator) -> Closure:
    ops = custom_ops("cutlass_scaled_mm", "cutlass_scaled_mm")
    if op.n % ALIGNED or op.k % ALIGNED:
        raise Unsupported(f"CUTLASS takes multiples of {ALIGNED}: the engine would pad or take Triton")
    x, weight = (operand(rows, op.k, op.dtype, device, generator) for rows in (op.m, op.n))
    of_tokens, of_weights = _scales(op, device, generator)
    bias = normal((op.n,), "bf16", device, generator) if op.bias else None
    turned = weight.t()  # the engine keeps weights so: k x n, each column in one piece
    return lambda: ops.cutlass_scaled_mm(x, turned, of_tokens, of_weights, torch.bfloat16, bias)


def _block_operands(
    op: ScaledLinear, device: torch.device, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, weight, and the weight's scales."""
    if op.bias or op.k % BLOCK:
        raise Unsupported("products in blocks are called without bias, with whole blocks of inputs")
    x, weight = (operand(rows, op.k, op.dtype, device, generator) for rows in (op.m, op.n))
    return x, weight, scales((-(-op.n // BLOCK), op.k // BLOCK), torch.float32, device, generator)


def _cutlass_blocks(op: ScaledLinear, device: torch.device, generator: torch.Generator) -> Closure:
    ops = custom_ops("cutlass_scaled_mm", "cutlass_scaled_mm")
    if op.n % BLOCK:
        raise Unsupported(f"CUTLASS in blocks takes outputs in multiples of {BLOCK}")
    x, weight, of_weights = _block_operands(op, device, generator)
    # a scale for each token and group, the tokens of one group side by side
    of_tokens = scales((op.k // BLOCK, op.m), torch.float32, device, generator).t()
    turned, turned_scales = weight.t(), of_weights.t()
    return lambda: ops.cutlass_scaled_mm(x, turned, of_tokens, turned_scales, torch.bfloat16)


def _triton(op: ScaledLinear, device: torch.device, generator: torch.Generator) -> Closure:
    product = module(f"{QUANTISATION}.fp8_utils", "w8a8_triton_block_scaled_mm").w8a8_triton_block_scaled_mm
    x, weight, of_weights = _block_operands(op, device, generator)
    of_tokens = scales((op.m, op.k // BLOCK), torch.float32, device, generator)
    return lambda: product(x, weight, of_tokens, of_weights, [BLOCK, BLOCK], torch.bfloat16)


def _deepgemm(op: ScaledLinear, device: torch.device, generator: torch.Generator) -> Closure:
    deep = module("vllm.utils.deep_gemm", "DeepGEMM")
    if not module("vllm.utils.import_utils", "DeepGEMM").has_deep_gemm():
        raise Unsupported("DeepGEMM is not installed beside vLLM here")
    x, weight, of_weights = _block_operands(op, device, generator)
    of_tokens = scales((op.k // BLOCK, op.m), torch.float32, device, generator).t()
    out = torch.empty((op.m, op.n), dtype=torch.bfloat16, device=device)
    return lambda: deep.fp8_gemm_nt((x, of_tokens), (weight, of_weights), out, is_deep_gemm_e8m0_used=False)
