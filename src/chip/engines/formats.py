"""A model as an engine runs it on a GPU: the formats that its layers and its cache are multiplied in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from chip.decoders.decoder import Decoder, Layer
from chip.decoders.formats import UNIFORM, WeightFormat
from chip.dtypes import Precision
from chip.types import ChipError

if TYPE_CHECKING:
    from chip.engines import Engine


class GpuFormats(NamedTuple):
    """What a GPU multiplies in."""

    name: str
    capability: int  # 90 for compute capability 9.0; 0 where there is none (AMD, a profile without datasheet)
    rates: frozenset[str]  # names of the compute ceilings that are known of it (matmul_bf16, ...)

    def multiplies(self, dtype: str) -> bool:
        return f"matmul_{dtype}" in self.rates


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as a GPU runs it: formats it can multiply in, the precision to lower with, and what to say of both."""

    decoder: Decoder
    precision: Precision
    notes: tuple[str, ...]


@lru_cache(maxsize=256)
def served(decoder: Decoder, p: Precision, gpu: GpuFormats, engine: Engine, options: Any) -> ServedModel:
    notes: list[str] = []
    if p.per_layer or p.name in UNIFORM:
        formats: dict[WeightFormat, WeightFormat | None] = {}

        def run(stored: WeightFormat | None) -> WeightFormat | None:
            if stored is not None and stored not in formats:
                formats[stored], note = engine.format_as_run(stored, p, gpu)
                notes.append(note)
            return formats[stored] if stored else None

        head = run(decoder.head_format) if p.per_layer else None
        layers = tuple((n, _as_run(layer, decoder.hidden, p, run)) for n, layer in decoder.layers)
        # a product with 16-bit inputs is multiplied in what the activations have
        inputs = {f.input for f in formats.values() if f}
        notes[:0] = [engine.about_format(stored, gpu, options) for stored, f in formats.items() if f]
        matmul = next((i for i in ("fp4", "fp8", "int8") if i in inputs), p.activation)
        p = replace(p, per_layer=True, matmul=matmul)
        decoder = replace(decoder, layers=layers, head_format=head)
    if p.kv == "fp8":
        p, note = engine.cache_as_run(decoder, p, gpu)
        notes.append(note)
    return ServedModel(decoder, p, tuple(dict.fromkeys(filter(None, notes))))


def _as_run(
    layer: Layer, hidden: int, p: Precision, run: Callable[[WeightFormat | None], WeightFormat | None]
) -> Layer:
    roles = dict.fromkeys(m.role for m in layer.matrices(hidden))
    formats = ((role, run(layer.format_of(role, p))) for role in roles)
    return replace(layer, formats=tuple((role, f) for role, f in formats if f))


def widened_on_load(engine: str, stored: WeightFormat, p: Precision, gpu: GpuFormats) -> str:
    """What to say of weights that are turned to 16 bits because the GPU cannot multiply in their format. Formats that
    were asked for, and are not those of the model's config, are refused."""
    if not p.per_layer:
        has = ", ".join(sorted(n.removeprefix("matmul_") for n in gpu.rates))
        raise ChipError(f"{gpu.name} has no {stored.input} matrix rate; it has {has}: choose another --dtype")
    return f"{gpu.name} has no {stored.input} products: {engine} widens the {stored.dtype} weights to 16 bits on load"
