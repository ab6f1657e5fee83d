"""The native engine on the CPU: the tokens of transformers, whatever is batched, paged, chunked or computed twice."""

import json

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny_native import FAMILIES, OUTPUT, TIGHT, by_hf, engine_of, generated, hf_model, prompts, tiny  # noqa: E402

from chip.lab.run.native import batch, graphs, spec  # noqa: E402
from chip.lab.run.native.requests import NativeRequest, SamplingParams  # noqa: E402
from chip.lab.run.native.scheduler import StepShare  # noqa: E402


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


class OnCpu(graphs.Captured):
    """The step of a graph, run anew instead of replayed: everything around it is the same."""

    def capture(self, by):
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
    engine.graphs = graphs.DecodeGraphs(engine.decoder, engine.allocator.pages_for(64), graphs.Capturer())
    loads = []
    load = OnCpu.load
    monkeypatch.setattr(OnCpu, "load", lambda self, requests: (loads.append(len(requests)), load(self, requests)))
    fed, _ = generated(engine, sampling)
    assert fed == plain
    assert set(engine.graphs.captured) <= {1, 2, 4, 8}
    assert len(engine.graphs.captured) > 1 or settings is not TIGHT
    assert 0 < len(loads) < engine.steps  # not every step uploads


def test_a_step_launched_too_early_is_dropped(saved, monkeypatch):
    """The next step is launched before this one's tokens are known: an end token among them changes no other."""
    monkeypatch.setattr(graphs, "Captured", OnCpu)
    _, folder, config = saved("llama-3.1-8b")
    plain, _ = generated(engine_of(folder, config, max_context=64), SamplingParams(OUTPUT))
    end = plain[1][2]
    config = {**config, "eos_token_id": end}
    stopped, _ = generated(engine_of(folder, config, max_context=64), SamplingParams(OUTPUT))
    assert stopped != plain
    engine = engine_of(folder, config, max_context=64)
    engine.graphs = graphs.DecodeGraphs(engine.decoder, engine.allocator.pages_for(64), graphs.Capturer())
    replays = []
    replay = OnCpu.replay
    monkeypatch.setattr(OnCpu, "replay", lambda self: (replays.append(1), replay(self)))
    assert generated(engine, SamplingParams(OUTPUT))[0] == stopped
    assert len(replays) > max(map(len, stopped)) - 1  # the first token is the prompt's; one step was dropped
