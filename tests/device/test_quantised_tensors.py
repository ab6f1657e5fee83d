"""Bytes of quantised weights against the tensors that transformers and compressed-tensors themselves build on the meta
device, and names of dense layers against those of transformers' models."""

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_models import families

from chip.decoders import describe, modules
from chip.dtypes import precision

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

MODELS = Path(__file__).resolve().parents[2] / "src" / "chip" / "data" / "models"
BLOCKS = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]}
TENSOR = {"quant_method": "fp8", "activation_scheme": "dynamic"}
STATIC = {"quant_method": "fp8", "activation_scheme": "static"}


def bundled(name, said, **changes):
    raw = json.loads((MODELS / f"{name}.json").read_text(encoding="utf-8"))
    return {**raw, **changes, "quantization_config": said}


def on_meta(raw):
    logging.getLogger("transformers").setLevel(logging.ERROR)
    plain = {k: v for k, v in raw.items() if k != "quantization_config"}
    config = transformers.AutoConfig.for_model(**plain)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.tie_weights()
    return model


def tensor_bytes(model):
    found = {id(t): t for t in [*model.parameters(), *model.buffers()]}
    inverse = {id(b) for name, b in model.named_buffers() if "inv_freq" in name or "correction_bias" in name}
    return sum(t.numel() * t.element_size() for t in found.values() if id(t) not in inverse)


def answered(raw):
    d = describe(raw, "it", "it")
    return d.weight_bytes(replace(precision(d.dtype), per_layer=True))


@pytest.mark.parametrize(
    ("name", "said", "changes"),
    [
        ("llama-3.1-8b", BLOCKS, {}),
        ("llama-3.1-8b", TENSOR, {}),
        ("qwen2.5-7b", STATIC, {}),
        ("qwen3-32b-fp8", BLOCKS, {}),
        ("qwen3-30b-a3b", BLOCKS, {"num_hidden_layers": 4}),
        ("deepseek-v3", BLOCKS, {"num_hidden_layers": 5}),
        ("llama-3.1-8b", {**BLOCKS, "modules_to_not_convert": ["model.layers.0.mlp", "o_proj"]}, {}),
    ],
)
def test_fp8_as_transformers_builds_it(name, said, changes):
    fp8 = pytest.importorskip("transformers.integrations.finegrained_fp8")
    raw = bundled(name, said, **changes)
    model = on_meta(raw)
    settings = {k: v for k, v in said.items() if k not in ("quant_method", "fmt", "modules_to_not_convert")}
    block = settings.pop("weight_block_size", None)
    wanted = transformers.FineGrainedFP8Config(**settings, weight_block_size=block)
    wanted.weight_block_size = block
    skipped = ["lm_head", "mlp.gate", *said.get("modules_to_not_convert", [])]
    fp8.replace_with_fp8_linear(model, skipped, wanted)
    assert answered(raw) == pytest.approx(tensor_bytes(model), rel=0.001)


def test_mxfp4_as_transformers_builds_it():
    mxfp4 = pytest.importorskip("transformers.integrations.mxfp4")
    raw = json.loads((MODELS / "gpt-oss-20b.json").read_text(encoding="utf-8"))
    model = on_meta(raw)
    blocks = scales = 0
    for layer in model.model.layers:
        with torch.device("meta"):
            layer.mlp.experts = mxfp4.Mxfp4GptOssExperts(model.config)
        for name, p in layer.mlp.experts.named_parameters():
            if "bias" not in name:
                blocks += p.numel()
                scales += p.numel() // 16  # one 8-bit scale for each 32 values, which are 16 bytes
    biases = sum(p.numel() for n, p in model.named_parameters() if "experts" in n and "bias" in n)
    assert answered(raw) == pytest.approx(tensor_bytes(model) + scales - 2 * biases, rel=1e-4)  # transformers' are fp32
    assert blocks == sum(p.numel() for n, p in model.named_parameters() if p.dtype == torch.uint8)


GROUP = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}
CHANNEL = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
FLOAT = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
TOKEN = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True, "symmetric": True}
NVFP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True}


@pytest.mark.parametrize(
    ("weights", "inputs", "layout"),
    [
        (GROUP, None, "pack-quantized"),
        ({**GROUP, "symmetric": False}, None, "pack-quantized"),
        ({**GROUP, "group_size": 32}, None, "pack-quantized"),
        (CHANNEL, {**TOKEN, "type": "int"}, "int-quantized"),
        (FLOAT, TOKEN, "float-quantized"),
        (NVFP4, {**NVFP4, "dynamic": "local"}, "nvfp4-pack-quantized"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_compressed_tensors_as_it_builds_them(weights, inputs, layout):
    """One layer of a narrow model is really compressed, on the CPU: its tensors are what is counted."""
    compressed = pytest.importorskip("compressed_tensors")
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config

    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "format": layout}
    said = {"config_groups": {"group_0": group}, "ignore": ["lm_head"], "format": layout}
    raw = bundled(
        "llama-3.1-8b",
        {**said, "quant_method": "compressed-tensors"},
        hidden_size=1024,
        intermediate_size=2048,
        num_hidden_layers=2,
        vocab_size=512,
        num_attention_heads=8,
        num_key_value_heads=4,
    )
    plain = {k: v for k, v in raw.items() if k != "quantization_config"}
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**plain), dtype=torch.bfloat16
    )
    wanted = QuantizationConfig(**said, quant_method="compressed-tensors", quantization_status="frozen")
    apply_quantization_config(model, wanted)
    for _, p in model.named_parameters():
        if p.dtype == torch.bfloat16 and not torch.isfinite(p).all():
            p.data.fill_(0.01)
    for name, p in model.named_parameters():
        if name.endswith("scale"):
            p.data.fill_(0.01)
    compressor = compressed.ModelCompressor(quantization_config=wanted)
    compressor.compress_model(model)
    assert answered(raw) == pytest.approx(tensor_bytes(model), rel=0.01)


@pytest.mark.parametrize("architecture", sorted(families()))
def test_dense_layers_have_the_names_that_transformers_gives_them(architecture):
    raw = families()[architecture]
    d = describe(raw, "it", "it")
    model = on_meta(raw)
    real = {n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) or type(m).__name__ == "Conv1D"}
    layers = [layer for n, layer in d.layers for _ in range(n)]
    named = set()
    for i in range(len(layers)):
        # layers of one kind stand together in a Decoder, so an index may belong to another kind: all are tried
        kinds = [
            {
                n
                for m in layer.matrices(d.hidden)
                if m.role != "experts"
                for n in modules.of_role(architecture, i, m.role)
            }
            for _, layer in d.layers
        ]
        fitting = [k for k in kinds if k <= real]
        assert fitting, f"{sorted(kinds[0] - real)} are not among {sorted(n for n in real if f'.{i}.' in n)}"
        named |= max(fitting, key=len)
    heads = {modules.head(architecture)}
    left = {n for n in real - named - heads if not n.endswith((".gate", ".router", "shared_expert_gate"))}
    assert not left or architecture == "OPTForCausalLM"  # project_in and project_out of the 350m
