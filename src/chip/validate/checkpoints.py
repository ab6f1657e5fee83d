"""What published runs loaded: a bundled model's shape, in the format of the checkpoint that its precision names.

The lists of layers that keep 16 bits are those of the checkpoints' own configs (hf_quant_config.json of NVIDIA's, as
aiconfigurator-core 0.12.0 has them under model_configs).
"""

from __future__ import annotations

from functools import cache
from typing import Any

from chip.decoders import describe, library
from chip.decoders.decoder import Decoder
from chip.types import ChipError

BLOCKS = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}


def _modelopt(algorithm: str, *ignore: str) -> dict[str, Any]:
    group = {"group_size": 16} if algorithm == "NVFP4" else {}
    lists = {"exclude_modules": ["lm_head", *ignore], "kv_cache_quant_algo": "FP8"}
    return {"quant_method": "modelopt", "quantization": {"quant_algo": algorithm, **group, **lists}}


def _int4(*ignore: str) -> dict[str, Any]:
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32, "dynamic": False}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}}
    return {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups, "ignore": [*ignore],
        "kv_cache_scheme": None,
    }  # fmt: skip


LATENT = tuple(f"*self_attn.{part}" for part in ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"))
FORMATS: dict[tuple[str, str], dict[str, Any]] = {
    ("llama-3.1-70b", "fp8"): _modelopt("FP8"),
    ("llama-3.1-70b", "fp4"): _modelopt("NVFP4"),
    ("llama-3.1-8b", "fp8"): _modelopt("FP8"),
    ("qwen3-32b", "fp8"): BLOCKS,
    ("qwen3-32b", "fp4"): _modelopt("NVFP4"),
    ("qwen3-235b-a22b", "fp8"): BLOCKS,
    ("minimax-m2", "fp8"): BLOCKS,
    ("minimax-m2", "fp4"): _modelopt("NVFP4", "*self_attn*"),
    ("deepseek-v3", "fp8"): BLOCKS,
    ("deepseek-v3", "fp4"): _modelopt("NVFP4", *LATENT),
    ("kimi-k2", "fp4"): _modelopt("NVFP4", "*self_attn*"),
    ("kimi-k2", "int4"): _int4("lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|down)_.*"),
    ("qwen3.5-397b-a17b", "fp8"): {**BLOCKS, "modules_to_not_convert": ["in_proj_b", "in_proj_a"]},
    ("qwen3.5-397b-a17b", "fp4"): _modelopt("NVFP4", "*linear_attn*", "*self_attn*", "*shared_expert*"),
    ("glm-5", "fp8"): BLOCKS,
    ("glm-5", "fp4"): _modelopt("NVFP4", "*self_attn*"),
}  # fmt: skip
AS_PUBLISHED = (("gpt-oss-120b", "fp4"),)


@cache
def checkpoint(model: str, precision: str) -> Decoder:
    """Refuses what nobody published a checkpoint of, or what CHIP has no shape of."""
    if model not in library.names():
        raise ChipError(f"model {model} is not bundled")
    path, title = library.locate(model)
    raw = dict(library.with_quantization(path))
    if (model, precision) in AS_PUBLISHED:
        return library.find(model)
    raw.pop("quantization_config", None)
    if precision != "bf16":
        if (model, precision) not in FORMATS:
            raise ChipError(f"no checkpoint of {model} in {precision} is known")
        raw["quantization_config"] = FORMATS[model, precision]
    return describe(raw, title, f"{title} in {precision}")
