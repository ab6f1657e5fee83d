"""Quantised operators: they run on the CPU with the values they should, and are called as vLLM calls them."""

import sys
import types

import pytest

from chip import ops
from chip.types import ChipError

torch = pytest.importorskip("torch")

from chip.lab.measure import build, point_cases, suites  # noqa: E402

ROWS = {"rows": 6, "cols": 256}
EXPERTS = {"tokens": 6, "hidden": 32, "intermediate": 16, "experts": 4, "top_k": 2}
HEADS = {"batch": 2, "heads": 4, "kv_heads": 2, "head_dim": 16, "q_len": 3, "kv_len": 6}
CASES = {  # axes, shapes of the results
    "add_rms_norm_quant": (ROWS, [(6, 256), (6,), (6, 256)]),
    "fp8_attention": (HEADS, [(2, 4, 3, 16)]),
    "fp8_cache_attention": (HEADS, [(2, 4, 3, 16)]),
    "kv_append_fp8": (ROWS, [(12, 256)]),
    "packed_experts": (EXPERTS, [(12, 32)]),
    "packed_linear": ({"m": 3, "n": 16, "k": 64, "group": 32}, [(3, 16)]),
    "quantize": (ROWS, [(6, 256), (6,)]),
    "rms_norm_quant": (ROWS, [(6, 256), (6,)]),
    "scaled_experts": (EXPERTS, [(12, 32)]),
    "scaled_linear": ({"m": 3, "n": 32, "k": 64}, [(3, 32)]),
    "silu_mul_quant": (ROWS, [(6, 256), (6,)]),
}
CPU = torch.device("cpu")


def made(kind, implementation="", device=CPU, **axes):
    op = ops.build(kind, axes)
    generator = torch.Generator(device).manual_seed(7)
    chosen = build.choose(op, device.type, implementation)
    with build.around(op, chosen):
        result = build.build(op, device, generator, chosen)()
    return list(result) if isinstance(result, tuple) else [result]


@pytest.mark.parametrize("kind", CASES)
def test_runs_with_the_shape_and_values_it_should(kind):
    axes, shapes = CASES[kind]
    results = made(kind, "torch", **axes)
    assert [tuple(r.shape) for r in results] == shapes
    assert all(torch.isfinite(r.float()).all() and r.float().abs().sum() > 0 for r in results)


@pytest.mark.parametrize("group", [0, 128])
def test_a_rounding_keeps_what_fp8_can(group):
    from chip.lab.measure.build.quantised import rounded

    x = torch.randn(5, 256, generator=torch.Generator().manual_seed(1)).bfloat16()
    values, scale = rounded(x, group)
    assert values.dtype == torch.float8_e4m3fn
    assert scale.shape == ((5, 2) if group else (5,))
    wide = values.float().view(*scale.shape, -1) * scale[..., None]
    assert (wide.view(5, 256) - x.float()).abs().max() < 0.04 * x.abs().max()
    assert values.float().abs().max() == 448


def test_unpacked_weights_are_those_that_were_packed():
    """Against a product with the words taken apart one by one."""
    op = ops.build("packed_linear", {"m": 2, "n": 3, "k": 16, "group": 8})
    found = build.build(op, CPU, torch.Generator().manual_seed(3), "torch")()
    generator = torch.Generator().manual_seed(3)
    x = build.normal((2, 16), "bf16", CPU, generator)
    from chip.lab.measure.vllm_ops import packed, scales

    words, of_groups = packed((3, 2), CPU, generator), scales((3, 2, 1), torch.bfloat16, CPU, generator)
    weight = torch.zeros(3, 16)
    for n in range(3):
        for k in range(16):
            word = int(words[n, k // 8]) & 0xFFFFFFFF
            weight[n, k] = ((word >> (4 * (k % 8))) & 15) - 8
            weight[n, k] *= of_groups[n, k // 8, 0].float()
    assert torch.allclose(found.float(), x.float() @ weight.bfloat16().float().t(), rtol=0.02, atol=0.02)


COMPILED = ("add_rms_norm_quant", "rms_norm_quant", "silu_mul_quant", "quantize")


@pytest.mark.parametrize("kind", COMPILED)
def test_compiled_is_the_same_operator(kind, graphs):
    axes, shapes = CASES[kind]
    eager, compiled = made(kind, "torch", **axes), made(kind, "compiled", **axes)
    assert len(graphs) == 1  # else it is not one kernel
    assert [tuple(r.shape) for r in compiled] == shapes
    for one, other in zip(eager, compiled):
        assert torch.equal(one.float(), other.float())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", COMPILED)
def test_the_kernel_of_inductor_is_the_same_operator(kind):
    axes, shapes = CASES[kind]
    eager, compiled = (made(kind, by, torch.device("cuda"), **axes) for by in ("torch", "compiled"))
    assert [tuple(r.shape) for r in compiled] == shapes
    for one, other in zip(eager, compiled):
        assert torch.allclose(one.float(), other.float(), rtol=0.13, atol=1.0)  # a step of fp8 where roundings differ


# --- as vLLM calls them


class Calls(dict):
    """What was called, with which arguments."""

    def record(self, name, result=None):
        def call(*args, **named):
            self[name] = (args, named)
            return result

        return call


@pytest.fixture
def vllm(monkeypatch):
    """A vLLM whose operators take note of how they are called."""
    calls = Calls()
    quantisation = "vllm.model_executor.layers.quantization.utils"
    names = ("uint4b8", "uint4", "uint8b128", "uint8", "float8_e4m3fn", "float4_e2m1f")
    kinds = types.SimpleNamespace(**{n: types.SimpleNamespace(id=n, name=n) for n in names})
    workspace = lambda device, blocks=1: torch.zeros(blocks, dtype=torch.int32)  # noqa: E731
    kernels = ("cutlass_scaled_mm", "machete_mm", "marlin_gemm", "scaled_fp8_quant", "scaled_int8_quant")
    kernels += ("rms_norm_per_block_quant", "rms_norm_dynamic_per_token_quant", "silu_and_mul_per_block_quant")
    kernels += ("reshape_and_cache_flash",)
    modules = {
        "vllm._custom_ops": {
            **{n: calls.record(n) for n in kernels},
            "machete_prepack_B": lambda words, **_: words,
        },
        "vllm.scalar_type": {"scalar_types": kinds},
        f"{quantisation}.marlin_utils": {
            "marlin_make_workspace_new": workspace,
            "apply_gptq_marlin_linear": calls.record("apply_gptq_marlin_linear"),
        },
        f"{quantisation}.marlin_utils_fp8": {"apply_fp8_marlin_linear": calls.record("apply_fp8_marlin_linear")},
        f"{quantisation}.fp8_utils": {
            "w8a8_triton_block_scaled_mm": calls.record("w8a8_triton_block_scaled_mm"),
            "per_token_group_quant_fp8": calls.record("per_token_group_quant_fp8"),
        },
        "vllm.utils.deep_gemm": {"fp8_gemm_nt": calls.record("fp8_gemm_nt")},
        "vllm.utils.import_utils": {"has_deep_gemm": lambda: False},
        "vllm.model_executor.layers.fused_moe": {"fused_experts": calls.record("fused_experts")},
        "vllm.model_executor.layers.fused_moe.config": {"fp8_w8a8_moe_quant_config": lambda **named: named},
        "vllm.model_executor.layers.fused_moe.experts.marlin_moe": {
            "fused_marlin_moe": calls.record("fused_marlin_moe")
        },
        "vllm.vllm_flash_attn": {
            "flash_attn_varlen_func": calls.record("flash_attn_varlen_func"),
            "get_scheduler_metadata": calls.record("get_scheduler_metadata"),
        },
    }
    for path in modules:
        parts = path.split(".")
        for i in range(1, len(parts)):
            monkeypatch.setitem(sys.modules, ".".join(parts[:i]), types.ModuleType(".".join(parts[:i])))
    for path, content in modules.items():
        module = types.ModuleType(path)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, path, module)
    names = [*kernels, "machete_prepack_B", "dynamic_scaled_int8_quant", "dynamic_per_token_scaled_fp8_quant"]
    monkeypatch.setattr(torch.ops, "_C", types.SimpleNamespace(**dict.fromkeys(names)), raising=False)
    return calls


def called(kind, implementation, **axes):
    op = ops.build(kind, axes)
    build.builder(op).build(op, build.Draw(CPU, torch.Generator().manual_seed(3)), implementation)()


LINEAR = {"m": 5, "n": 256, "k": 512}
BLOCKS = {"block_n": 128, "block_k": 128, "group": 128}


def test_cutlass_products(vllm):
    called("scaled_linear", "cutlass", **LINEAR)
    (x, weight, a, b, out, bias), _ = vllm["cutlass_scaled_mm"]
    assert (x.shape, weight.shape, weight.stride()) == ((5, 512), (512, 256), (1, 512))
    assert (a.shape, b.shape, out, bias) == ((5, 1), (1, 1), torch.bfloat16, None)
    called("scaled_linear", "cutlass", **LINEAR, dtype="int8", block_n=1)
    (x, _, _, b, _, _), _ = vllm["cutlass_scaled_mm"]
    assert (x.dtype, b.shape) == (torch.int8, (256, 1))
    called("scaled_linear", "cutlass", **LINEAR, **BLOCKS)
    (x, weight, a, b, _), _ = vllm["cutlass_scaled_mm"]
    assert (a.shape, a.stride(), b.shape) == ((5, 4), (1, 5), (4, 2))


def test_triton_products_in_blocks(vllm):
    called("scaled_linear", "triton", **LINEAR, **BLOCKS)
    (_, weight, a, b, block, out), _ = vllm["w8a8_triton_block_scaled_mm"]
    assert (weight.shape, a.shape, b.shape, block, out) == ((256, 512), (5, 4), (2, 4), [128, 128], torch.bfloat16)


def test_machete_and_marlin_products(vllm):
    called("packed_linear", "machete", **LINEAR, group=128)
    _, named = vllm["machete_mm"]
    assert (named["b_q"].shape, named["b_group_scales"].shape) == ((64, 256), (4, 256))
    assert (named["b_type"].name, named["b_group_zeros"], named["b_group_size"]) == ("uint4b8", None, 128)
    called("packed_linear", "machete", **LINEAR, zeros=True)
    _, named = vllm["machete_mm"]
    assert (named["b_type"].name, named["b_group_zeros"].shape, named["b_group_size"]) == ("uint4", (1, 256), -1)
    called("packed_linear", "marlin", **LINEAR, group=128)
    args, named = vllm["apply_gptq_marlin_linear"]
    assert (args[1].shape, args[2].shape, args[3].numel(), args[7].name) == ((32, 512), (4, 256), 0, "uint4b8")
    assert (args[8:], named) == ((256, 512), {"is_k_full": True})
    called("packed_linear", "marlin", **LINEAR, weight_dtype="fp8")
    args, _ = vllm["apply_fp8_marlin_linear"]
    assert (args[1].shape, args[2].shape) == ((32, 1024), (1, 256))


def test_packed_words_hold_every_weight(vllm):
    """As many bits as the operator says it reads."""
    for dtype, bits in (("int4", 4), ("int8", 8)):
        called("packed_linear", "marlin", **LINEAR, weight_dtype=dtype)
        assert vllm["apply_gptq_marlin_linear"][0][1].numel() * 32 == 256 * 512 * bits
        called("packed_linear", "machete", **LINEAR, weight_dtype=dtype)
        assert vllm["machete_mm"][1]["b_q"].numel() * 32 == 256 * 512 * bits


def test_roundings(vllm):
    called("quantize", "vllm", **ROWS)
    assert vllm["scaled_fp8_quant"][0][1] is None
    assert vllm["scaled_fp8_quant"][1] == {"use_per_token_if_dynamic": True}
    called("quantize", "vllm", **ROWS, group=128)
    assert vllm["per_token_group_quant_fp8"][1] == {"column_major_scales": True, "use_ue8m0": False}
    called("quantize", "vllm", **ROWS, to="int8")
    assert vllm["scaled_int8_quant"][0][1] is None
    called("add_rms_norm_quant", "vllm", **ROWS, group=128)
    args, named = vllm["rms_norm_per_block_quant"]
    assert (args[4], named["is_scale_transposed"], named["residual"].shape) == ([1, 128], True, (6, 256))
    called("silu_mul_quant", "vllm", **ROWS, group=128)
    assert vllm["silu_and_mul_per_block_quant"][0][0].shape == (6, 512)


def test_attention_over_an_fp8_cache(vllm):
    called("fp8_attention", "fa3", **HEADS)
    _, named = vllm["flash_attn_varlen_func"]
    assert {named[t].dtype for t in "qkv"} == {torch.float8_e4m3fn}
    assert named["out"].dtype == torch.bfloat16
    assert all(named[f"{t}_descale"].shape == (2, 2) for t in "qkv")
    assert vllm["get_scheduler_metadata"][1]["qkv_dtype"] == torch.float8_e4m3fn
    called("kv_append_fp8", "paged", rows=5, cols=512)
    args, _ = vllm["reshape_and_cache_flash"]
    assert (args[2].dtype, args[5], args[0].dtype) == (torch.uint8, "fp8", torch.bfloat16)


def test_experts(vllm):
    wide = {"tokens": 6, "hidden": 256, "intermediate": 128, "experts": 4, "top_k": 2}
    called("scaled_experts", "vllm", **wide, **BLOCKS)
    args, named = vllm["fused_experts"]
    config = named["quant_config"]
    assert (args[1].shape, args[2].shape) == ((4, 256, 256), (4, 256, 128))
    assert (config["w1_scale"].shape, config["w2_scale"].shape, config["block_shape"]) == (
        (4, 2, 2),
        (4, 2, 1),
        [128, 128],
    )
    called("scaled_experts", "vllm", **wide, per_tensor=True)
    config = vllm["fused_experts"][1]["quant_config"]
    assert (config["w1_scale"].shape, config["per_act_token_quant"], config["block_shape"]) == ((4,), False, None)
    called("packed_experts", "marlin", **wide, group=128)
    args, named = vllm["fused_marlin_moe"]
    assert (args[1].shape, args[2].shape) == ((4, 16, 512), (4, 8, 512))
    assert (args[5].shape, args[6].shape, named["quant_type_id"]) == ((4, 2, 256), (4, 1, 256), "uint4b8")
    called("packed_experts", "marlin", **wide, weight_dtype="fp4", group=32)
    args, named = vllm["fused_marlin_moe"]
    assert (args[5].dtype, args[5].shape, named["quant_type_id"]) == (
        torch.float8_e8m0fnu,
        (4, 8, 256),
        "float4_e2m1f",
    )


@pytest.mark.parametrize(
    ("kind", "implementation", "axes"),
    [
        ("scaled_linear", "cutlass", LINEAR),
        ("scaled_linear", "triton", {**LINEAR, **BLOCKS}),
        ("scaled_linear", "deepgemm", {**LINEAR, **BLOCKS}),
        ("packed_linear", "marlin", LINEAR),
        ("packed_linear", "machete", LINEAR),
        ("quantize", "vllm", ROWS),
        ("rms_norm_quant", "vllm", ROWS),
        ("silu_mul_quant", "vllm", {**ROWS, "group": 128}),
        ("fp8_attention", "fa3", HEADS),
        ("scaled_experts", "vllm", EXPERTS),
        ("packed_experts", "marlin", EXPERTS),
    ],
)
def test_without_vllm_they_say_so(kind, implementation, axes):
    with pytest.raises(build.Unsupported, match="part of vLLM, which"):
        called(kind, implementation, **axes)


def test_deepgemm_that_is_not_installed_says_so(vllm):
    with pytest.raises(build.Unsupported, match="DeepGEMM is not installed"):
        called("scaled_linear", "deepgemm", **LINEAR, **BLOCKS)


@pytest.mark.parametrize(
    ("kind", "implementation", "axes", "why"),
    [
        ("scaled_linear", "cutlass", {**LINEAR, "n": 250}, "multiples of 16"),
        ("scaled_linear", "triton", LINEAR, "for blocks of weights only"),
        ("scaled_linear", "torch", {**LINEAR, **BLOCKS}, "by tensor, token and output"),
        ("scaled_linear", "torch", {**LINEAR, "block_n": 64, "block_k": 64, "group": 64}, "128x128"),
        ("packed_linear", "machete", {**LINEAR, "group": 32}, "groups of 64, 128"),
        ("packed_linear", "machete", {**LINEAR, "n": 192}, "multiples of 128"),
        ("packed_linear", "marlin", {**LINEAR, "n": 100}, "would pad"),
        ("packed_linear", "marlin", {**LINEAR, "bias": True}, "without bias"),
        ("quantize", "torch", {**ROWS, "to": "fp4"}, "to fp4 is not called"),
        ("silu_mul_quant", "vllm", ROWS, "for groups"),
    ],
)
def test_what_cannot_be_run_says_why(vllm, kind, implementation, axes, why):
    with pytest.raises(build.Unsupported, match=why):
        called(kind, implementation, **axes)


# --- the suite


def test_the_suite_names_implementations_that_exist():
    for case in suites.cases("quant", "bf16", on_cpu=False):
        assert case.implementation in build.implementations(case.op, "cuda"), case
        assert case.context


def test_the_suite_has_every_quantised_operator_but_one():
    kinds = {p.op.kind for p in point_cases.same("quant", "bf16")}
    assert kinds == set(CASES) - {"fp8_cache_attention"}  # of GPUs before Hopper


def test_on_a_cpu_it_is_what_a_cpu_has():
    found = suites.cases("quant", "bf16", on_cpu=True)
    assert {c.implementation for c in found} == {"compiled", "torch"}
    for case in found[:3]:
        build.choose(case.op, "cpu", case.implementation)
    with pytest.raises(ChipError, match="no implementation 'machete' on cpu"):
        build.choose(ops.build("packed_linear", LINEAR), "cpu", "machete")
