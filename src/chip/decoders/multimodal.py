"""Models that see or hear beside reading: the language part of their config, under the architecture that it has."""

from __future__ import annotations

from chip.decoders import config
from chip.decoders.config import Config
from chip.types import ChipError

SECTIONS = ("text_config", "llm_config", "language_config", "language_model_config", "thinker_config")
AROUND = ("quantization_config", "tie_word_embeddings")  # said of the whole model
# The class of the language part; "": its section says, by its own `architectures` or its `model_type`.
# A class named here although the section names one of itself overrules it.
LANGUAGE = {
    "AudioFlamingo3ForConditionalGeneration": "Qwen2ForCausalLM",
    "BeeForConditionalGeneration": "Qwen3ForCausalLM",
    "Cohere2VisionForConditionalGeneration": "Cohere2ForCausalLM",
    "DeepseekOCR2ForCausalLM": "",
    "DeepseekOCRForCausalLM": "",
    "DeepseekVLV2ForCausalLM": "DeepseekV2ForCausalLM",
    "DotsOCRForCausalLM": "Qwen2ForCausalLM",
    "Eagle2_5_VLForConditionalGeneration": "",
    "Exaone4_5_ForConditionalGeneration": "Exaone4ForCausalLM",
    "GLM4VForCausalLM": "",
    "Glm4vForConditionalGeneration": "Glm4ForCausalLM",
    "Glm4vMoeForConditionalGeneration": "Glm4MoeForCausalLM",
    "Granite4VisionForConditionalGeneration": "GraniteMoeHybridForCausalLM",
    "GraniteSpeechForConditionalGeneration": "GraniteForCausalLM",
    "H2OVLChatModel": "",
    "HunYuanVLForConditionalGeneration": "HunYuanDenseV1ForCausalLM",
    "Idefics3ForConditionalGeneration": "LlamaForCausalLM",
    "InternS1ForConditionalGeneration": "",
    "InternVLChatModel": "",
    "InternVLForConditionalGeneration": "",
    "IsaacForConditionalGeneration": "Qwen3ForCausalLM",
    "KananaVForConditionalGeneration": "LlamaForCausalLM",
    "KeyeForConditionalGeneration": "Qwen3ForCausalLM",
    "KeyeVL1_5ForConditionalGeneration": "Qwen3ForCausalLM",
    "KimiK25ForConditionalGeneration": "DeepseekV3ForCausalLM",
    "KimiVLForConditionalGeneration": "DeepseekV3ForCausalLM",
    "Lfm2VlForConditionalGeneration": "Lfm2ForCausalLM",
    "LightOnOCRForConditionalGeneration": "Qwen3ForCausalLM",
    "Llama4ForCausalLM": "Llama4ForCausalLM",
    "Llama4ForConditionalGeneration": "Llama4ForCausalLM",
    "Llama_Nemotron_Nano_VL": "LlamaForCausalLM",
    "LlavaForConditionalGeneration": "",
    "LlavaNextForConditionalGeneration": "",
    "LlavaNextVideoForConditionalGeneration": "",
    "LlavaOnevision2ForConditionalGeneration": "Qwen3ForCausalLM",
    "LlavaOnevisionForConditionalGeneration": "Qwen2ForCausalLM",
    "MiDashengLMModel": "Qwen2ForCausalLM",
    "Mistral3ForConditionalGeneration": "",
    "NemotronH_Nano_Omni_Reasoning_V3": "NemotronHForCausalLM",
    "NemotronH_Nano_VL_V2": "NemotronHForCausalLM",
    "NVLM_D": "Qwen2ForCausalLM",
    "OpenCUAForConditionalGeneration": "Qwen2ForCausalLM",
    "OpenVLAForActionPrediction": "LlamaForCausalLM",
    "Ovis": "",
    "Ovis2_5": "Qwen3ForCausalLM",
    "Ovis2_6_MoeForCausalLM": "Qwen3MoeForCausalLM",
    "Ovis2_6ForCausalLM": "Qwen3ForCausalLM",
    "PaddleOCRVLForConditionalGeneration": "Ernie4_5ForCausalLM",
    "PaliGemmaForConditionalGeneration": "",
    "Phi3VForCausalLM": "Phi3ForCausalLM",
    "Phi4MMForCausalLM": "Phi3ForCausalLM",
    "PixtralForConditionalGeneration": "MistralForCausalLM",
    "Qwen2_5_VLForConditionalGeneration": "Qwen2ForCausalLM",
    "Qwen2_5OmniForConditionalGeneration": "Qwen2ForCausalLM",
    "Qwen2_5OmniModel": "Qwen2ForCausalLM",
    "Qwen2AudioForConditionalGeneration": "Qwen2ForCausalLM",
    "Qwen2VLForConditionalGeneration": "Qwen2ForCausalLM",
    "Qwen3_5ForConditionalGeneration": "Qwen3_5ForCausalLM",
    "Qwen3_5MoeForConditionalGeneration": "Qwen3_5MoeForCausalLM",
    "Qwen3ASRForConditionalGeneration": "Qwen3ForCausalLM",
    "Qwen3OmniMoeForConditionalGeneration": "Qwen3MoeForCausalLM",
    "Qwen3VLForConditionalGeneration": "Qwen3ForCausalLM",
    "Qwen3VLMoeForConditionalGeneration": "Qwen3MoeForCausalLM",
    "RForConditionalGeneration": "Qwen3ForCausalLM",
    "SkyworkR1VChatModel": "",
    "SmolVLMForConditionalGeneration": "LlamaForCausalLM",
    "Step3p7ForConditionalGeneration": "Step3p5ForCausalLM",
    "StepVLForConditionalGeneration": "Qwen3ForCausalLM",
    "UltravoxModel": "",
    "VoxtralForConditionalGeneration": "LlamaForCausalLM",
}
# Types of language parts beside those of `config.table`
TYPES = {
    "internlm2": "InternLM2ForCausalLM",
    "kimi_k2": "DeepseekV3ForCausalLM",
    "ministral3": "Ministral3ForCausalLM",
}


def language_part(c: Config, architecture: str) -> tuple[Config, str]:
    """The part of the config that describes the language model, and the class that it is an instance of."""
    outer = c
    while section := next((s for s in SECTIONS if isinstance(c.raw.get(s), dict)), ""):
        c = c.section(section)
    around = {k: outer.raw[k] for k in AROUND if outer.raw.get(k) is not None}
    raw = {**c.raw, **around}
    listed = [name for name in Config(raw, c.where).names("architectures") if name not in LANGUAGE]
    kind = c.text("model_type", "")
    chosen = LANGUAGE[architecture] or (listed[0] if listed else "") or TYPES.get(kind) or class_of(kind)
    if not chosen:
        raise ChipError(f"{c.where}: neither architectures nor model_type say which language model {architecture} has")
    raw.pop("model_type", None)  # a part has a type of its own ("qwen3_vl_text"), not that of its class
    return Config(raw, c.where, c.said, outer), chosen


def class_of(model_type: str) -> str:
    """The causal class of a type that transformers has; "" where it is not known."""
    entry = config.table()["model_types"].get(model_type)
    return str(entry["class"]) if entry else ""
