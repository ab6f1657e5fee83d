"""What a layer launches, family by family, against what transformers asks of torch when it runs on the meta device:
every operator that is not a view is a kernel, and a product that adds to broadcast values spreads them first."""

import logging

import pytest
from folding import each
from test_rows_against_hf import OWN_FILE

from chip import engines, ops
from chip.decoders import describe
from chip.decoders.lower import body
from chip.dtypes import precision
from chip.engines.hf import WITHOUT_SDPA
from chip.ops.attention import Attention

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from test_families_against_hf import CASES  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from chip.lab.measure import build as measured  # noqa: E402

VIEWS = {
    "_unsafe_view", "alias", "as_strided", "detach", "empty", "empty_like", "expand", "new_empty", "permute", "select",
    "slice", "split", "split_with_sizes", "squeeze", "t", "transpose", "unbind", "unsqueeze", "view",
}  # fmt: skip
KERNELS = {"baddbmm": 2}
EAGER = engines.get("hf-eager")
BEYOND = {  # kernels that are not predicted
    "olmo": 3,  # queries, keys and values are clipped where the config says so
    "falcon-7b": -23,  # what sdpa runs is counted once, copies of an index to the GPU are not
    "qwen2-moe": -2,  # weights of experts are not normalised
    "olmoe": -2,
    "glm4-moe": 13,  # a router in fp32 that chooses among groups
}
BEYOND_FIRST = {**BEYOND, "olmo3": 2, "glm4-moe": 0}  # keys and values repeated under a mask; a dense layer
JUDGED = (
    "llama", "mistral", "granite", "qwen2", "qwen3", "smollm3", "seed-oss", "starcoder2", "stablelm", "opt", "gpt2",
    "gpt-bigcode", "gpt-bigcode-many-heads", "phi", "phi3", "phi3-grouped", "gpt-neox", "gpt-neox-in-turn", "bloom",
    "gpt-j", "mixtral", "qwen3-moe", "gemma", "gemma3", "olmo2", "olmo3", "glm", "glm4", *BEYOND,
)  # fmt: skip
EXPERTS = ("mixtral", "qwen3-moe", "qwen2-moe", "olmoe", "glm4-moe")
MASKS = 5  # kernels that mask the experts of other GPUs: transformers 5.17 always runs them, later ones where needed
LATER = {"Gemma2ForCausalLM"}  # have lost their sdpa since transformers 5.17


class Launches(TorchDispatchMode):
    """Operators asked for while it is on. Attention by sdpa counts as one."""

    def __init__(self):
        super().__init__()
        self.on, self.names = False, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        if self.on and name not in VIEWS:
            self.names += [name] * KERNELS.get(name, 1)
        return function(*args, **(kwargs or {}))


class Sdpa(TorchFunctionMode):
    def __init__(self, launches):
        super().__init__()
        self.launches = launches

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is not torch.nn.functional.scaled_dot_product_attention:
            return function(*args, **(kwargs or {}))
        if self.launches.on:
            self.launches.names.append("sdpa")
        query, _, value = args
        batch, heads, queries, _ = query.shape
        return query.new_empty((batch, queries, heads, value.shape[-1])).transpose(1, 2)


def build(raw):
    logging.getLogger("transformers").setLevel(logging.ERROR)
    config = transformers.AutoConfig.for_model(**raw)
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


def launched(model, tokens, at=-1):
    """By one layer, in a prefill of one prompt."""
    count = model.config.num_hidden_layers
    layer = next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == count)[at]
    launches = Launches()
    layer.register_forward_pre_hook(lambda *_: setattr(launches, "on", True))
    layer.register_forward_hook(lambda *_: setattr(launches, "on", False))
    with torch.no_grad(), torch.device("meta"), Sdpa(launches), launches:
        model(torch.zeros((1, tokens), dtype=torch.long), use_cache=True)
    return launches.names


def predicted(d, at=-1):
    """By a layer of the first kind (at 0) or the last (at -1)."""
    program = EAGER.rewrite(body(d, 1, precision("bf16"), 1), False, d.architecture)
    block = [b for b in program.blocks if any(isinstance(c.op, Attention) for c in b.calls)][at]
    return sum(EAGER.KERNELS.get(c.op.kind, c.op.KERNELS) for c in block.calls)


@pytest.mark.parametrize("at", [0, -1], ids=["first", "last"])
@pytest.mark.parametrize("case", JUDGED)
def test_a_layer_launches_what_is_predicted(case, at):
    raw = {**CASES[case], "mlp_only_layers": []} if case == "qwen3-moe" else CASES[case]
    d = describe(raw, case, f"{case}.json")
    try:
        names = launched(build(raw), 24, at)
    except RuntimeError as e:
        if "meta tensors" not in str(e):
            raise
        pytest.skip(f"transformers {transformers.__version__} looks at values, which meta tensors have none of")
    beyond = (BEYOND if at else BEYOND_FIRST).get(case, 0)
    dense = case == "glm4-moe" and not at
    if case in EXPERTS and not dense and "ge" not in names:
        beyond -= MASKS
    assert len(names) == predicted(d, at) + beyond, names
    assert ("sdpa" in names) == (d.architecture not in WITHOUT_SDPA)


@pytest.mark.parametrize("kind", ["moe_experts_composed", "moe_router_composed"])
def test_experts_are_measured_in_as_many_kernels(kind):
    axes = {"tokens": 6, "hidden": 32, "intermediate": 16, "experts": 4, "top_k": 2}
    op = ops.build(kind, {a: v for a, v in axes.items() if a in ops.axes(ops.get(kind))})
    call = measured.build(op, torch.device("cpu"), torch.Generator())
    launches = Launches()
    launches.on = True
    with torch.no_grad(), launches:
        call()
    assert len(launches.names) == op.KERNELS, launches.names


@each(sorted(OWN_FILE))
def test_families_without_sdpa_are_those_of_transformers(architecture):
    has = getattr(transformers, architecture)._supports_sdpa
    assert has == (architecture not in WITHOUT_SDPA) or (architecture in LATER and not has)
