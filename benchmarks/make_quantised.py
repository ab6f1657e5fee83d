"""Write a checkpoint of random quantised weights that vLLM loads, so that a format can be run without a download.

    python benchmarks/make_quantised.py llama-3.1-8b w4a16 ./llama-3.1-8b-w4a16
    python benchmarks/make_quantised.py qwen2.5-7b awq ./qwen2.5-7b-awq
    python benchmarks/make_quantised.py llama-3.1-8b fp8-block ./llama-3.1-8b-fp8-block --layers 8

Formats: w4a16 (compressed-tensors, int4 in groups of 128), awq (int4 with zero points), fp8 (compressed-tensors, a
scale for each output, rounded inputs), fp8-block (blocks of 128 x 128, as DeepSeek's and Qwen's), w8a8
(compressed-tensors, int8 weights and inputs). Embeddings, norms and the output matrix stay in bf16. Needs torch,
transformers and safetensors; no GPU. Values are random: right in size and speed, wrong in everything else.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chip.decoders import describe, library
from chip.decoders.modules import of_role
from chip.files import artifact, output
from chip.types import ChipError

SHARD_BYTES = 4 * 2**30
BLOCK = 2**22  # values drawn before the draw is repeated: random enough, and quick
SPREAD = 0.02
FP8_SPREAD, INT8_SPREAD, INT4_SPREAD = 60.0, 73.0, 4.6  # of the stored values; scales bring them to SPREAD
GROUP = 128


def _compressed(weights: dict[str, Any], inputs: dict[str, Any] | None, layout: str, router: str) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head", *([f"re:.*{router}$"] if router else [])],
        "kv_cache_scheme": None,
    }


def quantization_config(form: str, router: str) -> dict[str, Any]:
    """What goes into config.json. `router`: the name of the layer that chooses experts, which stays in 16 bits."""
    base = {"dynamic": False, "symmetric": True}
    token = {"num_bits": 8, "strategy": "token", "dynamic": True, "symmetric": True}
    if form == "w4a16":
        weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP, **base}
        return _compressed(weights, None, "pack-quantized", router)
    if form == "fp8":
        weights = {"num_bits": 8, "type": "float", "strategy": "channel", **base}
        return _compressed(weights, {**token, "type": "float"}, "float-quantized", router)
    if form == "w8a8":
        weights = {"num_bits": 8, "type": "int", "strategy": "channel", **base}
        return _compressed(weights, {**token, "type": "int"}, "int-quantized", router)
    if form == "awq":
        skipped = {"modules_to_not_convert": ["lm_head", router]} if router else {}
        return {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm", **skipped}
    return {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [GROUP, GROUP]}


FORMS = ("w4a16", "awq", "fp8", "fp8-block", "w8a8")


class Draw:
    """Random tensors: a block is drawn once for each kind and repeated."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        generator = torch.Generator().manual_seed(0)
        normal = torch.randn(BLOCK, generator=generator)
        self.normal = normal.bfloat16() * SPREAD
        self.fp8 = (normal * FP8_SPREAD).to(torch.float8_e4m3fn).view(torch.uint8)
        self.words = torch.empty(BLOCK, dtype=torch.int32).random_(-(2**31), 2**31 - 1, generator=generator)
        self.bytes = torch.empty(BLOCK, dtype=torch.int8).random_(-127, 128, generator=generator)

    def _repeated(self, block: Any, shape: tuple[int, ...]) -> Any:
        count = 1
        for n in shape:
            count *= n
        repeats = -(-count // BLOCK)
        return block.repeat(repeats)[:count].view(shape) if repeats > 1 else block[:count].clone().view(shape)

    def bf16(self, *shape: int) -> Any:
        return self._repeated(self.normal, shape)

    def e4m3(self, *shape: int) -> Any:
        return self._repeated(self.fp8, shape).view(self.torch.float8_e4m3fn)

    def int32(self, *shape: int) -> Any:
        return self._repeated(self.words, shape)

    def int8(self, *shape: int) -> Any:
        return self._repeated(self.bytes, shape)

    def full(self, value: float, dtype: str, *shape: int) -> Any:
        return self.torch.full(shape, value, dtype=getattr(self.torch, dtype))


def dense(form: str, name: str, n: int, k: int, draw: Draw) -> Iterator[tuple[str, Any]]:
    """The tensors of one quantised layer with n outputs and k inputs."""
    if form in ("w4a16", "awq") and k % GROUP:
        raise ChipError(f"{name} has {k} inputs, which groups of {GROUP} do not divide; take another model or format")
    if form == "w4a16":
        yield f"{name}.weight_packed", draw.int32(n, k // 8)
        yield f"{name}.weight_scale", draw.full(SPREAD / INT4_SPREAD, "bfloat16", n, k // GROUP)
        yield f"{name}.weight_shape", draw.torch.tensor([n, k])
    elif form == "awq":
        yield f"{name}.qweight", draw.int32(k, n // 8)
        yield f"{name}.qzeros", draw.int32(k // GROUP, n // 8)
        yield f"{name}.scales", draw.full(SPREAD / INT4_SPREAD, "float16", k // GROUP, n)
    elif form == "fp8-block":
        yield f"{name}.weight", draw.e4m3(n, k)
        blocks = (-(-n // GROUP), -(-k // GROUP))
        yield f"{name}.weight_scale_inv", draw.full(SPREAD / FP8_SPREAD, "float32", *blocks)
    else:
        whole, spread = (draw.e4m3(n, k), FP8_SPREAD) if form == "fp8" else (draw.int8(n, k), INT8_SPREAD)
        yield f"{name}.weight", whole
        yield f"{name}.weight_scale", draw.full(SPREAD / spread, "bfloat16", n, 1)


def tensors(raw: dict[str, Any], form: str, draw: Draw) -> Iterator[tuple[str, Any]]:
    """Every tensor of the checkpoint, layer by layer, with the names that checkpoints have."""
    import transformers

    torch = draw.torch
    config = transformers.AutoConfig.for_model(**raw)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    tied = config.tie_word_embeddings
    linear = {f"{n}.weight" for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
    kept = ("lm_head", ".gate", ".router", "shared_expert_gate")
    for name, p in model.named_parameters():
        layer, _, last = name.rpartition(".")
        if name == "lm_head.weight" and tied:
            continue
        if last in ("gate_up_proj", "down_proj") and p.dim() == 3:
            yield from _experts(form, layer, last, tuple(p.shape), draw)
        elif name in linear and not layer.endswith(kept):
            yield from dense(form, layer, p.shape[0], p.shape[1], draw)
        elif p.dim() > 1:
            yield name, draw.bf16(*p.shape)
        else:
            yield name, draw.full(0.0 if last == "bias" else 1.0, "bfloat16", *p.shape)


def _experts(form: str, layer: str, last: str, shape: tuple[int, ...], draw: Draw) -> Iterator[tuple[str, Any]]:
    """transformers joins a layer's experts, checkpoints hold each for itself."""
    count, n, k = shape
    for e in range(count):
        if last == "down_proj":
            yield from dense(form, f"{layer}.{e}.down_proj", n, k, draw)
        else:
            for part in ("gate_proj", "up_proj"):
                yield from dense(form, f"{layer}.{e}.{part}", n // 2, k, draw)


def write(raw: dict[str, Any], form: str, folder: Path) -> dict[str, Any]:
    """The folder, complete or not at all; returns what it holds."""
    import torch
    from safetensors.torch import save_file

    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    shard: dict[str, Any] = {}
    size = total = number = 0
    places: dict[str, str] = {}

    def flush() -> None:
        nonlocal shard, size, number
        if shard:
            number += 1
            file = f"model-{number:05d}.safetensors"
            save_file(shard, partial / file, metadata={"format": "pt"})
            places.update(dict.fromkeys(shard, file))
            shard, size = {}, 0

    for name, tensor in tensors({k: v for k, v in raw.items() if k != "quantization_config"}, form, Draw(torch)):
        if size + tensor.nbytes > SHARD_BYTES:
            flush()
        shard[name] = tensor
        size, total = size + tensor.nbytes, total + tensor.nbytes
    flush()
    index = {"metadata": {"total_size": total}, "weight_map": places}
    output.write(partial / "model.safetensors.index.json", json.dumps(index, indent=1) + "\n", output.ANY)
    output.write(partial / "config.json", json.dumps(raw, indent=1) + "\n", output.ANY)
    partial.rename(folder)
    return {"folder": str(folder), "total_size": total, "tensors": len(places), "files": number}


def config_of(model: str, form: str, layers: int) -> dict[str, Any]:
    raw = dict(artifact.read_json(library.locate(model)[0]))
    if "text_config" in raw or raw.get("model_type") == "gpt_oss":
        raise ChipError(f"{model}: only language models with dense layers or separate experts are written")
    experts = any(key in raw for key in ("num_experts", "num_local_experts", "n_routed_experts"))
    router = of_role(raw["architectures"][0], 0, "router")[0].split(".0.")[1] if experts else ""
    raw["quantization_config"] = quantization_config(form, router)
    raw["torch_dtype"] = "bfloat16"
    if layers:
        raw["num_hidden_layers"] = layers
        if "layer_types" in raw:
            raw["layer_types"] = raw["layer_types"][:layers]
    describe(raw, model, model)  # refuses what makes no sense before anything is written
    return raw


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="bundled name or config.json")
    parser.add_argument("format", choices=FORMS)
    parser.add_argument("folder", type=Path, help="to write; must not exist")
    parser.add_argument("--layers", type=int, default=0, help="instead of the model's own")
    parser.add_argument("--json", action="store_true", help="what was written as JSON")
    args = parser.parse_args(words)
    try:
        if args.folder.exists():
            raise ChipError(f"{args.folder}: exists; remove it or choose another folder")
        if args.layers < 0:
            raise ChipError(f"--layers must be positive, got {args.layers}")
        made = write(config_of(args.model, args.format, args.layers), args.format, args.folder)
    except ChipError as e:
        print(f"make_quantised: {e}", file=sys.stderr)
        return 2
    print(json.dumps(made) if args.json else f"{made['folder']}: {made['tensors']} tensors, {made['total_size']} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
