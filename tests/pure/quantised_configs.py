"""A tiny Llama with a quantization_config, and such configs as libraries write them."""

from dataclasses import replace
from pathlib import Path

from chip.decoders import describe, library
from chip.decoders.lower import lower
from chip.dtypes import precision
from chip.types import Seq, Step

MODELS = Path(library.CONFIGS)
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
}
MATRICES = 3 * (512 * 512 + 2 * 512 * 256 + 512 * 512 + 3 * 512 * 1024)  # weights of all layers' dense layers
REST = 2 * 1000 * 512 + 7 * 512  # embedding, output matrix, norms
OUTPUTS = 3 * (512 + 256 + 256 + 512 + 1024 + 1024 + 512)


def said(**fields):
    return describe({**LLAMA, "quantization_config": fields}, "it", "config.json")


def weight_bytes(d, tp=1):
    return d.weight_bytes(replace(precision(d.dtype), per_layer=True), tp)


def ct(weights, inputs=None, ignore=("lm_head",), targets=("Linear",), **fields):
    group = {"targets": list(targets), "weights": weights, "input_activations": inputs}
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": group},
        "ignore": list(ignore),
        **fields,
    }


def roles(d, kv="", attention=""):
    p = replace(precision(d.dtype, kv), per_layer=True, attention=attention)
    program = lower(d, Step((Seq(1, 8, 2),)), p)
    return {c.role: c.op for b in program.blocks for c in b.calls}


W4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}
W8 = {"num_bits": 8, "type": "int", "strategy": "channel"}
F8 = {"num_bits": 8, "type": "float", "strategy": "channel"}
TOKEN = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}
BLOCKS = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
