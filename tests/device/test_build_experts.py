"""Experts and routers as HF and vLLM run them: the same results, called as vLLM calls them."""

import sys
import types

import pytest

from chip import ops
from chip.types import ChipError

torch = pytest.importorskip("torch")
from test_build_ops import CASES, ROUTERS  # noqa: E402

from chip.lab.measure import build  # noqa: E402

EXPERTS = {"tokens": 9, "hidden": 32, "intermediate": 16, "experts": 5, "top_k": 2, "dtype": "fp32"}


def one_by_one(x, up, down, shares, chosen):
    """A token's experts one after the other."""
    out = torch.zeros_like(x)
    for token, (experts, weights) in enumerate(zip(chosen, shares)):
        for expert, weight in zip(experts, weights):
            gate, value = (x[token] @ up[expert].T).chunk(2)
            out[token] += weight * ((torch.nn.functional.silu(gate) * value) @ down[expert].T)
    return out


def made(op, implementation="torch", seed=3):
    draw = build.Draw(torch.device("cpu"), torch.Generator().manual_seed(seed))
    return build.builder(op).build(op, draw, implementation)


def drawn(monkeypatch):
    """What the builder draws: weights, experts of each token, and all inputs in turn."""
    from chip.lab.measure.build import experts

    found = {}

    def kept(owner, name):
        draw = getattr(owner, name)

        def wrapped(*args):
            value = draw(*args)
            found.setdefault(name, []).append(value)
            return value

        monkeypatch.setattr(owner, name, wrapped)

    kept(experts, "weights")
    kept(experts, "routing")
    kept(build.Draw, "normal")
    return found


def test_experts_as_hf_runs_them_are_experts(monkeypatch):
    found = drawn(monkeypatch)
    op = ops.build("moe_experts_composed", EXPERTS)
    out = made(op)()
    x, _, _, shares = found["normal"]  # weights in between
    assert torch.allclose(out, one_by_one(x, *found["weights"][0], shares.abs(), found["routing"][0]), atol=1e-5)


@pytest.mark.parametrize(("tokens", "experts", "top_k"), [(1, 64, 6), (7, 16, 2), (40, 60, 4)])
def test_experts_are_chosen_as_often_as_their_cost_says(tokens, experts, top_k):
    from chip.lab.measure.build.experts import routing

    op = ops.build("moe_experts", {**EXPERTS, "tokens": tokens, "experts": experts, "top_k": top_k})
    generator = torch.Generator().manual_seed(5)
    draw = build.Draw(torch.device("cpu"), generator)
    draws = [routing(op, draw) for _ in range(400)]
    assert all(len(set(row)) == top_k for row in draws[0].tolist()), "distinct"
    read = sum(d.unique().numel() for d in draws) / len(draws)
    assert read == pytest.approx(op.experts_read, rel=0.02)


def vllm_with(monkeypatch, **functions):
    """Stands for vLLM's package of fused experts."""
    path = "vllm.model_executor.layers.fused_moe"
    for name in ("vllm", "vllm.model_executor", "vllm.model_executor.layers"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, path, types.SimpleNamespace(**functions))


def test_experts_are_called_as_vllm_calls_them(monkeypatch):
    def fused_experts(x, w1, w2, topk_weights, topk_ids):
        assert (topk_weights.dtype, topk_ids.dtype) == (torch.float32, torch.int32)
        assert x.is_contiguous()
        assert w1.is_contiguous()
        assert w2.is_contiguous()
        return one_by_one(x, w1, w2, topk_weights, topk_ids)

    vllm_with(monkeypatch, fused_experts=fused_experts)
    op = ops.build("moe_experts", EXPERTS)
    out = made(op, "vllm")()
    assert out.shape == (9, 32)
    assert float(out.abs().sum()) > 0
    ungated = ops.build("moe_experts", {**EXPERTS, "gated": False})
    with pytest.raises(build.Unsupported, match="only gated"):
        made(ungated, "vllm")


def test_routers_are_called_as_vllm_calls_them(monkeypatch):
    def fused_topk(hidden_states, gating_output, topk, renormalize):
        assert renormalize
        assert gating_output.shape == (9, 5)
        return torch.topk(torch.softmax(gating_output, -1), topk)

    vllm_with(monkeypatch, fused_topk=fused_topk)
    op = ops.build("moe_router", {k: v for k, v in EXPERTS.items() if k != "intermediate"})
    shares, chosen = made(op, "vllm")()
    plain, same = made(op)()
    assert torch.equal(chosen, same)
    assert torch.allclose(shares, plain)
    assert build.implementations(op, "cuda") == ("torch", "vllm")


@pytest.mark.parametrize("kind", ["moe_experts", *ROUTERS[:1], *ROUTERS[2:]])
def test_experts_without_vllm_say_so(kind):
    op = ops.build(kind, CASES[kind][0])
    with pytest.raises(build.Unsupported, match="part of vLLM"):
        made(op, "vllm")
    with pytest.raises(ChipError, match="no implementation 'vllm' on cpu"):
        build.choose(op, "cpu", "vllm")
