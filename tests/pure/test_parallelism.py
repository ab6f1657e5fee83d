"""Pipelines and expert parallelism in predictions: what waits, what is sent, what a GPU has in memory, the notes."""

import json
from dataclasses import replace

import pytest

import chip
from chip import engines
from chip.decoders import library
from chip.decoders.lower import body
from chip.dtypes import precision
from chip.hardware import links
from chip.ops.experts import MoeExperts
from chip.predictor import memory, parallel
from chip.predictor.parallel import ranks_reached
from chip.show import cli
from chip.types import Scenario

BIG, EXPERTS = "llama-3.1-70b", "qwen3-235b-a22b"


def seconds(p, phase, role):
    return sum(n.seconds for n in p.lines[phase] if n.role == role)


# --- pipeline
def test_one_batch_waits_for_every_stage():
    """All requests are prefilled in one step and decode in one batch: with two stages a GPU idles half of the time."""
    one, two = (chip.predict(BIG, gpu="h200", tp=4, pp=pp, batch=4, prompt=512, output=64) for pp in (1, 2))
    assert one.tpot_s < two.tpot_s < 1.05 * one.tpot_s, "as long as before, and what is sent"
    assert two.tpot_s - one.tpot_s == pytest.approx(seconds(two, "tpot", "pipeline_send"), rel=1e-6)
    assert seconds(two, "tpot", "pipeline_bubble") == pytest.approx(two.tpot_s / 2, rel=0.03)
    assert any("2 stages of 40 layers, 1 batch in flight" in note for note in two.notes)
    low, high = two.interval["tpot_s"]
    assert low < two.tpot_s < high


def test_many_prompts_fill_the_pipeline():
    """64 x 4096 tokens are 16 steps of prefill: four batches go round, and four stages are nearly always busy."""
    one, four = (chip.predict(BIG, gpu="h200", tp=2, pp=pp, batch=64, prompt=4096, output=64) for pp in (1, 4))
    assert four.ttft_s < 0.36 * one.ttft_s
    assert seconds(four, "ttft", "pipeline_bubble") < 0.2 * four.ttft_s
    assert any("4 batches in flight" in note for note in four.notes)
    assert four.tpot_s < one.tpot_s, "each stage reads a fourth of the weights, four times a round"
    assert four.tokens_per_s > one.tokens_per_s


def test_the_bubble_and_a_gpus_own_work_are_the_whole_phase():
    p = chip.predict(BIG, gpu="h100", tp=4, pp=3, batch=8)
    for phase, whole in (("ttft", p.ttft_s), ("tpot", p.tpot_s)):
        assert sum(n.seconds for n in p.lines[phase]) == pytest.approx(whole)
        assert seconds(p, phase, "pipeline_bubble") > 0
    assert p.to_dict()["gpus"] == 12


@pytest.mark.parametrize("name", ["llama-3.1-405b", "deepseek-v3", "gemma-3-27b", "gpt-oss-120b"])
@pytest.mark.parametrize("pp", [2, 3, 4])
def test_every_layer_is_in_one_stage(name, pp):
    d = library.find(name)
    kinds = parallel.layer_kinds(d, pp)
    assert [sum(column) for column in zip(*kinds)] == [n for n, _ in d.layers]
    p = precision("bf16")
    parts = [s.weight_bytes(p) for s in parallel.stage_decoders(d, pp)]
    twice = d.vocab * d.hidden * 2 if d.tied else 0  # both ends have the table
    assert sum(parts) == pytest.approx(d.weight_bytes(p) + twice, rel=1e-3)


def test_kinds_of_attention_alternate_and_dense_layers_come_first():
    assert parallel.layer_kinds(library.find("deepseek-v3"), 2) == ((3, 28), (0, 30))
    windows = parallel.layer_kinds(library.find("gemma-3-27b"), 2)
    assert all(abs(a - b) <= 2 for a, b in zip(*windows)), "both stages have their share of windows"


def test_memory_is_that_of_the_fullest_stage():
    d, p, e = library.find("llama-3.1-405b"), precision("bf16"), engines.get("vllm")
    s = Scenario(8, 1024, 128, "bf16", 8)
    whole, half = (memory.needs(d, replace(s, pp=pp), e, p, 80 * 2**30, e.options((), 80 * 2**30)) for pp in (1, 2))
    assert not whole["fits"]
    assert half["fits"]
    assert half["weights_bytes"] == pytest.approx(whole["weights_bytes"] / 2, rel=0.03)
    assert half["kv_bytes"] == pytest.approx(whole["kv_bytes"] / 2, rel=0.03)


# --- experts
def test_experts_are_read_where_they_lie():
    """What eight GPUs read and multiply together is what one would; none has a part of an expert."""
    one, each = MoeExperts(64, 4096, 1536, 128, 8), MoeExperts(64, 4096, 1536, 128, 8, ranks=8)
    assert 8 * each.experts_read == pytest.approx(one.experts_read)
    assert 8 * each.products().flops == pytest.approx(one.products().flops)
    assert 8 * each.products().bytes == pytest.approx(one.products().bytes)


def test_replicas_of_the_attention_exchange_their_tokens():
    d, p = library.find(EXPERTS), precision("bf16")
    calls = {c.role: c.op for b in body(d, 1, p, 2, 8).blocks for c in b.calls}
    assert (calls["dispatch"].rows, calls["dispatch"].ranks) == (4, 4), "four replicas of two GPUs"
    assert (calls["combine"].rows, calls["combine"].ranks) == (4, 4)
    assert (calls["experts"].tokens, calls["experts"].ranks) == (4, 8)
    assert calls["experts"].intermediate == library.find(EXPERTS).layers[0][1].mlp.intermediate
    alone = {c.role for b in body(d, 1, p, 8, 8).blocks for c in b.calls}
    assert not {"dispatch", "combine"} & alone, "one replica has all tokens on every GPU"
    assert "mlp_all_reduce" in alone


def test_a_prediction_over_experts_says_what_it_rests_on(capsys):
    words = ["predict", "deepseek-v3", "--gpu", "h200", "--ep", "8", "--batch", "64", "--json"]
    assert cli.main(words) == 0
    a = json.loads(capsys.readouterr().out)
    assert (a["tp"], a["pp"], a["ep"], a["gpus"]) == (1, 1, 8, 8)
    told = " | ".join(a["notes"])
    assert "each GPU holds 32 of 256 experts, routing taken as even, tokens exchanged by all-gather" in told
    assert "8 GPUs: all_gather from imported tables, reduce_scatter from imported tables" in told
    assert "no measured point" not in told, "experts in fp8 were measured"
    assert {"dispatch", "combine", "experts"} <= {row["role"] for row in a["breakdown"]["tpot"]}
    assert not a["memory"]["fits"], "vLLM's experts have a workspace for the tokens of all replicas"
    assert cli.main([*words, "--engine-setting", "max_num_batched_tokens=8192"]) == 0
    assert json.loads(capsys.readouterr().out)["memory"]["fits"]


def test_replicas_share_the_requests():
    """As many requests on each: eight GPUs with a replica each decode 64 requests as one decodes 8, but for experts."""
    p = chip.predict(EXPERTS, gpu="h200", ep=8, batch=64, prompt=256, output=32)
    alone = chip.predict(EXPERTS, gpu="h200", batch=8, prompt=256, output=32)
    for role in ("qkv_proj", "attention", "router"):
        assert seconds(p, "tpot", role) == pytest.approx(seconds(alone, "tpot", role), rel=1e-6)
    assert p.memory["weights_bytes"] < 0.2 * alone.memory["weights_bytes"]
    assert p.memory["kv_bytes"] == alone.memory["kv_bytes"]


def test_a_grid_has_a_column_for_each(capsys):
    assert cli.main(["predict", "mixtral-8x7b", "--gpu", "h100", "--tp", "2", "--pp", "1,2", "--ep", "1,4"]) == 0
    head = next(line for line in capsys.readouterr().out.splitlines() if "TTFT" in line)
    assert head.split()[:2] == ["pp", "ep"]
    rows = chip.sweep("mixtral-8x7b", gpu="h100", tp=2, pp=[1, 2])
    assert [row["pp"] for row in rows] == [1, 2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("llama-3.1-8b", "--ep", "2"), "--ep 2: llama-3.1-8b has no experts; use --tp or --pp"),
        (("mixtral-8x7b", "--ep", "3"), "--ep 3 does not divide the 8 experts of mixtral-8x7b"),
        (("mixtral-8x7b", "--tp", "4", "--ep", "2"), "--ep 2 must be a multiple of --tp 4"),
        (("mixtral-8x7b", "--ep", "2", "--engine", "hf-eager"), "hf-eager has no expert parallelism"),
        (("llama-3.1-8b", "--pp", "40"), "--pp 40: must be from 1 to the model's 32 layers"),
        (("llama-3.1-8b", "--pp", "0"), "pp must be between 1 and 256"),
        (("llama-3.1-8b", "--gpu", "gtx-1080-ti", "--engine", "hf-eager", "--pp", "2", "--dtype", "fp32"), ""),
    ],
)
def test_what_cannot_be_split_is_one_line(words, message, capsys):
    code = cli.main(["predict", *words])
    err = capsys.readouterr().err
    if message:
        assert (code, err.count("\n")) == (2, 1)
        assert message in err


def test_the_measured_all_to_all_is_named_beside_what_is_taken():
    """Eight GPUs with 8 tokens each: 2 x (bytes of 8 tokens to 5.3 GPUs on average) by the measured points."""
    p = chip.predict(EXPERTS, gpu="h200", ep=8, batch=64, prompt=256, output=8)
    (note,) = [n for n in p.notes if "NCCL's all-to-all" in n]
    d = library.find(EXPERTS)
    moe = d.layers[-1][1].mlp
    size = 8 * ranks_reached(moe.experts, moe.top_k, 8) * d.hidden * 2
    expected = 2e6 * links.collective("all_to_all", size, 8, "h200").seconds
    assert note.endswith(f"would take {expected:.3g} us")
    taken = [n.seconds / n.calls for n in p.lines["tpot"] if n.role in ("dispatch", "combine")]
    assert len(taken) == 2
    assert f"takes {1e6 * sum(taken):.3g} us a layer" in note
    unmeasured = chip.predict(EXPERTS, gpu="h200", ep=16, batch=64).notes
    assert "no all-to-all of 16 h200 was measured" in unmeasured
    assert not any("all-to-all" in n for n in chip.predict(EXPERTS, gpu="h200", tp=8, ep=8).notes)
