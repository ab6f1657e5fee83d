"""vLLM's rewrite: what is fused keeps its work and moves less."""

import pytest

from chip import engines
from chip.decoders import library
from chip.decoders.lower import body, lower
from chip.dtypes import precision
from chip.engines import fuse
from chip.ops.elementwise import AddRmsNorm, RmsNorm
from chip.ops.latent import Mla, MlaPrompt
from chip.ops.linear import Linear
from chip.ops.moves import Rope
from chip.types import Seq, Step

BF16 = precision("bf16")


DENSE = ["llama-3.1-8b", "qwen2.5-7b", "qwen3-8b", "gemma-2-9b", "mixtral-8x7b", "granite-3.1-8b", "opt-125m"]


def flat(program):
    return [(b.repeat, c) for b in program.blocks for c in b.calls]


@pytest.mark.parametrize("model", [*DENSE, "olmo-2-7b", "gpt-j-6b", "falcon-40b", "phi-3-mini", "qwen1.5-moe-a2.7b"])
@pytest.mark.parametrize("decode", [True, False])
def test_fusing_keeps_the_flops_and_moves_less(model, decode):
    canonical = lower(library.find(model), Step((Seq(1 if decode else 9, 20, 3),)), BF16)
    fused = engines.get("vllm").rewrite(canonical, decode)
    assert fused.counted_flops == canonical.counted_flops
    names = {c.role for _, c in flat(fused)}
    # norms of queries and keys go into rotations or rotations into norms, factors into additions, their few operations
    # uncounted; two rotations read the angles twice
    uncounted = {"q_norm", "k_norm", "attn_scale", "mlp_scale", *(["rope"] if "q_norm" in names else [])} - names
    gone = sum(n * c.op.cost().flops for n, c in flat(canonical) if c.role in uncounted)
    twice = sum(n * 2 * c.op.rows * c.op.head_dim for n, c in flat(fused) if c.role == "k_rope")
    if model == "gpt-j-6b":  # the two additions of a parallel layer are one pass before the next norm
        gone = sum(n * c.op.cost().flops for n, c in flat(canonical) if c.role == "attn_add")
    # heads that are rotated in part are written whole
    ropes = [(n, c) for n, c in flat(fused) if c.role == "rope"]
    ropes += [(-n, c) for n, c in flat(canonical) if c.role == "rope" and ropes]
    whole_flops, whole_bytes = (sum(n * getattr(c.op.cost(), of) for n, c in ropes) for of in ("flops", "bytes"))
    assert fused.cost().flops == canonical.cost().flops - gone + whole_flops
    assert fused.cost().bytes <= canonical.cost().bytes + twice + whole_bytes


def test_shared_experts_have_an_activation_of_their_own():
    calls = flat(engines.get("vllm").rewrite(body(library.find("qwen1.5-moe-a2.7b"), 9, BF16, 1), False))
    assert {c.op.kind for _, c in calls if c.role == "shared_act"} == {"shared_silu_mul"}
    dense = flat(engines.get("vllm").rewrite(body(library.find("llama-3.1-8b"), 9, BF16, 1), False))
    assert {c.op.kind for _, c in dense if c.role == "act"} == {"silu_mul"}


def test_projections_over_one_input_are_merged():
    calls = {
        c.role: c.op for _, c in flat(engines.get("vllm").rewrite(body(library.find("qwen2.5-7b"), 5, BF16, 1), True))
    }
    assert calls["qkv_proj"] == Linear(5, (28 + 2 * 4) * 128, 3584, "bf16", "bf16", True)
    assert calls["gate_up_proj"] == Linear(5, 2 * 18944, 3584, "bf16", "bf16")
    assert not {"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"} & set(calls)


def test_a_rule_that_lacks_a_part_does_nothing():
    calls = [c for _, c in flat(body(library.find("opt-125m"), 1, BF16, 1)) if c.role not in ("k_proj", "gate_proj")]
    assert fuse.merge_projections(calls) == calls


@pytest.mark.parametrize("model", DENSE)
def test_each_addition_goes_into_a_norm(model):
    canonical = body(library.find(model), 4, BF16, 1)
    fused = engines.get("vllm").rewrite(canonical, True)
    count = {}
    for name, program in (("before", canonical), ("after", fused)):
        for n, c in flat(program):
            if c.op.kind in ("add", "rms_norm", "layer_norm", "add_rms_norm", "add_layer_norm"):
                count[name, c.op.kind] = count.get((name, c.op.kind), 0) + n
    layers = library.find(model).layer_count
    norms = {k: v for (when, k), v in count.items() if when == "before" and k.endswith("norm")}
    ((kind, before),) = norms.items()
    before -= sum(n for n, c in flat(canonical) if c.role in ("q_norm", "k_norm"))  # part of the rotation
    assert count["after", f"add_{kind}"] == 2 * layers
    assert count.get(("after", kind), 0) == before - 2 * layers
    assert count.get(("after", "add"), 0) == count["before", "add"] - 2 * layers


def test_norms_of_heads_go_into_rotations_and_these_are_apart():
    calls = {
        c.role: c.op for _, c in flat(engines.get("vllm").rewrite(body(library.find("qwen3-8b"), 5, BF16, 1), True))
    }
    assert not {"q_norm", "k_norm", "rope"} & set(calls)
    assert calls["q_rope"] == Rope(5, 32, 128, "bf16")
    assert calls["k_rope"] == Rope(5, 8, 128, "bf16")


def test_rotations_of_as_many_queries_as_keys_are_one():
    calls = {
        c.role: c.op for _, c in flat(engines.get("vllm").rewrite(body(library.find("phi-3-mini"), 5, BF16, 1), True))
    }
    assert calls["rope"] == Rope(5, 64, 96, "bf16")


def test_norms_of_a_latent_stay():
    calls = {c.role for _, c in flat(engines.get("vllm").rewrite(body(library.find("deepseek-v3"), 5, BF16, 1), True))}
    assert {"q_norm", "kv_norm", "rope"} <= calls


def test_both_additions_of_a_parallel_layer_go_into_the_next_norm():
    roles = {c.role: c.op.kind for _, c in flat(calls_by("gpt-j-6b"))}
    assert roles["attn_norm"] == "add_layer_norm"
    assert not {"attn_add", "mlp_add"} & set(roles)


def test_an_addition_goes_into_the_norm_before_it_where_none_comes_after():
    roles = {c.role: c.op.kind for _, c in flat(calls_by("olmo-2-7b"))}
    assert roles["attn_post_norm"] == roles["mlp_post_norm"] == "add_rms_norm"
    assert not {"attn_add", "mlp_add"} & set(roles)
    assert roles["q_norm"] == roles["k_norm"] == "rms_norm"  # over all heads, the rotation inside
    assert "rope" not in roles


def test_factors_of_branches_go_into_their_additions():
    assert not {"attn_scale", "mlp_scale"} & {c.role for _, c in flat(calls_by("granite-3.1-8b"))}


@pytest.mark.parametrize(("model", "copies", "norm"), [
    ("command-r7b", 2, "layer_norm"), ("falcon-7b", 1, "add_layer_norm"), ("gpt-j-6b", 1, "add_layer_norm"),
    ("gpt-neox-20b", 0, "add_layer_norm"),
])  # fmt: skip
def test_plain_sums_are_copied_into_products(model, copies, norm):
    d = library.find(model)
    found = flat(calls_by(model, d.architecture))
    assert sum(n for n, c in found if c.role == "residual_copy") == copies * d.layer_count
    assert {c.op.kind for _, c in found if c.role == "attn_norm"} == {norm}
    assert not {"attn_add", "mlp_add"} & {c.role for _, c in found}


def test_heads_that_are_rotated_in_part_are_written_whole():
    assert {c.op.head_dim for _, c in flat(calls_by("gpt-neox-20b")) if c.op.kind == "rope"} == {96}
    latent = {c.op.head_dim for _, c in flat(calls_by("deepseek-v2-lite")) if c.op.kind == "rope"}
    assert latent == {64}  # kept apart in the cache


def calls_by(model, architecture=""):
    return engines.get("vllm").rewrite(body(library.find(model), 4, BF16, 1), True, architecture)


def test_fused_norm_has_the_shape_of_the_norm():
    calls = {
        c.role: c.op for _, c in flat(engines.get("vllm").rewrite(body(library.find("llama-3.1-8b"), 5, BF16, 1), True))
    }
    assert calls["attn_norm"] == calls["mlp_norm"] == AddRmsNorm(5, 4096)
    assert calls["final_norm"] == RmsNorm(5, 4096)


def test_latent_attention_is_absorbed_in_decode_only():
    d = library.find("deepseek-v3")  # 128 heads, latent 512, 128 + 64 wide keys, values of 128
    one = {c.role: c.op for _, c in flat(engines.get("vllm").rewrite(body(d, 3, BF16, 1), True))}
    assert "kv_up" not in one
    assert one["attention"] == Mla(1, 128, 1, 576, 1, 1, v_head_dim=512)
    assert one["q_absorb"].cost().flops == 2 * 128 * 3 * 512 * 128
    assert one["v_absorb"].cost().flops == 2 * 128 * 3 * 128 * 512
    assert one["kv_append"].cost().write_bytes == 3 * 576 * 2
    many = {c.role: c.op for _, c in flat(engines.get("vllm").rewrite(body(d, 3, BF16, 1), False))}
    assert "kv_up" in many
    long, short = (many["attention"].over(Seq(new, 100, 2)) for new in (513, 512))
    assert long == MlaPrompt(2, 128, 128, 192, 513, 613, v_head_dim=128)
    assert short == Mla(2, 128, 1, 576, 512, 612, v_head_dim=512), "few tokens attend to the latent itself"
    assert many["kv_append"] == one["kv_append"], "the latent is what is cached, whoever attends to it"


def test_absorbing_reads_the_same_weights():
    """Absorbed, the up-projection's matrix is read by two batched products instead of one dense layer."""
    d = library.find("deepseek-v3")
    up = next(c.op for _, c in flat(body(d, 1, BF16, 1)) if c.role == "kv_up")
    absorbed = {c.role: c.op for _, c in flat(engines.get("vllm").rewrite(body(d, 1, BF16, 1), True))}
    weights = sum(absorbed[r].batch * absorbed[r].n * absorbed[r].k for r in ("q_absorb", "v_absorb"))
    assert weights == up.n * up.k
