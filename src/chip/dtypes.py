"""Number formats: bytes an element takes, and what a `--dtype` means for weights, activations and arithmetic."""

from __future__ import annotations

from dataclasses import dataclass, replace

from chip.types import ChipError

# Values alone: scales of quantised weights are counted by `formats.WeightFormat` and by the operators that read them.
BYTES: dict[str, float] = {
    "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1, "int4": 0.5, "fp4": 0.5
}  # fmt: skip
# A product of narrow operands is accumulated in fp32 or int32 and handed on in 16 bits.
OUT_BYTES: dict[str, float] = {**BYTES, "fp8": 2, "int8": 2, "int4": 2, "fp4": 2}
AUTO = "auto"  # --dtype and --kv-dtype: what the model's config says


@dataclass(frozen=True, slots=True)
class Precision:
    """One choice of `--dtype`: what is stored, what is moved, what is multiplied, and what the KV cache holds."""

    name: str
    activation: str
    weight: str
    matmul: str
    kv: str = ""  # "": as the activations
    attention: str = ""  # what the products of attention run in; "": as the activations
    per_layer: bool = False  # layers are stored as the model says (`Layer.formats`), not all as `weight`

    @property
    def kv_bytes(self) -> float:
        return BYTES[self.kv or self.activation]


PRECISIONS: dict[str, Precision] = {
    p.name: p
    for p in (
        Precision("bf16", "bf16", "bf16", "bf16"),
        Precision("fp16", "fp16", "fp16", "fp16"),
        Precision("fp32", "fp32", "fp32", "fp32"),
        Precision("fp8", "bf16", "fp8", "fp8"),
        Precision("int8", "bf16", "int8", "bf16"),
        Precision("int4", "bf16", "int4", "bf16"),
        Precision("w8a8", "bf16", "int8", "int8"),
        Precision("mxfp4", "bf16", "fp4", "bf16"),
        Precision("nvfp4", "bf16", "fp4", "fp4"),
    )
}
KV_DTYPES = ("bf16", "fp16", "fp8")  # that an engine can be told to keep its cache in


def precision(name: str, kv: str = "") -> Precision:
    """`kv`: what the KV cache holds; empty: as the activations."""
    try:
        found = PRECISIONS[name]
    except (KeyError, TypeError):
        raise ChipError(f"dtype {str(name)[:40]!r} is not known; choose one of {', '.join(PRECISIONS)}") from None
    if not kv:
        return found
    if kv not in KV_DTYPES:
        raise ChipError(f"kv_dtype {str(kv)[:40]!r} is not known; choose one of {', '.join((AUTO, *KV_DTYPES))}")
    return replace(found, kv=kv)
