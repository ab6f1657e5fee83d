"""Which kernels vLLM 0.26 runs for quantised layers on a GPU of some compute capability, and what it falls back to.

Read from vLLM's own lists of kernels, which it goes through in order of preference: the first that supports the GPU
and the layer is taken. A product that a GPU has no arithmetic for runs with 16-bit inputs, its weights widened inside.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from chip.decoders.decoder import Decoder, LatentAttn
from chip.decoders.formats import WeightFormat
from chip.dtypes import Precision
from chip.engines.formats import GpuFormats
from chip.types import ChipError

LATEST = 999  # no upper end
TIMED_ON = "h200"  # the GPU whose quantised products were measured in the engine


@dataclass(frozen=True, slots=True)
class VllmKernel:
    """What runs layers of `weight` and `input` formats from one compute capability to another (90: 9.0)."""

    weight: str
    input: str  # "": 16 bits
    blocks: bool | None  # scales over blocks or groups of the input; None: either
    first: int
    last: int
    name: str
    otherwise: str = ""  # what runs where the first is not installed, or does not take the layer's shape
    timed: str = ""  # on the bundled H200, where that is not what vLLM takes first
    widens: bool = False  # the product runs in 16 bits though the format asks for narrow inputs


BLOCKWISE = "DeepGEMM (FlashInfer below 32 tokens where it is installed)"
KERNELS = (
    VllmKernel("fp8", "fp8", False, 89, LATEST, "CUTLASS (cutlass_scaled_mm)", "torch._scaled_mm"),
    VllmKernel("fp8", "fp8", True, 90, 99, BLOCKWISE, "CUTLASS blockwise where DeepGEMM is not installed", "CUTLASS"),
    VllmKernel("fp8", "fp8", True, 100, LATEST, "DeepGEMM", "CUTLASS blockwise where DeepGEMM is not installed"),
    VllmKernel("fp8", "fp8", True, 89, 89, "Triton (w8a8_triton_block_scaled_mm)"),
    VllmKernel("fp8", "fp8", None, 75, 88, "Marlin (W8A16)", widens=True),
    VllmKernel("fp8", "", None, 75, LATEST, "Marlin (W8A16)"),
    VllmKernel("int8", "int8", None, 75, LATEST, "CUTLASS int8 (cutlass_scaled_mm)", "Triton"),
    VllmKernel("int4", "fp8", None, 90, 99, "CUTLASS W4A8", "Marlin"),
    VllmKernel("int4", "fp8", None, 75, LATEST, "Marlin (W4A16)", widens=True),
    VllmKernel("int4", "int8", None, 75, LATEST, "Marlin (W4A8)"),
    VllmKernel("int4", "", None, 90, 90, "Machete", "Marlin for groups of 32 and outputs that 128 does not divide"),
    VllmKernel("int4", "", None, 75, LATEST, "Marlin (W4A16)"),
    VllmKernel("int8", "", None, 90, 90, "Machete", "Marlin for outputs that 128 does not divide"),
    VllmKernel("int8", "", None, 75, LATEST, "Marlin (W8A16)"),
    VllmKernel("fp4", "fp4", None, 100, LATEST, "FlashInfer NVFP4", "CUTLASS NVFP4"),
    VllmKernel("fp4", "fp4", None, 75, 99, "Marlin (W4A16)", widens=True),
    VllmKernel("fp4", "", None, 90, 99, "Triton (experts)", "Marlin", "Marlin"),
    VllmKernel("fp4", "", None, 75, LATEST, "Marlin (W4A16)"),
)
# A format that a GPU multiplies but that its profile or datasheet has no rate of: the rate that stands in
STANDS_IN = {"fp4": "fp8"}


def kernel_for(stored: WeightFormat, capability: int) -> VllmKernel | None:
    """None where vLLM has none, or the GPU has no compute capability."""
    for k in KERNELS:
        runs = k.first <= capability <= k.last and k.blocks in (None, bool(stored.input_group))
        if runs and (k.weight, k.input) == (stored.dtype, stored.input):
            return k
    return None


def format_as_run(stored: WeightFormat, gpu: GpuFormats) -> tuple[WeightFormat, str]:
    if not stored.input:
        return stored, ""
    kernel, known = kernel_for(stored, gpu.capability), gpu.multiplies(stored.input)
    if known and (kernel is None or not kernel.widens):
        return stored, ""
    if kernel is None or kernel.widens:
        return stored.weight_only, (
            f"{gpu.name} has no {stored.input} products: its inputs stay in 16 bits and the {stored.dtype} weights are "
            f"widened inside the product{f' by {kernel.name}' if kernel else ''}, so that memory is saved and prefill "
            "is no faster"
        )
    other = STANDS_IN.get(stored.input, "")
    if not gpu.multiplies(other):
        raise ChipError(f"{gpu.name} has no {stored.input} matrix rate; `chip calibrate` it, or choose another --dtype")
    note = f"no {stored.input} matrix rate of {gpu.name} is known: its {other} rate stands in"
    return replace(stored, input=other), note


def about_format(stored: WeightFormat, gpu: GpuFormats, deep_gemm: bool) -> str:
    """What is stored, which kernel runs it, and which one was timed."""
    kernel = kernel_for(stored, gpu.capability)
    if kernel is None:
        return stored.title
    text = f"{stored.title}; vllm runs {kernel.name}" + (f", else {kernel.otherwise}" if kernel.otherwise else "")
    if kernel.name == BLOCKWISE and deep_gemm:
        text += "; times are published ones of DeepGEMM, large products only: small ones are carried on from them"
    elif kernel.timed and gpu.name == TIMED_ON:
        text += f"; times are of {kernel.timed}, which was measured: the first choice may be faster"
        text += "; --deep-gemm answers with published times of it" if kernel.name == BLOCKWISE else ""
    return text


def taken_as(engine: str, stored: WeightFormat, gpu: GpuFormats) -> str:
    """What an engine says of a format whose kernels are taken as those here."""
    kernel = kernel_for(stored, gpu.capability)
    return f"{stored.title}; {engine}'s kernels are taken as vllm's" + (f": {kernel.name}" if kernel else "")


def cache_as_run(d: Decoder, p: Precision, gpu: GpuFormats) -> tuple[Precision, str]:
    """What attention multiplies an fp8 cache in."""
    if any(isinstance(layer.attn, LatentAttn) for _, layer in d.layers):
        return p, "the fp8 cache counts for memory; decode attention over latents is predicted as if it had 16 bits"
    if 90 <= gpu.capability < 100:
        return replace(p, attention="fp8"), "fp8 KV cache: FlashAttention-3 multiplies in fp8, queries rounded first"
    if 100 <= gpu.capability < 120:
        return replace(p, attention="fp8"), "fp8 KV cache: FlashInfer multiplies in fp8, queries rounded first"
    return p, "fp8 KV cache: keys and values are widened to 16 bits as they are read (FlashInfer or Triton)"
