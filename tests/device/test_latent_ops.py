"""Operators of models with a latent cache and experts in groups, against what they must compute."""

import pytest

from chip import ops

torch = pytest.importorskip("torch")


def test_grouped_routers_keep_to_the_best_groups():
    """Of 8 experts in 4 groups, 2 groups stay: what is chosen lies in those of the highest scores."""
    from chip.lab.measure import build
    from chip.lab.measure.build import routers

    def draw():
        return build.Draw(torch.device("cpu"), torch.Generator().manual_seed(1))

    op = ops.build(
        "grouped_router", {"tokens": 5, "hidden": 16, "experts": 8, "top_k": 2, "groups": 4, "dtype": "fp32"}
    )
    x, weight = routers.inputs(op, draw())
    _, chosen = build.build(op, *draw())()
    scores = torch.softmax(x @ weight.T, -1)
    best = scores.view(5, 4, 2).amax(-1).topk(2).indices
    assert all(int(e) // 2 in row.tolist() for row, picked in zip(best, chosen) for e in picked)
    op = ops.build("biased_router", {"tokens": 6, "hidden": 32, "experts": 8, "top_k": 2, "groups": 4})
    shares, _ = build.build(op, *draw())()
    assert torch.allclose(shares.sum(-1).float(), torch.ones(6), atol=1e-5)


def test_latent_attention_is_attention_to_what_the_latent_expands_to():
    """Absorbed: queries times the up-projection attend to the latent; expanded: keys of each head are made first."""
    torch.manual_seed(2)
    heads, nope, rope, latent, keys = 3, 8, 4, 16, 7
    cache, rotated = torch.randn(keys, latent), torch.randn(keys, rope)
    up_k, up_v = torch.randn(heads, latent, nope), torch.randn(heads, latent, nope)
    q_nope, q_rope = torch.randn(heads, 1, nope), torch.randn(heads, 1, rope)
    k = torch.cat((torch.einsum("tl,hln->htn", cache, up_k), rotated.expand(heads, -1, -1)), -1)
    expanded = torch.nn.functional.scaled_dot_product_attention(
        torch.cat((q_nope, q_rope), -1), k, torch.einsum("tl,hln->htn", cache, up_v)
    )
    q = torch.cat((q_nope @ up_k.transpose(1, 2), q_rope), -1)
    shared = torch.cat((cache, rotated), -1).expand(heads, -1, -1)
    values, scale = cache.expand(heads, -1, -1), (nope + rope) ** -0.5
    absorbed = torch.nn.functional.scaled_dot_product_attention(q, shared, values, scale=scale) @ up_v
    assert torch.allclose(absorbed, expanded, atol=1e-5)
    one = ops.build("mla", {"batch": 1, "heads": heads, "kv_heads": 1, "head_dim": 20, "v_head_dim": 16, "q_len": 1,
                            "kv_len": keys})  # fmt: skip
    assert one.counted_flops == 2 * heads * keys * (20 + 16)
