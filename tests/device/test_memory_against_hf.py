"""Peak memory of every family under HF against what torch allocates, by its profiler, on tiny models on the CPU.

One size has long prompts, where scores and masks count most, the other many short ones. Weights lie there before.
"""

import gc
import json

import pytest

from chip import engines
from chip.decoders import describe
from chip.dtypes import precision
from chip.types import Scenario

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from tiny_models import MODELS, families, shrink  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.profiler import ProfilerActivity, profile, record_function  # noqa: E402

from chip.lab.run.model import from_config  # noqa: E402
from chip.lab.run.steps import Eager  # noqa: E402

SIZES = ((2, 256), (16, 32))  # batch, prompt
TOLERANCE = 0.1
TRUE_TO_LIFE = {  # an MLP that is wider than the residual stream
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "shared_expert_intermediate_size"), 256),
    **{"moe_intermediate_size": 128, "n_embed": 64, "n_positions": 512, "max_position_embeddings": 512},
}
# A CPU has no kernel for values that are narrower than keys, as GPUs have: it holds all scores. With short prompts they
# do not count.
ON_CPU_ONLY = ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM")
LATER = ("Gemma2ForCausalLM",)  # have lost their sdpa since transformers 5.17


def widened(raw):
    return {k: TRUE_TO_LIFE[k] if k in TRUE_TO_LIFE and v is not None else v for k, v in raw.items()}


def cases():
    one_key_head = json.loads((MODELS / "falcon-7b.json").read_text(encoding="utf-8"))
    return {**families(), "FalconForCausalLM, one key head": {**shrink(one_key_head), "num_attention_heads": 4}}


def allocated(steps_of):
    """The most that is allocated at once while each step runs, beyond what was before it."""
    gc.disable()  # nothing of an earlier step is freed within a later one
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found, torch.inference_mode():
        for name, (steps, kernels) in steps_of.items():
            with sdpa_kernel(kernels), record_function(name):
                steps.prefill()
    gc.enable()
    events = sorted(found.profiler.kineto_results.events(), key=lambda e: e.start_ns())
    spans = {e.name(): (e.start_ns(), e.end_ns()) for e in events if e.name() in steps_of}
    changes = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    return {name: most([n for at, n in changes if start <= at <= end]) for name, (start, end) in spans.items()}


def most(changes):
    level = highest = 0
    for change in changes:
        level += change
        highest = max(highest, level)
    return highest


def predicted(raw, scenario):
    d, engine, p = describe(raw, "tiny", "tiny"), engines.get("hf-eager"), precision(scenario.dtype)
    room = engine.room(scenario, 1e12)
    cache = d.kv_bytes(room.cache_tokens, p) * scenario.batch * engine.copies(d)
    return cache + engine.peak_bytes(d, p, scenario, room)


def test_peak_memory_of_every_family():
    steps, expected, draw = {}, {}, torch.Generator().manual_seed(0)
    for name, raw in ((n, widened(r)) for n, r in cases().items()):
        model = from_config({k: v for k, v in raw.items() if k != "architectures"}, torch.float32, "cpu").eval()
        if name in LATER and model.config._attn_implementation == "eager":
            continue
        kernels = SDPBackend.MATH if "one key head" in name else [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
        for batch, prompt in SIZES[1:] if name in ON_CPU_ONLY else SIZES:
            key = f"{name} {batch} x {prompt}"
            ids = torch.randint(3, 200, (batch, prompt), generator=draw)
            steps[key] = (Eager(model, ids), kernels)
            expected[key] = predicted(raw, Scenario(batch, prompt, 1, "fp32"))
    found = allocated(steps)
    assert len(found) >= 70
    errors = {key: expected[key] / found[key] - 1 for key in found}
    assert {key: round(e, 3) for key, e in errors.items() if abs(e) > TOLERANCE} == {}
