"""What no prediction may do, over models x engines x GPUs: more work takes no less time, one token more makes no leap
that padding or tiles do not explain, no product is faster than the peaks, two GPUs are not more than twice as fast.

What breaks such a law because it was measured to is listed in KNOWN, reduced to one example, and answers say so: an
example that no longer breaks it has to leave the list.
"""

import os
from itertools import pairwise
from math import gcd

import pytest
from asking import predict, setting
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from chip import engines, ops
from chip.decoders import library
from chip.engines.chunked import padded
from chip.engines.native import FEW_ROWS
from chip.hardware import gpus
from chip.predictor.peaks import peaks_of
from chip.predictor.stages import Stage
from chip.types import ChipError, Scenario

SLACK = 0.03
STAIRS = 1.10  # a wave of tiles more than there were, where tiles fill the GPU a few times
FASTEST_TWO = 2.05
ROUNDING_S = 1e-12
EXAMPLES = int(os.environ.get("CHIP_EXAMPLES", "30"))  # more of them, at random, where the variable asks for it
LAWS = settings(deadline=None, max_examples=EXAMPLES, derandomize="CHIP_EXAMPLES" not in os.environ)
MODELS = st.sampled_from(library.names())
ENGINES = st.sampled_from(engines.names())
GPUS = st.sampled_from(["h200", "h200", "h200", "h100", "a100", "l40s"])
STAGES = st.sampled_from([Stage.POINTS, Stage.ENGINE])
ALIGNED = 64  # elements of a mask's row, keys of a product: lengths that are multiples of it are all alike


def sizes(most):
    """Small ones as often as large ones."""
    return st.floats(0, most).map(lambda power: int(2**power))


SCENARIOS = st.builds(Scenario, sizes(9), sizes(13).map(lambda n: n + 1), sizes(9))


def asked(model, gpu, engine, s, stage):
    try:
        return predict(library.find(model), gpu, engine, s, stage)
    except ChipError:
        assume(False)


def more_of(s, what, by):
    return Scenario(**{k: getattr(s, k) + (by if k == what else 0) for k in ("batch", "prompt", "output")})


def counted(phase, left_out):
    return sum(line.seconds for line in phase.lines if line.kind not in left_out)


def times(p, left_out=()):
    """(TTFT, TPOT, all) in seconds, but for operators that KNOWN names."""
    first = counted(p.prefill, left_out)
    step = counted(p.decode, left_out) if p.decode else 0.0
    return first, step, first + (p.scenario.output - 1) * step


def ends_early(p):
    """Whether the last steps are of fewer requests, as the answer says: their mean follows no law, their sum does."""
    return any("TPOT is the mean of all steps" in note for note in p.notes)


def leaves_a_graph(p):
    """Whether it runs in a graph that more prompts do not run in, as the answer says."""
    return any("without padding, so that more may take less time" in note for note in p.notes)


def falls(model, gpu, engine, one, two, stage=Stage.POINTS):
    before, after = (times(predict(library.find(model), gpu, engine, s, stage)) for s in (one, two))
    return [(a, b) for a, b in zip(before, after) if b < a * (1 - SLACK)]


def unexplained(gpu):
    """Kinds that KNOWN says may fall on this GPU."""
    return () if gpus.find(gpu).points else ("attention", "growing_attention")


# --- more work
@LAWS
@given(MODELS, GPUS, ENGINES, STAGES, SCENARIOS, st.sampled_from(["batch", "prompt", "output"]), sizes(10))
def test_more_work_never_takes_less_time(model, gpu, engine, stage, s, what, by):
    """HF's lengths grow by multiples of what they are aligned to."""
    if engine != "vllm" and what != "batch":
        by *= ALIGNED
        s = Scenario(s.batch, s.prompt, max(s.output, ALIGNED))  # the least room of a cache
    if unexplained(gpu):
        stage = Stage.POINTS  # where a host is waited for, it is waited for less where one of those takes longer
    larger = more_of(s, what, by)
    found = [asked(model, gpu, engine, each, stage) for each in (s, larger)]
    assume(what != "batch" or not leaves_a_graph(found[0]))
    before, after = (times(p, unexplained(gpu)) for p in found)
    for name, a, b in zip(("TTFT", "TPOT", "all"), before, after):
        if name == "TPOT" and ends_early(found[1]):
            continue
        assert not b or b >= a * (1 - SLACK), (
            f"{name}: {model} {engine} {gpu} {s.name} -> {larger.name}: {b / a - 1:.2%}"
        )


# --- one token more
def up(n, to):
    return -(-n // to) * to


def explained(engine, s, larger):
    """How much longer padding, tiles of 64 to 192 tokens and the work itself can make a prefill."""
    tokens = [each.batch * each.prompt for each in (s, larger)]
    if engine == "vllm":
        tokens = [padded(n, engines.get("vllm").GRAPH_TOKENS) for n in tokens]
    work = max(tokens[1] / tokens[0], up(tokens[1], 64) / up(tokens[0], 64))
    pairs = larger.batch * larger.prompt / (s.batch * s.prompt)
    return max(work, *(pairs * up(larger.prompt, tile) / up(s.prompt, tile) for tile in (1, 64, 128, 192)))


def alike(model, gpu, engine, s, larger):
    """Whether both run the same way: as many steps, in a graph or not, under masks that begin alike."""
    e = engines.get(engine)
    options = e.options((), gpus.find(gpu).memory_bytes)
    steps = [(*e.prefill(each, options), (e.decode(each, options), 0.0)) for each in (s, larger)]
    ways = [[(step.graph, len(step.seqs)) for step, _ in each] for each in steps]
    counts = [sum(weight for _, weight in each) for each in steps]
    if ways[0] != ways[1] or abs(counts[0] - counts[1]) > 0.5:
        return False
    masks = engine == "hf-graph" or bool(setting(library.find(model), gpu, engine, s.dtype, 1).steps.operators.windows)
    slots = [each.prompt + max(each.output, 64) if engine == "hf-graph" else each.prompt for each in (s, larger)]
    return engine == "vllm" or not masks or gcd(slots[0], ALIGNED) == gcd(slots[1], ALIGNED)


@LAWS
@given(MODELS, GPUS, ENGINES, STAGES, SCENARIOS, st.sampled_from(["batch", "prompt"]))
def test_one_more_makes_no_leap(model, gpu, engine, stage, s, what):
    s = Scenario(s.batch, s.prompt, 2)
    larger = more_of(s, what, 1)
    before, after = (asked(model, gpu, engine, each, stage) for each in (s, larger))
    assume(alike(model, gpu, engine, s, larger))
    prefill = after.prefill.seconds / before.prefill.seconds
    assert prefill <= STAIRS * explained(engine, s, larger), f"TTFT {model} {engine} {gpu} {s.name}: {prefill:.3f}"
    if ends_early(before) or ends_early(after):
        return
    rows = [padded(n, engines.get("vllm").GRAPH_TOKENS) if engine == "vllm" else n for n in (s.batch, larger.batch)]
    padding = max(rows[1] / rows[0], up(rows[1], 64) / up(rows[0], 64))
    step = after.decode.seconds / before.decode.seconds
    assert step <= STAIRS * padding, f"TPOT {model} {engine} {gpu} {s.name} + 1 {what}: {step:.3f}"


@pytest.mark.parametrize("engine", engines.names())
def test_walking_through_batches_of_a_decode(engine):
    """Every batch to 80: a step takes no less than the one before, and no leap but its padding."""
    d, s = library.find("llama-3.1-8b"), [Scenario(batch, 100, 2) for batch in range(1, 81)]  # prompts in one step
    steps = [predict(d, "h200", engine, each).decode.seconds for each in s]
    for batch, (a, b) in enumerate(pairwise(steps), 1):
        rows = [padded(n, engines.get("vllm").GRAPH_TOKENS) if engine == "vllm" else n for n in (batch, batch + 1)]
        stairs = 1.2 if (engine, batch) == ("native", FEW_ROWS) else STAIRS  # there another kernel takes products over
        assert a * (1 - SLACK) <= b <= a * stairs * rows[1] / rows[0], batch


# --- peaks
@LAWS
@given(MODELS, st.sampled_from(["h200", "h200", "h100", "a100", "l40s", "l4"]), ENGINES, STAGES, SCENARIOS)
def test_no_product_is_faster_than_the_peaks(model, gpu, engine, stage, s):
    """Of the datasheet: what cold operands take from memory, what products take from the tensor cores."""
    spec = gpus.spec(gpu)
    rate, memory, peaks = spec.ceilings["matmul_bf16"].value, spec.ceilings["hbm"].value, peaks_of(gpus.find(gpu))
    p = asked(model, gpu, engine, s, stage)
    for phase in (p.prefill, p.decode) if p.decode else (p.prefill,):
        for line in phase.lines:
            if ops.multiplies(line.kind):
                assert line.seconds >= 0.99 * line.flops / rate, (line.role, line.kind)
            if line.kind == "linear":
                from_memory_s = peaks.least_s("", 0.0, line.bytes / line.calls)  # all but what L2 may hold
                assert line.seconds >= 0.97 * line.calls * from_memory_s, (line.role, line.kind)
    assert p.decode is None or p.decode.seconds >= 0.97 * weights_read(p) / memory


def weights_read(p):
    """Bytes of weights that every decode step reads: those of its dense layers."""
    return sum(line.bytes for line in p.decode.lines if line.kind == "linear")


# --- several GPUs
@LAWS
@given(MODELS, st.sampled_from(["h200", "h100", "a100"]), ENGINES, STAGES, SCENARIOS)
def test_two_gpus_are_not_more_than_twice_as_fast(model, gpu, engine, stage, s):
    two = Scenario(s.batch, s.prompt, s.output, s.dtype, 2)
    one, shared = (times(asked(model, gpu, engine, each, stage)) for each in (s, two))
    for name, a, b in zip(("TTFT", "TPOT", "all"), one, shared):
        assert a <= FASTEST_TWO * b, f"{name}: {model} {engine} {gpu} {s.name}: {a / b:.3f} x"


def test_two_gpus_with_one_key_head_each():
    """hf-graph copies two key heads for each of their queries, and one not at all: nobody measured what that saves."""
    s = Scenario(128, 2, 2), Scenario(128, 2, 2, tp=2)
    one, two = (predict(library.find("starcoder2-3b"), "h200", "hf-graph", each).decode.seconds for each in s)
    assert two < one <= FASTEST_TWO * two


# --- intervals
@LAWS
@given(MODELS, GPUS, ENGINES, st.sampled_from(list(Stage)), SCENARIOS)
def test_every_interval_holds_its_value(model, gpu, engine, stage, s):
    p = asked(model, gpu, engine, s, stage)
    for phase in (p.prefill, p.decode) if p.decode else (p.prefill,):
        assert 0 < phase.low_s <= phase.seconds <= phase.high_s
        for line in phase.lines:
            assert 0 <= line.low_s <= line.seconds * (1 + 1e-9) + ROUNDING_S, line
            assert line.seconds <= line.high_s * (1 + 1e-9) + ROUNDING_S, line
