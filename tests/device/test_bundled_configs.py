"""The bundled configs build the published models: parameter counts on the meta device."""

import json
from pathlib import Path

import pytest
from folding import each

MODELS = Path(__file__).resolve().parents[2] / "src" / "chip" / "data" / "models"

# Number of parameters of the published checkpoint: tied embeddings counted once, buffers not.
# "card" marks a number printed on the model card, which may count a little differently.
PUBLISHED = {
    "bloom-560m": 559_214_592,  # card
    "command-r": 34_980_831_232,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_404_352,  # card: 671B; no MTP layer, no router bias
    "falcon-7b": 6_921_720_704,  # card: 7B; the checkpoint stores lm_head a second time
    "gemma-2-9b": 9_241_705_984,
    "gemma-3-1b": 999_885_952,
    "gemma-7b": 8_537_680_896,
    "glm-4-9b": 9_399_951_360,
    "gpt-j-6b": 6_053_381_344,  # card
    "gpt-neox-20b": 20_554_567_680,  # card
    "gpt-oss-20b": 20_914_757_184,  # card: 20.9B
    "gpt2": 124_439_808,
    "granite-3.1-8b": 8_170_848_256,
    "llama-2-7b": 6_738_415_616,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "mistral-7b": 7_248_023_552,
    "mixtral-8x7b": 46_702_792_704,
    "olmo-2-7b": 7_298_617_344,
    "opt-125m": 125_239_296,
    "phi-2": 2_779_683_840,
    "phi-3-mini": 3_821_079_552,
    "pythia-6.9b": 6_857_302_016,  # card
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,  # card: 0.6B; the checkpoint stores lm_head a second time
    "qwen3-30b-a3b": 30_532_122_624,
    "stablelm-2-1.6b": 1_644_417_024,  # card
    "starcoder2-3b": 3_030_371_328,
    "tinyllama-1.1b": 1_100_048_384,
}


def load(name):
    return json.loads((MODELS / f"{name}.json").read_text(encoding="utf-8"))


def test_there_are_enough_models():
    assert len(list(MODELS.glob("*.json"))) >= 25


@each(sorted(MODELS.glob("*.json")))
def test_file_is_a_causal_lm_config(path):
    config = json.loads(path.read_text(encoding="utf-8"))
    assert path.stem == path.stem.lower()
    assert len(config["architectures"]) == 1
    assert config["architectures"][0].endswith(("ForCausalLM", "LMHeadModel", "ForConditionalGeneration"))
    assert isinstance(config["model_type"], str)
    assert isinstance(config.get("text_config", config)["vocab_size"], int)


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_parameter_count(name):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    raw = load(name)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**raw))
    assert type(model).__name__ == raw["architectures"][0]
    count = sum(p.numel() for p in model.parameters())
    assert count == pytest.approx(PUBLISHED[name], rel=1e-3)
