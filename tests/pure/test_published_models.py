"""Published configs are answered: parameters as their makers say, one prediction each."""

import copy
import json

import pytest
from published_models import PUBLISHED, QUANTISED, SOURCES

import chip
from chip.decoders import describe
from chip.show import cli
from chip.types import ChipError

# The families of a year and a half, and the published sizes that stand for each
FAMILIES = {
    "Llama 4": "Llama-4-Scout", "Qwen3-Next": "Qwen3-Next", "Qwen3.5": "Qwen3.5-397B", "Qwen3-VL": "Qwen3-VL-30B",
    "DeepSeek-V3.2": "DeepSeek-V3.2", "DeepSeek-V4": "DeepSeek-V4-Pro", "Kimi-K2": "Kimi-K2-", "Kimi-K2.5": "Kimi-K2.5",
    "MiniMax-M2": "MiniMax-M2", "GLM-4.6": "GLM-4.6", "GLM-5": "GLM-5", "Nemotron-H": "Nemotron-H-8B",
    "Granite 4": "granite-4.0", "Exaone 4": "EXAONE-4.0", "ERNIE 4.5": "ERNIE-4.5", "Hunyuan": "Hunyuan-A13B",
    "Phi-MoE": "Phi-3.5-MoE", "Gemma 3n": "gemma-3n", "Gemma 4": "gemma-4", "LFM2": "LFM2", "Apertus": "Apertus",
    "Falcon-H1": "Falcon-H1", "MiMo": "MiMo-V2", "Ministral 3": "Ministral-3", "Mistral 3": "Mistral-Small-3.1",
    "Step 3.5": "Step-3.7", "dots": "dots.llm1",
}  # fmt: skip


def test_every_family_of_the_last_year_has_a_published_model_with_its_source():
    assert len(FAMILIES) == 27
    for family, part in FAMILIES.items():
        assert any(part in name for name in PUBLISHED), family
    assert all(SOURCES.values())
    assert len(QUANTISED) >= 20


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_that_its_makers_say(name):
    billions, raw = PUBLISHED[name]
    assert not billions or describe(raw, name, name).params() / 1e9 == pytest.approx(billions, rel=0.015)


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_published_config_is_predicted(name):
    d = describe(PUBLISHED[name][1], name, name)
    many = 4 if d.params() > 6e10 else 1
    p = chip.predict(PUBLISHED[name][1], gpu="b200", tp=many, dtype="auto", prompt=1024, output=16)
    assert 0.5e-3 < p.tpot_s < 0.1
    assert p.memory["weights_bytes"] < 2.2 * d.params() / many + 4e9


@pytest.mark.parametrize("name", QUANTISED)
def test_quantised_checkpoints_weigh_what_their_formats_say(name):
    """With what stays in 16 bits: encoders, and all of the attention in Gemma 4 31B."""
    d = describe(PUBLISHED[name][1], name, name)
    most = {"fp8": 1.15, "nvfp4": 1.1, "mxfp4": 0.85, "int4": 0.62}[d.dtype]
    weights = chip.predict(PUBLISHED[name][1], gpu="b200", tp=1, dtype="auto", output=2).memory["weights_bytes"]
    assert 0.5 * d.params() < weights < most * d.params()


@pytest.mark.parametrize("name", ["moonshotai/Kimi-K2-Instruct", "tencent/Hunyuan-A13B-Instruct"])
def test_a_published_config_is_answered_in_one_line(name, tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(PUBLISHED[name][1]))
    dtype = ["--dtype", "auto" if name in QUANTISED else "fp8"]
    assert cli.main(["predict", str(path), "--gpu", "b200", "--tp", "8", *dtype, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tpot_ms"] > 0


def test_an_unknown_architecture_names_the_nearest_and_the_family_that_answers():
    raw = copy.deepcopy(PUBLISHED["MiniMaxAI/MiniMax-M2.5"][1])
    with pytest.raises(ChipError) as caught:
        describe({**raw, "architectures": ["MiniMaxM9ForCausalLM"]}, "it", "it.json")
    text = str(caught.value)
    assert "nearest: MiniMaxM2ForCausalLM" in text
    assert "--as " in text
    assert len(text) < 400
    as_mixtral = describe(
        {**raw, "architectures": ["Unheard"], "quantization_config": None}, "it", "it.json", answer_as="mixtral"
    )
    assert as_mixtral.params() == pytest.approx(229e9, rel=0.02)


def test_an_unknown_architecture_is_answered_as_a_known_one(tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**PUBLISHED["XiaomiMiMo/MiMo-7B-Base"][1], "architectures": ["Unheard"]}))
    answers = []
    for words in (["predict", str(path), "--as", "qwen2"], ["predict", "mimo-7b"]):
        assert cli.main([*words, "--json"]) == 0
        answers.append(json.loads(capsys.readouterr().out)["tpot_ms"])
    assert answers[0] == pytest.approx(answers[1], rel=0.01)
    traffic = ["--workload", "poisson:prompt=64,output=8", "--requests", "5", "--rate", "1"]
    assert cli.main(["simulate", str(path), "--as", "qwen2", *traffic, "--json"]) == 0
    capsys.readouterr()
    assert cli.main(["predict", str(path), "--as", "unheard"]) == 2
    assert "--as 'unheard' is no model type" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "model_type"),
    [
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "qwen3_next"), ("nvidia/Nemotron-H-8B-Base-8K", "nemotron_h"),
        ("deepseek-ai/DeepSeek-V4-Flash", "deepseek_v4"), ("ibm-granite/granite-4.0-h-small", "granitemoehybrid"),
        ("deepseek-ai/DeepSeek-V3.2", "deepseek_v32"),
    ],
)  # fmt: skip
def test_the_family_with_the_same_states_is_named_and_answers(name, model_type):
    raw = {k: v for k, v in PUBLISHED[name][1].items() if k != "quantization_config"}
    with pytest.raises(ChipError, match=f"--as {model_type} answers"):
        describe({**raw, "architectures": ["Unheard"]}, "it", "it.json")
    answered = describe({**raw, "architectures": ["Unheard"]}, "it", "it.json", answer_as=model_type)
    assert answered.params() == describe(raw, "it", "it.json").params()


def test_layers_with_states_are_told_apart():
    with pytest.raises(ChipError, match="mamba_d_state tells of layers"):
        describe({"architectures": ["Unheard"], "mamba_d_state": 128, "hidden_size": 64}, "it", "it.json")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"num_experts_per_tok": 300}, "is more than"),
        ({"num_key_value_heads": 7}, "not a multiple"),
        ({"layer_types": ["full_attention"] * 3}, "layer_types lists 3 layers"),
        ({"layer_types": ["odd"] * 62}, "layer_types has 'odd'"),
        ({"mlp_layer_types": ["sparse"]}, "mlp_layer_types lists 1 layers"),
        ({"hidden_size": None}, "'hidden_size' is missing"),
        ({"layer_types": ["sliding_attention"] * 62}, "gives no window"),
        ({"moe_layer_freq": [1, "x"] * 31}, "moe_layer_freq must list"),
    ],
)
def test_contradictions_are_one_line(change, says):
    with pytest.raises(ChipError, match=says):
        describe({**PUBLISHED["MiniMaxAI/MiniMax-M2.5"][1], **change}, "it", "it.json")
