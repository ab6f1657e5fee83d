"""Experts and routers learned from measurements: shapes and whole models that were left out are told from the others,
engines are answered by what they run, and what lies outside is declined."""

import random
from dataclasses import replace
from functools import cache

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("scipy")
pytest.importorskip("sklearn")
from chip.predict.compose import Composer  # noqa: E402
from chip.predict.experts import row_tiles  # noqa: E402
from chip.predict.learned import Learned  # noqa: E402
from chip.predict.roofline import Roofline  # noqa: E402
from chip.predict.tables import Base, Tables  # noqa: E402
from test_fit import BYTES, FLOPS, UNITS, measured, profile, write_profile  # noqa: E402

from chip import artifact, codec, engines, hardware, ops, stats  # noqa: E402
from chip.dtypes import precision  # noqa: E402
from chip.measure import fit as fitting  # noqa: E402
from chip.measure import sampling  # noqa: E402
from chip.models import library  # noqa: E402
from chip.predict.estimator import estimator_of  # noqa: E402
from chip.predict.roof import roof_of  # noqa: E402
from chip.types import Scenario  # noqa: E402

AXES = {"tokens": 64, "hidden": 2048, "intermediate": 768, "experts": 128, "top_k": 8}


@cache
def routed(experts, top_k, tokens, seed=0):
    """How many tokens each expert gets: one draw."""
    rng, counts = random.Random(seed), [0] * experts
    for _ in range(tokens):
        for expert in rng.sample(range(experts), top_k):
            counts[expert] += 1
    return counts


def law(op):
    """One draw of tokens, in tiles as either kernel has them; two products, each the longer of bytes and of whole
    waves of tiles; smaller kernels beside them at a third of the bandwidth."""
    counts = routed(op.experts, op.top_k, op.tokens)
    fused, grouped = sum(op.tokens > n for n in (32, 96, 512)), 2 + (op.pairs // op.experts > 128)
    rows = 16 << (fused if op.kind == "moe_experts" else grouped)
    tiles, hit = sum(-(-n // rows) for n in counts), sum(n > 0 for n in counts)
    seconds = 15e-6 + op.passes().bytes / (BYTES / 3)
    for columns, depth in ((2 * op.intermediate, op.hidden), (op.hidden, op.intermediate)):
        waves = -(-tiles * -(-columns // 128) // UNITS)
        moved = 2 * (hit * columns * depth + op.pairs * (columns + depth))
        seconds += max(moved / (0.8 * BYTES), waves * 2 * rows * 128 * depth * UNITS / (0.6 * FLOPS))
    return seconds


def router_law(op):
    return (6e-6 if op.experts & (op.experts - 1) == 0 else 9e-6) + op.cost().bytes / (0.5 * BYTES)


def times(point):
    return law(point.op) if "experts" in point.op.kind else router_law(point.op)


def learn(points):
    return fitting.fit([measured(p.op, times(p), p.implementation or "torch") for p in points], profile())


@pytest.fixture(scope="module", params=["hf", "vllm"])
def points(request):
    return (sampling.expert_points if request.param == "hf" else sampling.vllm_expert_points)("bf16")


@pytest.fixture(scope="module")
def tables(points):
    found, left_out = learn(points)
    assert not left_out
    return found


def others(kind, count=60, seed=1):
    """Shapes of no suite, inside what it spans."""
    rng = random.Random(seed)
    while count:
        experts = rng.choice((8, 16, 32, 48, 64, 96, 128))
        axes = {"tokens": int(2 ** rng.uniform(0, 13)), "hidden": 256 * rng.randint(5, 24), "experts": experts}
        axes |= {"top_k": rng.randint(1, min(8, experts // 2)), "intermediate": 128 * rng.randint(5, 40)}
        if 6 * experts * axes["hidden"] * axes["intermediate"] < sampling.EXPERT_BYTES:
            yield ops.build(kind, axes)
            count -= 1


def test_shapes_never_seen_follow_the_law(tables, points, tmp_path):
    roofline = Roofline(roof_of(hardware.find(str(write_profile(tmp_path / "round.json")))))
    kind = next(p.op.kind for p in points if "experts" in p.op.kind)
    runs_as = {t.op: t.implementation for t in tables.operators}
    estimate = Learned(tables, roofline, runs_as)
    unseen = list(others(kind))
    answered = [(op, estimate(op)[0]) for op in unseen]
    assert all(e.source == "interpolated" for _, e in answered)
    errors = [abs(e.seconds / law(op) - 1) for op, e in answered]
    assert stats.median(errors) < 0.06
    assert stats.quantile(errors, 0.9) < 0.2
    assert stats.median([abs(roofline(op)[0].seconds / law(op) - 1) for op in unseen]) > 3 * stats.median(errors)


def test_a_model_left_out_is_told_by_the_others(tmp_path):
    model = sampling.MODEL_EXPERTS[1]  # Qwen3-30B-A3B

    def of(op):
        return (op.experts, op.top_k, op.hidden, op.intermediate)

    found = [p for p in sampling.vllm_expert_points("bf16") if p.op.kind == "moe_experts"]
    kept, out = ([p for p in found if (of(p.op) == model) == left] for left in (False, True))
    (table,) = learn(kept)[0].operators
    roofline = Roofline(roof_of(hardware.find(str(write_profile(tmp_path / "round.json")))))
    estimate = Learned(Tables("", UNITS, (table,)), roofline)
    told = [(estimate(p.op)[0], law(p.op)) for p in out]
    errors = [abs(e.seconds / s - 1) for e, s in told if e.source == "interpolated"]
    assert len(errors) >= 4
    assert stats.median(errors) < 0.05


def test_engines_predict_by_the_table_of_what_they_run(tables, points, tmp_path):
    path = write_profile(tmp_path / "round.json")
    artifact.write(tmp_path / "round.tables.json", artifact.new(Tables.SCHEMA, codec.to_json(tables), {}))
    h = hardware.find(str(path))
    mine = "vllm" if points[0].implementation == "vllm" else "hf-graph"
    for engine in ("vllm", "hf-graph", "hf-eager"):
        used = engine == mine or (mine == "hf-graph" and engine.startswith("hf"))
        for model in ("qwen3-30b-a3b", "deepseek-v3"):  # 256 experts are outside
            estimator = estimator_of(h, engines.get(engine).RUNS_AS)
            composer = Composer(library.find(model), precision("bf16"), 1, engine, estimator)
            s = Scenario(4, 300, 20)
            for steps in (composer.engine.prefill(s, 141e9), composer.engine.decode(s, 141e9)):
                lines = {n.role: n for n in composer.phase(steps).lines}
                inside = used and model == "qwen3-30b-a3b"
                for role in ("experts", "router"):
                    assert lines[role].source == ("interpolated" if inside else "roofline"), (engine, model, role)


def test_a_sweep_says_what_single_questions_say(tables, tmp_path):
    roofline = Roofline(roof_of(hardware.find(str(write_profile(tmp_path / "round.json")))))
    estimate = Learned(tables, roofline, {t.op: t.implementation for t in tables.operators})
    for t in tables.operators:
        one = ops.build(t.op, {a: v for a, v in {**AXES, "tokens": 1}.items() if a in t.ranges})
        along = estimate.along(one)
        for tokens in (1, 7, 128, 256, 4096):
            e, cost = estimate(replace(one, tokens=tokens))
            seconds, low_s, high_s, _, source, flops, moved = along(tokens)
            assert (seconds, low_s, high_s, source) == (e.seconds, e.low_s, e.high_s, e.source)
            assert (flops, moved) == pytest.approx((cost.flops, cost.bytes))
        assert along(10**6)[4] == "roofline"


def test_other_experts_are_declined(tables, points, tmp_path):
    roofline = Roofline(roof_of(hardware.find(str(write_profile(tmp_path / "round.json")))))
    kind = next(p.op.kind for p in points if "experts" in p.op.kind)
    estimate = Learned(tables, roofline, {t.op: t.implementation for t in tables.operators})
    known = ops.build(kind, AXES)
    assert estimate(known)[0].source == "interpolated"
    for change in ({"gated": False}, {"weight_dtype": "int4"}, {"experts": 256}, {"intermediate": 96}):
        assert estimate(replace(known, **change))[0].source == "roofline", change
    ungated = [measured(replace(p.op, gated=False), law(p.op)) for p in points if p.op.kind == kind]
    with pytest.raises(fitting.ChipError, match="no cold or hot measurements"):
        fitting.fit(ungated, profile())


@pytest.mark.parametrize(
    ("experts", "top_k", "tokens"), [(8, 2, 1), (8, 2, 5), (128, 8, 64), (60, 4, 500), (4, 4, 100)]
)
@pytest.mark.parametrize("rows", [16, 64, 128])
def test_tiles_of_tokens_are_counted_as_they_fall(experts, top_k, tokens, rows):
    draws = [sum(-(-n // rows) for n in routed(experts, top_k, tokens, seed)) for seed in range(200)]
    assert row_tiles(tokens, top_k / experts, experts, rows) == pytest.approx(sum(draws) / len(draws), rel=0.02)


def test_a_base_of_experts_by_hand():
    """16 tokens to both of two experts: one tile of 16 each by vLLM, of 64 by the grouped product."""
    axes = {"tokens": 16, "hidden": 256, "intermediate": 128, "experts": 2, "top_k": 2}
    weight = 3 * 256 * 128
    for kind, rows in (("moe_experts", 16), ("moe_experts_composed", 64)):
        op = ops.build(kind, axes)
        passes_s = op.passes().bytes / 1e11
        slow, fast = (
            Base(1e-6, rate, 1e12, copy_bytes_per_s=1e11).seconds(op, op.cost(), 100) for rate in (1e10, 1e20)
        )
        assert slow == pytest.approx(1e-6 + 2 * 2 * rows * weight / 1e10 + passes_s)
        assert fast == pytest.approx(1e-6 + op.products().bytes / 1e12 + passes_s)


def test_points_are_where_models_live():
    for suite in (sampling.expert_points, sampling.vllm_expert_points):
        found = [p.op for p in suite("bf16") if "experts" in p.op.kind]
        sizes = {(op.experts, op.top_k, op.hidden, op.intermediate) for op in found}
        assert set(sampling.MODEL_EXPERTS) <= sizes
        assert {1, sampling.MOST_TOKENS} <= {op.tokens for op in found}
        assert len(found) >= 55
        assert max(6 * op.experts * op.hidden * op.intermediate for op in found) <= sampling.EXPERT_BYTES
    assert set(sampling.expert_points("bf16")) <= set(sampling.points("bf16"))
    assert set(sampling.vllm_expert_points("bf16")) <= set(sampling.paged_points("bf16"))
