"""Steps of a model on an engine: lines add up, intervals hold; every engine, models of every make, all stages."""

import math
from itertools import pairwise, product

import pytest
from asking import setting
from hypothesis import example, given, settings
from hypothesis import strategies as st

from chip import engines
from chip.decoders import library
from chip.decoders.lower import body, head, place
from chip.dtypes import precision
from chip.engines import profile
from chip.engines.timeline import Terms
from chip.hardware import gpus
from chip.predictor.clock import Settling
from chip.predictor.estimator import estimator_of
from chip.predictor.phase import Line, interval
from chip.predictor.request import answer
from chip.predictor.schedule import attending
from chip.predictor.stages import Stage
from chip.predictor.steps import ENGINE, WAITING, EngineTerms, step_model
from chip.types import Program, Scenario, Seq, Step

MODELS = ("llama-3.1-8b", "mixtral-8x7b", "deepseek-v3", "gemma-2-2b", "gpt2", "gpt-oss-20b")
EVERY = [
    (name, model)
    for name, model in product(engines.names(), MODELS)
    if not engines.get(name).SERVES.refusal(name, library.find(model).architecture, "bf16")
]
BF16 = precision("bf16")
CALIBRATED = [
    name for name in engines.names() if (profile.ENGINES / f"h200.{engines.get(name).LIKE or name}.json").exists()
]
S = Scenario(3, 500, 20)


def steps(model, engine, stage=Stage.ENGINE, gpu="h200", **options):
    held = setting(library.find(model), gpu, engine, "bf16", 1, stage, **options)
    return held.steps


def phases(model, engine, stage=Stage.ENGINE, s=S, **options):
    found = steps(model, engine, stage, **options)
    return found.prefill(s), found.decode(s)


@pytest.mark.parametrize(("engine", "model"), EVERY)
def test_lines_add_up_and_intervals_hold(engine, model):
    for stage in Stage:
        for phase in phases(model, engine, stage):
            assert sum(line.seconds for line in phase.lines) == pytest.approx(phase.seconds)
            assert 0 < phase.low_s <= phase.seconds <= phase.high_s < 100 * phase.seconds
            assert [n.seconds for n in phase.lines] == sorted((n.seconds for n in phase.lines), reverse=True)
            assert len({n.role for n in phase.lines}) == len(phase.lines)
            assert phase.joules == pytest.approx(sum(n.joules for n in phase.lines))
            added = {n.source for n in phase.lines if n.kind == ENGINE}
            with_terms = stage.has_terms and engine in CALIBRATED
            assert added == ({ENGINE} if with_terms else set())


@pytest.mark.parametrize(("engine", "model"), EVERY)
def test_an_engine_adds_to_its_operators_and_takes_nothing_away(engine, model):
    """The same lines, and those of the engine, which take no energy but leave more time for it."""
    for alone, whole in zip(phases(model, engine, Stage.POINTS), phases(model, engine)):
        operators = {n.role: n[:-1] for n in whole.lines if n.kind != ENGINE}
        assert operators == {n.role: n[:-1] for n in alone.lines}
        assert whole.seconds >= alone.seconds
        assert whole.joules >= alone.joules


@pytest.mark.parametrize(("engine", "model"), EVERY)
def test_a_played_step_is_the_decode_step(engine, model, monkeypatch):
    """Kernel by kernel it ends when the closed form does, which a decode of one token is made of, the clock apart."""
    monkeypatch.setattr(Settling, "recovery", lambda *_: 0.0)
    found = steps(model, engine)
    s = Scenario(3, 500, 2)
    step = engines.get(engine).decode(s, found.options)
    t = found.timeline(step)
    phase = found.decode(s)
    period = t.device_s
    if found.overlaps and found.terms:
        period = max(t.host_s, t.device_s - found.terms.value.prepare_s(s.batch))
    assert phase.seconds == pytest.approx(period, rel=1e-6)
    ran = [e for e in t.events if e.queue == "device"]
    assert sum(e.seconds for e in ran) == pytest.approx(t.worked_s)
    assert all(b.start_s >= a.start_s + a.seconds - 1e-12 for a, b in pairwise(ran))


@pytest.mark.parametrize("engine", CALIBRATED)
def test_a_slower_host_is_never_faster_and_matters_where_it_is_waited_for(engine):
    found = steps("tinyllama-1.1b", engine)
    fast, slow = (
        step_model(
            found.operators.decoder, BF16, 1, engine, found.estimator, found.options,
            EngineTerms(*[t._replace(**{n: getattr(t, n) * by for n in t._fields if n.startswith("host")})
                          for t in found.terms]),
        )
        for by in (1, 5)
    )  # fmt: skip
    for s in (Scenario(1, 16, 4), Scenario(64, 2048, 4)):
        for phase in ("prefill", "decode"):
            a, b = (getattr(each, phase)(s) for each in (fast, slow))
            assert b.seconds >= a.seconds
            waits = sum(n.seconds for n in b.lines if n.role == WAITING)
            if waits > 1e-9:
                assert b.seconds > a.seconds
            else:
                assert b.seconds == pytest.approx(a.seconds, rel=0.02)


def test_no_terms_are_no_more_than_operators(monkeypatch):
    monkeypatch.setattr(Settling, "recovery", lambda *_: 0.0)
    d = library.find("llama-3.1-8b")
    estimator = estimator_of(gpus.find("h200"), engines.get("vllm").runs_as(9.0))
    options = engines.get("vllm").options((), gpus.find("h200").memory_bytes)
    without = step_model(d, BF16, 1, "vllm", estimator, options)
    nothing = step_model(d, BF16, 1, "vllm", estimator, options, EngineTerms(Terms(), Terms(), Terms()))
    for phase in ("prefill", "decode"):
        a, b = (getattr(each, phase)(S) for each in (without, nothing))
        assert b.seconds == pytest.approx(a.seconds)
        assert {n.role for n in b.lines if n.seconds > 1e-12} == {n.role for n in a.lines}


@pytest.mark.parametrize("model", ["qwen1.5-moe-a2.7b", "deepseek-v2-lite"])
def test_shared_experts_run_beside_the_routed_ones_up_to_256_tokens(model):
    add = "shared_add"
    d, estimator = library.find(model), estimator_of(gpus.find("h200"), engines.get("vllm").runs_as(9.0))
    newest, _, older, _ = engines.get("vllm").VERSIONS
    both = [step_model(d, BF16, 1, "vllm", estimator, None, None, version) for version in (newest, older)]

    def of_experts(model, tokens):
        rows = model.rows(Step((Seq(1, 500, tokens),)))
        _, calls, answers = next(r for r in rows if add in r[1].launches.names)
        found = list(zip(calls.launches.names, answers))
        routed = sum(t.seconds for role, t in found if role in ("router", "experts"))
        shared = sum(t.seconds for role, t in found if role.startswith("shared_") and role != add)
        return routed, shared, sum(t.bytes for role, t in found if role in ("router", "experts") or "shared_" in role)

    for tokens in (1, 8, 64, 256):
        (routed, shared, moved), at_once = of_experts(both[1], tokens), of_experts(both[0], tokens)
        assert sum(at_once[:2]) < 0.99 * (routed + shared)
        assert sum(at_once[:2]) >= max(routed, shared) * 0.999
        assert sum(at_once[:2]) >= 0.99 * moved / estimator.roof.memory
        assert at_once[0] < routed * 1.0001
        assert at_once[1] < shared * 1.0001
    assert of_experts(both[0], 257) == of_experts(both[1], 257)


@pytest.mark.parametrize(
    ("model", "gpu", "dtype"),
    [("qwen1.5-moe-a2.7b", "a6000", "fp16"), ("qwen1.5-moe-a2.7b", "rtx-4070-laptop", "fp8"),
     ("deepseek-v2", "rtx-2080ti", "w8a8")],
)  # fmt: skip
def test_no_call_of_two_streams_is_faster_than_memory(model, gpu, dtype):
    held = setting(library.find(model), gpu, "vllm", dtype, 1)
    peak = gpus.find(gpu).spec.ceilings["hbm"].value
    for line in held.steps.prefill(Scenario(1, 1, 1)).lines:
        assert line.bytes <= peak * line.seconds * 1.0001 or not line.role.startswith(("experts", "shared_")), line


@pytest.mark.parametrize(("gpu", "tokens"), [("h200", 256), ("a100-40gb", 256), ("mi300x", 0)])
def test_shared_experts_have_a_stream_on_gpus_of_nvidia(gpu, tokens):
    found = setting(library.find("qwen1.5-moe-a2.7b"), gpu, "vllm", "bf16")
    assert found.steps.operators.prompts.shared_tokens == tokens


@pytest.mark.parametrize("engine", CALIBRATED)
def test_what_is_timed_under_any_terms_is_what_is_predicted(engine):
    """`Subject`, which terms are fitted with."""
    found = steps("qwen3-0.6b", engine)
    for first, phase in zip((True, False), (found.prefill(S), found.decode(S))):
        assert found.phase_steps(S, first).seconds(found.terms.value) == pytest.approx(phase.seconds)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(library.names()), st.integers(1, 700), st.integers(0, 3000), st.sampled_from(engines.names()))
@example("deepseek-v3", 577, 84, "vllm")
@example("qwen1.5-moe-a2.7b", 1, 84, "vllm")
def test_a_template_that_grows_is_each_step_lowered_and_rewritten(model, new, past, engine):
    """On a GPU with points of every attention: on others few tokens do not attend to a latent. Beyond some hundred
    tokens programs are straight between the sizes that they are timed at, where the work of experts bends."""
    d, e = library.find(model), engines.get(engine)
    step = Step((Seq(new, past, 2), Seq(1, 17, 3)), pad_tokens=1)
    blocks = e.rewrite(body(d, step.tokens, BF16, 1), new == 1, d.architecture).blocks
    last = e.rewrite(head(d, step.rows, BF16, 1), False, d.architecture).blocks
    whole = place(Program((*blocks, *last)), step.seqs).cost()
    found = step_model(d, BF16, 1, engine, estimator_of(gpus.find("h200")), None).rows(step)
    flops, moved = (sum(n * getattr(t, name) for n, _, times in found for t in times) for name in ("flops", "bytes"))
    assert flops == pytest.approx(whole.flops, rel=1e-4)
    assert moved == pytest.approx(whole.bytes, rel=1e-4)


@pytest.mark.parametrize("gpu", ["h200", "a100", "mi300x"])
def test_a_phase_is_as_sure_as_its_lines(gpu):
    """Seconds and interval come from sums over programs, lines from all of their operators."""
    for model in ("llama-3.1-8b", "gemma-2-9b", "deepseek-v2-lite"):
        found = steps(model, "vllm", Stage.POINTS, gpu)
        for phase in (found.prefill(S), found.decode(S)):
            assert (phase.seconds, phase.low_s, phase.high_s) == pytest.approx(
                interval(phase.lines, found.interval_scale)
            )


def test_a_program_is_straight_between_the_sizes_it_is_timed_at():
    program = steps("llama-3.1-8b", "vllm").operators.prompts
    for tokens, apart in ((1024, 64), (8192, 512)):
        below, above = program.at(tokens, tokens), program.at(tokens + apart, tokens + apart)
        between = program.at(tokens + apart // 4, tokens + apart // 4)
        assert between.sums.seconds == pytest.approx(0.75 * below.sums.seconds + 0.25 * above.sums.seconds)
        assert between.columns[0] == pytest.approx(
            [0.75 * a + 0.25 * b for a, b in zip(below.columns[0], above.columns[0])]
        )
    assert program.at(513, 513) is not program.at(512, 512) is program.at(512, 512)


# --- how intervals add
def made_up(role, seconds, below, above, source):
    return Line(role, "linear", 1, seconds, seconds - below, seconds + above, "memory", source, 0.0, 0.0, 0.0)


def test_what_was_measured_errs_each_on_its_own_what_rests_on_one_roof_together():
    def above(*lines):
        return interval(lines)[2] - 10

    apart = above(made_up("a", 6, 3, 3, "interpolated"), made_up("b", 4, 4, 4, "interpolated"))
    together = above(made_up("a", 6, 3, 3, "roofline"), made_up("b", 4, 4, 4, "roofline"))
    mixed = above(made_up("a", 6, 3, 3, "roofline"), made_up("b", 4, 4, 4, "datasheet"))
    exact = above(made_up("a", 10, 0, 0, "interpolated"))
    assert math.hypot(3, 4) <= apart == pytest.approx(math.hypot(3, 4, exact))
    assert together == pytest.approx(math.hypot(7, exact))
    assert mixed == pytest.approx(apart)
    assert 0 < exact < 1, "cards differ"
    assert interval([made_up("a", 1, 5, 5, "roofline")])[1] == 0, "no less than nothing"


def test_prompts_of_a_launch_are_asked_for_as_those_that_have_most_of_the_work():
    single, end, whole, begin = Seq(1, 900, 7), Seq(300, 600, 1), Seq(900, 0, 5), Seq(100, 0, 1)
    assert attending(Step((single, whole))) == [(single, 1.0), (whole, 1.0)]
    first, (like, part) = attending(Step((single, end, whole, begin)))
    pairs = 5 * 900 * 901 + 300 * 1501 + 100 * 101
    assert first == (single, 1.0)
    assert like == Seq(900, 0, round(pairs / (900 * 901)))
    assert like.count * 900 * 901 * part == pytest.approx(pairs)
    ((like, part),) = attending(Step((end, begin)))  # a chunk is one sequence, whatever is beside it
    assert like == end
    assert part == pytest.approx(1 + 100 * 101 / (300 * 1501))


def test_attention_of_a_launch_counts_all_its_pairs():
    """Whichever prompts stand for the others: FLOPs are those of all."""
    found = steps("llama-3.1-8b", "vllm")
    apart = [Seq(300, 600, 1), Seq(900, 0, 5), Seq(100, 0, 1)]
    flops = [
        sum(
            row[5]
            for n, calls, rows in found.rows(Step((s,)))
            for row, kind in zip(rows, calls.kinds)
            if kind == "attention"
        )
        for s in apart
    ]
    together = [
        row
        for n, calls, rows in found.rows(Step(tuple(apart)))
        for row, kind in zip(rows, calls.kinds)
        if kind == "attention"
    ]
    assert len(together) == 1
    assert together[0][5] == pytest.approx(sum(flops))


def test_a_padded_prompt_says_why_more_may_take_less():
    found = answer({"model": "llama-2-70b", "gpu": "h200", "engine": "native", "batch": 1, "prompt": 2, "output": 1})
    assert any("a CUDA graph of 16 tokens" in note for note in found["notes"])
    found = answer({"model": "llama-2-70b", "gpu": "h200", "engine": "native", "batch": 1, "prompt": 200, "output": 1})
    assert not any("CUDA graph of" in note for note in found["notes"])


def test_another_launch_latency_changes_the_host_alone_and_operators_are_known_once():
    """In whatever order they are asked for."""
    slow, usual = (setting(library.find("gpt2"), "h200", "vllm", launch_ns=ns).steps for ns in (30_000.0, 1_000.0))
    assert slow.operators is usual.operators
    assert slow.terms != usual.terms
    s = Scenario(1, 64, 8)
    later, sooner = (found.prefill(s) for found in (slow, usual))
    assert later.seconds > sooner.seconds
    kinds = [{n.role: n.seconds for n in phase.lines if n.kind != ENGINE} for phase in (later, sooner)]
    assert kinds[0] == kinds[1]
