"""Models that see or hear beside reading: the language part of their config, under the architecture that it has."""

from __future__ import annotations

from typing import Any

from chip.decoders import config
from chip.decoders.config import Config
from chip.types import ChipError

SECTIONS = ("text_config", "llm_config", "language_config", "language_model_config", "thinker_config")
AROUND = ("quantization_config", "tie_word_embeddings")  # said of the whole model
# The class of the language part; "": its section says, by its own `architectures` or its `model_type`.
# A class named here although the section names one of itself overrules it.
LANGUAGE = {
    "AriaForConditionalGeneration": "AriaTextForCausalLM",
    "AudioFlamingo3ForConditionalGeneration": "Qwen2ForCausalLM",
    "BagelForConditionalGeneration": "Qwen2ForCausalLM",
    "BeeForConditionalGeneration": "Qwen3ForCausalLM",
    "Blip2ForConditionalGeneration": "",
    "Cheers": "Qwen2ForCausalLM",
    "CheersForConditionalGeneration": "Qwen2ForCausalLM",
    "Cohere2VisionForConditionalGeneration": "Cohere2ForCausalLM",
    "Cosmos3ForConditionalGeneration": "Qwen3ForCausalLM",
    "DeepseekOCR2ForCausalLM": "",
    "DeepseekOCRForCausalLM": "",
    "DeepseekVLV2ForCausalLM": "DeepseekV2ForCausalLM",
    "DotsOCRForCausalLM": "Qwen2ForCausalLM",
    "Eagle2_5_VLForConditionalGeneration": "",
    "Ernie4_5_VLMoeForConditionalGeneration": "Ernie4_5_MoeForCausalLM",
    "Exaone4_5_ForConditionalGeneration": "Exaone4ForCausalLM",
    "FireRedASR2ForConditionalGeneration": "Qwen2ForCausalLM",
    "FunASRForConditionalGeneration": "Qwen3ForCausalLM",
    "FunAudioChatForConditionalGeneration": "Qwen3ForCausalLM",
    "Gemma3nForConditionalGeneration": "Gemma3nForCausalLM",
    "Gemma4ForConditionalGeneration": "Gemma4ForCausalLM",
    "Gemma4UnifiedForConditionalGeneration": "Gemma4ForCausalLM",
    "GLM4VForCausalLM": "",
    "Glm4vForConditionalGeneration": "Glm4ForCausalLM",
    "Glm4vMoeForConditionalGeneration": "Glm4MoeForCausalLM",
    "GlmAsrForConditionalGeneration": "LlamaForCausalLM",
    "GlmOcrForConditionalGeneration": "Glm4ForCausalLM",
    "Granite4VisionForConditionalGeneration": "GraniteMoeHybridForCausalLM",
    "GraniteSpeechForConditionalGeneration": "GraniteForCausalLM",
    "GraniteSpeechPlusForConditionalGeneration": "GraniteForCausalLM",
    "H2OVLChatModel": "",
    "HCXVisionForCausalLM": "",
    "HCXVisionV2ForCausalLM": "",
    "HunYuanVLForConditionalGeneration": "HunYuanDenseV1ForCausalLM",
    "Idefics3ForConditionalGeneration": "LlamaForCausalLM",
    "InklingForConditionalGeneration": "InklingForCausalLM",
    "InternS1ForConditionalGeneration": "",
    "InternS1ProForConditionalGeneration": "Qwen3MoeForCausalLM",
    "InternS2PreviewForConditionalGeneration": "Qwen3_5MoeForCausalLM",
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
    "MiMoV2OmniForCausalLM": "MiMoV2FlashForCausalLM",
    "MiniCPMO": "",
    "MiniCPMV": "",
    "MiniCPMV4_6ForConditionalGeneration": "Qwen3_5ForCausalLM",
    "MiniMaxM3SparseForConditionalGeneration": "MiniMaxM3SparseForCausalLM",
    "Mistral3ForConditionalGeneration": "",
    "Molmo2ForConditionalGeneration": "Molmo2ForConditionalGeneration",
    "MolmoForCausalLM": "MolmoForCausalLM",
    "MoonshotKimiaForCausalLM": "Qwen2ForCausalLM",
    "MossAudioModel": "Qwen3ForCausalLM",
    "MossTranscribeDiarizeForConditionalGeneration": "Qwen3ForCausalLM",
    "NemotronH_Nano_Omni_Reasoning_V3": "NemotronHForCausalLM",
    "NemotronH_Nano_VL_V2": "NemotronHForCausalLM",
    "NemotronH_Super_Omni_Reasoning_V3": "NemotronHForCausalLM",
    "NVLM_D": "Qwen2ForCausalLM",
    "OpenCUAForConditionalGeneration": "Qwen2ForCausalLM",
    "OpenPanguVLForConditionalGeneration": "PanguEmbeddedForCausalLM",
    "OpenVLAForActionPrediction": "LlamaForCausalLM",
    "Ovis": "",
    "Ovis2_5": "Qwen3ForCausalLM",
    "Ovis2_6_MoeForCausalLM": "Qwen3MoeForCausalLM",
    "Ovis2_6ForCausalLM": "Qwen3ForCausalLM",
    "PaddleOCRVLForConditionalGeneration": "Ernie4_5ForCausalLM",
    "PaliGemmaForConditionalGeneration": "",
    "Phi3VForCausalLM": "Phi3ForCausalLM",
    "Phi4ForCausalLMV": "Phi3ForCausalLM",
    "Phi4MMForCausalLM": "Phi3ForCausalLM",
    "PixtralForConditionalGeneration": "MistralForCausalLM",
    "QianfanOCRForConditionalGeneration": "",
    "Qwen2_5_VLForConditionalGeneration": "Qwen2ForCausalLM",
    "Qwen2_5OmniForConditionalGeneration": "Qwen2ForCausalLM",
    "Qwen2_5OmniModel": "Qwen2ForCausalLM",
    "Qwen2AudioForConditionalGeneration": "Qwen2ForCausalLM",
    "Qwen2VLForConditionalGeneration": "Qwen2ForCausalLM",
    "Qwen3_5ForConditionalGeneration": "Qwen3_5ForCausalLM",
    "Qwen3_5MoeForConditionalGeneration": "Qwen3_5MoeForCausalLM",
    "Qwen3ASRForConditionalGeneration": "Qwen3ForCausalLM",
    "Qwen3ASRRealtimeGeneration": "Qwen3ForCausalLM",
    "Qwen3OmniMoeForConditionalGeneration": "Qwen3MoeForCausalLM",
    "Qwen3VLForConditionalGeneration": "Qwen3ForCausalLM",
    "Qwen3VLMoeForConditionalGeneration": "Qwen3MoeForCausalLM",
    "RForConditionalGeneration": "Qwen3ForCausalLM",
    "SkyworkR1VChatModel": "",
    "SmolVLMForConditionalGeneration": "LlamaForCausalLM",
    "Step3p7ForConditionalGeneration": "Step3p5ForCausalLM",
    "Step3VLForConditionalGeneration": "Step3TextForCausalLM",
    "StepVLForConditionalGeneration": "Qwen3ForCausalLM",
    "UltravoxModel": "",
    "UnlimitedOCRForCausalLM": "",
    "VoxtralForConditionalGeneration": "LlamaForCausalLM",
    "VoxtralRealtimeGeneration": "LlamaForCausalLM",
}
# Types of language parts beside those of `config.table`
TYPES = {
    "hyperclovax": "HyperCLOVAXForCausalLM",
    "internlm2": "InternLM2ForCausalLM",
    "kimi_k2": "DeepseekV3ForCausalLM",
    "ministral3": "Ministral3ForCausalLM",
}
VERSIONS = {  # the language model by the version of the whole
    "MiniCPMO": {2.6: "Qwen2ForCausalLM", 4.5: "Qwen3ForCausalLM"},
    "MiniCPMV": {
        2.0: "MiniCPMForCausalLM", 2.5: "LlamaForCausalLM", 2.6: "Qwen2ForCausalLM", 4.0: "LlamaForCausalLM",
        4.5: "Qwen3ForCausalLM",
    },
}  # fmt: skip


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
    if architecture in VERSIONS:
        chosen = _of_version(outer, architecture)
    raw = as_text(raw, architecture)
    if not chosen:
        raise ChipError(f"{c.where}: neither architectures nor model_type say which language model {architecture} has")
    raw.pop("model_type", None)  # a part has a type of its own ("qwen3_vl_text"), not that of its class
    return Config(raw, c.where, c.said, outer), chosen


def _of_version(c: Config, architecture: str) -> str:
    known, version = VERSIONS[architecture], c.number("version", 0.0)
    if version not in known:
        raise ChipError(
            f"{c.where}: version {version:g} of {architecture} is not known; known: {', '.join(map(str, known))}"
        )
    return known[version]


def as_text(raw: dict[str, Any], architecture: str) -> dict[str, Any]:
    """Fields that mean something else than in a language model."""
    if architecture == "MolmoForCausalLM":  # both halves of its MLP
        inner = Config(raw, "intermediate_size").size("intermediate_size")
        return {**raw, "intermediate_size": inner // 2}
    if architecture == "Ernie4_5_VLMoeForConditionalGeneration":  # [of text, of images]
        pairs = {k: v for k, v in raw.items() if k.startswith("moe_") and isinstance(v, list) and len(v) > 1}
        seen = {f"vision_{k}": v[1] for k, v in pairs.items()}
        return {**raw, **{k: v[0] for k, v in pairs.items()}, **seen}
    if architecture == "GlmOcrForConditionalGeneration" and "head_dim" not in raw:
        c = Config(raw, "text_config")
        return {**raw, "head_dim": c.size("hidden_size") // c.size("num_attention_heads")}
    return raw


def class_of(model_type: str) -> str:
    """The causal class of a type that transformers has; "" where it is not known."""
    entry = config.table()["model_types"].get(model_type)
    return str(entry["class"]) if entry else ""
