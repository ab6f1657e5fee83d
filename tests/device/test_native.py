"""The native engine on the CPU: the tokens of transformers, whatever is batched, paged, chunked or computed twice."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny_models import TEMPLATE, bundled, save_folder  # noqa: E402

import chip  # noqa: E402
from chip import artifact, cli  # noqa: E402
from chip.run.native import batch, graphs, pages, sampler, spec, weights  # noqa: E402
from chip.run.native.engine import NativeEngine, NativeSettings  # noqa: E402
from chip.run.native.graphs import size_for  # noqa: E402
from chip.run.native.launches import LAUNCHES, Launches  # noqa: E402
from chip.run.native.requests import NativeRequest, SamplingParams  # noqa: E402
from chip.run.native.scheduler import Scheduler, StepShare  # noqa: E402
from chip.run.native.stream import TextStream  # noqa: E402
from chip.types import ChipError  # noqa: E402

needs_triton = pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="Triton is not installed")
FAMILIES = ("llama-3.1-8b", "llama-3.2-1b", "mistral-7b", "mistral-7b-v0.1", "qwen2.5-0.5b", "qwen2.5-7b", "qwen3-0.6b",
            "qwen3-8b")  # fmt: skip
LENGTHS = (3, 17, 40, 9, 25)
OUTPUT = 10
TIGHT = {"max_context": 64, "max_step_tokens": 16, "page_tokens": 4, "kv_tokens": 100}  # chunks, and pages run out


def tiny(name, **changes):
    raw = bundled(name)
    if raw["model_type"] == "llama" and raw.get("rope_scaling"):
        raw["rope_scaling"] = {**raw["rope_scaling"], "original_max_position_embeddings": 64}  # its bands lie within
    if raw.get("sliding_window"):
        raw["sliding_window"] = 200  # longer than any context here
    return {**raw, "max_position_embeddings": 256, "eos_token_id": None, "torch_dtype": "float32", **changes}


def hf_model(raw):
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**raw)).float().eval()
    for name, p in model.named_parameters():  # far enough from zero that logits are apart
        p.data.normal_(0, 0.2) if p.dim() > 1 or name.endswith("bias") else p.data.uniform_(0.5, 1.5)
    return model


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Family -> (HF model, folder with its shards, config as transformers writes it)."""
    made = {}

    def of(name):
        if name not in made:
            folder, model = tmp_path_factory.mktemp(name), hf_model(tiny(name))
            model.save_pretrained(folder, max_shard_size="60KB")
            made[name] = model, folder, json.loads((folder / "config.json").read_text())
        return made[name]

    return of


def engine_of(folder, config, **settings):
    kept = {"kernels": "torch", "dtype": "fp32", "device": "cpu", "max_context": 128, **settings}
    return NativeEngine(config, "config.json", NativeSettings(**kept), folder)


def prompts(lengths=LENGTHS, vocab=256, seed=2):
    draw = torch.Generator().manual_seed(seed)
    return [tuple(torch.randint(0, vocab, (n,), generator=draw).tolist()) for n in lengths]


def generated(engine, sampling=None, which=None):
    requests = [NativeRequest(f"r{i}", p, sampling or SamplingParams(OUTPUT)) for i, p in enumerate(which or prompts())]
    engine.run(requests)
    return [r.output for r in requests], requests


def by_hf(model, prompt, count=OUTPUT):
    out = model.generate(
        torch.tensor([prompt]), max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    return out[0, len(prompt) :].tolist()


# -- right ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_tokens_and_logits_are_those_of_transformers(saved, name):
    model, folder, config = saved(name)
    assert len(list(folder.glob("*.safetensors"))) > 1  # shards
    engine = engine_of(folder, config)
    said, _ = generated(engine)
    for prompt, tokens in zip(prompts(), said):
        assert tokens == by_hf(model, prompt)
    request = NativeRequest("one", prompts()[2])
    engine.allocator.grow(request.table, 40)
    with torch.inference_mode():
        ours = engine.decoder.logits(batch.build([StepShare(request, 40)], engine.settings.page_tokens, engine.device))
        theirs = model(torch.tensor([request.prompt])).logits[:, -1]
    assert float((ours - theirs).abs().max()) < 1e-4
    assert float(theirs.abs().max()) > 1  # so that 1e-4 says something


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-0.6b"])
@pytest.mark.parametrize(
    "sampling", [SamplingParams(OUTPUT), SamplingParams(OUTPUT, temperature=0.8, top_k=40, top_p=0.9, seed=5)]
)
def test_batching_paging_chunking_and_preemption_change_no_token(saved, name, sampling):
    _, folder, config = saved(name)
    alone = [generated(engine_of(folder, config), sampling, [p])[0][0] for p in prompts()]
    together, requests = generated(engine_of(folder, config), sampling)
    assert together == alone
    assert not any(r.preempted for r in requests)
    tight = engine_of(folder, config, **TIGHT)
    squeezed, requests = generated(tight, sampling)
    assert squeezed == alone
    assert sum(r.preempted for r in requests) > 0  # it did happen
    assert tight.allocator.free == tight.allocator.total  # and every page came back
    one_by_one, _ = generated(engine_of(folder, config, max_rows=1, max_step_tokens=5, page_tokens=16), sampling)
    assert one_by_one == alone


def test_a_request_that_joins_late_changes_nobody(saved):
    _, folder, config = saved("llama-3.1-8b")
    engine = engine_of(folder, config, max_step_tokens=8)
    first, second = (NativeRequest(str(i), p, SamplingParams(OUTPUT)) for i, p in enumerate(prompts((12, 21))))
    engine.add(first)
    for _ in range(4):
        engine.step()
    engine.add(second)
    engine.run()
    for request, prompt in ((first, prompts((12, 21))[0]), (second, prompts((12, 21))[1])):
        assert request.output == generated(engine_of(folder, config), None, [prompt])[0][0]


def test_a_step_mixes_decodes_and_chunks(saved):
    _, folder, config = saved("llama-3.1-8b")
    engine = engine_of(folder, config, max_step_tokens=8)
    engine.add(NativeRequest("short", prompts((3,))[0], SamplingParams(OUTPUT)))
    engine.step()
    engine.add(NativeRequest("long", prompts((30,))[0], SamplingParams(OUTPUT)))
    shares = engine.scheduler.next_step()
    assert [(s.request.name, s.new, s.samples) for s in shares] == [("short", 1, True), ("long", 7, False)]
    made = batch.build(shares, engine.settings.page_tokens, engine.device)
    assert made.decodes == 1
    assert [(c.first, c.new, c.past) for c in made.chunks] == [(1, 7, 0)]
    assert made.last.tolist() == [0]


def test_an_end_token_ends_unless_it_is_ignored(saved):
    _, folder, config = saved("llama-3.1-8b")
    said = generated(engine_of(folder, config))[0]
    ended = {**config, "eos_token_id": [said[0][3], 255]}
    first = said[0].index(said[0][3])
    cut, requests = generated(engine_of(folder, ended))
    assert cut[0] == said[0][: first + 1]
    assert requests[0].finish == "stop"
    assert generated(engine_of(folder, ended), SamplingParams(OUTPUT, ignore_eos=True))[0] == said


def test_tied_heads_biases_and_norms_are_where_the_family_has_them():
    made = {name: spec.read(tiny(name), name) for name in FAMILIES}
    assert made["llama-3.2-1b"].tied
    assert not made["llama-3.1-8b"].tied
    assert made["qwen2.5-0.5b"].qkv_bias
    assert not made["qwen2.5-0.5b"].out_bias
    assert made["qwen3-0.6b"].qk_norm
    assert made["llama-3.1-8b"].rope.kind == "llama3"
    assert made["mistral-7b-v0.1"].positions == 200  # the window
    biased = spec.read(tiny("llama-3.1-8b", attention_bias=True, mlp_bias=True), "x")
    assert biased.qkv_bias
    assert biased.out_bias
    assert biased.mlp_bias


def test_a_llama_with_biases_everywhere(tmp_path):
    raw = tiny("llama-3.2-1b", attention_bias=True, mlp_bias=True)
    model = hf_model(raw)
    model.save_pretrained(tmp_path)
    engine = engine_of(tmp_path, json.loads((tmp_path / "config.json").read_text()))
    assert generated(engine)[0] == [by_hf(model, p) for p in prompts()]


def test_random_weights_are_drawn_once_and_never_zero():
    made = [engine_of(None, tiny("qwen2.5-0.5b")) for _ in range(2)]
    first, second = (e.weights.layers[0] for e in made)
    assert torch.equal(first.qkv, second.qkv)
    assert 0.015 < float(first.qkv.std()) < 0.025
    assert bool((first.input_norm == 1).all())
    assert generated(made[0])[0] == generated(made[1])[0]


# -- drawing ----------------------------------------------------------------------------------------------------------
def test_draws_follow_the_distribution():
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0, 1.5]])
    counts = torch.zeros(5)
    request = NativeRequest("r", (1,), SamplingParams(temperature=0.7, seed=11))
    for _ in range(4000):
        counts[int(sampler.choose(logits, [request]))] += 1
    want = torch.softmax(logits[0] / 0.7, 0)
    assert float((counts / 4000 - want).abs().max()) < 0.03


@pytest.mark.parametrize(("cut", "kept"), [({"top_k": 2}, {0, 4}), ({"top_p": 0.5}, {0, 4}), ({"top_p": 0.01}, {0}),
                                           ({"top_k": 3, "top_p": 0.99}, {0, 1, 4}), ({"top_k": 1}, {0})])  # fmt: skip
def test_cuts_keep_the_likeliest(cut, kept):
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0, 1.5]])
    request = NativeRequest("r", (1,), SamplingParams(temperature=1.0, seed=1, **cut))
    assert {int(sampler.choose(logits, [request])) for _ in range(400)} == kept


def test_a_row_is_drawn_alike_in_any_batch():
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(4))
    settings = (
        SamplingParams(temperature=0.9, seed=1),
        SamplingParams(),
        SamplingParams(temperature=1.3, top_p=0.8, seed=2),
    )
    many = sampler.choose(logits, [NativeRequest(str(i), (1,), s) for i, s in enumerate(settings)])
    each = [int(sampler.choose(logits[i : i + 1], [NativeRequest("r", (1,), s)])) for i, s in enumerate(settings)]
    assert many.tolist() == each


# -- pages and scheduling ---------------------------------------------------------------------------------------------
def test_pages_are_handed_out_once_and_all_come_back():
    allocator = pages.Allocator(6, 4)
    first, second = pages.PageTable(), pages.PageTable()
    assert allocator.grow(first, 9)
    assert allocator.grow(second, 8)
    assert not allocator.grow(second, 9)  # five pages are out, the spare one is nobody's
    assert len({*first.pages, *second.pages}) == 5
    assert pages.SPARE not in first.pages + second.pages
    allocator.release(first)
    assert allocator.grow(second, 20)
    allocator.release(second)
    assert allocator.free == allocator.total == 5


def test_the_oldest_always_goes_on():
    scheduler = Scheduler(pages.Allocator(5, 4), 16, 8, 64)
    for i in range(3):
        scheduler.add(NativeRequest(str(i), (1,) * 6, SamplingParams(10)))
    order = []
    for _ in range(200):
        shares = scheduler.next_step()
        if not shares:
            break
        done = [s for s in shares if s.samples]
        for s in shares:
            s.request.computed += s.new
        for s in done:
            s.request.accept(1, ())
            if s.request.finish:
                order.append(s.request.name)
                scheduler.finish(s.request)
    assert order == ["0", "1", "2"]
    assert scheduler.idle


class OnCpu(graphs.Captured):
    """The step of a graph, run anew instead of replayed: everything around it is the same."""

    def capture(self, side, pool):
        self.step()  # warm: rows that are all padding
        self.tokens, self.logits = (t.clone() for t in self.step())

    def replay(self):
        for to, new in zip((self.tokens, self.logits), self.step()):
            to.copy_(new)


@pytest.mark.parametrize(
    "sampling", [SamplingParams(OUTPUT), SamplingParams(OUTPUT, temperature=0.9, top_p=0.9, seed=3)]
)
@pytest.mark.parametrize("settings", [{"max_context": 64}, TIGHT])
def test_steps_that_feed_themselves_say_the_same(saved, monkeypatch, sampling, settings):
    """Positions, pages and tokens move on within the step; requests come, go and are preempted around it."""
    monkeypatch.setattr(graphs, "Captured", OnCpu)
    _, folder, config = saved("llama-3.1-8b")
    plain, _ = generated(engine_of(folder, config, **settings), sampling)
    engine = engine_of(folder, config, **settings)
    engine.graphs = graphs.DecodeGraphs(engine.decoder, engine.allocator.pages_for(64))
    engine.graphs._side = "a stream"  # which no CPU has
    loads = []
    load = OnCpu.load
    monkeypatch.setattr(OnCpu, "load", lambda self, requests: (loads.append(len(requests)), load(self, requests)))
    fed, _ = generated(engine, sampling)
    assert fed == plain
    assert set(engine.graphs.captured) <= {1, 2, 4, 8}
    assert len(engine.graphs.captured) > 1 or settings is not TIGHT
    assert 0 < len(loads) < engine.steps  # not every step uploads


def test_a_step_launched_too_early_is_dropped(saved, monkeypatch):
    """The next step is launched before this one's tokens are known: an end token among them must not change the others."""
    monkeypatch.setattr(graphs, "Captured", OnCpu)
    _, folder, config = saved("llama-3.1-8b")
    plain, _ = generated(engine_of(folder, config, max_context=64), SamplingParams(OUTPUT))
    end = plain[1][2]
    config = {**config, "eos_token_id": end}
    stopped, _ = generated(engine_of(folder, config, max_context=64), SamplingParams(OUTPUT))
    assert stopped != plain
    engine = engine_of(folder, config, max_context=64)
    engine.graphs = graphs.DecodeGraphs(engine.decoder, engine.allocator.pages_for(64))
    engine.graphs._side = "a stream"
    replays = []
    replay = OnCpu.replay
    monkeypatch.setattr(OnCpu, "replay", lambda self: (replays.append(1), replay(self)))
    assert generated(engine, SamplingParams(OUTPUT))[0] == stopped
    assert len(replays) > max(map(len, stopped)) - 1  # the first token is the prompt's; one step was dropped


def test_graph_sizes_cover_every_batch():
    assert [size_for(n) for n in (1, 2, 3, 4, 5, 8, 9, 32, 33)] == [1, 2, 4, 4, 8, 8, 16, 32, 40]


# -- who computes -----------------------------------------------------------------------------------------------------
def test_every_launch_says_who_computes_it_and_why_not_who_was_asked():
    made = spec.read(tiny("llama-3.1-8b"), "x")
    cpu = torch.device("cpu")
    asked = Launches("chip", made, torch.float32, cpu, 64).rows()
    assert [row["launch"] for row in asked] == list(LAUNCHES)
    by = {row["launch"]: row for row in asked}
    if os.environ.get("TRITON_INTERPRET") != "1":
        assert all(row["by"] == "torch" and row["why"] for row in asked)
        assert "no NVIDIA GPU" in by["linear"]["why"]
        assert all(rung in by["linear_few"]["why"] for rung in ("skinny_2_wgmma", "skinny_1_mma"))
    plain = Launches("torch", made, torch.float32, cpu, 64).rows()
    assert all(row["by"] == "torch" and not row["why"] for row in plain)
    with pytest.raises(ChipError, match="--kernels 'cuda': choose torch, triton, chip"):
        Launches("cuda", made, torch.float32, cpu, 64)
    with pytest.raises(ChipError, match="launch 'norm' is not one of"):
        Launches("chip", made, torch.float32, cpu, 64, frozenset({"norm"}))


INTERPRETED = """
import json, sys, torch
from pathlib import Path
from chip.run.native.engine import NativeEngine, NativeSettings
from chip.run.native.requests import NativeRequest, SamplingParams
folder = Path(sys.argv[1])
config = json.loads((folder / "config.json").read_text())
said = []
for kernels in ("torch", sys.argv[2]):
    s = NativeSettings(kernels, "fp32", "cpu", max_context=64, max_step_tokens=24, page_tokens=16)
    e = NativeEngine(config, "x", s,
               folder)
    requests = [NativeRequest(str(n), tuple(range(3, 3 + n)), SamplingParams(2)) for n in (2, 30)]
    e.run(requests)
    said.append([r.output for r in requests])
    by = {row["launch"]: row["by"] for row in e.launches.rows()}
    assert kernels == "torch" or by["decode_attention"] == by["rope_store"] == by["linear_few"] == "triton", by
assert said[0] == said[1], said
"""


@needs_triton
@pytest.mark.parametrize(("name", "kernels"), [("llama-3.2-1b", "triton"), ("qwen3-0.6b", "chip")])
def test_our_triton_kernels_say_the_same_tokens(saved, name, kernels):
    env = {**os.environ, "PYTHONPATH": str(Path(chip.__file__).parents[1]), "TRITON_INTERPRET": "1"}
    words = [sys.executable, "-c", INTERPRETED, str(saved(name)[1]), kernels]
    done = subprocess.run(words, capture_output=True, text=True, env=env, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]


FORMS = """
import torch
from chip.kernels import check
from chip.kernels.triton import paged_decode_attention as paged, prefill_attention as prefill, rope_store, skinny_gemm
g = torch.Generator().manual_seed(1)
def near(got, want, own):
    allowed = 2 * check.distance(own, want) + 4 * check.rounding(got.dtype) * float(want.abs().max())
    assert check.distance(got, want) <= allowed, (check.distance(got, want), allowed)
x, w, b = torch.randn(5, 72, generator=g), torch.randn(46, 72, generator=g), torch.randn(46, generator=g)
for bias in (None, b):
    for gated in (False, True):
        args = (x, w, bias)
        near(skinny_gemm.run(*args, gated=gated), skinny_gemm.reference(*args, gated), skinny_gemm.native(*args, gated))
for page in (16, 32, 128):  # a page of one block, of less, of two
    lengths = torch.tensor([1, page, page + 1, 3 * page - 1], dtype=torch.int32)
    keys, values = torch.randn(2, 13, 2, page, 24, generator=g)
    table = 1 + torch.randperm(12, generator=g).int().view(4, 3)
    q = torch.randn(4, 6, 24, generator=g)
    want, own = paged.reference(q, keys, values, table, lengths), paged.native(q, keys, values, table, lengths)
    for splits in (0, 1, 2, 3, 7):
        for _ in range(2):  # counters are back at zero
            near(paged.run(q, keys, values, table, lengths, splits=splits), want, own)
    q = torch.randn(9, 6, 24, generator=g)
    chunks = [(0, 2, 5), (2, 7, page + 3)]  # of two sequences, after tokens of theirs
    out = torch.full_like(q, float("nan"))
    tiles = torch.tensor(prefill.tiles_of(chunks), dtype=torch.int32).view(-1, 4)
    prefill.launch(q, keys, values, table[:2], tiles, out)
    for (row, new, past), pages in zip(chunks, table):
        one = torch.tensor([past + new], dtype=torch.int32)
        args = q[None, row : row + new], keys, values, pages[None], one
        near(out[row : row + new], prefill.reference(*args)[0], prefill.native(*args)[0])
qkv = torch.randn(5, 8 * 24, generator=g)
cos, sin = torch.rand(2, 40, 12, generator=g)
slots, positions = torch.tensor([3, 16, 90, 47, 64]).int(), torch.tensor([0, 39, 5, 5, 7]).int()
like = torch.randn(6, 2, 16, 24, generator=g)
keys, values, q = like.clone(), like.clone(), torch.empty(5, 4, 24)
rope_store.run(qkv, cos, sin, positions, slots, like, out=(q, keys, values))
want = rope_store.native(qkv, cos, sin, positions, slots, torch.zeros_like(like))
written = torch.zeros(6, 2, 16, 24, dtype=torch.bool)
written[slots.long() // 16, :, slots.long() % 16] = True
assert torch.equal(keys[~written], like[~written]) and torch.equal(values[~written], like[~written])
assert torch.allclose(keys[written], want[1][written], atol=1e-6) and torch.equal(values[written], want[2][written])
assert torch.allclose(q, want[0], atol=1e-6)
"""


@needs_triton
def test_forms_of_the_engines_kernels_that_a_check_does_not_reach():
    env = {**os.environ, "PYTHONPATH": str(Path(chip.__file__).parents[1]), "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", FORMS], capture_output=True, text=True, env=env, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]


def test_tiles_cover_every_query_once_the_longest_walk_first():
    from chip.kernels.triton.prefill_attention import TILE, tiles_of

    chunks = [(0, 300, 0), (300, 5, 1000), (305, TILE, 7)]
    flat = tiles_of(chunks)
    tiles = [flat[i : i + 4] for i in range(0, len(flat), 4)]
    rows = sorted(row + i for row, count, _, _ in tiles for i in range(count))
    assert rows == list(range(305 + TILE))
    reach = [past + count for _, count, past, _ in tiles]
    assert reach == sorted(reach, reverse=True)
    for row, _, past, sequence in tiles:
        first, _, before = chunks[sequence]
        assert past - before == row - first


# -- bad input --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"architectures": ["GemmaForCausalLM"]}, "architecture 'GemmaForCausalLM': native runs LlamaForCausalLM"),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}},
            "rope_type 'yarn': native knows default, linear, llama3",
        ),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling: field 'factor' is missing"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0}}, "low_freq_factor 4 must be"),
        ({"rope_theta": -1.0, "rope_scaling": None}, "rope_theta must be above 0"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"num_key_value_heads": 3}, "not a multiple"),
        ({"hidden_size": "64"}, "hidden_size must be a whole number"),
        ({"eos_token_id": "end"}, "eos_token_id must be a token"),
        ({"head_dim": 15}, "head_dim 15 is odd"),
    ],
)
def test_a_config_that_cannot_be_served_is_one_line(change, says):
    with pytest.raises(ChipError, match=r"^config\.json: ") as e:
        spec.read({**tiny("llama-3.1-8b"), **change}, "config.json")
    assert says in str(e.value)
    assert "\n" not in str(e.value)


def damaged(saved, tmp_path, harm):
    _, folder, config = saved("llama-3.1-8b")
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    harm(tmp_path)
    return lambda: engine_of(tmp_path, config)


def shards(folder):
    return sorted(folder.glob("*.safetensors"))


def truncate(folder):
    path = shards(folder)[1]
    path.write_bytes(path.read_bytes()[:-100])


def rewrite(folder, change):
    from safetensors.torch import load_file, save_file

    path = shards(folder)[0]
    held = load_file(path)
    name = next(n for n in sorted(held) if n.endswith("weight"))
    held[name] = change(held[name])
    save_file({n: t for n, t in held.items() if t is not None}, path)


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda f: shards(f)[1].unlink(), "the shard is missing though model.safetensors.index.json names it"),
        (truncate, "is no whole safetensors file"),
        (lambda f: shards(f)[0].write_bytes(b"junk"), "is no whole safetensors file"),
        (lambda f: (f / weights.INDEX).write_text('{"weight_map": 3}'), "weight_map must name the shard"),
        (lambda f: (f / weights.INDEX).write_text('{"weight_map": {"a": "../x"}}'), "weight_map must name the shard"),
        (lambda f: (f / weights.INDEX).write_text("{"), "is not JSON or is cut short"),
        (lambda f: rewrite(f, lambda t: None), "the weights lack model."),
        (lambda f: rewrite(f, lambda t: t[:-1].contiguous()), "but config.json makes it"),
        (lambda f: rewrite(f, lambda t: t.to(torch.int8)), "native reads bf16, fp16 and fp32"),
        (lambda f: [p.unlink() for p in f.glob("*.safetensors*")], "holds no *.safetensors"),
    ],
)
def test_weights_that_are_not_whole_are_one_line(saved, tmp_path, harm, says):
    load = damaged(saved, tmp_path, harm)
    with pytest.raises(ChipError) as e:
        load()
    assert says in str(e.value)
    assert str(tmp_path) in str(e.value)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("request_", "settings", "says"),
    [
        (
            NativeRequest("a", (1,) * 100, SamplingParams(100)),
            {},
            "a: prompt 100 + output 100 tokens exceed the context of 128",
        ),
        (
            NativeRequest("a", (1,) * 60, SamplingParams(40)),
            {"kv_tokens": 64},
            "a: 100 tokens exceed the KV cache of 64",
        ),
        (NativeRequest("a", ()), {}, "a: the prompt is empty"),
        (NativeRequest("a", (300,)), {}, "a: token 300 is not in the vocabulary of 256"),
        (NativeRequest("a", (1,), SamplingParams(0)), {}, "max_tokens must be at least 1"),
        (NativeRequest("a", (1,), SamplingParams(temperature=-1)), {}, "temperature must be between 0 and 100"),
        (NativeRequest("a", (1,), SamplingParams(top_p=0)), {}, "top_p must be above 0"),
    ],
)
def test_a_request_that_cannot_be_served_is_one_line(saved, request_, settings, says):
    _, folder, config = saved("llama-3.1-8b")
    with pytest.raises(ChipError) as e:
        engine_of(folder, config, **settings).add(request_)
    assert says in str(e.value)


def test_settings_and_formats_that_cannot_be_served(saved):
    _, folder, config = saved("llama-3.1-8b")
    with pytest.raises(ChipError, match="--dtype fp8: native computes bf16, fp16, fp32"):
        engine_of(folder, config, dtype="fp8")
    with pytest.raises(ChipError, match="quantization_config"):
        engine_of(folder, {**config, "quantization_config": {"quant_method": "fp8"}})
    with pytest.raises(ChipError, match="page_tokens must be at least 1"):
        engine_of(folder, config, page_tokens=0)


# -- the command ------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_folder(tmp_path_factory.mktemp("tiny"))


def test_a_prompt_is_streamed_through_the_chat_template(folder, capsys):
    words = ["generate", str(folder), "--prompt-text", "hello world", "--system", "be brief", "--max-tokens", "9"]
    assert cli.main([*words, "--ignore-eos", "--device", "cpu"]) == 0
    streamed = capsys.readouterr().out
    assert cli.main([*words, "--ignore-eos", "--device", "cpu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (answer,) = found["requests"]
    assert answer["text"] == streamed.removesuffix("\n")
    assert len(answer["tokens"]) == 9
    assert found["kernels"] == "torch"
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello world"}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert answer["prompt_tokens"] == len(ids)
    assert "<|assistant|>" in TEMPLATE
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert answer["tokens"] == by_hf(model, ids, 9)


def test_many_requests_are_kept_as_they_finish(folder, tmp_path, capsys):
    file, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [{"prompt": "the cat sat"}, {"tokens": [7, 8, 9], "name": "long", "max_tokens": 20},
             {"prompt": "hello", "temperature": 1.0, "seed": 4, "top_k": 5},
             {"tokens": [99], "name": "odd"}]  # fmt: skip
    file.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    words = ["generate", str(folder), "--requests", str(file), "--max-tokens", "6", "--ignore-eos", "--device", "cpu"]
    assert cli.main([*words, "-o", str(out), "--json"]) == 1  # one of them failed
    document = json.loads(capsys.readouterr().out)
    kept = {r["name"]: r for r in artifact.read_lines(out)}
    assert set(kept) == {"request 1", "long", "request 3", "odd"}
    assert list(kept)[-1] == "long"  # the last to finish
    assert kept["odd"]["reason"] == "odd: token 99 is not in the vocabulary of 20"
    assert [len(kept[n]["tokens"]) for n in ("request 1", "long", "request 3")] == [6, 20, 6]
    assert {r["name"] for r in document["requests"]} == set(kept)
    assert cli.main(words) == 1
    told = capsys.readouterr()
    assert "request 1" in told.out
    assert "chip generate: odd: token 99" in told.err


def test_what_had_finished_survives_an_interrupt(folder, tmp_path, capsys, monkeypatch):
    file, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    file.write_text('{"tokens": [7], "max_tokens": 2, "name": "short"}\n{"tokens": [8], "name": "long"}\n')
    step = NativeEngine.step

    def interrupted(self):
        if self.steps == 4:
            raise KeyboardInterrupt
        return step(self)

    monkeypatch.setattr(NativeEngine, "step", interrupted)
    words = ["generate", str(folder), "--requests", str(file), "-o", str(out), "--ignore-eos", "--device", "cpu"]
    assert cli.main([*words, "--json"]) == 130
    told = capsys.readouterr()
    assert [r["name"] for r in artifact.read_lines(out)] == ["short"]
    document = json.loads(told.out)
    assert document["interrupted"]
    assert [(r["name"], r["status"], len(r["tokens"])) for r in document["requests"]] == [
        ("short", "ok", 2), ("long", "unfinished", 4)
    ]  # fmt: skip
    assert told.err == "chip generate: interrupted; 1 of 2 requests had finished\n"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "line 1: is not JSON"),
        ("[1]", "line 1: a request is a JSON object"),
        ('{"prompt": "a", "max_token": 3}', "line 1: unknown field 'max_token'; known: "),
        ('{"max_tokens": 3}', "line 1: give prompt or tokens"),
        ('{"prompt": 3}', "line 1: prompt must be text"),
        ('{"tokens": []}', "line 1: tokens must be a list of whole numbers"),
        ('{"tokens": [1.5]}', "line 1: tokens must be a list of whole numbers"),
        ('{"prompt": "a", "max_tokens": true}', "line 1: max_tokens must be a whole number"),
        ('{"prompt": "a", "top_p": 2}', "line 1: top_p must be above 0 and at most 1"),
        ("", "holds no request"),
        ('{"prompt": "a", "name": "x"}\n{"prompt": "b", "name": "x"}', "two requests are called 'x'"),
    ],
)
def test_a_bad_file_of_requests_is_one_line(folder, tmp_path, capsys, line, says):
    file = tmp_path / "in.jsonl"
    file.write_text(line)
    assert cli.main(["generate", str(folder), "--requests", str(file), "--device", "cpu"]) == 2
    told = capsys.readouterr()
    assert says in told.err
    assert told.err.count("\n") == 1
    assert not told.out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "give --prompt-text or --requests FILE, one of them"),
        (["--prompt-text", "a", "--requests", "x"], "give --prompt-text or --requests FILE, one of them"),
        (["--requests", "none.jsonl"], "none.jsonl: no such file"),
        (["--prompt-text", "a", "--temperature", "-1"], "options: temperature must be between 0 and 100, got -1.0"),
        (["--prompt-text", "a", "-o", "."], ".: is a folder, a file was expected"),
    ],
)
def test_options_that_cannot_be_are_one_line(folder, capsys, words, says):
    assert cli.main(["generate", str(folder), *words, "--device", "cpu"]) == 2
    assert capsys.readouterr().err == f"chip generate: {says}\n"


def test_a_config_alone_takes_tokens_not_text(tmp_path, capsys):
    config = tmp_path / "config.json"
    config.write_text(json.dumps(tiny("qwen3-0.6b")))
    assert cli.main(["generate", str(config), "--prompt-text", "hello", "--device", "cpu"]) == 2
    assert "comes without a tokenizer; give the request as tokens" in capsys.readouterr().err
    file = tmp_path / "in.jsonl"
    file.write_text('{"tokens": [5, 6, 7]}\n')
    words = ["generate", str(config), "--requests", str(file), "--max-tokens", "4", "--device", "cpu", "--json"]
    assert cli.main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["weights"] == "random"
    assert len(found["requests"][0]["tokens"]) == 4


class Bytes:
    """A tokenizer whose tokens are bytes."""

    def decode(self, tokens, skip_special_tokens):
        return bytes(tokens).decode("utf-8", "replace")


def test_a_character_of_several_tokens_is_told_whole():
    stream = TextStream(Bytes())
    text = "aé€😀."
    pieces = [stream.add(b) for b in text.encode()]
    assert "".join(pieces) + stream.end() == text
    assert "�" not in "".join(pieces)
    cut = TextStream(Bytes())
    for b in "x€".encode()[:-1]:
        cut.add(b)
    assert cut.end() == "�"


# -- bench and capture ------------------------------------------------------------------------------------------------
def test_bench_runs_it_like_any_engine(tmp_path, capsys):
    config = tmp_path / "config.json"
    config.write_text(json.dumps(tiny("llama-3.1-8b")))
    words = [
        "bench",
        str(config),
        "--engine",
        "native",
        "--points",
        "1x20,3x20",
        "--output",
        "5",
        "--energy-seconds",
        "0",
    ]
    words += ["--device", "cpu", "--repeats", "2", "-o", str(tmp_path / "runs.json"), "--json"]
    assert cli.main([*words, "--engine-setting", "step_tokens=16"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [r["batch"] for r in runs] == [1, 3]
    assert all(r["engine"] == "native" and r["status"] == "ok" for r in runs)
    assert cli.main([*words, "--engine-setting", "kernel=torch"]) == 1
    assert "it has kernels, graphs, overlap, page_tokens, step_tokens" in capsys.readouterr().err
    assert cli.main(["bench", str(config), "--engine", "native", "--prompt", "300", "--device", "cpu", "--output", "2",
                     "--energy-seconds", "0", "-o", str(tmp_path / "long.json")]) == 1  # fmt: skip
    assert "the model has 256 positions" in capsys.readouterr().err


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_capture_records_a_step(tmp_path, capsys, phase):
    config = tmp_path / "config.json"
    config.write_text(json.dumps(tiny("llama-3.1-8b")))
    words = ["capture", str(config), "--engine", "native", "--phase", phase, "--batch", "2", "--prompt", "12"]
    assert cli.main([*words, "--device", "cpu", "-o", str(tmp_path / "trace.json"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["launches"] > 20
