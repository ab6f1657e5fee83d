"""Tiny models under the native engine, and what transformers says of the same weights."""

import torch
from tiny_models import bundled

from chip.lab.run.native.engine import NativeEngine, NativeSettings
from chip.lab.run.native.requests import NativeRequest, SamplingParams

FAMILIES = ("llama-3.1-8b", "llama-3.2-1b", "mistral-7b", "mistral-7b-v0.1", "qwen2.5-0.5b", "qwen2.5-7b", "qwen3-0.6b",
            "qwen3-8b")  # fmt: skip
LENGTHS = (3, 17, 40, 9, 25)
OUTPUT = 10
TIGHT = {"max_context": 64, "max_step_tokens": 16, "page_tokens": 4, "kv_tokens": 100}  # chunks, and pages run out


def tiny(name, **changes):
    raw = bundled(name)
    if raw["model_type"] == "llama" and raw.get("rope_scaling"):
        raw["rope_scaling"] = {**raw["rope_scaling"], "original_max_position_embeddings": 64}  # its bands lie within
    if raw.get("sliding_window"):
        raw["sliding_window"] = 200  # longer than any context here
    return {**raw, "max_position_embeddings": 256, "eos_token_id": None, "torch_dtype": "float32", **changes}


def hf_model(raw):
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**raw)).float().eval()
    for name, p in model.named_parameters():  # far enough from zero that logits are apart
        p.data.normal_(0, 0.2) if p.dim() > 1 or name.endswith("bias") else p.data.uniform_(0.5, 1.5)
    return model


def engine_of(folder, config, **settings):
    kept = {"kernels": "torch", "dtype": "fp32", "device": "cpu", "max_context": 128, **settings}
    return NativeEngine(config, "config.json", NativeSettings(**kept), folder)


def prompts(lengths=LENGTHS, vocab=256, seed=2):
    draw = torch.Generator().manual_seed(seed)
    return [tuple(torch.randint(0, vocab, (n,), generator=draw).tolist()) for n in lengths]


def generated(engine, sampling=None, which=None):
    requests = [NativeRequest(f"r{i}", p, sampling or SamplingParams(OUTPUT)) for i, p in enumerate(which or prompts())]
    engine.run(requests)
    return [r.output for r in requests], requests


def by_hf(model, prompt, count=OUTPUT):
    out = model.generate(
        torch.tensor([prompt]), max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    return out[0, len(prompt) :].tolist()
