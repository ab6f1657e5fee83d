"""What a quantization_config means: bytes against published checkpoints and by hand, formats by layer, what runs, and
what wrong configs are told."""

import json
import sys
import time
import types
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chip import artifact
from chip.dtypes import precision
from chip.formats import UNIFORM
from chip.models import describe, hub, library
from chip.models.lower import lower
from chip.models.quantization_methods import METHODS
from chip.ops.fp8_attention import Fp8Attention
from chip.ops.linear import Linear
from chip.ops.packed_linear import PackedLinear
from chip.ops.quantize import Quantize
from chip.ops.scaled_linear import ScaledLinear
from chip.predict import request
from chip.types import ChipError, Scenario, Seq, Step
from chip.vllm_kernels import KERNELS, implementations, kernel_for

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


W4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}
W8 = {"num_bits": 8, "type": "int", "strategy": "channel"}
F8 = {"num_bits": 8, "type": "float", "strategy": "channel"}
TOKEN = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}
BLOCKS = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}


# --- bytes


@pytest.mark.parametrize(
    ("model", "published"),
    [
        # total_size of the model.safetensors.index.json in openai/gpt-oss-20b and openai/gpt-oss-120b on the hub
        ("gpt-oss-20b", 13_761_264_768),
        ("gpt-oss-120b", 65_248_815_744),
    ],
)
def test_bytes_are_those_of_the_published_checkpoint(model, published):
    assert weight_bytes(library.find(model)) == published


def test_bytes_of_deepseek_v3_with_its_draft_layer():
    """The files of deepseek-ai/DeepSeek-V3 hold 688 586 727 753 bytes, headers included: the model and one layer for
    multi-token prediction, which has tables of its own, two norms more and a projection of twice the width."""
    d = library.find("deepseek-v3")
    p = replace(precision(d.dtype), per_layer=True)
    draft = sum(d.layers[-1][1].weight_bytes(d.hidden, p))
    draft += 2 * (2 * d.vocab * d.hidden + 2 * d.hidden * d.hidden + 3 * d.hidden)
    assert weight_bytes(d) + draft == pytest.approx(688_586_727_753, rel=1e-4)


@pytest.mark.parametrize(
    ("fields", "stored"),
    [
        ({"quant_method": "fp8"}, MATRICES + 3 * 7 * 4),
        ({"quant_method": "fp8", "activation_scheme": "static"}, MATRICES + 3 * 7 * 8),
        (BLOCKS, MATRICES * (1 + 4 / 128**2)),
        ({"quant_method": "fbgemm_fp8"}, MATRICES + 4 * OUTPUTS),
        (AWQ, MATRICES * (0.5 + 2.5 / 128)),
        ({**AWQ, "zero_point": False}, MATRICES * (0.5 + 2 / 128)),
        ({**AWQ, "group_size": -1}, MATRICES / 2 + 2.5 * OUTPUTS),
        (GPTQ, MATRICES * (0.5 + 2.5 / 128) + 4 * 3 * (6 * 512 + 1024)),
        ({**GPTQ, "bits": 8}, MATRICES * (1 + 3 / 128) + 4 * 3 * (6 * 512 + 1024)),
        (ct(W4), MATRICES * (0.5 + 2 / 128)),
        (ct({**W4, "symmetric": False}), MATRICES * (0.5 + 2.5 / 128)),
        (ct(W8, {**TOKEN, "type": "int"}), MATRICES + 2 * OUTPUTS),
        (ct(F8, TOKEN), MATRICES + 4 * OUTPUTS),
        (ct({**F8, "strategy": "block", "block_structure": [128, 128]}), MATRICES * (1 + 4 / 128**2)),
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]},
            MATRICES * (0.5 + 1 / 16) + 21 * 8,
        ),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, MATRICES * (0.5 + 4 / 64)),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True},
            MATRICES * (0.5 + (1 + 4 / 256) / 64),
        ),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, MATRICES + 4 * OUTPUTS),
    ],
    ids=lambda v: v["quant_method"] if isinstance(v, dict) else "",
)
def test_bytes_of_each_method_by_hand(fields, stored):
    d = said(**fields)
    assert weight_bytes(d) == pytest.approx(stored + 2 * REST, rel=1e-9)
    norms = 2 * 7 * 512
    assert weight_bytes(d, tp=2) == pytest.approx((stored + 2 * REST - norms) / 2 + norms)


def test_every_known_method_is_tried():
    tried = {"fp8", "fbgemm_fp8", "awq", "gptq", "compressed-tensors", "modelopt", "bitsandbytes"}
    assert set(METHODS) == tried | {"mxfp4", "modelopt_fp4"}  # mxfp4: gpt-oss above


def test_a_config_without_one_is_as_before():
    d = describe(LLAMA, "it", "config.json")
    assert (d.dtype, d.quantization, d.layers[0][1].formats) == ("bf16", "", ())
    assert d.weight_bytes(precision("bf16")) == 2 * d.params()


# --- which layers


def test_lists_leave_layers_in_16_bits():
    whole = weight_bytes(said(**BLOCKS))
    one = weight_bytes(said(**BLOCKS, modules_to_not_convert=["model.layers.1.mlp.down_proj"]))
    assert one - whole == 512 * 1024 * (1 - 4 / 128**2)
    part = said(**BLOCKS, modules_to_not_convert=["o_proj", "lm_head"])
    assert [dict(layer.formats).keys() for _, layer in part.layers] == [
        {"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "down_proj"}
    ]
    d = said(**ct(W4, ignore=["lm_head", "re:.*layers\\.[02]\\..*"]))
    assert [n for n, layer in d.layers if layer.formats] == [1]
    assert sum(n for n, _ in d.layers) == 3


def test_groups_of_layers_have_formats_of_their_own():
    groups = {
        "attention": {"targets": ["re:.*self_attn.*"], "weights": F8, "input_activations": TOKEN},
        "mlp": {"targets": ["re:.*mlp.*"], "weights": W4},
    }
    d = said(quant_method="compressed-tensors", config_groups=groups, ignore=["lm_head"])
    formats = dict(d.layers[0][1].formats)
    assert (formats["q_proj"].dtype, formats["q_proj"].input) == ("fp8", "fp8")
    assert (formats["up_proj"].dtype, formats["up_proj"].input) == ("int4", "")
    assert d.dtype == "int4"  # most of the weights


def test_the_output_matrix_is_quantised_where_a_list_does_not_leave_it_out():
    assert said(**ct(W4)).head_format is None
    d = said(**ct(W4, ignore=()))
    assert d.head_format == dict(d.layers[0][1].formats)["q_proj"]
    assert weight_bytes(said(**ct(W4))) - weight_bytes(d) == 512 * 1000 * (2 - 0.5 - 2 / 128)
    assert said(**GPTQ).head_format is None
    assert said(**GPTQ, lm_head=True).head_format is not None


def test_gptq_exceptions():
    d = said(**GPTQ, dynamic={"-:.*down_proj": {}, "+:.*up_proj": {"bits": 8, "group_size": 64}})
    formats = dict(d.layers[0][1].formats)
    assert "down_proj" not in formats
    assert (formats["up_proj"].dtype, formats["up_proj"].cols) == ("int8", 64)
    assert (formats["gate_proj"].dtype, formats["gate_proj"].cols) == ("int4", 128)


def test_what_the_cache_holds():
    assert said(**ct(F8, TOKEN)).kv_dtype == ""
    assert said(**ct(F8, TOKEN, kv_cache_scheme={"num_bits": 8, "type": "float"})).kv_dtype == "fp8"
    inner = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    assert said(quant_method="modelopt", quantization=inner).kv_dtype == "fp8"


def test_an_older_modelopt_export_has_no_lists():
    d = said(quant_method="modelopt", quantization={"quant_algo": "FP8", "kv_cache_quant_algo": "none"})
    assert (d.head_format, d.kv_dtype) == (None, "")


def test_names_of_methods_in_capitals():
    assert said(**{**AWQ, "quant_method": "AWQ"}).quantization == "awq"


def test_lists_of_every_single_expert():
    raw = artifact.read_json(MODELS / "qwen3-30b-a3b.json")
    layers, projections = raw["num_hidden_layers"], ("gate_proj", "up_proj", "down_proj")
    every = [f"model.layers.{i}.mlp.experts.{e}.{p}" for i in range(layers) for e in range(128) for p in projections]
    formats = {name: {"quant_algo": "W4A16_NVFP4"} for name in every}
    mixed = {"quant_algo": "MIXED_PRECISION", "quantized_layers": formats}
    began = time.process_time()
    d = describe({**raw, "quantization_config": {"quant_method": "modelopt", **mixed}}, "it", "config.json")
    assert time.process_time() - began < 3  # 18432 names; compared one by one it would be millions of comparisons
    assert {role for _, layer in d.layers for role, _ in layer.formats} == {"experts"}
    ignored = describe({**raw, "quantization_config": ct(F8, TOKEN, ignore=[*every, "lm_head"])}, "it", "config.json")
    assert "experts" not in {role for _, layer in ignored.layers for role, _ in layer.formats}


def folder(tmp_path, config, beside):
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside))
    return str(tmp_path)


def test_modelopt_says_it_in_a_file_of_its_own(tmp_path):
    beside = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    d = library.find(folder(tmp_path, LLAMA, beside))
    assert (d.dtype, d.quantization) == ("fp8", "modelopt")


def test_a_hub_repository_is_asked_for_that_file_too(tmp_path, monkeypatch):
    beside = {"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    folder(tmp_path, LLAMA, beside)
    asked = []

    def download(repo, name, local_files_only=False):
        asked.append(name)
        if repo.endswith("plain") and name != "config.json":
            raise OSError("404")
        where = tmp_path / ("plain" if repo.endswith("plain") else ".")
        return str(where / name)

    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "config.json").write_text(json.dumps(LLAMA))
    monkeypatch.setitem(
        sys.modules,
        "huggingface_hub",
        types.SimpleNamespace(hf_hub_download=download, constants=types.SimpleNamespace(ENDPOINT="http://x")),
    )
    monkeypatch.setattr(hub, "answers", lambda endpoint: True)
    assert library.find("someone/model-FP8").quantization == "modelopt"
    assert library.find("someone/plain").quantization == ""
    assert asked == ["config.json", "hf_quant_config.json"] * 2


def test_two_files_that_contradict_each_other(tmp_path):
    config = {**LLAMA, "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}
    name = folder(tmp_path, config, {"quantization": {"quant_algo": "FP8"}})
    with pytest.raises(ChipError, match=r"quant_algo FP8 contradicts NVFP4 of config\.json"):
        library.find(name)


# --- what is refused


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"quant_method": "hqq"}, "quant_method 'hqq' is not known; known: fp8, fbgemm_fp8, compressed-tensors, awq"),
        ({"bits": 4}, "field 'quant_method' is missing; known: fp8, "),
        ({**AWQ, "bits": 3}, "bits 3 is not served; known: 4 bits"),
        ({**AWQ, "bits": 0}, "bits 0 is not served"),
        ({**AWQ, "bits": 4, "w_bit": 8}, "bits 4 and w_bit 8 contradict each other"),
        ({**GPTQ, "bits": 3}, "bits 3 is not served; known: 4, 8 bits"),
        ({**GPTQ, "bits": True}, "bits True is not served"),
        ({**GPTQ, "bits": None}, "field 'bits' is missing"),
        (ct({**W4, "num_bits": 0}), "config_groups.group_0: weights: num_bits 0 is not served"),
        (ct({**W4, "num_bits": 3}), "num_bits 3 is not served"),
        ({**AWQ, "group_size": 96}, "a group of 96 does not divide the 512 inputs of model.layers.0.self_attn.q_proj"),
        (ct({**W4, "group_size": 768}), "a group of 768 does not divide the 512 inputs"),
        ({**BLOCKS, "weight_block_size": [128, 100]}, "a group of 100 does not divide the 512 inputs"),
        ({**AWQ, "group_size": 0}, "group_size must be between 1 and"),
        ({**BLOCKS, "weight_block_size": [128]}, "weight_block_size must be two sizes such as [128, 128]"),
        ({**BLOCKS, "weight_block_size": "128"}, "weight_block_size must be two sizes"),
        ({**BLOCKS, "activation_scheme": "static"}, "activation_scheme 'static' and weight_block_size contradict"),
        ({**BLOCKS, "activation_scheme": "sometimes"}, "activation_scheme 'sometimes' is not known; known: dynamic"),
        ({**BLOCKS, "fmt": "e5m2"}, "fmt 'e5m2' is not known"),
        ({**BLOCKS, "modules_to_not_convert": ["nosuch"]}, "modules_to_not_convert has 'nosuch', which names no layer"),
        (ct(W4, ignore=["model.layers.0.mlp.w1"]), "ignore has 'model.layers.0.mlp.w1', which names no layer"),
        (ct(W4, ignore=["re:.*(("]), "'.*((' is not a pattern"),
        (ct(W4, targets=["re:.*expert.*"]), "target 're:.*expert.*' names no layer of this model"),
        (ct(W4, ignore=["Linear"]), "every layer of this model is left out"),
        (ct({**W4, "strategy": "channel"}), "strategy 'channel' and group_size 128 contradict each other"),
        (ct({"num_bits": 4, "strategy": "group"}), "strategy 'group' needs a group_size"),
        (ct(F8, {**TOKEN, "dynamic": False}), "strategy 'token' needs dynamic scales"),
        (ct(W4, {"num_bits": 4, "type": "int", "dynamic": True}), "4-bit int activations are not served"),
        (ct(W4, kv_cache_scheme={"num_bits": 8, "type": "int"}), "a KV cache of this format is not served"),
        ({"quant_method": "compressed-tensors"}, "field 'config_groups' is missing or empty"),
        ({"quant_method": "bitsandbytes"}, "neither of load_in_4bit and load_in_8bit are set"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": True}, "both of load_in_4bit and"),
        ({"quant_method": "modelopt", "quant_algo": "INT2"}, "quant_algo 'INT2' is not known; known: FP8, "),
        (
            {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "INT8"},
            "kv_cache_quant_algo 'INT8'",
        ),
        ({"quant_method": "mxfp4"}, "every layer of this model is left out"),
        ({"quant_method": 4}, "quant_method must be text"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_what_makes_no_sense_is_told_in_one_line(fields, line):
    with pytest.raises(ChipError) as told:
        said(**fields)
    assert line in str(told.value)
    assert str(told.value).startswith("config.json: quantization_config")
    assert "\n" not in str(told.value)
    assert len(str(told.value)) < 400


def test_two_groups_of_the_same_layers():
    group = {"targets": ["Linear"], "weights": W4}
    with pytest.raises(ChipError, match=r"config_groups\.b: targets Linear are those of another group too"):
        said(quant_method="compressed-tensors", config_groups={"a": group, "b": {**group, "weights": F8}})


def test_parts_that_are_no_dense_layer_may_be_listed():
    listed = ["lm_head", "model.layers.0.input_layernorm", "re:.*vision_tower.*", "model.layers.3.eh_proj", "mtp"]
    assert said(**BLOCKS, modules_to_not_convert=listed).dtype == "fp8"


# --- what runs


def roles(d, kv="", attention=""):
    p = replace(precision(d.dtype, kv), per_layer=True, attention=attention)
    program = lower(d, Step((Seq(1, 8, 2),)), p)
    return {c.role: c.op for b in program.blocks for c in b.calls}


def test_operators_carry_the_format():
    found = roles(said(**BLOCKS))
    assert found["q_proj"].kind == "scaled_linear"
    assert (found["q_proj"].block_n, found["q_proj"].block_k, found["q_proj"].group) == (128, 128, 128)
    assert [found[r].kind for r in ("qkv_quant", "o_quant", "up_quant", "down_quant")] == ["quantize"] * 4
    assert found["down_quant"].cols == 1024
    assert found["lm_head"].kind == "linear"
    packed = roles(said(**AWQ))
    assert (packed["up_proj"].kind, packed["up_proj"].weight_dtype, packed["up_proj"].group) == (
        "packed_linear",
        "int4",
        128,
    )
    assert packed["up_proj"].zeros
    assert not [r for r in packed if r.endswith("_quant")]


def test_operators_read_what_memory_holds():
    """The weights that one step of a dense model reads, taken from its operators, are those of its memory."""
    for fields in (BLOCKS, AWQ, ct(W4), ct(F8, TOKEN)):
        d = said(**fields)
        p = replace(precision(d.dtype), per_layer=True)
        step = lower(d, Step((Seq(1, 8, 1),)), p)
        read = 0.0
        for b in step.blocks:
            for c in b.calls:
                if "linear" in c.op.kind:
                    cost, none = c.op.cost(), replace(c.op, n=1).cost()
                    one_output = (cost.read_bytes - none.read_bytes) / (c.op.n - 1)
                    read += b.repeat * c.op.n * one_output
        table = 2 * 1000 * 512
        assert read == pytest.approx(weight_bytes(d) - table - 2 * 7 * 512, rel=0.01)


def test_an_fp8_cache_is_written_and_read_in_bytes():
    d = said(**ct(F8, TOKEN))
    wide, narrow, widened = roles(d), roles(d, "fp8", "fp8"), roles(d, "fp8")
    assert narrow["kv_append"].cost().write_bytes == wide["kv_append"].cost().write_bytes / 2
    assert narrow["attention"].kind == "fp8_attention"
    assert narrow["query_quant"].static
    assert widened["attention"].kind == "fp8_cache_attention"
    assert "query_quant" not in widened
    assert d.kv_bytes(100, precision("fp8", "fp8")) == d.kv_bytes(100, precision("fp8")) / 2


def answer(**asked):
    return request.answer({"gpu": "h200", "output": 16, **asked})


def test_auto_is_what_the_config_says():
    a = answer(model="qwen3-32b-fp8")
    assert (a["dtype"], a["kv_dtype"]) == ("fp8", "bf16")
    assert a["memory"]["weights_bytes"] == round(weight_bytes(library.find("qwen3-32b-fp8")))
    wide = answer(model="qwen3-32b-fp8", dtype="bf16")
    assert wide["memory"]["weights_bytes"] == answer(model="qwen3-32b")["memory"]["weights_bytes"]
    assert any("config's weights are fp8" in n for n in wide["notes"])
    assert answer(model="gpt-oss-120b", gpu="h100")["memory"]["fits"]
    assert not answer(model="gpt-oss-120b", gpu="h100", dtype="bf16")["memory"]["fits"]


def test_a_gpu_without_fp8_widens_the_weights():
    a = answer(model="llama-3.1-8b", gpu="a100", dtype="fp8", prompt=4096)
    wide = answer(model="llama-3.1-8b", gpu="a100", prompt=4096)
    assert a["memory"]["weights_bytes"] < 0.6 * wide["memory"]["weights_bytes"]
    assert a["ttft_ms"] > 0.9 * wide["ttft_ms"]
    assert a["tpot_ms"] < 0.7 * wide["tpot_ms"]
    assert any("Marlin" in n and "no fp8 products" in n for n in a["notes"])


def test_an_fp8_cache_holds_more():
    plain, narrow = answer(model="llama-3.1-8b"), answer(model="llama-3.1-8b", kv_dtype="fp8")
    assert narrow["kv_dtype"] == "fp8"
    assert narrow["memory"]["kv_capacity_tokens"] == pytest.approx(2 * plain["memory"]["kv_capacity_tokens"], rel=1e-4)
    long = {"model": "llama-3.1-8b", "batch": 64, "prompt": 8000}
    assert answer(**long, kv_dtype="fp8")["tpot_ms"] < 0.8 * answer(**long)["tpot_ms"]
    with pytest.raises(ChipError, match="kv_dtype fp8: hf-eager keeps its cache"):
        answer(model="llama-3.1-8b", engine="hf-eager", kv_dtype="fp8")
    with pytest.raises(ChipError, match="kv_dtype 'int3' is not known; choose one of auto, bf16"):
        answer(model="llama-3.1-8b", kv_dtype="int3")


def test_a_model_that_does_not_fit_is_told_what_would():
    notes = answer(model="llama-3.1-70b", gpu="h100")["notes"]
    assert any(n.startswith("fits with --dtype fp8 (") for n in notes)
    assert any(n.startswith("fits with --dtype int4 (") for n in answer(model="llama-3.1-70b", gpu="l40s")["notes"])
    assert not any(n.startswith("fits with") for n in answer(model="llama-3.1-405b", gpu="l4")["notes"])


@pytest.mark.parametrize(
    ("stored", "capability", "name"),
    [
        ("fp8", 90, "CUTLASS"),
        ("fp8", 89, "CUTLASS"),
        ("fp8", 80, "Marlin"),
        ("fp8", 70, None),
        ("int4", 90, "Machete"),
        ("int4", 100, "Marlin"),
        ("int4", 86, "Marlin"),
        ("w8a8", 75, "CUTLASS int8"),
        ("nvfp4", 100, "FlashInfer"),
        ("nvfp4", 90, "Marlin"),
        ("mxfp4", 90, "Triton"),
    ],
)
def test_the_kernel_for_a_format_and_gpu(stored, capability, name):
    found = kernel_for(UNIFORM[stored], capability)
    assert found is None if name is None else found.name.startswith(name)


def test_blocks_have_kernels_of_their_own():
    blocks = dict(said(**BLOCKS).layers[0][1].formats)["q_proj"]
    assert kernel_for(blocks, 90).name.startswith("DeepGEMM (FlashInfer")
    assert kernel_for(blocks, 100).name == "DeepGEMM"
    assert kernel_for(blocks, 89).name.startswith("Triton")
    assert kernel_for(blocks, 80).widens


def test_a_split_that_cuts_a_block_is_refused():
    shards = {"gpu": "h200", "output": 16}
    assert request.answer({"model": "deepseek-v3", "tp": 8, **shards})["memory"]["fits"]
    narrow = {**LLAMA, "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 64}
    for fields, line in (
        (BLOCKS, "--tp 8 leaves 64 outputs of q_proj to each GPU, which the config's scales over 128"),
        (AWQ, "--tp 8 leaves 64 inputs of o_proj to each GPU"),
    ):
        d = describe({**narrow, "quantization_config": fields}, "it", "config.json")
        with pytest.raises(ChipError, match=line):
            request.predict(d, "h200", "vllm", Scenario(1, 8, 2, "auto", 8))
        assert request.predict(d, "h200", "vllm", Scenario(1, 8, 2, "auto", 2)).memory["fits"]


@pytest.mark.parametrize(
    ("op", "capability", "found"),
    [
        (ScaledLinear(1, 128, 128), 90, ("cutlass", "torch")),
        (ScaledLinear(1, 128, 128, block_n=128, block_k=128, group=128), 90, ("deepgemm", "cutlass", "triton")),
        (ScaledLinear(1, 128, 128, block_n=128, block_k=128, group=128), 89, ("triton",)),
        (PackedLinear(1, 128, 128), 90, ("machete", "marlin")),
        (PackedLinear(1, 128, 128), 80, ("marlin",)),
        (PackedLinear(1, 128, 128, weight_dtype="fp8"), 90, ("marlin",)),
        (Quantize(1, 128), 90, ("compiled",)),
        (Quantize(1, 128, to="int8"), 90, ("vllm",)),
        (Fp8Attention(1, 8, 8, 64, 1, 9), 90, ("fa3",)),
        (Linear(1, 128, 128), 90, ()),
    ],
    ids=str,
)
def test_the_measured_implementation_that_stands_for_an_operator(op, capability, found):
    assert implementations(op, capability) == found


def test_what_widens_is_a_product_with_rounded_inputs():
    assert all(k.input for k in KERNELS if k.widens)


def test_bundled_quantised_models_read_back():
    for name in ("qwen3-32b-fp8", "llama-3.1-70b-awq", "gpt-oss-20b", "gpt-oss-120b", "deepseek-v3"):
        raw = artifact.read_json(MODELS / f"{name}.json")
        assert library.find(name).quantization == raw["quantization_config"]["quant_method"]


# --- configs in the form that publishers write them: (model, quantization_config, dtype, KV cache)

NORMS = ("input_layernorm", "mlp.gate", "post_attention_layernorm")
STATIC = {"dynamic": False, "num_bits": 8, "strategy": "tensor", "symmetric": True, "type": "float"}
PUBLISHED = {
    "fp8 blocks, norms and routers listed": (
        "qwen3-30b-a3b",
        {**BLOCKS, "modules_to_not_convert": ["lm_head", *(f"model.layers.{i}.{n}" for i in range(48) for n in NORMS)]},
        "fp8",
        "",
    ),
    "llm-compressor W4A16": (
        "llama-3.1-70b",
        {
            **ct({**W4, "actorder": "weight", "block_structure": None, "observer": "mse", "observer_kwargs": {}}),
            "format": "pack-quantized",
            "kv_cache_scheme": None,
            "quantization_status": "compressed",
        },
        "int4",
        "",
    ),
    "llm-compressor FP8, routers listed": (
        "mixtral-8x7b",
        ct(F8, TOKEN, ignore=["lm_head", *(f"model.layers.{i}.block_sparse_moe.gate" for i in range(32))]),
        "fp8",
        "",
    ),
    "llm-compressor FP8 with static scales and cache": (
        "llama-3.1-8b",
        ct(STATIC, STATIC, kv_cache_scheme=STATIC),
        "fp8",
        "fp8",
    ),
    "AutoGPTQ": ("qwen2.5-7b", {**GPTQ, "damp_percent": 0.01, "dataset": None, "true_sequential": True}, "int4", ""),
    "bitsandbytes NF4": (
        "llama-3.1-8b",
        {
            "quant_method": "bitsandbytes",
            "_load_in_4bit": True,
            "_load_in_8bit": False,
            "load_in_4bit": True,
            "load_in_8bit": False,
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": True,
            "llm_int8_skip_modules": None,
        },
        "int4",
        "",
    ),
    "ModelOpt NVFP4, wildcards and a draft layer": (
        "deepseek-v3",
        {
            "quant_method": "modelopt",
            "quant_algo": "NVFP4",
            "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
            "ignore": ["lm_head", "model.layers.0.self_attn*", "model.layers.61*"],
        },
        "nvfp4",
        "fp8",
    ),
    "a multimodal model, other towers listed": (
        "gemma-3-27b",
        ct(W4, ignore=["lm_head", "re:.*vision_tower.*", "re:.*multi_modal_projector.*"]),
        "int4",
        "",
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_forms_are_understood(name):
    model, fields, dtype, kv = PUBLISHED[name]
    raw = artifact.read_json(MODELS / f"{model}.json")
    d = describe({**raw, "quantization_config": fields}, model, model)
    assert (d.dtype, d.kv_dtype, d.head_format) == (dtype, kv, None)
    tables = (1 if d.tied else 2) * d.vocab * d.hidden
    bits = 8 * (weight_bytes(d) - 2 * tables) / (d.params() - tables)
    stored = {"fp8": 8, "int4": 4, "nvfp4": 4}[dtype]
    assert stored < bits < stored + 0.7  # with scales, and what is left out


# --- anything at all

WORDS = st.sampled_from(
    ["fp8", "awq", "gptq", "int", "float", "group", "channel", "tensor", "block", "token", "Linear", "lm_head", "NVFP4",
     "FP8", "MIXED_PRECISION", "static", "re:.*mlp.*", "-:.*", "+:.*up.*", "", "gemm", "e4m3"]
)  # fmt: skip
VALUES = st.text(max_size=3) | st.none() | st.booleans() | st.integers(-2, 300) | st.floats() | WORDS
ANY = st.recursive(VALUES, lambda v: st.lists(v, max_size=3) | st.dictionaries(WORDS, v, max_size=3), max_leaves=6)
FIELDS = (
    "bits", "w_bit", "group_size", "zero_point", "version", "desc_act", "dynamic", "lm_head", "weight_block_size",
    "activation_scheme", "modules_to_not_convert", "ignored_layers", "ignore", "config_groups", "kv_cache_scheme",
    "quant_algo", "kv_cache_quant_algo", "exclude_modules", "quantization", "quantized_layers", "load_in_4bit",
    "load_in_8bit", "bnb_4bit_quant_type", "llm_int8_skip_modules", "fmt",
)  # fmt: skip
ARGS = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("num_bits", "group_size"), st.sampled_from([4, 8, 128, -1]) | ANY),
        **dict.fromkeys(("type", "strategy", "symmetric", "dynamic", "block_structure", "actorder"), ANY),
    },
)
GROUPS = st.dictionaries(
    st.sampled_from(["group_0", "two\nlines"]),
    st.fixed_dictionaries({}, optional={"weights": ARGS | ANY, "input_activations": ARGS | ANY, "targets": ANY}),
    max_size=2,
)


@settings(max_examples=150)
@given(
    st.sampled_from([*METHODS, "nosuch"]) | ANY,
    st.dictionaries(st.sampled_from(FIELDS), ANY, max_size=5),
    st.none() | GROUPS,
)
def test_any_config_is_understood_or_refused_in_one_line(method, fields, groups):
    fields = {**fields, "quant_method": method}
    if groups is not None:
        fields["config_groups"] = groups
    try:
        d = said(**fields)
    except ChipError as e:
        told = str(e)
        assert len(told) < 600 and "\n" not in told  # noqa: PT018
        return
    bits16 = 2 * d.params()
    assert 0.2 * bits16 < weight_bytes(d) < 1.6 * bits16
    assert d.dtype in UNIFORM
    roles(d)
