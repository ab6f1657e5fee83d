"""Every operator really runs on the CPU, gives finite values of the right shape, and does the FLOPs it claims."""

import sys
import types

import pytest

from chip import ops
from chip.ops.composed import KINDS
from chip.types import ChipError

torch = pytest.importorskip("torch")
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from chip.lab.measure import build  # noqa: E402

QUANTISED = {  # in test_build_quantised.py
    "add_rms_norm_quant", "fp8_attention", "fp8_cache_attention", "kv_append_fp8", "packed_experts", "packed_linear",
    "quantize", "rms_norm_quant", "scaled_experts", "scaled_linear", "silu_mul_quant",
}  # fmt: skip
ROWS = {"rows": 5, "cols": 24}
MANY_HEADS = {"batch": 2, "heads": 4, "kv_heads": 4, "head_dim": 16, "q_len": 3, "kv_len": 6}
CASES = {
    "add": (ROWS, [(5, 24)]),
    "add_layer_norm": (ROWS, [(5, 24), (5, 24)]),
    "add_rms_norm": (ROWS, [(5, 24), (5, 24)]),
    "attention": ({"batch": 2, "heads": 4, "kv_heads": 2, "head_dim": 16, "q_len": 6, "kv_len": 6}, [(2, 4, 6, 16)]),
    "alibi_attention": (MANY_HEADS, [(2, 3, 64)]),
    "bmm": ({"batch": 3, "m": 4, "n": 5, "k": 6}, [(3, 4, 5)]),
    "conv2d": (
        {"batch": 2, "in_channels": 3, "height": 8, "width": 9, "out_channels": 4, "padding": 1},
        [(2, 4, 8, 9)],
    ),
    **dict.fromkeys(("causal_conv", "causal_conv_step"), ({**ROWS, "taps": 3}, [(5, 24)])),
    "copy": (ROWS, [(5, 24)]),
    "embedding": (ROWS, [(5, 24)]),
    "fill": (ROWS, [(5, 24)]),
    "broadcast_attention": ({**MANY_HEADS, "kv_heads": 1}, [(2, 3, 4, 16)]),
    "float_attention": (MANY_HEADS, [(2, 3, 4, 16)]),
    "gelu": (ROWS, [(5, 24)]),
    "gelu_fast": (ROWS, [(5, 24)]),
    "gelu_new": (ROWS, [(5, 24)]),
    "growing_attention": (
        {"batch": 2, "heads": 4, "kv_heads": 2, "head_dim": 16, "q_len": 1, "kv_len": 6},
        [(2, 4, 1, 16)],
    ),
    "kv_append": (ROWS, [(10, 12), (10, 12)]),
    "kv_join": (MANY_HEADS, [(2, 4, 6, 16), (2, 4, 6, 16)]),
    "kv_roll": (ROWS, [(5, 12), (5, 12)]),
    "layer_norm": (ROWS, [(5, 24)]),
    "layer_norm_gelu": (ROWS, [(5, 24)]),
    "linear": ({"m": 4, "n": 5, "k": 6, "bias": True}, [(4, 5)]),
    "lstm": ({"batch": 2, "seq": 3, "input_size": 4, "hidden": 5, "layers": 2}, [(2, 3, 5), (2, 2, 5), (2, 2, 5)]),
    "local_attention": (
        {"batch": 2, "heads": 4, "kv_heads": 2, "head_dim": 16, "q_len": 1, "kv_len": 6, "window": 3},
        [(2, 4, 1, 16)],
    ),
    "masked_attention": (
        {"batch": 2, "heads": 4, "kv_heads": 2, "head_dim": 16, "q_len": 3, "kv_len": 6},
        [(2, 4, 3, 16)],
    ),
    "mla": (
        {"batch": 2, "heads": 3, "kv_heads": 1, "head_dim": 24, "v_head_dim": 16, "q_len": 2, "kv_len": 5},
        [(2, 3, 2, 16)],
    ),
    "mla_prompt": (
        {"batch": 2, "heads": 3, "kv_heads": 3, "head_dim": 24, "v_head_dim": 16, "q_len": 2, "kv_len": 5},
        [(2, 3, 2, 16)],
    ),
    "moe_experts": ({"tokens": 6, "hidden": 32, "intermediate": 16, "experts": 4, "top_k": 2}, [(12, 32)]),
    "moe_experts_composed": ({"tokens": 6, "hidden": 32, "intermediate": 16, "experts": 4, "top_k": 2}, [(6, 32)]),
    "moe_router": ({"tokens": 6, "hidden": 32, "experts": 4, "top_k": 2}, [(6, 2), (6, 2)]),
    **dict.fromkeys(
        ("grouped_router", "biased_router"),
        ({"tokens": 6, "hidden": 32, "experts": 8, "top_k": 2, "groups": 4}, [(6, 2), (6, 2)]),
    ),
    "moe_router_composed": ({"tokens": 6, "hidden": 32, "experts": 4, "top_k": 2}, [(6, 2), (6, 2)]),
    "relu": (ROWS, [(5, 24)]),
    "rms_norm": (ROWS, [(5, 24)]),
    "rms_norm_composed": (ROWS, [(5, 24)]),
    "rms_norm_fp32": (ROWS, [(5, 24)]),
    "rms_norm_plus_one": (ROWS, [(5, 24)]),
    "layer_norm_composed": (ROWS, [(5, 24)]),
    "rope_composed": ({"rows": 6, "heads": 5, "head_dim": 8}, [(1, 4, 6, 8), (1, 1, 6, 8)]),
    "rope_join": ({"rows": 6, "cols": 320}, [(1, 4, 6, 64), (1, 1, 6, 64)]),
    "rotary_table": (ROWS, [(1, 5, 24), (1, 5, 24)]),
    "rope": ({"rows": 6, "heads": 5, "head_dim": 8}, [(1, 4, 6, 8), (1, 1, 6, 8)]),
    "rope_store": ({"rows": 6, "heads": 4, "kv_heads": 2, "head_dim": 8}, [(6, 4, 8), (1, 2, 64, 8), (1, 2, 64, 8)]),
    "row_normalize": (ROWS, [(5, 24)]),
    "sampling": (ROWS, [(5,)]),
    "scale": (ROWS, [(5, 24)]),
    "shared_silu_mul": (ROWS, [(5, 24)]),
    "silu": (ROWS, [(5, 24)]),
    "silu_mul": (ROWS, [(5, 24)]),
    "silu_mul_halves": (ROWS, [(1, 5, 24)]),
    "sink_attention": ({**MANY_HEADS, "kv_heads": 2}, [(2, 3, 4, 16)]),
    "state_scan": (
        {"tokens": 7, "heads": 4, "head_dim": 6, "key_dim": 8, "groups": 2, "chunk": 4, "delta": True},
        [(7, 4, 6)],
    ),
    "state_step": (
        {"rows": 5, "heads": 4, "head_dim": 6, "key_dim": 8, "groups": 2, "delta": True},
        [(5, 4, 6)],
    ),
    "softcap": (ROWS, [(5, 24)]),
    "softmax": (ROWS, [(5, 24)]),
}


OTHER_ATTENTIONS = ("masked_attention", "growing_attention")


def tensors(result):
    if isinstance(result, torch.Tensor):
        return [result]
    return [t for part in result for t in tensors(part)]


def run(kind, axes, implementation="", count=False):
    op = ops.build(kind, axes)
    device, generator = torch.device("cpu"), torch.Generator().manual_seed(7)
    chosen = build.choose(op, "cpu", implementation)
    with build.around(op, chosen):
        call = build.build(op, device, generator, chosen)
        if not count:
            return op, tensors(call())
        with FlopCounterMode(display=False) as counter:
            call()
        return op, counter.get_total_flops()


def test_every_operator_has_a_builder_and_every_builder_an_operator():
    unmeasured = {"sampling_pass"}  # `chip profile` says so
    assert set(build.names()) | unmeasured == set(ops.names())
    assert set(CASES) | QUANTISED | {"all_gather", "all_reduce", "reduce_scatter", "pointwise"} == set(build.names())


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", sorted(CASES))
def test_runs_with_the_shape_and_values_it_should(kind, dtype):
    axes, shapes = CASES[kind]
    _, results = run(kind, {**axes, "dtype": dtype})
    assert [tuple(r.shape) for r in results] == shapes
    for r in results if kind != "kv_append" else [r[2:7] for r in results]:
        assert torch.isfinite(r.float()).all()
        assert r.float().abs().sum() > 0


ROUTERS = ("moe_router", "moe_router_composed", "grouped_router", "biased_router")
COUNTED = ("linear", "bmm", "attention", "conv2d", "mla", "mla_prompt", "kv_join", *ROUTERS, *KINDS, *OTHER_ATTENTIONS)


@pytest.mark.parametrize("kind", COUNTED)
def test_flops_are_those_torch_counts(kind):
    """Attention on its unfused path: the counter does not see into the fused one of the CPU."""
    axes, _ = CASES[kind]
    unfused = kind in ("attention", *OTHER_ATTENTIONS)
    op, counted = run(kind, {**axes, "dtype": "fp32"}, "math" if unfused else "", count=True)
    assert counted == op.counted_flops


def test_lstm_flops_are_those_torch_counts():
    """Counted on the unfused CPU path, since the fused one is opaque to the counter."""
    op = ops.build("lstm", {**CASES["lstm"][0], "dtype": "fp32"})
    call = build.build(op, torch.device("cpu"), torch.Generator(), "torch")
    with torch.backends.mkldnn.flags(enabled=False), FlopCounterMode(display=False) as counter:
        call()
    assert counter.get_total_flops() == op.counted_flops


@pytest.mark.parametrize(
    "shape",
    [
        {"q_len": 1, "kv_len": 33},
        {"q_len": 5, "kv_len": 33},
        {"q_len": 9, "kv_len": 9},
        {"q_len": 9, "kv_len": 9, "window": 4},
        {"q_len": 1, "kv_len": 9, "window": 4},
        {"q_len": 4, "kv_len": 9, "causal": False},
    ],
    ids=str,
)
def test_attention_masks_what_the_operator_says(shape):
    """Against softmax(q k) v written out: the i-th of q queries sees kv - q + i + 1 keys, the last `window` of them."""
    axes = {"batch": 2, "heads": 4, "kv_heads": 2, "head_dim": 8, "dtype": "fp32", **shape}
    op = ops.build("attention", axes)
    _, (got,) = run("attention", axes)
    g = torch.Generator().manual_seed(7)
    keys = min(op.kv_len, op.window) if op.window and op.q_len == 1 else op.kv_len
    q = torch.randn(2, 4, op.q_len, 8, generator=g)
    k, v = (torch.randn(2, 2, keys, 8, generator=g).repeat_interleave(2, 1) for _ in range(2))
    scores = q @ k.transpose(-1, -2) / 8**0.5
    last = torch.arange(op.q_len)[:, None] + keys - op.q_len
    seen = torch.arange(keys)[None, :]
    hidden = seen > last
    if op.window and op.q_len > 1:
        hidden |= seen <= last - op.window
    if op.causal:
        scores = scores.masked_fill(hidden, float("-inf"))
    assert torch.allclose(got, scores.softmax(-1) @ v, atol=1e-5)


def test_rope_rotates():
    _, (q, k) = run("rope", {"rows": 3, "heads": 5, "head_dim": 4, "dtype": "fp32"})
    g = torch.Generator().manual_seed(7)
    x = torch.randn(1, 3, 4, 4, generator=g).transpose(1, 2)
    torch.randn(1, 3, 1, 4, generator=g)
    cos, sin = (torch.randn(1, 1, 3, 4, generator=g) for _ in range(2))
    assert torch.allclose(q[..., 0], x[..., 0] * cos[..., 0] - x[..., 2] * sin[..., 0])
    assert torch.allclose(q[..., 2], x[..., 2] * cos[..., 2] + x[..., 0] * sin[..., 2])
    assert k.shape == (1, 1, 3, 4)


@pytest.mark.parametrize("implementation", ["torch", "math"])
def test_attention_implementations_on_the_cpu(implementation):
    axes, shapes = CASES["attention"]
    _, (out,) = run("attention", {**axes, "dtype": "fp32"}, implementation)
    assert tuple(out.shape) == shapes[0]


@pytest.mark.parametrize("kind", ["rms_norm", "add_rms_norm", "silu_mul"])
def test_compiled_is_the_same_operator(kind):
    """The formulas that are compiled on a GPU, run here as they stand."""
    from chip.lab.measure.build import elementwise

    g = torch.Generator().manual_seed(7)
    x, y, w = torch.randn(5, 24, generator=g), torch.randn(5, 24, generator=g), torch.randn(24, generator=g)
    if kind == "silu_mul":
        got, wanted = elementwise.gated(torch.cat((x, y), -1)), torch.nn.functional.silu(x) * y
    elif kind == "rms_norm":
        got, wanted = elementwise.rms_norm(x, w), torch.nn.functional.rms_norm(x, (24,), w, 1e-6)
    else:
        got, wanted = elementwise.add_rms_norm(x, y, w)[0], torch.nn.functional.rms_norm(x + y, (24,), w, 1e-6)
    assert torch.allclose(got, wanted, atol=1e-5)


@pytest.mark.parametrize("kind", ["rms_norm", "add_rms_norm", "silu_mul", "rope"])
def test_compiled_is_laid_out_for_the_largest_step(kind, graphs, monkeypatch):
    """Whatever rows are asked for first, torch.compile sees vLLM's largest step, and each width as a number."""

    def sizes():
        """Of each graph, the numbers that it takes as they come."""
        values = [[n.meta["example_value"] for n in g.graph.nodes if n.op == "placeholder"] for g in graphs]
        return [[v.node.hint for v in of if isinstance(v, torch.SymInt)] for of in values]

    axes = {**CASES[kind][0], "dtype": "bf16"}
    for width in (24, 26, 28):
        for rows in (1, 7):
            run(kind, {**axes, "rows": rows, "heads" if kind == "rope" else "cols": width}, "compiled")
    assert sizes() == [[16384]] * 3
    monkeypatch.setattr(build, "LAYOUT_BYTES", 2**16)
    run(kind, {**axes, "dtype": "fp32"}, "compiled")
    ((rows,),) = sizes()[3:]
    assert 7 < rows < 16384  # as many as there is room for


@pytest.mark.parametrize("kind", KINDS)
def test_attention_that_is_spelled_out_is_attention(kind):
    """Against softmax(q k + mask) v of what its builder drew, with ALiBi's biases, or a sink whose share is lost."""
    op, (got,) = run(kind, {**CASES[kind][0], "dtype": "fp32"})
    g = torch.Generator().manual_seed(7)
    if kind == "alibi_attention":
        q = torch.randn(2, 3, 4, 3, 16, generator=g)[..., 0, :].transpose(1, 2)
    elif kind in ("broadcast_attention", "float_attention"):
        q = torch.randn(2, 3, 4, 16, generator=g).transpose(1, 2)
    else:
        q = torch.randn(2, 4, 3, 16, generator=g)
    groups = op.heads // op.kv_heads
    k, v = (torch.randn(2, op.kv_heads, 6, 16, generator=g).repeat_interleave(groups, 1) for _ in range(2))
    scores = q @ k.transpose(-1, -2) / 4
    if kind == "alibi_attention":
        scores = scores + torch.randn(8, 1, 6, generator=g).view(2, 4, 1, 6)
    scores = scores.masked_fill(torch.arange(6)[None, :] > torch.arange(3, 6)[:, None], float("-inf"))
    shares = scores.softmax(-1)
    if kind == "sink_attention":
        sink = torch.randn(4, generator=g).view(1, 4, 1, 1).expand(2, 4, 3, 1)
        shares = torch.cat((scores, sink), -1).softmax(-1)[..., :-1]
    assert torch.allclose(got.reshape(2, 3, 4, 16), (shares @ v).transpose(1, 2), atol=1e-5)


@pytest.mark.parametrize("kind", ["gelu_fast", "gelu_new"])
def test_gelu_that_is_spelled_out_is_gelu(kind):
    _, (got,) = run(kind, {**ROWS, "dtype": "fp32"})
    _, (wanted,) = run("gelu", {**ROWS, "dtype": "fp32"})
    assert torch.allclose(got, wanted, atol=1e-3)


def test_halves_are_those_of_the_merged_projection():
    _, (got,) = run("silu_mul_halves", {**ROWS, "dtype": "fp32"})
    gate, up = torch.randn(1, 5, 48, generator=torch.Generator().manual_seed(7)).chunk(2, -1)
    assert torch.equal(got, up * torch.nn.functional.silu(gate))


def test_the_activation_of_shared_experts_is_compiled_for_any_size():
    for rows, cols in ((5, 24), (3, 16)):
        _, (got,) = run("shared_silu_mul", {"rows": rows, "cols": cols, "dtype": "fp32"})
        gate, up = torch.randn(rows, 2 * cols, generator=torch.Generator().manual_seed(7)).chunk(2, -1)
        assert torch.allclose(got, up * torch.nn.functional.silu(gate), atol=1e-6)


def test_joined_heads_are_the_rotated_ones():
    _, (q, k) = run("rope_join", {"rows": 3, "cols": 320, "dtype": "fp32"})
    x = torch.randn(1, 3, 4, 64, generator=torch.Generator().manual_seed(7)).transpose(1, 2)
    assert torch.equal(q, x)
    assert q.is_contiguous()
    assert k.shape == (1, 1, 3, 64)


@pytest.mark.parametrize("kind", ["rms_norm_composed"])
def test_composed_is_the_same_operator(kind):
    _, (got,) = run(kind, {**ROWS, "dtype": "fp32"})
    _, (wanted,) = run("rms_norm", {**ROWS, "dtype": "fp32"})
    assert torch.allclose(got, wanted, atol=1e-5)


def test_masked_attention_sees_what_its_mask_shows():
    axes = {**CASES["masked_attention"][0], "dtype": "fp32"}
    _, (got,) = run("masked_attention", axes)
    g = torch.Generator().manual_seed(7)
    q = torch.randn(2, 3, 4, 16, generator=g).transpose(1, 2)
    k, v = (torch.randn(2, 2, 6, 16, generator=g).repeat_interleave(2, 1) for _ in range(2))
    hidden = torch.arange(6)[None, :] > torch.arange(3, 6)[:, None]
    scores = (q @ k.transpose(-1, -2) / 4).masked_fill(hidden, float("-inf"))
    assert torch.allclose(got, scores.softmax(-1) @ v, atol=1e-5)


def test_fa3_without_vllm_says_so():
    op = ops.build("attention", CASES["attention"][0])
    with pytest.raises(build.Unsupported, match="part of vLLM, which cannot be imported"):
        build.builder(op).build(op, build.Draw(torch.device("cpu"), torch.Generator()), "fa3")


def test_channels_last_is_the_same_convolution():
    axes = {**CASES["conv2d"][0], "dtype": "fp32"}
    _, (first,) = run("conv2d", axes)
    _, (second,) = run("conv2d", axes, "channels_last")
    assert torch.allclose(first, second, atol=1e-4)


def test_what_cannot_be_run_says_why():
    generator = torch.Generator()
    for kind, axes, words in [
        ("all_reduce", {"rows": 2, "cols": 2, "ranks": 2}, "several GPUs"),
        ("pointwise", {"reads": 2, "writes": 2}, "traced model"),
        ("linear", {"m": 1, "n": 2, "k": 2, "weight_dtype": "int4"}, "int4 weights"),
        ("add", {"rows": 1, "cols": 2, "dtype": "int4"}, "int4"),
    ]:
        with pytest.raises(build.Unsupported, match=words):
            build.build(ops.build(kind, axes), torch.device("cpu"), generator)
    with pytest.raises(ChipError, match="choose one of torch"):
        build.choose(ops.build("add", ROWS), "cpu", "flash")


def test_large_cpu_inputs_are_random_throughout():
    x = build.normal((3, build.CPU_BLOCK // 2), "fp32", torch.device("cpu"), torch.Generator().manual_seed(1))
    assert x.shape == (3, build.CPU_BLOCK // 2)
    assert abs(float(x.mean())) < 0.01
    assert abs(float(x.std()) - 1) < 0.01
    assert float(x[2].abs().min()) < float(x[2].abs().max())


def test_paged_writes_are_called_as_vllm_calls_them(monkeypatch):
    """By a stand-in for vLLM's kernel that writes as it does: every token to its own slot, keys and values apart."""

    def write(key, value, key_cache, value_cache, slots, kind, k_scale, v_scale):
        assert kind == "auto"
        for cache, new in ((key_cache, key), (value_cache, value)):
            pages, offsets = slots // cache.shape[1], slots % cache.shape[1]
            cache[pages, offsets] = new
        seen.append((key.clone(), key_cache, slots))

    seen = []
    monkeypatch.setitem(sys.modules, "vllm", types.ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, "vllm._custom_ops", types.SimpleNamespace(reshape_and_cache_flash=write))
    op = ops.build("kv_append", {"rows": 24, "cols": 2048, "dtype": "fp32"})
    build.builder(op).build(op, build.Draw(torch.device("cpu"), torch.Generator()), "paged")()
    (key, cache, slots), *_ = seen
    assert key.shape == (24, 8, 128)
    assert len(set(slots.tolist())) == 24
    assert torch.equal(cache.reshape(-1, 8, 128)[slots], key)


def test_paged_writes_without_vllm_or_heads_say_so():
    op = ops.build("kv_append", {"rows": 24, "cols": 2048, "dtype": "fp32"})
    with pytest.raises(build.Unsupported, match="part of vLLM"):
        build.builder(op).build(op, build.Draw(torch.device("cpu"), torch.Generator()), "paged")


@pytest.mark.parametrize("delta", [False, True])
def test_a_scan_multiplies_whole_chunks(delta):
    op, counted = run("state_scan", {**CASES["state_scan"][0], "delta": delta}, count=True)
    assert counted == op.counted_flops
