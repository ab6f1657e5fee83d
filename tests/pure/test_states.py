"""Layers with a state instead of attention: what they cost, what a sequence keeps, what is refused."""

import pytest
from published_models import PUBLISHED

import chip
from chip.decoders import describe
from chip.decoders.lower import as_steps, body
from chip.dtypes import precision
from chip.engines.vllm.memory import layout
from chip.ops.states import CausalConvStep, StateScan, StateStep
from chip.simulator.kv_blocks import Blocks, Holding
from chip.types import ChipError

BF16 = precision("bf16")
NEXT = describe(PUBLISHED["Qwen/Qwen3-Next-80B-A3B-Instruct"][1], "next", "next")
GRANITE_CONFIG = PUBLISHED["ibm-granite/granite-4.0-h-small"][1]
GRANITE = describe(GRANITE_CONFIG, "granite", "granite")


def test_a_sequence_keeps_states_of_one_size():
    """Granite 4 H: 36 layers of 128 heads x 64 x 128 values and three inputs of 8,448 channels, in bf16."""
    assert GRANITE.state_bytes(BF16) == 36 * 2 * (128 * 64 * 128 + 3 * 8448)
    assert GRANITE.kv_bytes(1000, BF16) == 1000 * 4 * 2 * 8 * 128 * 2, "four layers attend"
    assert GRANITE.state_bytes(BF16, tp=2) == GRANITE.state_bytes(BF16) / 2


def test_a_step_reads_and_writes_the_whole_state():
    step = StateStep(8, 32, 128, 128, state_dtype="fp32")
    states = 8 * 32 * 128 * 128 * 4
    _, read, written = step.cost()
    assert states < read < 1.02 * states
    assert states < written < 1.02 * states


def test_a_scan_costs_as_much_for_each_token():
    one, many = StateScan(1, 32, 128, 128).cost(), StateScan(1000, 32, 128, 128).cost()
    assert many.flops == pytest.approx(1000 * one.flops)
    assert StateScan(1000, 32, 128, 128, delta=True).cost().flops > many.flops


def test_a_decode_step_has_steps_where_a_prompt_has_scans():
    calls = [c for b in body(NEXT, 1, BF16, 1).blocks for c in b.calls]
    assert {"scan", "conv", "attention", "attn_gate"} <= {c.role for c in calls}
    kinds = {type(c.op) for c in as_steps(calls)}
    assert {StateStep, CausalConvStep} <= kinds
    assert StateScan not in kinds


@pytest.mark.parametrize("name", [n for n in PUBLISHED if describe(PUBLISHED[n][1], n, n).states])
def test_a_long_context_hardly_slows_a_hybrid(name):
    d = describe(PUBLISHED[name][1], name, name)
    settings = {"gpu": "h200", "engine": "vllm", "output": 32, "tp": 2 if d.params() > 6e10 else 1}
    prompts = (1024, min(d.max_context - 64, 65536))
    short, long = (chip.predict(PUBLISHED[name][1], prompt=prompt, **settings) for prompt in prompts)
    assert long.tpot_s < 1.35 * short.tpot_s
    assert long.memory["state_bytes_per_sequence"] == round(d.state_bytes(BF16, settings["tp"]))


def test_an_indexer_keeps_attention_from_growing():
    """DeepSeek V3.2: attention over 2,048 keys at most, scores over all."""
    raw = PUBLISHED["deepseek-ai/DeepSeek-V3.2"][1]
    settings = {"gpu": "b200", "engine": "vllm", "tp": 8, "dtype": "fp8", "batch": 8, "output": 8}
    near, far = (chip.predict(raw, prompt=prompt, **settings) for prompt in (4096, 65536))
    times = [{n.role: n.seconds for n in p.decode.lines} for p in (near, far)]
    assert times[1]["attention"] == pytest.approx(times[0]["attention"], rel=0.15)
    assert times[1]["indexer"] > 1.2 * times[0]["indexer"]
    assert far.memory["kv_bytes_per_token"] == 61 * 2 * (512 + 64 + 66), "latents, and scored keys in 8 bits"


def test_engines_whose_states_nobody_knows_refuse_them():
    for engine in ("hf-eager", "hf-graph", "native"):
        with pytest.raises(ChipError, match="choose"):
            chip.predict(GRANITE_CONFIG, gpu="h200", engine=engine)


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("ibm-granite/granite-4.0-h-small", {"layer_types": ["mamba"]}, "lists 1 layers"),
        ("ibm-granite/granite-4.0-h-small", {"layer_types": None}, "'layer_types' is missing"),
        ("ibm-granite/granite-4.0-h-small", {"mamba_d_state": None}, "'mamba_d_state' is missing"),
        ("nvidia/Nemotron-H-8B-Base-8K", {"hybrid_override_pattern": "MX"}, "must be made of"),
        ("nvidia/Nemotron-H-8B-Base-8K", {"hybrid_override_pattern": "--M"}, "the pattern has 3 layers"),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", {"num_experts_per_tok": 513}, "is more than"),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", {"linear_num_value_heads": 33}, "not a multiple"),
    ],
)
def test_contradictions_are_one_line(name, change, says):
    with pytest.raises(ChipError, match=says):
        describe({**PUBLISHED[name][1], **change}, "it", "it.json")


GRANITE_TINY = {
    **GRANITE_CONFIG, "hidden_size": 1536, "num_attention_heads": 12, "num_key_value_heads": 4, "mamba_n_heads": 48,
    "num_local_experts": 64, "num_experts_per_tok": 6, "intermediate_size": 512, "shared_intermediate_size": 1024,
}  # fmt: skip


def test_blocks_of_attention_are_as_long_as_a_state_is_large():
    """vLLM 0.26 said 400 tokens of Granite-4-H-tiny on an H200, and says 544 of Qwen3-Next."""
    tiny = layout(describe(GRANITE_TINY, "tiny", "tiny"), BF16, 1)
    assert tiny.block_tokens == 400
    assert (len(tiny.groups), tiny.states) == (1, 9), "four layers attend, nine times as many have a state"
    assert tiny.blocks(800, 0) == 2 + 9
    assert layout(NEXT, BF16, 1).block_tokens == 544
    assert layout(describe(GRANITE_TINY, "tiny", "tiny"), BF16, 1, finds_states=True).block_tokens == 512


def test_a_model_of_states_alone_holds_as_many_requests_as_states():
    raw = {"architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2", "hidden_size": 2560, "num_hidden_layers": 64,
           "num_heads": 80, "head_dim": 64, "state_size": 128, "n_groups": 1, "vocab_size": 50288}  # fmt: skip
    d = describe(raw, "mamba2", "mamba2")
    settings = {"max_model_len": 4096, "num_gpu_blocks": 0}
    found = chip.predict(raw, gpu="h200", engine_settings=settings).memory
    assert found["kv_capacity_tokens"] % 4096 == 0
    room = found["usable_bytes"] - sum(found[f"{what}_bytes"] for what in ("weights", "activation", "context"))
    assert found["kv_capacity_tokens"] / 4096 * d.state_bytes(BF16) == pytest.approx(room, rel=0.01)
    traffic = {"workload": "poisson:prompt=500,output=20", "rate": 20, "requests": 30}
    assert chip.simulate(raw, gpu="h200", engine_settings=settings, **traffic).completed == 30


def test_a_request_holds_slots_of_its_states_in_live_traffic():
    pool = Blocks(20, 400, False, 9)
    assert pool.needed(800) == 11
    held = Holding()
    assert pool.fits([], None, 0, pool.needed(800), 0)
    pool.admit([], held, 0, pool.needed(800))
    assert not pool.fits([], None, 0, pool.needed(1), 0), "nine of nine blocks left are too few for ten"
    pool.release(held, 800, again=False)
    pool.check()
    assert pool.free == 20
    traffic = {"gpu": "h200", "engine": "vllm", "workload": "poisson:prompt=500,output=20", "rate": 100, "requests": 60}
    few = chip.simulate(GRANITE_TINY, engine_settings={"num_gpu_blocks": 80, "enable_prefix_caching": False}, **traffic)
    many = chip.simulate(GRANITE_TINY, **traffic)
    assert few.kv["peak_share"] > 0.9, "seven requests of eleven blocks fill them"
    assert few.queue_s.mean > 2 * many.queue_s.mean
