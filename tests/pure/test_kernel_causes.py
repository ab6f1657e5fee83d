"""Causes that kernels and the code of engines gave for what unseen models and shapes were wrong by, each by itself."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

import chip
from chip import engines, ops, stats
from chip.decoders import library
from chip.decoders.lower import body
from chip.dtypes import precision
from chip.files import traces
from chip.hardware import gpus, points
from chip.ops import attention_tiles
from chip.ops.attention import Attention
from chip.ops.attention_tiles import split
from chip.ops.elementwise import CompiledRowBase
from chip.predictor import operator
from chip.show import cli

BF16 = precision("bf16")
STABLE = library.find("stablelm-2-1.6b")
TRACES = Path(__file__).parents[2] / "results" / "h200" / "traces" / "hf"


def group(kind, kernel, context=""):
    groups = points.read(gpus.POINTS / "h200" / f"{kind}.csv").groups
    return next(g for g in groups if g.kernel == kernel and context in ("", g.context))


def layer(engine, decoder, decode=True):
    program = engines.get(engine).rewrite(body(decoder, 1, BF16, 1), decode, decoder.architecture)
    return next(b for b in program.blocks if any(c.role == "attention" for c in b.calls))


def kinds(engine, decoder, decode=True):
    return Counter(c.op.kind for c in layer(engine, decoder, decode).calls)


def test_vllm_runs_what_it_does_not_compile_kernel_by_kernel():
    found = kinds("vllm", STABLE)
    assert [found[k] for k in ("layer_norm", "add", "add_layer_norm", "rope_composed")] == [2, 2, 0, 1]
    assert found["scale"] == 4  # halves and wholes of queries and keys are joined
    assert [found[k] for k in ("linear", "attention")] == [4, 1]  # projections are merged all the same
    compiled = kinds("vllm", library.find("starcoder2-7b"))
    assert [compiled[k] for k in ("layer_norm", "add", "add_layer_norm", "rope_composed")] == [0, 0, 2, 0]
    runs_as = engines.get("vllm").runs_as
    assert runs_as(9.0, STABLE)["layer_norm"] == "torch layer"
    assert runs_as(9.0, library.find("starcoder2-7b"))["layer_norm"] == "compiled cold"
    assert runs_as(9.0, STABLE)["attention"] == "fa3 layer"


def test_a_small_prompt_of_such_a_model_is_no_graph_of_each_layer():
    """As measured: 28 ms of 1 x 512 tokens, 23 of which are the host's; of a compiled model of its size 12."""
    other = chip.predict("smollm2-1.7b", gpu="h200", engine="vllm", prompt=512)
    found = chip.predict("stablelm-2-1.6b", gpu="h200", engine="vllm", prompt=512)
    assert found.ttft_s == pytest.approx(0.02807, rel=0.3)
    assert found.ttft_s > 1.8 * other.ttft_s


@pytest.mark.parametrize("kind", ["layer_norm", "add_layer_norm", "rms_norm", "add_rms_norm"])
def test_norms_of_torch_compile_take_whole_passes(kind):
    base = group(kind, "compiled").base
    assert isinstance(base, CompiledRowBase)
    short, one, same, two = (base._each_s(cols) for cols in (1024, 1152, 2048, 2049))
    assert short < one == same < two
    assert two - short == pytest.approx(2 * (one - short))


def test_activations_take_each_element_by_itself():
    assert not isinstance(group("silu_mul", "compiled").base, CompiledRowBase)


def test_only_an_odd_cache_is_slow_under_a_mask():
    axes = {"batch": 8, "heads": 32, "kv_heads": 8, "head_dim": 128, "q_len": 1000, "kv_len": 1064}
    even = ops.build("masked_attention", axes)
    places = [even.sized(8, 1000, keys).place() for keys in (1062, 1064, 1088, 1063)]
    assert places[0][-1] == places[1][-1] == places[2][-1] > places[3][-1]
    slow, fast = (chip.estimate("masked_attention", gpu="h200", **{**axes, "kv_len": n}).seconds for n in (1063, 1064))
    assert slow > 1.2 * fast


@pytest.mark.parametrize(
    ("model", "count"), [("opt-1.3b", 4), ("smollm2-1.7b", 4), ("qwen2.5-1.5b", 6), ("starcoder2-3b", 6)]
)
def test_attention_under_a_mask_is_as_many_kernels_as_were_captured(model, count):
    """Keys and values are copied only where query heads share them."""
    _, trace = traces.read(TRACES / f"{model}-decode.json")
    decoder = library.find(model)
    launched = [trace.operators[trace.kernels[e.kernel].operator].name for e in trace.events]
    masked = [n for n in launched if re.search("clone|scalar_tensor|where|scaled_dot_product", n)]
    (op,) = [c.op for c in layer("hf-graph", decoder).calls if c.role == "attention"]
    assert len(masked) == count * decoder.layer_count
    assert count == op.KERNELS


def test_routers_choose_slowly_among_other_numbers_than_powers_of_two():
    base = group("moe_router", "vllm").base
    assert base.other_choice_s > 5 * base.choice_s
    sixty, more = (
        ops.build("moe_router", {"tokens": 8192, "hidden": 2048, "experts": e, "top_k": 4}) for e in (60, 64)
    )
    assert base.seconds(sixty) > 2 * base.seconds(more)


@pytest.mark.parametrize(("model", "casts"), [("olmo-2-7b", 2), ("command-r", 4), ("llama-3.1-8b", 0)])
def test_rotations_in_fp32_cast_queries_and_keys(model, casts):
    found = kinds("hf-eager", library.find(model))
    assert found["scale"] == casts


def test_live_traffic_of_such_a_model_waits_for_the_host_as_a_prediction_does(capsys):
    """A prompt alone, as `chip predict` has it; of a compiled model of its size it takes less than half."""
    traffic = ["--rate", "0.5", "--workload", "poisson:prompt=400,output=20", "--requests", "20"]
    found = {}
    for model in ("stablelm-2-1.6b", "smollm2-1.7b"):
        assert cli.main(["simulate", model, "--gpu", "h200", *traffic, "--json"]) == 0
        found[model] = json.loads(capsys.readouterr().out)["ttft_ms"]["p50"]
    alone = chip.predict("stablelm-2-1.6b", gpu="h200", engine="vllm", prompt=400, output=20)
    assert found["stablelm-2-1.6b"] == pytest.approx(1e3 * alone.ttft_s, rel=0.2)
    assert found["stablelm-2-1.6b"] > 2 * found["smollm2-1.7b"]


@pytest.mark.parametrize(
    ("batch", "kv_heads", "keys", "parts"),
    [
        (8, 8, 520, 2),  # 64 tiles of 5 blocks: 320 blocks and a tenth on 132 SMs are 3 each
        (8, 8, 512, 2),
        (32, 8, 520, 1),  # 256 tiles: more than an SM's share each
        (1, 8, 1040, 9),  # 9 blocks, one each
        (1, 1, 32768, 32),  # max_num_splits of a captured CUDA graph
    ],
)
def test_keys_are_cut_as_flash_attention_3_cuts_them(batch, kv_heads, keys, parts):
    """As the scheduler's own metadata said on an H200."""
    tiles = batch * kv_heads
    assert split(tiles, kv_heads, -(-keys // 128), batch, 132) == parts


def test_graphs_are_those_of_vllm():
    assert engines.get("vllm").GRAPH_TOKENS[-1] == attention_tiles.GRAPH_TOKENS


def test_a_block_of_keys_is_taken_whole():
    """A step over 513 keys takes what one over 640 does, but for the bytes; 512 are a block less."""
    base = group("attention", "fa3").base
    at = [base.seconds(Attention(32, 32, 8, 128, 1, n)) for n in (512, 513, 640)]
    assert at[1] - at[0] > 1.5 * (at[2] - at[1]) > 0


def test_among_the_kernels_of_a_layer_attention_takes_longer():
    """Its instructions come cold, too: a fifth longer where it is short, nothing where it is long."""
    alone, within = (dict(zip(g.ops, g.seconds)) for g in (group("attention", "fa3", c) for c in ("cold", "layer")))
    both = alone.keys() & within.keys()
    more = sorted((alone[op], within[op] / alone[op]) for op in both if op.q_len == 1)
    short, long = ([ratio for s, ratio in more if at(s)] for at in (lambda s: s < 20e-6, lambda s: s > 200e-6))
    assert 1.1 < stats.median(short) < 1.4
    assert 0.97 < stats.median(long) < 1.05


def test_short_prompts_attend_to_the_latent_where_that_kernel_runs():
    """On Hopper 513 tokens take less time than 512; on other GPUs keys are expanded."""

    def attention_s(gpu, prompt):
        answer = chip.predict("deepseek-v2", gpu=gpu, engine="vllm", batch=8, prompt=prompt, output=2, tp=4)
        return sum(line.seconds for line in answer.prefill.lines if line.role == "attention")

    assert attention_s("h200", 512) > 1.5 * attention_s("h200", 513)
    assert attention_s("a100", 512) <= attention_s("a100", 513)


def test_attention_that_flashattention_3_does_not_run_under_vllm_is_another_kernels(tmp_path):
    """By the config: biases for positions take FlashAttention-2, a model that also sees Triton's, without points."""
    heads = {"hidden_size": 2048, "num_attention_heads": 32, "num_hidden_layers": 24, "vocab_size": 50304}
    falcon = {
        "architectures": ["FalconForCausalLM"],
        **heads,
        "multi_query": False,
        "parallel_attn": False,
        "bias": True,
    }
    text = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "num_hidden_layers": 12}
    gemma = {**text, "hidden_size": 2560, "intermediate_size": 10240, "vocab_size": 262208}
    sees = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": gemma}

    def ask(name, config):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(config))
        return chip.predict(str(path), gpu="h200", engine="vllm", batch=16, prompt=2048, output=64)

    def attention(p):
        return next(line for line in p.lines["tpot"] if line.role == "attention")

    plain, biased = ask("plain", falcon), ask("biased", {**falcon, "alibi": True})
    assert attention(biased).seconds > 1.1 * attention(plain).seconds
    found = ask("sees", sees)
    assert attention(found).source != "interpolated"
    assert any("no measured point: attention" in note for note in found.notes)


def test_tritons_experts_choose_themselves():
    """What was measured takes logits: the router's choice must not be counted twice."""
    kinds = {
        dtype: {line.role: line.kind for line in chip.predict("gpt-oss-20b", gpu="h200", dtype=dtype).lines["tpot"]}
        for dtype in ("auto", "bf16")
    }
    assert (kinds["auto"]["router"], kinds["auto"]["experts"]) == ("linear", "packed_experts")
    assert (kinds["bf16"]["router"], kinds["bf16"]["experts"]) == ("moe_router", "moe_experts")


def test_glm_chooses_its_experts_by_a_product_in_fp32_under_vllm():
    """vLLM's glm4_moe.py; captured steps of 16,384 tokens take 470 us for it and the choice."""
    calls, others = (_routed_layer(library.find(name)) for name in ("glm-4.5-air", "deepseek-v3"))
    names = list(calls)
    assert names.index("router_cast") == names.index("router") - 1
    assert calls["router"].dtype == "fp32"
    assert calls["router_cast"].cost().bytes == 2 * 2 * 4096
    axes = {"tokens": 16384, "hidden": 4096, "experts": 128, "top_k": 8, "dtype": "fp32"}
    assert operator.answer({"op": "biased_router", **axes})["us"] == pytest.approx(470, rel=0.1)
    assert others["router"].dtype == "bf16"


def _routed_layer(decoder):
    program = engines.get("vllm").rewrite(body(decoder, 1, BF16, 1), True, decoder.architecture)
    return next(found for b in program.blocks if "router" in (found := {c.role: c.op for c in b.calls}))
