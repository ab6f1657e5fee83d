"""Which kernels vLLM 0.26 runs for quantised layers on a GPU of some compute capability, and what it falls back to.

Read from vLLM's own lists of kernels, which it goes through in order of preference: the first that supports the GPU
and the layer is taken. A product that a GPU has no arithmetic for runs with 16-bit inputs, its weights widened inside.
"""

from __future__ import annotations

from functools import lru_cache

from chip.dtypes import Precision
from chip.formats import UNIFORM, WeightFormat
from chip.models.decoder import Decoder, LatentAttn, Layer
from chip.records import dataclass, replace
from chip.types import ChipError, HardwareSpec, Op

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
ENGINE_ONLY = {
    "fp8_attention": ("fa3",), "kv_append_fp8": ("paged",), "scaled_experts": ("vllm",), "packed_experts": ("marlin",)
}  # fmt: skip


def implementations(op: Op, capability: int) -> tuple[str, ...]:
    """The measured implementations (`chip profile`) that stand for what vLLM runs of a quantised operator, the first
    choice first; empty for operators that no quantisation brings."""
    groups = bool(getattr(op, "group", 0))
    if op.kind == "scaled_linear":
        if not groups:
            return ("cutlass", "torch")
        return ("deepgemm", "cutlass", "triton") if capability >= 90 else ("triton",)
    if op.kind == "packed_linear":
        narrow = getattr(op, "weight_dtype", "") in ("int4", "int8")
        return ("machete", "marlin") if narrow and capability == 90 else ("marlin",)
    if op.kind == "quantize":
        return ("vllm",) if groups or getattr(op, "to", "") == "int8" else ("compiled",)
    if op.kind in ("rms_norm_quant", "add_rms_norm_quant", "silu_mul_quant"):
        return ("vllm",) if groups else ("compiled",)
    return ENGINE_ONLY.get(op.kind, ())


def capability_of(spec: HardwareSpec | None) -> int:
    """90 for compute capability 9.0; 0 where there is none (AMD, a profile without datasheet)."""
    major, _, minor = (spec.compute_capability if spec else "").partition(".")
    return 10 * int(major) + int(minor) if major.isdigit() and minor.isdigit() else 0


def kernel_for(stored: WeightFormat, capability: int) -> VllmKernel | None:
    """None where vLLM has none, or the GPU has no compute capability."""
    for k in KERNELS:
        runs = k.first <= capability <= k.last and k.blocks in (None, bool(stored.input_group))
        if runs and (k.weight, k.input) == (stored.dtype, stored.input):
            return k
    return None


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as a GPU runs it: formats it can multiply in, the precision to lower with, and what to say of both."""

    decoder: Decoder
    precision: Precision
    notes: tuple[str, ...]


@lru_cache(maxsize=256)
def served(
    decoder: Decoder,
    p: Precision,
    gpu: str,
    capability: int,
    rates: frozenset[str],
    engine: str,
    deep_gemm: bool = False,
) -> ServedModel:
    """`rates`: names of the compute ceilings that are known of the GPU (matmul_bf16, ...). `deep_gemm`: asked for."""
    notes: list[str] = []
    formats: dict[WeightFormat, WeightFormat] = {}

    def run(stored: WeightFormat | None) -> WeightFormat | None:
        if stored is None or (stored not in formats and _dequantised(stored, p, rates, gpu, engine, notes)):
            return None
        if stored not in formats:
            formats[stored] = _runs_as(stored, capability, rates, gpu, engine, notes)
        return formats[stored]

    def layer_as_run(layer: Layer) -> Layer:
        roles = dict.fromkeys(m.role for m in layer.matrices(decoder.hidden))
        found = ((role, run(layer.format_of(role, p))) for role in roles)
        return replace(layer, formats=tuple((role, f) for role, f in found if f))

    if p.per_layer or p.name in UNIFORM:
        head = run(decoder.head_format) if p.per_layer else None
        layers = tuple((n, layer_as_run(layer)) for n, layer in decoder.layers)
        # a product with 16-bit inputs is multiplied in what the activations have
        inputs = {f.input for f in formats.values()}
        matmul = next((i for i in ("fp4", "fp8", "int8") if i in inputs), p.activation)
        p = replace(p, per_layer=True, matmul=matmul)
        decoder = replace(decoder, layers=layers, head_format=head)
        notes[:0] = _described(formats, capability, gpu, engine, deep_gemm)
    if p.kv == "fp8":
        p, said = _cache(decoder, p, capability, engine)
        notes += said
    return ServedModel(decoder, p, tuple(notes))


def _dequantised(
    stored: WeightFormat, p: Precision, rates: frozenset[str], gpu: str, engine: str, notes: list[str]
) -> bool:
    """Whether transformers widens such weights when it loads them, because the GPU cannot multiply in their format."""
    if engine == "vllm" or not stored.input or f"matmul_{stored.input}" in rates:
        return False
    if not p.per_layer:
        has = ", ".join(sorted(n.removeprefix("matmul_") for n in rates))
        raise ChipError(f"{gpu} has no {stored.input} matrix rate; it has {has}: choose another --dtype")
    said = f"{gpu} has no {stored.input} products: {engine} widens the {stored.dtype} weights to 16 bits on load"
    if said not in notes:
        notes.append(said)
    return True


def _runs_as(
    stored: WeightFormat, capability: int, rates: frozenset[str], gpu: str, engine: str, notes: list[str]
) -> WeightFormat:
    found = kernel_for(stored, capability)
    if not stored.input:
        return stored
    known = f"matmul_{stored.input}" in rates
    if known and (found is None or engine != "vllm"):
        return stored  # an AMD GPU, one without datasheet, or an engine with kernels of its own
    if found is None or found.widens:
        notes.append(
            f"{gpu} has no {stored.input} products: its inputs stay in 16 bits and the {stored.dtype} weights are "
            f"widened inside the product{f' by {found.name}' if found else ''}, so that memory is saved and prefill "
            "is no faster"
        )
        return stored.weight_only
    if f"matmul_{stored.input}" not in rates:
        other = STANDS_IN.get(stored.input, "")
        if f"matmul_{other}" not in rates:
            raise ChipError(f"{gpu} has no {stored.input} matrix rate; `chip calibrate` it, or choose another --dtype")
        notes.append(f"no {stored.input} matrix rate of {gpu} is known: its {other} rate stands in")
        return replace(stored, input=other)
    return stored


def _described(
    formats: dict[WeightFormat, WeightFormat], capability: int, gpu: str, engine: str, deep_gemm: bool
) -> list[str]:
    """What is stored, which kernel runs it, and which one was timed."""
    said = []
    for stored in formats:
        found = kernel_for(stored, capability)
        text = stored.title
        if engine != "vllm":
            text += f"; {engine} runs kernels of its own for them, which are not measured: a roofline answers"
        elif found:
            text += f"; vllm runs {found.name}" + (f", else {found.otherwise}" if found.otherwise else "")
            if found.name == BLOCKWISE and deep_gemm:
                text += (
                    "; times are published ones of DeepGEMM, large products only: small ones are carried on from them"
                )
            elif found.timed and gpu == TIMED_ON:
                text += f"; times are of {found.timed}, which was measured: the first choice may be faster"
                text += "; --deep-gemm answers with published times of it" if found.name == BLOCKWISE else ""
        said.append(text)
    return said


def _cache(decoder: Decoder, p: Precision, capability: int, engine: str) -> tuple[Precision, list[str]]:
    """An fp8 cache: what attention multiplies in."""
    if engine != "vllm":
        raise ChipError(f"kv_dtype fp8: {engine} keeps its cache as wide as its activations; ask for engine vllm")
    if any(isinstance(layer.attn, LatentAttn) for _, layer in decoder.layers):
        return p, ["the fp8 cache counts for memory; decode attention over latents is predicted as if it had 16 bits"]
    if 90 <= capability < 100:
        return replace(p, attention="fp8"), ["fp8 KV cache: FlashAttention-3 multiplies in fp8, queries rounded first"]
    if 100 <= capability < 120:
        return replace(p, attention="fp8"), ["fp8 KV cache: FlashInfer multiplies in fp8, queries rounded first"]
    return p, ["fp8 KV cache: keys and values are widened to 16 bits as they are read (FlashInfer or Triton)"]
