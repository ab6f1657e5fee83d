"""What a quantization_config means: bytes against published checkpoints and by hand, formats by layer, and what wrong
configs are told."""

import json
import sys
import time
import types
from dataclasses import replace

import pytest
from folding import each
from quantised_configs import (
    AWQ,
    BLOCKS,
    F8,
    GPTQ,
    LLAMA,
    MATRICES,
    MODELS,
    OUTPUTS,
    REST,
    TOKEN,
    W4,
    W8,
    ct,
    said,
    weight_bytes,
)

from chip.decoders import describe, hub, library
from chip.decoders.quantization_methods import METHODS
from chip.dtypes import precision
from chip.files import artifact
from chip.types import ChipError

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


@each(
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
    ]
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
