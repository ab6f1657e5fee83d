"""Number formats: bytes an element takes, and what a `--dtype` means for weights, activations and arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

from chip.types import ChipError

# int4 carries one 16-bit scale for each group of 128 weights, the default of GPTQ and AWQ.
BYTES: dict[str, float] = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1, "int4": 0.5 + 2 / 128}
# A product of fp8 operands is accumulated in fp32 and handed on in 16 bits.
OUT_BYTES: dict[str, float] = {**BYTES, "fp8": 2}


@dataclass(frozen=True, slots=True)
class Precision:
    """One choice of `--dtype`: what is stored, what is moved, what is multiplied."""

    name: str
    activation: str
    weight: str
    matmul: str

    @property
    def kv_bytes(self) -> float:
        return BYTES[self.activation]


PRECISIONS: dict[str, Precision] = {
    p.name: p
    for p in (
        Precision("bf16", "bf16", "bf16", "bf16"),
        Precision("fp16", "fp16", "fp16", "fp16"),
        Precision("fp32", "fp32", "fp32", "fp32"),
        Precision("fp8", "bf16", "fp8", "fp8"),
        Precision("int8", "bf16", "int8", "bf16"),
        Precision("int4", "bf16", "int4", "bf16"),
    )
}


def precision(name: str) -> Precision:
    try:
        return PRECISIONS[name]
    except (KeyError, TypeError):
        raise ChipError(f"dtype {str(name)[:40]!r} is not known; choose one of {', '.join(PRECISIONS)}") from None
