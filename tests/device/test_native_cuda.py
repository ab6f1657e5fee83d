"""The native engine on a GPU: bf16 beside transformers' own, every choice of kernels, graphs or none, early or not."""

import json

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny_models import bundled  # noqa: E402

from chip.lab.run.native import batch, spec, weights  # noqa: E402
from chip.lab.run.native.engine import NativeEngine, NativeSettings  # noqa: E402
from chip.lab.run.native.requests import NativeRequest, SamplingParams  # noqa: E402
from chip.lab.run.native.scheduler import StepShare  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
WIDE = {"hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 2,
        "vocab_size": 1000, "max_position_embeddings": 1024, "torch_dtype": "bfloat16",
        "eos_token_id": None}  # fmt: skip
CONFIGS = {
    "llama-3.1-8b": {"head_dim": 64},
    "qwen2.5-0.5b": {"head_dim": 64},
    "qwen3-0.6b": {"head_dim": 128},
    "mistral-7b": {"head_dim": 128},
}
KERNELS = ("torch", "triton", "chip")


def config_of(name):
    raw = {**bundled(name), **WIDE, **CONFIGS[name]}
    raw.pop("rope_scaling", None)
    return raw


@pytest.fixture(scope="module")
def models():
    """Name -> (fp32 model, the same in bf16, the engine's weights, config)."""
    from transformers import AutoConfig, AutoModelForCausalLM

    made = {}

    def of(name):
        if name not in made:
            raw = config_of(name)
            torch.manual_seed(1)
            low = AutoModelForCausalLM.from_config(AutoConfig.for_model(**raw)).to(torch.bfloat16).cuda().eval()
            for key, p in low.named_parameters():
                p.data.normal_(0, 0.06) if p.dim() > 1 or key.endswith("bias") else p.data.uniform_(0.5, 1.5)
            high = AutoModelForCausalLM.from_config(AutoConfig.for_model(**raw)).float().cuda().eval()
            high.load_state_dict({k: v.float() for k, v in low.state_dict().items()})
            loaded = weights.load(spec.read(raw, name), OfModel(low), torch.bfloat16, torch.device("cuda:0"))
            made[name] = high, low, loaded, raw
        return made[name]

    return of


class OfModel(weights.WeightSource):
    def __init__(self, model):
        self.held = dict(model.state_dict())

    def fill(self, to, name):
        to.copy_(self.held[name])


def engine_of(model, **settings):
    _, _, loaded, raw = model
    kept = {"dtype": "bf16", "device": "cuda:0", "max_context": 512, "max_rows": 16, "kv_tokens": 8192, **settings}
    return NativeEngine(raw, "config", NativeSettings(**kept), loaded=loaded)


def prompts(lengths, seed=4):
    draw = torch.Generator().manual_seed(seed)
    return [tuple(torch.randint(0, WIDE["vocab_size"], (n,), generator=draw).tolist()) for n in lengths]


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("kernels", KERNELS)
def test_logits_are_as_near_to_fp32_as_transformers_own(models, name, kernels):
    high, low, _, _ = models(name)
    engine = engine_of(models(name), kernels=kernels)
    for prompt in prompts((5, 64, 130, 300)):
        request = NativeRequest("one", prompt)
        engine.allocator.grow(request.table, len(prompt))
        with torch.inference_mode():
            ids = torch.tensor([prompt], device="cuda")
            want, theirs = high(ids).logits[0, -1], low(ids).logits[0, -1].float()
            for new in (len(prompt) - 2, 1, 1):  # a chunk, then two decode steps
                shares = [StepShare(request, new)]
                ours = engine.decoder.logits(batch.build(shares, engine.settings.page_tokens, engine.device))
                request.computed += new
        error, allowed = float((ours[0].float() - want).abs().max()), 2 * float((theirs - want).abs().max())
        assert error <= allowed, json.dumps(engine.launches.rows())
        engine.allocator.release(request.table)


def said(engine, lengths=(3, 70, 200, 33), sampling=None):
    """Four requests that decode together: a batch size that has a graph, so that no product gets other rows."""
    requests = [NativeRequest(str(i), p, sampling or SamplingParams(20)) for i, p in enumerate(prompts(lengths))]
    engine.run(requests)
    return [r.output for r in requests]


@pytest.mark.parametrize("kernels", KERNELS)
def test_graphs_and_early_starts_change_no_token(models, kernels):
    model = models("llama-3.1-8b")
    plain = said(engine_of(model, kernels=kernels, graphs=False, overlap=False))
    assert said(engine_of(model, kernels=kernels, overlap=False)) == plain
    early = engine_of(model, kernels=kernels)
    assert said(early) == plain
    assert said(early) == plain  # counters and workspaces are as they were
    drawn = SamplingParams(20, temperature=0.8, top_p=0.9, seed=7)
    assert said(early, sampling=drawn) == said(engine_of(model, kernels=kernels, graphs=False), sampling=drawn)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_prompt_as_a_graph_is_as_near_to_fp32(models, name):
    """Padded to 16, 128 and 384 tokens: after other prompts of the same graph, whole and after a chunk of its own."""
    high, low, _, _ = models(name)
    engine = engine_of(models(name))
    for prompt in prompts((5, 100, 128, 70, 300, 9, 381)):
        for past in (0, len(prompt) // 2):
            request = NativeRequest("one", prompt)
            engine.allocator.grow(request.table, len(prompt))
            with torch.inference_mode():
                if past:
                    first = batch.build([StepShare(request, past)], engine.settings.page_tokens, engine.device)
                    engine.decoder.logits(first)
                    request.computed = past
                rest = StepShare(request, len(prompt) - past)
                assert engine.prompts.takes([rest])
                ours = engine.prompts.logits(rest)[0].float()
                ids = torch.tensor([prompt], device="cuda")
                want, theirs = high(ids).logits[0, -1], low(ids).logits[0, -1].float()
            allowed = 2 * float((theirs - want).abs().max())
            assert float((ours - want).abs().max()) <= allowed, (len(prompt), past)
            engine.allocator.release(request.table)
    assert {16, 64, 128, 256, 384} >= set(engine.prompts.captured) >= {16, 128, 384}


def test_on_this_gpu_every_launch_is_ours(models):
    rows = engine_of(models("llama-3.1-8b"), kernels="chip").launches.rows()
    assert all(row["by"] != "torch" for row in rows), rows
