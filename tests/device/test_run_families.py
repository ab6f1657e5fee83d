"""Every family really runs under the HF engines, and the static cache says what the growing one says."""

import math
from collections import Counter

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from test_rows_against_hf import OWN_FILE  # noqa: E402
from tiny_models import bundled, families  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from chip import engines  # noqa: E402
from chip.decoders import describe  # noqa: E402
from chip.decoders.lower import body, place  # noqa: E402
from chip.dtypes import precision  # noqa: E402
from chip.engines import hf_graph  # noqa: E402
from chip.lab import run  # noqa: E402
from chip.lab.run.model import from_config  # noqa: E402
from chip.lab.run.steps import MAKE_A_MASK, Eager, Static, make_capturable  # noqa: E402
from chip.ops.masked_attention import MaskedAttention  # noqa: E402
from chip.ops.moves import KvRoll  # noqa: E402
from chip.types import ChipError, Scenario, Seq  # noqa: E402

FAMILIES = families()
POINT = Scenario(2, 10, 6, "fp32")  # crosses the sliding windows of 12 tokens
NO_STATIC = "older transformers cannot run BLOOM over a StaticCache"


def job(config, **settings):
    return run.Job("tiny", config, dtype="fp32", device="cpu", energy_s=0, **settings)


def test_every_family_is_run():
    assert set(FAMILIES) == OWN_FILE - {"Gemma3ForConditionalGeneration"}


@pytest.mark.parametrize("family", FAMILIES)
def test_static_and_growing_caches_say_the_same(family):
    torch.set_num_threads(1)
    model = from_config(FAMILIES[family], torch.float32, "cpu").eval()
    assert type(model).__name__ == family
    if family == "BloomForCausalLM" and not _bloom_is_static(model):
        pytest.skip(NO_STATIC)
    ids = torch.randint(3, 256, (2, POINT.prompt), generator=torch.Generator().manual_seed(1))
    said = {}
    with torch.inference_mode():
        for kind, steps in {"eager": Eager(model, ids, True), "static": Static(model, ids, 74, True)}.items():
            for _ in range(2):  # the second time on a cache that was used before
                steps.rewind()
                said[kind] = [steps.prefill().tolist(), *(steps.decode().tolist() for _ in range(5))]
    assert said["static"] == said["eager"]


@pytest.mark.parametrize("family", ["Gemma3ForCausalLM", "MistralForCausalLM", "Phi3ForCausalLM"])
@pytest.mark.parametrize("prompt", [4, 10, 20])  # the window of 12 never full, filled on the way, full from the start
def test_attention_meets_as_many_slots_as_predicted(family, prompt, monkeypatch):
    s, config = Scenario(2, prompt, 6, "fp32"), {**FAMILIES[family], "sliding_window": 12}
    model, decoder = from_config(config, torch.float32, "cpu").eval(), describe(config, "tiny", "here")
    met, rolled = [], []
    for owner, name, into, which in ((F, "scaled_dot_product_attention", met, 1), (torch.Tensor, "roll", rolled, 0)):
        monkeypatch.setattr(owner, name, _telling(getattr(owner, name), into, which))
    slots = hf_graph.cache_tokens(s)
    steps = Static(model, torch.full((2, prompt), 3), slots)
    with torch.inference_mode():
        steps.prefill()  # makes the cache's tensors
        for layer in steps.cache.layers:
            if hasattr(layer, "cumulative_length_int"):
                make_capturable(layer)
        steps.rewind()
        for step in (Seq(prompt, 0, 2, slots), *(Seq(1, prompt + i, 2, slots) for i in range(5))):
            met.clear()
            rolled.clear()
            (steps.prefill if step.past == 0 else steps.decode)()
            program = engines.get("hf-graph").rewrite(body(decoder, 1, precision("fp32"), 1), step.past > 0)
            placed = [c.op for b in place(program, (step,)).blocks for c in b.calls * b.repeat]
            assert Counter(k[-2] for k in met) == Counter(op.kv_len for op in placed if isinstance(op, MaskedAttention))
            moved = sum(op.rows * op.cols for op in placed if isinstance(op, KvRoll))
            assert sum(shape.numel() for shape in rolled) == moved


def _telling(function, into, which):
    """The same function, which notes the shape of one of its arguments."""

    def wrapped(*args, **kwargs):
        into.append(args[which].shape)
        return function(*args, **kwargs)

    return wrapped


@pytest.mark.parametrize(
    "family", ["Gemma3ForCausalLM", "Gemma2ForCausalLM", "MistralForCausalLM", "GptOssForCausalLM"]
)
@pytest.mark.parametrize("prompt", [4, 10, 20])  # the window of 12 never full, filled on the way, full from the start
def test_what_a_capture_needs_changes_nothing(family, prompt):
    model = from_config(FAMILIES[family], torch.float32, "cpu").eval()
    ids = torch.randint(3, 256, (2, prompt), generator=torch.Generator().manual_seed(1))
    plain, ready = Static(model, ids, prompt + 64, True), Static(model, ids, prompt + 64, True)
    ready.prefill()
    windows = [layer for layer in ready.cache.layers if hasattr(layer, "cumulative_length_int")]
    assert windows
    for layer in windows:
        make_capturable(layer)
    said = []
    with torch.inference_mode():
        for steps in (plain, ready):
            steps.rewind()
            said.append([steps.prefill().tolist(), *(steps.decode().tolist() for _ in range(6))])
    assert said[0] == said[1]


class NoReads(torch.utils._python_dispatch.TorchDispatchMode):
    """A number read from the device: what ends a capture."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        reads = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default)
        assert func not in reads, "a tensor was read on the host"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - {"BloomForCausalLM"}))
def test_no_step_reads_from_the_device(family, monkeypatch):
    monkeypatch.setattr("transformers.utils.import_utils.is_cuda_stream_capturing", lambda: True)
    model = from_config(FAMILIES[family], torch.float32, "cpu").eval()
    static = Static(model, torch.randint(3, 256, (2, 10)), 74)
    with torch.inference_mode():
        static.prefill()
        for layer in static.cache.layers:
            if hasattr(layer, "cumulative_length_int"):
                make_capturable(layer)
        with NoReads():
            static.prefill()
            static.decode()
        if model.config.model_type in MAKE_A_MASK:
            static._mask = {}
            with NoReads(), pytest.raises(AssertionError, match="read on the host"):
                static.decode()


@pytest.mark.parametrize("engine", ["hf-eager", "hf-graph", "hf-compile"])
def test_a_point_beyond_the_positions_is_refused(engine):
    with run.get(engine).open(job(bundled("opt-125m"))) as session:
        with pytest.raises(
            ChipError, match=r"^prompt \+ output is 257 tokens and the model has 256 positions; shorten"
        ):
            session.measure(Scenario(1, 240, 17, "fp32"), 2)
        with pytest.raises(ChipError, match=r"has 256 positions, and 8 decode steps are always run; shorten them$"):
            session.measure(Scenario(1, 250, 2, "fp32"), 2)


def test_without_a_table_of_positions_the_last_one_can_be_used():
    with run.get("hf-eager").open(job(bundled("tinyllama-1.1b"))) as session:
        assert session.measure(Scenario(1, 254, 2, "fp32"), 2).status == "ok"
        with pytest.raises(ChipError, match=r"is 257 tokens and the model has 256 positions"):
            session.measure(Scenario(1, 254, 3, "fp32"), 2)


def _bloom_is_static(model):
    try:
        Static(model, torch.zeros((1, 4), dtype=torch.long), 68).prefill()
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize(
    ("family", "engine"),
    [*((family, "hf-graph") for family in FAMILIES), *((family, "hf-eager") for family in [*FAMILIES][::6])],
)
def test_family_is_measured(family, engine):
    torch.set_num_threads(1)
    with run.get(engine).open(job(FAMILIES[family])) as session:
        if engine == "hf-graph" and family == "BloomForCausalLM" and not _bloom_is_static(session.model):
            pytest.skip(NO_STATIC)
        found = session.measure(POINT, 2)
    assert found.status == "ok"
    assert (found.engine, found.scenario, found.weights) == (engine, POINT, "random")
    assert len(found.ttft_ns) == len(found.e2e_ns) == 2
    for ttft, steps, whole in zip(found.ttft_ns, found.step_ns, found.e2e_ns, strict=True):
        assert len(steps) == POINT.output - 1
        assert min(steps) > 0
        assert ttft + sum(steps) == whole
    assert found.engine_version.startswith("transformers ")
    assert found.memory["process_peak_bytes"] > 2**20
    assert ("a CPU has no graphs" in " ".join(found.flags)) == (engine == "hf-graph")


def test_random_weights_are_random_and_norms_are_one():
    model = from_config(bundled("qwen2.5-0.5b"), torch.bfloat16, "cpu")
    for name, p in model.named_parameters():
        assert p.dtype == torch.bfloat16, name
        if "norm" in name:
            assert (p == 1).all(), name
        else:
            assert p.float().std().item() == pytest.approx(0.02, rel=0.5), name
            assert math.isfinite(p.float().sum().item())


@pytest.mark.parametrize("name", ["qwen2.5-0.5b", "opt-125m", "llama-3.1-8b"])
def test_weights_are_tied_where_the_model_ties_them(name):
    model = from_config(bundled(name), torch.bfloat16, "cpu")
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert tied == bundled(name).get("tie_word_embeddings", name == "opt-125m")


def test_hf_compile_compiles_the_decode_step():
    """With dynamo alone: inductor on a CPU takes a C++ compiler and half a minute."""
    with run.get("hf-compile").open(job(bundled("tinyllama-1.1b"), settings={"backend": "eager"})) as session:
        found = session.measure(POINT, 2)
    assert found.status == "ok"
    assert found.setup_s["compile"] > 0
    assert found.variant == "backend=eager"


@pytest.mark.parametrize(
    ("engine", "settings", "says"),
    [
        ("hf-eager", {"settings": {"depth": "2"}}, "--engine-setting depth: this engine does not know it; it has none"),
        ("hf-compile", {"settings": {"depth": "2"}}, "it has backend, mode"),
        ("hf-eager", {"sdpa": "cudnn"}, "--sdpa cudnn: torch has no such kernel for this step"),
    ],
)
def test_what_cannot_be_is_one_line(engine, settings, says):
    with (
        pytest.raises(ChipError, match=says),
        run.get(engine).open(job(bundled("tinyllama-1.1b"), **settings)) as session,
    ):
        session.measure(POINT, 2)


def test_a_family_without_sdpa_refuses_a_backend():
    with pytest.raises(ChipError, match="transformers has no sdpa attention for it; leave --sdpa out"):
        run.get("hf-eager").open(job(bundled("bloom-560m"), sdpa="math"))


def test_a_family_that_cannot_be_static_says_so(monkeypatch):
    def refuse(*_):
        raise RuntimeError("shapes differ")

    says = r"LlamaForCausalLM cannot be run over a StaticCache \(RuntimeError: shapes differ\); use --engine hf-eager"

    monkeypatch.setattr(Static, "prefill", refuse)
    with run.get("hf-graph").open(job(bundled("tinyllama-1.1b"))) as session, pytest.raises(ChipError, match=says):
        session.measure(POINT, 2)


def test_an_unknown_engine_is_named():
    with pytest.raises(ChipError, match="no engine 'hf-egaer' to run; did you mean hf-eager"):
        run.get("hf-egaer")
