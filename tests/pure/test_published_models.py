"""Published configs are answered: parameters as their makers say, one prediction each."""

import copy
import json

import pytest
from published_models import PUBLISHED

from chip.decoders import describe
from chip.show import cli
from chip.types import ChipError


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_stay_what_they_were_written_down_as(name):
    billions, raw = PUBLISHED[name]
    assert describe(raw, name, name).params() / 1e9 == pytest.approx(billions, rel=0.015)


@pytest.mark.parametrize("name", ["moonshotai/Kimi-K2-Instruct", "tencent/Hunyuan-A13B-Instruct"])
def test_a_published_config_is_predicted(name, tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(PUBLISHED[name][1]))
    assert cli.main(["predict", str(path), "--gpu", "b200", "--tp", "8", "--dtype", "fp8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tpot_ms"] > 0


def test_an_unknown_architecture_names_the_nearest_and_the_family_that_answers():
    raw = copy.deepcopy(PUBLISHED["MiniMaxAI/MiniMax-M2"][1])
    with pytest.raises(ChipError) as caught:
        describe({**raw, "architectures": ["MiniMaxM9ForCausalLM"]}, "it", "it.json")
    text = str(caught.value)
    assert "nearest: MiniMaxM2ForCausalLM" in text
    assert "--as " in text
    assert len(text) < 400
    as_mixtral = describe({**raw, "architectures": ["Unheard"]}, "it", "it.json", answer_as="mixtral")
    assert as_mixtral.params() == pytest.approx(229e9, rel=0.02)


def test_an_unknown_architecture_is_answered_as_a_known_one(tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**PUBLISHED["XiaomiMiMo/MiMo-7B-RL"][1], "architectures": ["Unheard"]}))
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
        describe({**PUBLISHED["MiniMaxAI/MiniMax-M2"][1], **change}, "it", "it.json")
