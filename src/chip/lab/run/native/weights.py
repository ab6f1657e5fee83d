"""The tensors of a decoder, merged as they are multiplied: q, k and v in one matrix, gate and up in another.

From a folder with safetensors (one file, or shards with an index), or random from a spec.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from chip.files import artifact
from chip.lab.measure.device import reason_of
from chip.lab.run.model import SPREAD
from chip.lab.run.native.spec import DecoderSpec
from chip.types import ChipError

INDEX = "model.safetensors.index.json"
SEED = 0
FLOATS = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True, slots=True)
class LayerWeights:
    input_norm: torch.Tensor
    qkv: torch.Tensor  # (q_size + 2 kv_size) x hidden
    qkv_bias: torch.Tensor | None
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    out: torch.Tensor
    out_bias: torch.Tensor | None
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor  # (2 intermediate) x hidden
    gate_up_bias: torch.Tensor | None
    down: torch.Tensor
    down_bias: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class Weights:
    embed: torch.Tensor
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    head: torch.Tensor
    cos: torch.Tensor  # positions x head_dim / 2, fp32
    sin: torch.Tensor

    @property
    def bytes(self) -> int:
        of_layers = (getattr(layer, name) for layer in self.layers for name in layer.__slots__)
        tensors = {t.data_ptr(): t for t in (self.embed, self.norm, self.head, *of_layers) if t is not None}
        return sum(t.numel() * t.element_size() for t in tensors.values())


class WeightSource:
    """Where a tensor comes from: `fill(to, name)` writes it into its place in a merged one."""

    def fill(self, to: torch.Tensor, name: str) -> None:
        raise NotImplementedError


class Random(WeightSource):
    """Normal matrices and biases, norms of one: never zeros, which draw less power and so run faster."""

    def __init__(self, device: torch.device) -> None:
        self.draw = torch.Generator(device).manual_seed(SEED)

    def fill(self, to: torch.Tensor, name: str) -> None:
        if name.endswith("norm.weight"):
            to.fill_(1.0)
        else:
            to.normal_(0, SPREAD, generator=self.draw)


class Files(WeightSource):
    """Safetensors in a folder; every file is opened and every name looked up before anything is read."""

    def __init__(self, folder: Path, spec: DecoderSpec) -> None:
        from safetensors import safe_open

        self.folder = folder
        index = folder / INDEX
        files = _shards(index) if index.is_file() else sorted(p.name for p in folder.glob("*.safetensors"))
        if not files:
            raise ChipError(f"{folder}: holds no *.safetensors; leave --weights files out for random weights")
        self.file_of: dict[str, Any] = {}
        for name in files:
            path = folder / name
            if not path.is_file():
                raise ChipError(f"{path}: the shard is missing though {INDEX} names it; copy it again")
            with _readable(path):
                opened: Any = safe_open(path, framework="pt")
                self.file_of |= dict.fromkeys(list(opened.keys()), opened)
        wanted = [name for name in names(spec) if name not in self.file_of]
        if wanted:
            more = f" and {len(wanted) - 1} more" if len(wanted) > 1 else ""
            raise ChipError(f"{folder}: the weights lack {wanted[0]}{more}; is a file missing?")

    def fill(self, to: torch.Tensor, name: str) -> None:
        with _readable(self.folder / name):
            tensor = self.file_of[name].get_tensor(name)
        if tensor.dtype not in FLOATS:
            raise ChipError(f"{self.folder}: {name} is stored as {tensor.dtype}: native reads bf16, fp16 and fp32")
        if tensor.shape != to.shape:
            want, got = "x".join(map(str, to.shape)), "x".join(map(str, tensor.shape))
            raise ChipError(f"{self.folder}: {name} is {got}, but config.json makes it {want}")
        to.copy_(tensor)


def _shards(index: Path) -> list[str]:
    index_read = artifact.read_json(index)
    table = index_read.get("weight_map") if isinstance(index_read, dict) else None
    if not isinstance(table, dict) or not all(isinstance(v, str) and Path(v).name == v for v in table.values()):
        raise ChipError(f"{index}: weight_map must name the shard of each tensor")
    return sorted(set(table.values()))


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except ChipError:
        raise
    except Exception as e:  # safetensors raises its own type, OSError and more
        raise ChipError(f"{path}: is no whole safetensors file ({reason_of(e)}); copy it again") from None


def names(spec: DecoderSpec) -> list[str]:
    """Every tensor that a model of this spec has, by its name in HF's files."""
    listed = ["model.embed_tokens.weight", "model.norm.weight"] + ([] if spec.tied else ["lm_head.weight"])
    for i in range(spec.layers):
        listed += [name for parts in _layer_names(spec, i).values() for name in parts]
    return listed


def _layer_names(spec: DecoderSpec, i: int) -> dict[str, list[str]]:
    """Field of `Layer` -> the tensors it is merged from, top to bottom."""
    at = f"model.layers.{i}"
    qkv, mlp = [f"{at}.self_attn.{p}_proj" for p in "qkv"], [f"{at}.mlp.{p}_proj" for p in ("gate", "up")]
    names_of = {
        "input_norm": [f"{at}.input_layernorm.weight"],
        "qkv": [f"{p}.weight" for p in qkv],
        "out": [f"{at}.self_attn.o_proj.weight"],
        "mlp_norm": [f"{at}.post_attention_layernorm.weight"],
        "gate_up": [f"{p}.weight" for p in mlp],
        "down": [f"{at}.mlp.down_proj.weight"],
    }
    if spec.qkv_bias:
        names_of["qkv_bias"] = [f"{p}.bias" for p in qkv]
    if spec.qk_norm:
        names_of |= {"q_norm": [f"{at}.self_attn.q_norm.weight"], "k_norm": [f"{at}.self_attn.k_norm.weight"]}
    if spec.out_bias:
        names_of["out_bias"] = [f"{at}.self_attn.o_proj.bias"]
    if spec.mlp_bias:
        names_of |= {"gate_up_bias": [f"{p}.bias" for p in mlp], "down_bias": [f"{at}.mlp.down_proj.bias"]}
    return names_of


def _sizes(spec: DecoderSpec) -> dict[str, tuple[tuple[int, ...], int]]:
    """Field of `Layer` -> (rows of each part, columns; 0 for a vector)."""
    qkv, mlp = (spec.q_size, spec.kv_size, spec.kv_size), (spec.intermediate, spec.intermediate)
    return {
        "input_norm": ((spec.hidden,), 0), "qkv": (qkv, spec.hidden), "qkv_bias": (qkv, 0),
        "q_norm": ((spec.head_dim,), 0), "k_norm": ((spec.head_dim,), 0),
        "out": ((spec.hidden,), spec.q_size), "out_bias": ((spec.hidden,), 0), "mlp_norm": ((spec.hidden,), 0),
        "gate_up": (mlp, spec.hidden), "gate_up_bias": (mlp, 0), "down": ((spec.hidden,), spec.intermediate),
        "down_bias": ((spec.hidden,), 0),
    }  # fmt: skip


def load(spec: DecoderSpec, source: WeightSource, dtype: torch.dtype, device: torch.device) -> Weights:
    sizes = _sizes(spec)

    def tensor(names: list[str], rows: tuple[int, ...], cols: int) -> torch.Tensor:
        merged = torch.empty((sum(rows), cols) if cols else (sum(rows),), dtype=dtype, device=device)
        for name, part in zip(names, merged.split(list(rows))):
            source.fill(part, name)
        return merged

    def layer(i: int) -> LayerWeights:
        parts = _layer_names(spec, i)
        tensors = {field: tensor(parts[field], *sizes[field]) for field in parts}
        return LayerWeights(**{field: tensors.get(field) for field in LayerWeights.__slots__})

    embed = tensor(["model.embed_tokens.weight"], (spec.vocab,), spec.hidden)
    layers = tuple(layer(i) for i in range(spec.layers))
    norm = tensor(["model.norm.weight"], (spec.hidden,), 0)
    head = embed if spec.tied else tensor(["lm_head.weight"], (spec.vocab,), spec.hidden)
    frequencies = torch.tensor(spec.rope.inverse_frequencies(spec.head_dim), dtype=torch.float32)
    angles = torch.arange(spec.positions, dtype=torch.float32)[:, None] * frequencies
    return Weights(embed, layers, norm, head, angles.cos().to(device), angles.sin().to(device))
