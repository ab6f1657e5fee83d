"""Architectures that are one row, or have states, and the language parts of models that see, against transformers:
parameters of its own default configs, on the meta device."""

import json
import logging
from importlib import import_module

import pytest
from tiny_models import ROWS

from chip import catalog
from chip.decoders import architectures, describe, multimodal

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
logging.getLogger("transformers").setLevel(logging.ERROR)
# Held operator by operator elsewhere; a family that transformers does not have is held against nothing
OWN_FILE = {a for a, family in architectures().items() if family not in ROWS and hasattr(transformers, a)}
SETTINGS = {  # where the default config of transformers cannot be built
    "HunYuanDenseV1ForCausalLM": {"head_dim": 128},
    "HunYuanMoEV1ForCausalLM": {"head_dim": 128, "num_experts": 8, "moe_topk": 2},
    "Dots1ForCausalLM": {"n_routed_experts": 8, "n_shared_experts": 2, "num_experts_per_tok": 2},
    "Lfm2ForCausalLM": {"layer_types": ["conv", "full_attention"] * 16},
    "Lfm2MoeForCausalLM": {"layer_types": ["conv", "full_attention"] * 16},
    "NemotronForCausalLM": {"num_key_value_heads": 8},
}
NO_DEFAULT = {  # classes whose default config is of no model: heads that do not divide, several decoders
    *("Glm4vMoeForConditionalGeneration", "Qwen2_5OmniForConditionalGeneration"),
    *("Granite4VisionForConditionalGeneration", "HunYuanVLForConditionalGeneration"),
    *("Qwen3OmniMoeForConditionalGeneration", "PhiMoEForCausalLM", "Llama4ForCausalLM"),
    *("DbrxForCausalLM", "Gemma3nForConditionalGeneration"),  # no angles; timm's vision tower
    "LongcatFlashForCausalLM",  # stores weights for experts that hand their input on: 741 of 561 billion
}


def rows():
    return [a for family in ROWS for a in import_module(f"chip.decoders.families.{family}").ARCHITECTURES]


def known(names):
    return [a for a in names if hasattr(transformers, a) and a not in NO_DEFAULT]


def test_the_list_says_which_classes_transformers_does_not_have():
    assert set(catalog.NOT_IN_TRANSFORMERS) == {a for a in architectures() if not hasattr(transformers, a)}
    assert set(catalog.WRITTEN_AS_VLLM) <= set(catalog.NOT_IN_TRANSFORMERS)


def test_most_rows_can_be_held_against_transformers():
    assert len(known(rows())) >= 20


@pytest.mark.parametrize("architecture", [*known(rows()), *known(multimodal.LANGUAGE)])
def test_parameters_are_those_of_transformers(architecture):
    cls = getattr(transformers, architecture)
    config = cls.config_class(**SETTINGS.get(architecture, {}))
    with torch.device("meta"):
        model = cls._from_config(config)
    language = model if architecture not in multimodal.LANGUAGE else model.get_decoder()
    weights = {id(p): p.numel() for p in language.parameters()}
    if (head := model.get_output_embeddings()) is not None:
        weights[id(head.weight)] = head.weight.numel()
    raw = {**json.loads(config.to_json_string()), "architectures": [architecture]}
    assert describe(raw, "it", "it.json").params() == pytest.approx(sum(weights.values()), rel=1e-3)
