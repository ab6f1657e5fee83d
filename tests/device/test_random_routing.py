"""Tokens of one prompt grow alike where weights are random, and choose the same experts: why the first token of a
mixture of experts with random weights comes sooner than predicted (results/h200/README.md)."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

EXPERTS, CHOSEN, LAYERS = 128, 8, 24


def met(model, batch, prompt):
    """Distinct experts that all tokens together choose, mean over the layers."""
    seen = []
    gates = [m for name, m in model.named_modules() if name.endswith("mlp.gate")]
    hooks = [g.register_forward_hook(lambda gate, given, said: seen.append(said[2])) for g in gates]
    with torch.inference_mode():
        model(torch.randint(0, model.config.vocab_size, (batch, prompt)))
    for hook in hooks:
        hook.remove()
    assert [tuple(chosen.shape) for chosen in seen] == [(batch * prompt, CHOSEN)] * LAYERS
    return sum(len(chosen.unique()) for chosen in seen) / LAYERS


def test_a_prompt_meets_few_experts_and_many_prompts_nearly_all():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = transformers.AutoConfig.for_model(
        "qwen3_moe", hidden_size=256, num_hidden_layers=LAYERS, num_attention_heads=8, num_key_value_heads=2,
        head_dim=32, intermediate_size=64, moe_intermediate_size=16, num_experts=EXPERTS, num_experts_per_tok=CHOSEN,
        vocab_size=32000, max_position_embeddings=2048, decoder_sparse_step=1, mlp_only_layers=[],
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    assert met(model, 1, 128) == pytest.approx(33, abs=6)
    assert met(model, 128, 1) >= 122
