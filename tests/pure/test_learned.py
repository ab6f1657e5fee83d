"""The estimator that learned: its arithmetic by hand, what it answers and what it declines. No numpy."""

import math
import random
from dataclasses import replace

import pytest

from chip import cli, engines, hardware, ops
from chip.models import library
from chip.ops.composed import KINDS
from chip.ops.masked_attention import MaskedAttention
from chip.predict import tiled
from chip.predict.estimator import estimator_of, read_tables
from chip.predict.experts import EXPERT_KINDS, ROUTER_KINDS
from chip.predict.flash import Blocks, flash, flash_splits
from chip.predict.flash import seconds as flash_seconds
from chip.predict.learned import DECODE_ATTENTION, Learned
from chip.predict.request import answer, predict
from chip.predict.roof import roof_of
from chip.predict.roofline import Roofline
from chip.predict.rows import Kernel, Rows
from chip.predict.shapes import FEATURES, TILES, features, linear_features
from chip.predict.tables import Base, Forest, OperatorTable, Spread, Surface, Tables
from chip.types import Scenario, Seq

H200 = hardware.find("h200")
BUNDLED = read_tables(H200.tables)
BY_NAME = {f"{t.op}-{t.implementation}-{t.context}": t for t in BUNDLED.operators}
AS_TORCH = sorted(BUNDLED.operators, key=lambda t: (t.implementation in ("torch", "flash"), t.points))
COLD = {t.op: t for t in AS_TORCH if t.context == "cold"}  # asked alone
FORESTS = [name for name, t in BY_NAME.items() if t.forest]


# --- forests
def tree(rng, depth, arrays):
    """Add a random tree to the arrays, children after their node; -> its root."""
    at = len(arrays["feature"])
    leaf = depth == 0 or rng.random() < 0.3
    for name, value in (
        ("feature", 0 if leaf else rng.randrange(4)),
        ("threshold", 0.0 if leaf else float(rng.randint(-3, 3))),
        ("left", -1),
        ("right", -1),
        ("value", rng.gauss(0, 1) if leaf else 0.0),
    ):
        arrays[name].append(value)
    if not leaf:
        arrays["left"][at] = tree(rng, depth - 1, arrays)
        arrays["right"][at] = tree(rng, depth - 1, arrays)
    return at


def made_forest(seed, trees=5, depth=4):
    rng = random.Random(seed)
    arrays = {name: [] for name in ("feature", "threshold", "left", "right", "value")}
    roots = tuple(tree(rng, depth, arrays) for _ in range(trees))
    return Forest(rng.gauss(0, 1), roots, *(tuple(arrays[n]) for n in arrays))


@pytest.mark.parametrize("seed", range(20))
def test_a_compiled_forest_says_what_its_trees_say(seed):
    forest, rng = made_forest(seed, trees=1 + seed % 7), random.Random(seed)
    for _ in range(100):
        x = [rng.choice((rng.uniform(-4, 4), float(rng.randint(-3, 3)))) for _ in range(4)]  # often on a threshold
        assert forest.compiled(x) == forest.walk(x)


def test_a_tree_by_hand():
    forest = Forest(10.0, (0, 3), (1, 0, 0, 0), (0.5, 0.0, 0.0, 0.0), (1, -1, -1, -1), (2, -1, -1, -1), (0, 1, 2, 0.25))
    for evaluate in (forest.walk, forest.compiled):
        assert evaluate([9, 0.5]) == 11.25, "on the threshold: left"
        assert evaluate([9, 0.6]) == 12.25


def random_op(rng, table):
    """Within the measured ranges, spread over their logarithms."""
    kind = table.op
    axes = {a: round(math.exp(rng.uniform(*map(math.log, limits)))) for a, limits in table.ranges.items()}
    if "elements" in axes:
        rows = rng.randint(1, 9)
        axes = {"rows": rows, "cols": axes["elements"] // rows + 1}
    if kind == "linear":
        axes["n"], axes["k"] = (-(-axes[a] // 8) * 8 for a in ("n", "k"))
    if "attention" in kind:
        (fewest, most), (kv_fewest, kv_most) = table.ranges["heads"], table.ranges["kv_heads"]
        pairs = [(kv * each, kv) for kv in (1, 2, 4, 8, 16, 32) for each in (1, 2, 4, 8)]
        inside = [p for p in pairs if fewest <= p[0] <= most and kv_fewest <= p[1] <= kv_most]
        axes["heads"], axes["kv_heads"] = rng.choice(inside)
        least = table.ranges["q_len"][0]
        axes["q_len"] = rng.choice((round(least), min(axes["q_len"], axes["kv_len"])))
    if kind in ("rope", "rope_composed"):
        axes["head_dim"] = 64
        axes["heads"] = -(-axes["cols"] // 64)
    known = ops.axes(ops.get(kind))
    return ops.build(kind, {a: v for a, v in axes.items() if a in known} | {"dtype": table.dtype})


def learned_as(table):
    """The estimator of an engine that runs every operator as this one was measured; a hot table wins there."""
    names = (table.op, DECODE_ATTENTION) if table.op == "attention" else (table.op,)
    return estimator_of(H200, dict.fromkeys(names, table.implementation))


def test_every_kind_of_table_is_bundled():
    """What the tests below are about: forests of both bases, surfaces, cold and hot."""
    missing = set(FEATURES) - {t.op for t in BUNDLED.operators if t.forest}
    waiting = {*KINDS, *EXPERT_KINDS, *ROUTER_KINDS}  # attention that a family spells out, experts and their routers
    assert missing <= waiting, "all else has been measured"
    assert {t.implementation for t in BUNDLED.operators if t.base.tiled} == {"fa3", "cudnn"}
    assert {t.context for t in BUNDLED.operators if t.surface} == {"cold", "hot"}


@pytest.mark.parametrize("name", FORESTS)
def test_bundled_forests_compiled_and_walked(name):
    table, rng = BY_NAME[name], random.Random(name)
    forest, width = table.forest, tiled.FEATURES if table.base.tiled else FEATURES[table.op]
    edges = {f: [] for f in range(width)}
    for left, f, threshold in zip(forest.left, forest.feature, forest.threshold):
        if left >= 0:
            edges[f].append(threshold)
    for i in range(300):
        op = random_op(rng, table)
        x = table.base.features(op, op.cost(), BUNDLED.units, table.base.seconds(op, op.cost(), BUNDLED.units))
        assert len(x) == width
        if i % 3 == 0:
            x = [rng.choice(edges[f] or x[f : f + 1]) for f in range(len(x))]
        assert forest.compiled(x) == forest.walk(x)


# --- surfaces and bases
def test_a_surface_by_hand():
    surface = Surface((0.0, 3.0), (0.0, 4.0), (0.5, -2.0), 0.25)
    assert surface(0.0, 0.0) == 0.25 + 0.5 * 0 - 2.0 * 5
    assert surface(3.0, 4.0) == 0.25 + 0.5 * 5
    assert surface(3.0, 0.0) == 0.25 + 0.5 * 3 - 2.0 * 4


def test_bases_by_hand():
    linear = ops.build("linear", {"m": 64, "n": 512, "k": 1024})
    cost = linear.cost()
    assert Base(1e-6, 1e14, 1e12).seconds(linear, cost, 100) == pytest.approx(1e-6 + cost.bytes / 1e12)
    assert Base(1e-6, 1e10, 1e12).seconds(linear, cost, 100) == pytest.approx(1e-6 + cost.flops / 1e10)


def of_rows(*kernels, edges=(), blend=1.0, knee_bytes=1e30, later_row=0.0, later_byte=0.0):
    return Base(1e-6, 1e14, 1e12, rows=Rows(kernels, edges, blend, knee_bytes, later_row, later_byte))


def test_times_of_rows_by_hand():
    """One row alone, then many: each by itself, then their bytes; blended where both count."""
    norm = ops.build("rms_norm", {"rows": 1000, "cols": 500})  # one step of 512
    moved, tiny = norm.cost().bytes, 1e-30

    def seconds(op=norm, **axes):
        return axes.pop("base").seconds(op, op.cost(), 100) - 1e-6

    alone = Kernel(1e-7, 1e-9, tiny, tiny)
    assert seconds(base=of_rows(alone)) == pytest.approx(1e-7 + 512e-9)
    assert seconds(base=of_rows(replace(alone, each_s=1e-8))) == pytest.approx((6.12e-7**3 + 1e-5**3) ** (1 / 3))
    many = Kernel(tiny, tiny, 1e-8, 1e-12)
    assert seconds(base=of_rows(many)) == pytest.approx(1e-5 + moved * 1e-12), "times that add"
    assert seconds(base=of_rows(many, blend=60.0)) == pytest.approx(1e-5), "or hide behind the longer"
    assert seconds(base=of_rows(alone, knee_bytes=1.0, later_row=0.5)) == pytest.approx(1.5 * 6.12e-7)
    stream = Kernel(tiny, tiny, tiny, 1e-12)
    assert seconds(base=of_rows(stream, knee_bytes=1.0, later_byte=0.5)) == pytest.approx(1.5e-12 * moved)


def test_rows_one_after_another_up_to_an_edge():
    few, more = (ops.build("embedding", {"rows": rows, "cols": 256}) for rows in (16, 17))
    base = of_rows(Kernel(1e-7, 1e-10, 1e-30, 1e-30), Kernel(1e-7, 1e-30, 1e-30, 1e-30), edges=(16,))
    assert base.seconds(few, few.cost(), 100) == pytest.approx(1e-6 + 16 * (1e-7 + 256e-10))
    assert base.seconds(more, more.cost(), 100) == pytest.approx(1e-6 + 1e-7)


def test_only_the_number_of_elements_counts_where_each_is_by_itself():
    e = estimator_of(H200)
    for kind in ("add", "gelu", "silu", "silu_mul"):
        shapes = [{"rows": r, "cols": 2**20 // r} for r in (1, 64, 1024, 2**18)]
        found = [e(ops.build(kind, shape))[0] for shape in shapes]
        assert {f.source for f in found} == {"interpolated"}
        assert len({f.seconds for f in found}) == 1


def test_linear_features_by_hand():
    x = linear_features(ops.build("linear", {"m": 256, "n": 1024, "k": 512}), 16)
    moved = 256 * 512 + 1024 * 512 + 256 * 1024
    assert x[:7] == pytest.approx([8, 10, 9, 27, math.log2(moved), 18, math.log2(2**27 / moved)])
    at = 7 + 3 * TILES.index((128, 128))
    assert x[at : at + 3] == pytest.approx([0, 1, 1]), "2 x 8 tiles of 128 x 128 on 16 units: one full wave"
    at = 7 + 3 * TILES.index((256, 128))
    assert x[at : at + 3] == pytest.approx([-1, 2, 1]), "8 tiles: half a wave"
    ragged = linear_features(ops.build("linear", {"m": 65, "n": 1024, "k": 512}), 16)
    assert ragged[9] == pytest.approx(128 / 65), "rows of tiles of 64 over rows"


# --- FlashAttention-2's splits
@pytest.mark.parametrize(
    ("blocks", "key_blocks", "slots", "parts"),
    [
        (212, 64, 264, 1),  # at 80 % of the slots nothing is cut
        (211, 64, 264, 5),  # 1 to 4 parts fill 80 %, 5 fill 1055 of 4 x 264
        (8, 1, 264, 1),  # one block of keys cannot be cut
        (8, 4, 264, 4),  # 3 parts would be as long as 2
        (8, 32, 264, 32),  # 16 fill 48 %, the next that shortens a part is 32
        (66, 16, 264, 4),  # exactly one wave
        (30, 64, 100, 3),  # 90 % is near enough to the 100 % of 10 parts
        (1, 1000, 264, 112),  # of at most 128, 125 fill best; 112 (parts of 9) are the first with 85 % of that
    ],
)
def test_flash_splits(blocks, key_blocks, slots, parts):
    assert flash_splits(blocks, key_blocks, slots) == parts


def attention(**axes):
    return ops.build(
        "attention",
        {"batch": 4, "heads": 32, "kv_heads": 8, "head_dim": 128, "q_len": 1, "kv_len": 1024, "dtype": "bf16", **axes},
    )


def test_flash_blocks_of_a_decode_step():
    f = flash(attention(), 132)
    assert (f.heads, f.queries) == (8, 4), "grouped heads become queries"
    assert (f.parts, f.blocks, f.keys_each) == (8, 256, 128), "32 blocks, 8 parts of 128 keys, 256 of 264 slots"
    assert (f.row_tile, f.row_tiles, f.width) == (128, 1, 128)
    key_s = 132 * 4 * 128 / 1e12  # of an SM's share of the stream; two blocks to an SM, combined after
    b = Blocks(1e-6, 1.5, 3e-6, 1e-7, 1.0, 1.0, 1.0, 1.0, 1e12)
    wanted = 3e-6 + 8e-7 + (2 + 0.5) * (1e-6 + key_s * 128)
    assert flash_seconds(attention(), 0.0, 132, b, 1e18, 1e18) == pytest.approx(wanted)


def test_flash_blocks_of_a_prefill():
    op = attention(batch=8, q_len=512, kv_len=512, head_dim=80)
    f = flash(op, 132)
    assert (f.heads, f.queries, f.parts, f.blocks) == (32, 512, 1, 8 * 32 * 8)
    assert (f.keys_each, f.row_tiles, f.width) == (512, 4, 96), "the head is padded to a multiple of 32"
    key_s = 4 * 128 * 96 / (0.5 * 1e14 / 132)  # half as fast as heads of 128
    b = Blocks(1e-6, 1.5, 1.0, 1.0, 0.0, 1.0, 0.5, 1.0, 1e18)
    tiles = 8 * 32 * 4 / 132
    wanted = (tiles + 0.5) * (1e-6 + key_s * 320) + 1.5 * key_s * (512 - 320)  # 320 keys on average, the last sees all
    assert flash_seconds(op, 0.0, 132, b, 1e14, 1e18) == pytest.approx(wanted)


# --- what it answers and what it declines
@pytest.fixture(scope="module")
def h200():
    return estimator_of(H200)


@pytest.mark.parametrize("name", BY_NAME)
def test_inside_it_interpolates(name):
    rng, estimate = random.Random(name), learned_as(BY_NAME[name])
    for _ in range(100):
        op = random_op(rng, BY_NAME[name])
        e, cost = estimate(op)
        assert e.source == "interpolated"
        assert 0 < e.low_s <= e.seconds <= e.high_s
        assert cost == op.cost()
        assert e.bound in ("compute", "memory", "launch")


@pytest.mark.parametrize("name", BY_NAME)
def test_a_sweep_says_what_single_questions_say(name):
    """Trees are walked at first and compiled later."""
    rng, table = random.Random(name), BY_NAME[name]
    asked = [random_op(rng, table) for _ in range(100)]
    sweep = learned_as(table)
    assert [sweep(op) for op in asked] == [learned_as(table)(op) for op in asked]


@pytest.mark.parametrize("kind", COLD)
def test_asked_alone_it_is_the_cold_table_of_what_torch_runs(h200, kind):
    rng = random.Random(kind)
    for op in [random_op(rng, COLD[kind]) for _ in range(20)]:
        assert h200(op) == Learned(Tables("", BUNDLED.units, (COLD[kind],)), h200.otherwise)(op)


def test_what_was_measured_hot_only_is_asked_of_engines_only(h200):
    op = ops.build("kv_append", {"rows": 64, "cols": 2048})
    assert h200(op)[0].source == "roofline"
    assert estimator_of(H200, {"kv_append": "torch"})(op)[0].source == "interpolated"
    assert estimator_of(H200, {"kv_append": "another"})(op)[0].source == "roofline"


DECLINED = {
    "k below": ("linear", {"m": 8, "n": 4096, "k": 64}),
    "n above": ("linear", {"m": 8, "n": 400_000, "k": 4096}),
    "m above": ("linear", {"m": 100_000, "n": 4096, "k": 4096}),
    "other dtype": ("linear", {"m": 8, "n": 4096, "k": 4096, "dtype": "fp32"}),
    "quantised weights": ("linear", {"m": 8, "n": 4096, "k": 4096, "weight_dtype": "int4"}),
    "odd n": ("linear", {"m": 2048, "n": 50257, "k": 768}),
    "odd k": ("linear", {"m": 2048, "n": 4096, "k": 4099}),
    "window": ("attention", {"q_len": 512, "kv_len": 4096, "window": 1024}),
    "other values": ("attention", {"q_len": 1, "kv_len": 4096, "v_head_dim": 64}),
    "long context": ("attention", {"q_len": 1, "kv_len": 200_000}),
    "more queries than keys": ("attention", {"q_len": 100, "kv_len": 50, "causal": False}),
    "large head": ("attention", {"q_len": 1, "kv_len": 4096, "head_dim": 512}),
    "too many rows": ("rms_norm", {"rows": 1_000_000, "cols": 4096}),
    "too few columns": ("softmax", {"rows": 64, "cols": 16}),
    "norm of another dtype": ("rms_norm", {"rows": 64, "cols": 4096, "dtype": "fp32"}),
    "never measured": ("copy", {"rows": 64, "cols": 4096}),
}


@pytest.mark.parametrize("name", DECLINED)
def test_outside_it_is_the_roofline(h200, name):
    kind, axes = DECLINED[name]
    op = attention(**axes) if kind == "attention" else ops.build(kind, axes)
    floor_s = COLD["add"].base.floor_s
    found = h200(op)
    assert found == Roofline(roof_of(H200), floor_s)(op)
    assert found[0].source == "roofline"


def test_one_pass_outside_the_additions_is_the_roofline_in_name_too():
    """Of additions only the number of elements counts: a norm of narrow heads is among them, a huge one is not."""
    estimate = estimator_of(H200, engines.get("vllm").RUNS_AS)
    narrow, wide = (ops.build("rms_norm", {"rows": 8, "cols": cols}) for cols in (64, 4096))
    for tokens in (1, 100, 1000, 3001):
        assert estimate.along(narrow)(tokens)[4] == estimate.along(wide)(tokens)[4] == "interpolated"
    assert estimate.along(wide)(30_000) == estimate.otherwise.along(wide)(30_000), "a billion elements"


@pytest.mark.parametrize("kind", ["attention", "growing_attention"])
def test_a_single_token_under_a_window_sees_fewer_keys(kind):
    estimate = estimator_of(H200, {DECODE_ATTENTION: "fa3", "growing_attention": "flash"})

    def asked(kv_len, window):
        axes = {"batch": 8, "heads": 32, "kv_heads": 8, "head_dim": 128, "q_len": 1}
        op = ops.build(kind, {**axes, "kv_len": kv_len, "window": window})
        over = estimate.over(replace(op, batch=1, kv_len=1))(Seq(1, kv_len - 1, 8))
        assert over[0] == pytest.approx(estimate(op)[0].seconds, rel=0.02)
        return estimate(op), over

    for kv_len in (1024, 1500, 4096, 100_000):
        assert asked(kv_len, 1024) == asked(1024, 0)
    assert asked(512, 1024) == asked(512, 0)
    assert asked(4096, 0)[0][0].seconds > 1.5 * asked(4096, 1024)[0][0].seconds


@pytest.mark.parametrize("kv_len", [1, 8, 20])
def test_few_keys_take_as_long_as_the_fewest_that_were_measured(kv_len):
    """After a prompt of 16 tokens FlashAttention-3 took 7.8 us (engines/vllm-4.json), not a roofline's 2."""
    estimate = estimator_of(H200, {DECODE_ATTENTION: "fa3"})
    few, fewest = (attention(kv_len=n) for n in (kv_len, 32))
    assert estimate(few)[0].seconds == pytest.approx(estimate(fewest)[0].seconds, rel=0.01)
    assert estimate(few)[1] == few.cost()
    over = estimate.over(replace(few, batch=1, kv_len=1))(Seq(1, kv_len - 1, few.batch))
    assert over[0] == pytest.approx(estimate(few)[0].seconds, rel=0.02)
    assert over[4] == "interpolated"


def test_where_a_hot_table_ends_the_cold_one_answers():
    hot, cold = (next(t for t in BUNDLED.operators if (t.op, t.context) == ("layer_norm", c)) for c in ("hot", "cold"))
    rows = int(1.2 * hot.ranges["rows"][1])
    assert rows < cold.ranges["rows"][1]
    op = ops.build("layer_norm", {"rows": rows, "cols": 1024})
    as_torch, asked_alone = estimator_of(H200, {"layer_norm": "torch"}), estimator_of(H200)
    assert as_torch(op) == asked_alone(op)
    assert as_torch(op)[0].source == "interpolated"
    along = as_torch.along(replace(op, rows=1))
    assert along(rows)[0] == pytest.approx(asked_alone(op)[0].seconds, rel=0.02)


def test_a_little_outside_is_still_inside(h200):
    most = COLD["linear"].ranges["m"][1]
    for m, source in ((most * 1.04, "interpolated"), (most * 1.06, "roofline")):
        assert h200(ops.build("linear", {"m": int(m), "n": 4096, "k": 4096}))[0].source == source


def test_weights_of_the_same_dtype_are_no_others(h200):
    plain, said = (ops.build("linear", {"m": 8, "n": 4096, "k": 4096, **w}) for w in ({}, {"weight_dtype": "bf16"}))
    assert h200(plain) == h200(said)


@pytest.mark.parametrize("kind", ["add", "layer_norm", "silu_mul", "silu", "rms_norm"])
def test_a_large_elementwise_kernel_is_bound_by_memory(h200, kind):
    """Whatever rate the fit gave its base: rates and times of rows can stand for each other there."""
    assert h200(ops.build(kind, {"rows": 16384, "cols": 8192}))[0].bound == "memory"
    assert h200(ops.build(kind, {"rows": 1, "cols": 256}))[0].bound == "launch"


def test_a_large_product_is_bound_by_arithmetic_and_a_thin_one_by_memory(h200):
    assert h200(ops.build("linear", {"m": 8192, "n": 8192, "k": 8192}))[0].bound == "compute"
    assert h200(ops.build("linear", {"m": 1, "n": 8192, "k": 8192}))[0].bound == "memory"


@pytest.mark.parametrize(
    ("engine", "decode", "prefill", "norm", "act"),
    [
        ("vllm", "attention-fa3-cold", "attention-fa3-cold", "rms_norm-compiled-hot", "silu_mul-compiled-hot"),
        ("hf-eager", "", "attention-cudnn-cold", "", "silu_mul-torch-hot"),
        ("hf-graph", "", "", "", "silu_mul-torch-hot"),
        (None, "attention-flash-cold", "attention-flash-cold", "rms_norm-torch-cold", "silu_mul-torch-cold"),
    ],
)
def test_an_engine_is_answered_for_by_what_it_runs(engine, decode, prefill, norm, act):
    """Hot measurements before cold ones; what it does not run is left to the roofline, what it compiles to one pass is
    an addition of the same bytes."""
    estimate = estimator_of(H200, engine and engines.get(engine).RUNS_AS)
    asked = {
        attention(): decode,
        attention(q_len=512): prefill,
        ops.build("linear", {"m": 8, "n": 4096, "k": 4096}): "linear-torch-cold",
        ops.build("rms_norm", {"rows": 8, "cols": 4096}): norm,
        ops.build("silu_mul", {"rows": 8, "cols": 14336}): act,
    }
    for op, name in asked.items():
        e, cost = estimate(op)
        assert e.source == ("interpolated" if name else "roofline"), op
        if name.startswith("add-"):
            same = ops.build("add", {"rows": op.rows, "cols": round(cost.bytes / (3 * 2 * op.rows))})
            alone = Learned(Tables("", BUNDLED.units, (replace(BY_NAME[name], context="cold"),)), estimate.otherwise)
            assert e.seconds == alone(same)[0].seconds
        elif name:
            alone = replace(BY_NAME[name], context="cold")
            assert (e, cost) == Learned(Tables("", BUNDLED.units, (alone,)), estimate.otherwise)(op)


def test_what_was_not_measured_compiled_is_one_pass():
    estimate = estimator_of(H200, engines.get("vllm").RUNS_AS)
    narrow = ops.build("rms_norm", {"rows": 8, "cols": 896})  # narrower than any that was
    same = ops.build("add", {"rows": 8, "cols": round(narrow.cost().bytes / (3 * 2 * 8))})
    table = replace(BY_NAME["add-torch-hot"], context="cold")
    alone = Learned(Tables("", BUNDLED.units, (table,)), estimate.otherwise)
    assert estimate(narrow)[0].seconds == alone(same)[0].seconds
    assert estimate.along(replace(narrow, rows=1))(8)[0] == pytest.approx(alone(same)[0].seconds, rel=0.02)


def test_the_better_measured_of_two_implementations():
    few, many = (
        OperatorTable(
            "add", name, "bf16", Base(floor, 1e14, 1e12), {"elements": (1, 81)}, (Spread(1, 1, 1),), points,
            0, 0, surface=Surface((0,), (0,), (0,), 0),
        )
        for name, floor, points in (("few", 1e-3, 20), ("many", 1e-6, 30))
    )  # fmt: skip
    op = ops.build("add", {"rows": 2, "cols": 2})
    for order in ((few, many), (many, few)):
        learned = Learned(Tables("NVIDIA H200", 132, order), Roofline(roof_of(H200)))
        assert learned(op)[0].seconds == pytest.approx(1e-6, rel=1e-3)


def test_a_dtype_that_nothing_was_measured_in_is_noted():
    def said(dtype):
        return [n for n in answer({"model": "llama-3.1-8b", "dtype": dtype})["notes"] if "measured in" in n]

    assert said("fp32") == ["no operator was measured in fp32 on h200: all are the calibrated roofline's"]
    assert said("fp16") == ["operators were measured in bf16 on h200; those answer for fp16"]
    assert said("bf16") == said("int4") == []


def test_an_edge_keeps_kernels_apart():
    """Two points on either side of an edge: what is asked stands by the one on its own side."""
    smooth = Surface((0.0, 0.0), (3.9, 4.1), (-1.0, 1.0), 0.0)
    apart = replace(smooth, edges=((1, 4.0),))
    assert abs(smooth(0.0, 3.99) - smooth(0.0, 4.01)) < 0.05
    assert apart(0.0, 4.01) - apart(0.0, 3.99) < -10  # nearer to the second, further from the first


def test_the_kernels_that_torch_changes_are_told_apart():
    embedding, softmax = (next(t for t in BUNDLED.operators if t.op == kind) for kind in ("embedding", "softmax"))
    assert [round(2**at) for _, at in embedding.surface.edges] == [16]
    assert [round(2**at) for _, at in softmax.surface.edges] == [2048, 9216, 24511]
    e = estimator_of(H200)
    few, more = (e(ops.build("embedding", {"rows": rows, "cols": 4096}))[0].seconds for rows in (16, 17))
    assert few > 2 * more  # sixteen rows are gathered one after another


@pytest.mark.parametrize("sdpa", ["", "cudnn", "flash"])
def test_a_prefill_of_hf_eager_attends_with_what_was_asked_for(sdpa):
    found = predict(library.find("llama-3.1-8b"), "h200", "hf-eager", Scenario(8, 1024, 9), sdpa=sdpa)
    (line,) = (n for n in found.prefill.lines if n.role == "attention")
    table = BY_NAME[f"attention-{sdpa or 'cudnn'}-cold"]
    alone = Learned(Tables("", BUNDLED.units, (table,)), estimator_of(H200).otherwise)
    once = attention(batch=8, heads=32, kv_heads=8, head_dim=128, q_len=1024, kv_len=1024)
    assert line.seconds == pytest.approx(32 * alone(once)[0].seconds)


@pytest.mark.parametrize(("engine", "sdpa"), [("vllm", "flash"), ("hf-graph", "cudnn"), ("hf-eager", "math")])
def test_other_backends_are_not_predicted(capsys, engine, sdpa):
    assert cli.main(["predict", "llama-3.1-8b", "--engine", engine, "--sdpa", sdpa]) == 2
    assert f"--sdpa {sdpa}: hf-eager is predicted with cudnn or flash, no other" in capsys.readouterr().err


def test_attention_under_a_mask_knows_how_its_rows_are_aligned():
    """Of prompts; a single token's mask is one row."""

    def last(q_len, kv_len):
        op = MaskedAttention(8, 32, 8, 128, q_len, kv_len)
        return features(op, op.cost(), 132)[-1]

    assert [last(512, kv_len) for kv_len in (576, 608, 579)] == [6, 5, 0]
    assert last(1, 576) == 0
    e = estimator_of(H200)
    even, odd = (e(MaskedAttention(8, 32, 8, 128, 2048, kv_len))[0].seconds for kv_len in (2112, 2113))
    assert odd > 1.1 * even
