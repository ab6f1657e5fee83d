"""What runs of a quantised model: its operators, their kernels and what is said about them."""

from dataclasses import replace

import pytest
from asking import predict
from quantised_configs import AWQ, BLOCKS, F8, LLAMA, MODELS, TOKEN, W4, ct, roles, said, weight_bytes

import chip
from chip.decoders import describe, library
from chip.decoders.formats import UNIFORM
from chip.decoders.lower import lower
from chip.dtypes import precision
from chip.engines.vllm.kernels import KERNELS, kernel_for
from chip.files import artifact
from chip.hardware.tables.quantised import published_format, rounding_before
from chip.ops.quantised import ScaledLinear
from chip.predictor import request
from chip.types import ChipError, Scenario, Seq, Step


def test_operators_carry_the_format():
    found = roles(said(**BLOCKS))
    assert found["q_proj"].kind == "scaled_linear"
    assert (found["q_proj"].block_n, found["q_proj"].block_k, found["q_proj"].group) == (128, 128, 128)
    assert [found[r].kind for r in ("qkv_quant", "o_quant", "up_quant", "down_quant")] == ["quantize"] * 4
    assert found["down_quant"].cols == 1024
    assert found["lm_head"].kind == "linear"
    packed = roles(said(**AWQ))
    assert (packed["up_proj"].kind, packed["up_proj"].weight_dtype, packed["up_proj"].group) == (
        "packed_linear",
        "int4",
        128,
    )
    assert packed["up_proj"].zeros
    assert not [r for r in packed if r.endswith("_quant")]


def test_operators_read_what_memory_holds():
    """The weights that one step of a dense model reads, taken from its operators, are those of its memory."""
    for fields in (BLOCKS, AWQ, ct(W4), ct(F8, TOKEN)):
        d = said(**fields)
        p = replace(precision(d.dtype), per_layer=True)
        step = lower(d, Step((Seq(1, 8, 1),)), p)
        read = 0.0
        for b in step.blocks:
            for c in b.calls:
                if "linear" in c.op.kind:
                    cost, none = c.op.cost(), replace(c.op, n=1).cost()
                    one_output = (cost.read_bytes - none.read_bytes) / (c.op.n - 1)
                    read += b.repeat * c.op.n * one_output
        table = 2 * 1000 * 512
        assert read == pytest.approx(weight_bytes(d) - table - 2 * 7 * 512, rel=0.01)


def test_an_fp8_cache_is_written_and_read_in_bytes():
    d = said(**ct(F8, TOKEN))
    wide, narrow, widened = roles(d), roles(d, "fp8", "fp8"), roles(d, "fp8")
    assert narrow["kv_append"].cost().write_bytes == wide["kv_append"].cost().write_bytes / 2
    assert narrow["attention"].kind == "fp8_attention"
    assert narrow["query_quant"].static
    assert widened["attention"].kind == "fp8_cache_attention"
    assert "query_quant" not in widened
    assert d.kv_bytes(100, precision("fp8", "fp8")) == d.kv_bytes(100, precision("fp8")) / 2


def answer(**asked):
    return request.answer({"gpu": "h200", "output": 16, **asked})


def test_auto_is_what_the_config_says():
    a = answer(model="qwen3-32b-fp8")
    assert (a["dtype"], a["kv_dtype"]) == ("fp8", "bf16")
    assert a["memory"]["weights_bytes"] == round(weight_bytes(library.find("qwen3-32b-fp8")))
    wide = answer(model="qwen3-32b-fp8", dtype="bf16")
    assert wide["memory"]["weights_bytes"] == answer(model="qwen3-32b")["memory"]["weights_bytes"]
    assert any("config's weights are fp8" in n for n in wide["notes"])
    assert answer(model="gpt-oss-120b", gpu="h100")["memory"]["fits"]
    assert not answer(model="gpt-oss-120b", gpu="h100", dtype="bf16")["memory"]["fits"]


def test_a_gpu_without_fp8_widens_the_weights():
    a = answer(model="llama-3.1-8b", gpu="a100", dtype="fp8", prompt=4096)
    wide = answer(model="llama-3.1-8b", gpu="a100", prompt=4096)
    assert a["memory"]["weights_bytes"] < 0.6 * wide["memory"]["weights_bytes"]
    assert a["ttft_ms"] > 0.9 * wide["ttft_ms"]
    assert a["tpot_ms"] < 0.7 * wide["tpot_ms"]
    assert any("Marlin" in n and "no fp8 products" in n for n in a["notes"])


def test_an_fp8_cache_holds_more():
    plain, narrow = answer(model="llama-3.1-8b"), answer(model="llama-3.1-8b", kv_dtype="fp8")
    assert narrow["kv_dtype"] == "fp8"
    assert narrow["memory"]["kv_capacity_tokens"] == pytest.approx(2 * plain["memory"]["kv_capacity_tokens"], rel=1e-4)
    long = {"model": "llama-3.1-8b", "batch": 64, "prompt": 8000, "output": 512}
    assert answer(**long, kv_dtype="fp8")["tpot_ms"] < 0.9 * answer(**long)["tpot_ms"]
    with pytest.raises(ChipError, match="kv_dtype fp8: hf-eager keeps its cache"):
        answer(model="llama-3.1-8b", engine="hf-eager", kv_dtype="fp8")
    with pytest.raises(ChipError, match="kv_dtype 'int3' is not known; choose one of auto, bf16"):
        answer(model="llama-3.1-8b", kv_dtype="int3")


def test_a_model_that_does_not_fit_is_told_what_would():
    notes = answer(model="llama-3.1-70b", gpu="h100")["notes"]
    assert any(n.startswith("fits with --dtype fp8 (") for n in notes)
    assert any(n.startswith("fits with --dtype int4 (") for n in answer(model="llama-3.1-70b", gpu="l40s")["notes"])
    assert not any(n.startswith("fits with") for n in answer(model="llama-3.1-405b", gpu="l4")["notes"])
    for engine in ("vllm", "hf-eager"):  # no fp8 products: eight bits of weights alone
        (hint,) = [n for n in answer(model="llama-3.1-70b", gpu="a100", engine=engine)["notes"] if "fits with" in n]
        assert hint.startswith("fits with --dtype int8 (")
        assert answer(model="llama-3.1-70b", gpu="a100", engine=engine, dtype="int8")["memory"]["fits"]


@pytest.mark.parametrize(
    ("stored", "capability", "name"),
    [
        ("fp8", 90, "CUTLASS"),
        ("fp8", 89, "CUTLASS"),
        ("fp8", 80, "Marlin"),
        ("fp8", 70, None),
        ("int4", 90, "Machete"),
        ("int4", 100, "Marlin"),
        ("int4", 86, "Marlin"),
        ("w8a8", 75, "CUTLASS int8"),
        ("nvfp4", 100, "FlashInfer"),
        ("nvfp4", 90, "Marlin"),
        ("mxfp4", 90, "Triton"),
    ],
)
def test_the_kernel_for_a_format_and_gpu(stored, capability, name):
    found = kernel_for(UNIFORM[stored], capability)
    assert found is None if name is None else found.name.startswith(name)


def test_blocks_have_kernels_of_their_own():
    blocks = dict(said(**BLOCKS).layers[0][1].formats)["q_proj"]
    assert kernel_for(blocks, 90).name.startswith("DeepGEMM (FlashInfer")
    assert kernel_for(blocks, 100).name == "DeepGEMM"
    assert kernel_for(blocks, 89).name.startswith("Triton")
    assert kernel_for(blocks, 80).widens


def test_a_split_that_cuts_a_block_is_refused():
    shards = {"gpu": "h200", "output": 16}
    assert request.answer({"model": "deepseek-v3", "tp": 8, **shards})["memory"]["fits"]
    narrow = {**LLAMA, "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 64}
    for fields, line in (
        (BLOCKS, "--tp 8 leaves 64 outputs of q_proj to each GPU, which the config's scales over 128"),
        (AWQ, "--tp 8 leaves 64 inputs of o_proj to each GPU"),
    ):
        d = describe({**narrow, "quantization_config": fields}, "it", "config.json")
        with pytest.raises(ChipError, match=line):
            predict(d, "h200", "vllm", Scenario(1, 8, 2, "auto", 8))
        assert predict(d, "h200", "vllm", Scenario(1, 8, 2, "auto", 2)).memory["fits"]


def test_what_widens_is_a_product_with_rounded_inputs():
    assert all(k.input for k in KERNELS if k.widens)


def test_bundled_quantised_models_read_back():
    for name in ("qwen3-32b-fp8", "llama-3.1-70b-awq", "gpt-oss-20b", "gpt-oss-120b", "deepseek-v3"):
        raw = artifact.read_json(MODELS / f"{name}.json")
        assert library.find(name).quantization == raw["quantization_config"]["quant_method"]


@pytest.mark.parametrize(
    ("gpu", "dtype", "source"),
    [
        ("h200", "fp8", "interpolated"), *((gpu, "fp8", "imported") for gpu in ("h100", "l40s")),
        ("b200", "nvfp4", "imported"), ("b200", "fp8", "datasheet"),
    ],
)  # fmt: skip
def test_products_rest_on_published_tables_where_these_have_products_alone(gpu, dtype, source):
    """A tiny fp8 product of the B200's takes 8.6 times one of bf16: something else was timed with it."""
    answer = predict(library.find("llama-3.1-8b"), gpu, "vllm", Scenario(8, 512, 8, dtype))
    sources = {line.source for line in answer.decode.lines if line.kind == "scaled_linear"}
    assert sources == {source}


def test_a_published_product_is_less_its_rounding():
    of_product, of_both = ScaledLinear(64, 4096, 4096), rounding_before(ScaledLinear(64, 4096, 4096))
    assert published_format(of_product) == "fp8"
    assert (of_both.rows, of_both.cols) == (64, 4096)
    assert published_format(ScaledLinear(8, 256, 256, block_n=128, block_k=128, group=128)) == "fp8_block"
    assert not published_format(ScaledLinear(8, 256, 256, block_n=64, block_k=64, group=64))


def test_deep_gemm_is_known_by_published_times():
    """On an H200 our own points are CUTLASS's: DeepGEMM is asked for. Elsewhere there are published times alone."""
    sizes = {"engine": "vllm", "batch": 32, "prompt": 512, "output": 32}
    ours, asked = (chip.predict("qwen3-32b-fp8", gpu="h200", deep_gemm=on, **sizes) for on in (False, True))
    assert 0.7 < asked.ttft_s / ours.ttft_s < 0.95
    assert asked.tpot_s < ours.tpot_s
    assert any("--deep-gemm" in note for note in ours.notes)
    assert any("published ones of DeepGEMM" in note for note in asked.notes)
    plain = [chip.predict("llama-3.1-8b", gpu="h200", dtype="fp8", deep_gemm=on, **sizes) for on in (False, True)]
    assert plain[0].ttft_s == plain[1].ttft_s  # it is for scales of blocks
    other = chip.predict("qwen3-32b-fp8", gpu="h100", **sizes)
    assert {line.source for line in other.prefill.lines if line.kind == "scaled_linear"} == {"imported"}
    with pytest.raises(ChipError, match="engine setting 'deep_gemm' is not known"):
        chip.predict("qwen3-32b-fp8", gpu="h200", engine="hf-eager", deep_gemm=True)
