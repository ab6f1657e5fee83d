"""Experts and routers learned from measurements: shapes and whole models that were left out are told from the others,
engines are answered by what they run, and what lies outside is declined."""

import random
from dataclasses import replace
from functools import cache

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("scipy")
from test_fit import BYTES, DEVICE, FLOPS, UNITS, measured, profile, write_profile  # noqa: E402

from chip import ops, stats  # noqa: E402
from chip.decoders import library  # noqa: E402
from chip.hardware import gpus  # noqa: E402
from chip.hardware import points as point_files  # noqa: E402
from chip.lab.measure import fit as fitting  # noqa: E402
from chip.lab.measure import point_cases  # noqa: E402
from chip.ops.experts import ExpertsBase, row_tiles  # noqa: E402
from chip.predictor.interpolate import Points  # noqa: E402
from chip.predictor.request import setting  # noqa: E402
from chip.predictor.stages import Stage  # noqa: E402
from chip.question import Question  # noqa: E402
from chip.types import Scenario  # noqa: E402

EXPERT_BYTES = 5e9  # of all experts
AXES = {"tokens": 64, "hidden": 2048, "intermediate": 768, "experts": 128, "top_k": 8}


@cache
def routed(experts, top_k, tokens, seed=0):
    """How many tokens each expert gets: one draw."""
    scores = np.random.default_rng(seed).random((tokens, experts), dtype=np.float32)
    chosen = np.argpartition(scores, top_k - 1)[:, :top_k]
    return np.bincount(chosen.ravel(), minlength=experts).tolist()


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


def expert_points(suite):
    kinds = {"tables": ("moe_experts_composed", "moe_router_composed"), "vllm": ("moe_experts", "moe_router")}[suite]
    return [p for p in point_cases.same(suite, "bf16") if p.op.kind in kinds]


@pytest.fixture(scope="module", params=["hf", "vllm"])
def points(request):
    return expert_points("tables" if request.param == "hf" else "vllm")


@pytest.fixture(scope="module")
def groups(points):
    found, left_out = learn(points)
    assert not left_out
    return found


def held(groups, kind):
    group = next(g for g in groups if g.kind == kind)
    return Points(group, group.base)


def others(kind, count=60, seed=1):
    """Shapes of no suite, inside what it spans."""
    rng = random.Random(seed)
    while count:
        experts = rng.choice((8, 16, 32, 48, 64, 96, 128))
        axes = {"tokens": int(2 ** rng.uniform(0, 13)), "hidden": 256 * rng.randint(5, 24), "experts": experts}
        axes |= {"top_k": rng.randint(1, min(8, experts // 2)), "intermediate": 128 * rng.randint(5, 40)}
        if 6 * experts * axes["hidden"] * axes["intermediate"] < EXPERT_BYTES:
            yield ops.build(kind, axes)
            count -= 1


def test_shapes_never_seen_follow_the_law(groups, points):
    kind = next(p.op.kind for p in points if "experts" in p.op.kind)
    found = held(groups, kind)
    errors = [abs(found.seconds(op).seconds / law(op) - 1) for op in others(kind)]
    assert stats.median(errors) < 0.1
    assert stats.quantile(errors, 0.9) < 0.3


def test_a_model_left_out_is_told_by_the_others():
    model = (128, 8, 2048, 768)  # Qwen3-30B-A3B

    def of(op):
        return (op.experts, op.top_k, op.hidden, op.intermediate)

    found = [p for p in expert_points("vllm") if p.op.kind == "moe_experts"]
    kept, out = ([p for p in found if (of(p.op) == model) == left] for left in (False, True))
    told = held(learn(kept)[0], "moe_experts")
    errors = [abs(told.seconds(p.op).seconds / law(p.op) - 1) for p in out]
    assert len(errors) >= 4
    assert stats.median(errors) < 0.12


def test_engines_predict_by_the_points_of_what_they_run(groups, points, tmp_path):
    path = write_profile(tmp_path / "round.json")
    for kind in {g.kind for g in groups}:
        file = gpus.points_folder(path) / f"{kind}.csv"
        point_files.write(file, {"device": DEVICE}, [g for g in groups if g.kind == kind])
    mine = "vllm" if points[0].implementation == "vllm" else "hf"
    for engine in ("hf-eager", "hf-graph", "vllm"):  # native runs no experts
        steps = setting(Question(library.find("qwen3-30b-a3b"), str(path), engine, "bf16", ""), Stage.POINTS).steps
        for phase in (steps.prefill(Scenario(4, 300, 20)), steps.decode(Scenario(4, 300, 20))):
            lines = {n.role: n for n in phase.lines}
            for role in ("experts", "router"):
                wanted = "interpolated" if engine.startswith(mine) else "roofline"
                assert lines[role].source == wanted, (engine, role)


def test_other_experts_are_not_told_by_them(points):
    kind = next(p.op.kind for p in points if "experts" in p.op.kind)
    known = ops.build(kind, AXES)
    assert known.like_measured() == known
    for change in ({"gated": False}, {"weight_dtype": "int4"}):
        assert replace(known, **change).like_measured() is None, change
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
        slow, fast = (ExpertsBase(1e-6, rate, 1e12, 100, copy_bytes_per_s=1e11).seconds(op) for rate in (1e10, 1e20))
        assert slow == pytest.approx(1e-6 + 2 * 2 * rows * weight / 1e10 + passes_s)
        assert fast == pytest.approx(1e-6 + op.products().bytes / 1e12 + passes_s)
