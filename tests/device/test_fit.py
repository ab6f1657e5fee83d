"""Learning operator tables: a known law is found again, what is exported is what was learned, and `chip fit` whole."""

import json
import random
from collections import Counter
from dataclasses import replace
from math import ceil
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("scipy")
pytest.importorskip("sklearn")

from chip.predict.learned import Learned  # noqa: E402
from chip.predict.roofline import Roofline  # noqa: E402
from chip.predict.shapes import features  # noqa: E402
from chip.predict.tables import Base  # noqa: E402
from chip.predict.tables_check import check  # noqa: E402
from chip.predict.tiled import Tiled  # noqa: E402

from chip import artifact, cli, codec, hardware, measurements, ops, stats  # noqa: E402
from chip.measure import bases, learners, sampling  # noqa: E402
from chip.measure import fit as fitting  # noqa: E402
from chip.ops import composed  # noqa: E402
from chip.predict.estimator import estimator_of, read_tables  # noqa: E402
from chip.predict.roof import roof_of  # noqa: E402
from chip.types import Ceiling, ChipError, HardwareProfile, Measurement, Seq  # noqa: E402

RECORDS = Path(__file__).parents[2] / "results" / "h200"
FLOPS, BYTES, UNITS = 1e14, 1e12, 100
DEVICE = "Round GPU"
EXPORT = 1e-6
TORCH = {"rms_norm": "torch"}
OTHER_SUITE = (0.047, 0.118)


def profile(**changes):
    rates = {
        "hbm_read": BYTES,
        "hbm_copy": BYTES,
        "matmul_bf16": FLOPS,
        "matmul_fp32": FLOPS / 10,
        "launch_graph": 1e-6,
    }
    ceilings = {k: Ceiling(v, 0.9 * v, 1.1 * v, "", "made up for tests") for k, v in rates.items()}
    settings = {
        "name": "round", "device": DEVICE, "kind": "cuda", "spec": "", "units": UNITS,
        "memory_bytes": 64 * 2**30, "l2_bytes": 32 * 2**20, "ceilings": ceilings,
    }  # fmt: skip
    return HardwareProfile(**{**settings, **changes})


def write_profile(path):
    artifact.write(path, artifact.new(HardwareProfile.SCHEMA, codec.to_json(profile()), {}))
    return path


def measured(op, seconds, implementation="torch", context="cold"):
    samples = tuple(round(seconds * 1e9) + d for d in (-1, 0, 1))
    return Measurement(measurements.record(op), implementation, context, "ok", samples_ns=samples, device=DEVICE)


def law(op):
    """3 us, and the roofline, 30 % slower while tiles of 128 x 128 do not fill one wave."""
    cost = op.cost()
    waves = ceil(op.m / 128) * ceil(op.n / 128) / UNITS
    return 3e-6 + max(cost.flops / FLOPS, cost.bytes / BYTES) * (1.3 if waves <= 1 else 1.0)


def row_law(op):
    """2 us, and the bytes at 80 % of the bandwidth."""
    return 2e-6 + op.cost().bytes / (0.8 * BYTES)


def linears(count, seed=0):
    rng = random.Random(seed)
    return [
        ops.build("linear", {"m": int(2 ** rng.uniform(0, 13)), **{a: 8 * int(2 ** rng.uniform(5, 10)) for a in "nk"}})
        for _ in range(count)
    ]


def norms(count, seed=0):
    rng = random.Random(seed)
    return [
        ops.build("rms_norm", {"rows": int(2 ** rng.uniform(0, 14)), "cols": 64 * int(2 ** rng.uniform(0, 7))})
        for _ in range(count)
    ]


@pytest.fixture(scope="module")
def learned():
    found = [measured(op, law(op)) for op in linears(250)] + [measured(op, row_law(op)) for op in norms(40)]
    return fitting.fit(found, profile())[0]


def table_of(tables, kind):
    return next(t for t in tables.operators if t.op == kind)


def test_a_known_law_is_found_again(learned):
    linear = table_of(learned, "linear")
    assert (linear.implementation, linear.dtype) == ("torch", "bf16")
    assert linear.points == len(set(linears(250)))
    assert linear.median_error < 0.03
    assert linear.p90_error < 0.10
    assert linear.ranges["m"] == (min(o.m for o in linears(250)), max(o.m for o in linears(250)))
    norm = table_of(learned, "rms_norm")
    assert norm.median_error < 0.03
    assert norm.p90_error < 0.10


def test_shapes_never_seen_follow_the_law(learned, tmp_path):
    h = hardware.find(str(write_profile(tmp_path / "round.json")))
    estimate = Learned(learned, Roofline(roof_of(h)))
    for unseen, expected in ((linears(200, seed=1), law), (norms(100, seed=1), row_law)):
        pairs = [(estimate(op)[0], expected(op)) for op in unseen]
        answered = [(e, s) for e, s in pairs if e.source == "interpolated"]
        assert len(answered) > 0.9 * len(pairs)
        assert stats.median([abs(e.seconds / s - 1) for e, s in answered]) < 0.03
        held = sum(e.low_s <= s <= e.high_s for e, s in answered) / len(answered)
        assert 0.75 <= held <= 1


def test_repeated_shapes_count_once_with_their_median():
    shapes = linears(30)
    slow = [measured(op, 9 * law(op), context="graph") for op in shapes]
    once, _ = fitting.fit([measured(op, law(op)) for op in shapes], profile())
    thrice, _ = fitting.fit([measured(op, f * law(op)) for f in (1, 0.5, 2) for op in shapes] + slow, profile())
    assert table_of(thrice, "linear").points == table_of(once, "linear").points
    assert table_of(thrice, "linear").median_error == pytest.approx(table_of(once, "linear").median_error, rel=0.01)


def test_what_is_no_neighbour_is_left_out():
    odd = [ops.build("linear", {"m": m, "n": 4097, "k": 4096}) for m in range(1, 40)]
    wide = [
        ops.build("attention", {"batch": 1, "heads": 8, "kv_heads": 8, "head_dim": 64, "q_len": q, "kv_len": 9,
                                "causal": False})
        for q in range(10, 40)
    ]  # fmt: skip
    with pytest.raises(ChipError, match="there are no cold or hot measurements"):
        fitting.fit([measured(op, 1e-3) for op in (*odd, *wide)], profile())


def test_too_few_points_are_refused_in_one_line():
    with pytest.raises(ChipError, match=r"linear \(torch, bf16, cold\) 9 shapes measured, 10 needed"):
        fitting.fit([measured(op, law(op)) for op in linears(9)], profile())
    graph = [measured(op, law(op), context="graph") for op in linears(50)]
    with pytest.raises(ChipError, match="no cold or hot measurements"):
        fitting.fit(graph, profile())


def test_a_profile_without_the_rate_is_refused_in_one_line():
    ceilings = {k: v for k, v in profile().ceilings.items() if k != "matmul_bf16"}
    with pytest.raises(ChipError, match="no ceiling matmul_bf16; run `chip calibrate` again"):
        fitting.fit([measured(op, law(op)) for op in linears(30)], profile(ceilings=ceilings))


def test_disturbed_measurements_are_left_out():
    spoiled = [replace(measured(op, law(op)), flags=("CPU shared: 40 %",)) for op in linears(30)]
    with pytest.raises(ChipError, match="no cold or hot measurements"):
        fitting.fit(spoiled, profile())


def test_what_cannot_be_learned_is_named_with_the_reason():
    rng = random.Random(0)
    found = [measured(op, law(op)) for op in linears(30)]
    found += [measured(op, row_law(op)) for op in norms(5)]
    found += [measured(ops.build("bmm", {"batch": r, "m": 8, "n": 8, "k": 8}), 1e-5) for r in range(1, 30)]
    adds = [ops.build("add", {"rows": rng.randint(1, 9999), "cols": 64 * rng.randint(1, 99)}) for _ in range(40)]
    found += [measured(op, bases.SURFACE_FLOOR_S + op.cost().bytes / BYTES) for op in adds]
    tables, left_out = fitting.fit(found, profile())
    assert [t.op for t in tables.operators] == ["linear"]
    assert left_out["bmm (torch, bf16, cold)"] == "has no features to learn from"
    assert left_out["rms_norm (torch, bf16, cold)"] == "5 shapes measured, 10 needed"
    assert "on unseen shapes, the roofline by" in left_out["add (torch, bf16, cold)"], "the roofline itself"


def test_contexts_have_tables_of_their_own(tmp_path):
    """What is warm in cache is faster; both are learned, apart."""
    otherwise = Roofline(roof_of(hardware.find(str(write_profile(tmp_path / "round.json")))))
    found = [measured(op, f * row_law(op), context=c) for op in norms(30) for c, f in (("cold", 1), ("hot", 0.5))]
    tables, _ = fitting.fit(found, profile())
    cold, hot = sorted(tables.operators, key=lambda t: t.context)
    assert (cold.context, hot.context) == ("cold", "hot")
    for op in norms(30):
        alone, warm = (Learned(replace(tables, operators=(t,)), otherwise, r) for t, r in ((cold, None), (hot, TORCH)))
        assert warm(op)[0].seconds == pytest.approx(0.5 * alone(op)[0].seconds, rel=0.03)


@pytest.mark.parametrize("implementation", ["fa3", "cudnn"])
def test_a_tiled_law_is_found_again(implementation):
    """Measurements made by the formula itself, in other numbers than the search starts from."""
    rng = random.Random(0)
    truth = Base(
        6e-6, 0.7 * FLOPS, 0.8 * BYTES, tiled=Tiled(implementation == "fa3", 4e-6, 60.0, 1.3, 0.7, 0.8, 1.0, 0.5)
    )
    found = {}
    while len(found) < 60:
        q = rng.choice((1, int(2 ** rng.uniform(5, 12))))
        axes = {"batch": int(2 ** rng.uniform(0, 6)), "heads": 32, "kv_heads": rng.choice((4, 8, 32))}
        axes |= {"head_dim": rng.choice((64, 96, 128)), "q_len": q, "kv_len": q + int(2 ** rng.uniform(5, 13))}
        op = ops.build("attention", axes)
        found[op] = truth.seconds(op, op.cost(), UNITS)
    tables, _ = fitting.fit([measured(op, s, implementation) for op, s in found.items()], profile())
    table = table_of(tables, "attention")
    assert table.base.tiled is not None
    assert table.median_error < 0.05


def test_masked_attention_by_a_backend_of_tiles_keeps_its_own_base(tmp_path):
    """It is no `Attention`: the numbers of tiles would neither predict it nor fit its features."""
    rng = random.Random(0)
    truth = Base(15e-6, 0.5 * FLOPS, 0.6 * BYTES, copy_bytes_per_s=0.3 * BYTES)
    found = []
    for _ in range(30):
        q = rng.choice((1, int(2 ** rng.uniform(5, 11))))
        axes = {"batch": int(2 ** rng.uniform(0, 5)), "heads": 32, "kv_heads": 8, "head_dim": rng.choice((64, 128))}
        op = ops.build("masked_attention", {**axes, "q_len": q, "kv_len": q + int(2 ** rng.uniform(5, 12))})
        found.append(measured(op, truth.seconds(op, op.cost(), UNITS), "cudnn"))
    tables, _ = fitting.fit(found, profile())
    check(tables, "made")
    table = table_of(tables, "masked_attention")
    assert table.base.tiled is None
    assert table.median_error < 0.05


@pytest.mark.parametrize("kind", composed.KINDS)
def test_attention_that_is_spelled_out_is_learned_from_its_points(kind, tmp_path):
    """Products and passes over the scores follow each other; those of odd lengths are half as fast."""

    def truth(op):
        slow = 2 if op.keys % 8 and op.q_len > 1 else 1
        return 20e-6 + slow * op.cost().flops / (0.3 * FLOPS) + op.cost().bytes / (0.5 * BYTES)

    points = [p.op for p in sampling.family_points("bf16") if p.op.kind == kind]
    tables, _ = fitting.fit([measured(op, truth(op)) for op in points], profile())
    check(tables, "made")
    table = table_of(tables, kind)
    assert table.median_error < 0.05
    h = hardware.find(str(write_profile(tmp_path / "round.json")))
    estimate = Learned(tables, Roofline(roof_of(h)), {kind: "torch"})
    seen = replace(points[0], batch=3, q_len=512, kv_len=512)
    found = estimate(seen)[0]
    assert found.source == "interpolated"
    assert found.seconds == pytest.approx(truth(seen), rel=0.2)
    beyond = replace(seen, batch=5000)
    parts = sum(estimate(part)[0].seconds for part in beyond.parts())
    assert estimate(beyond)[0].seconds == pytest.approx(parts), "the sum of its parts, where it was not measured"
    for op in (seen, beyond):
        assert estimate.over(op)(Seq(512, 0, op.batch))[0] == pytest.approx(estimate(op)[0].seconds)


def test_what_the_tables_suite_measures_is_enough_to_learn_from():
    points = Counter((p.op.kind, p.implementation, p.context) for p in sampling.points("bf16"))
    assert min(points.values()) >= fitting.LEAST_POINTS


def test_predictions_of_one_length_have_one_interval():
    assert len(fitting._spreads(np.full(30, 2e-6), np.full(30, 2e-6))) == 1


# --- what is exported is what was learned
@pytest.mark.parametrize("kind", ["linear", "attention"])
def test_exported_forest(kind):
    rng = random.Random(0)
    if kind == "linear":
        found = linears(150)
    else:
        found = [
            ops.build(
                "attention",
                {"batch": rng.randint(1, 64), "heads": 32, "kv_heads": rng.choice((4, 8, 32)), "head_dim": 128,
                 "q_len": q, "kv_len": q + rng.randint(32, 8192)},
            )
            for q in (rng.choice((1, rng.randint(2, 2048))) for _ in range(150))
        ]  # fmt: skip
    x = np.array([features(op, op.cost(), UNITS) for op in found])
    y = np.sin(x[:, 0]) + 0.3 * (x[:, 1] > x[:, 1].mean()) + 0.1 * x[:, 4]
    model = learners.Boosted(x[:100], y[:100]) if kind == "linear" else learners.Smooth(x, y)(x[:100], y[:100])
    forest = learners.forest(model)
    for row, wanted in zip(x.tolist(), model(x)):  # seen and unseen: times are exp of these
        assert np.exp(forest.walk(row)) == pytest.approx(np.exp(wanted), rel=EXPORT)
        assert forest.compiled(row) == forest.walk(row)


def test_exported_surface():
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 16, (60, 2))
    y = np.sin(x[:, 0] / 3) + 0.2 * np.cos(x[:, 1])
    model = learners.Drawn(x[:40], y[:40], ())
    surface = learners.surface(model)
    for (a, b), wanted in zip(x.tolist(), model(x)):
        assert np.exp(surface(a, b)) == pytest.approx(np.exp(wanted), rel=EXPORT)


def test_the_fitted_base_of_rows_is_the_one_that_predicts():
    """The same formula in numpy and in `Base`."""
    found = norms(30)
    times = np.array([row_law(op) for op in found])
    base = bases.row_base(Base(1e-6, FLOPS, BYTES), found, times, (), bases.Cache.of("cold", 6e7))
    said = np.array([base.seconds(op, op.cost(), UNITS) for op in found])
    assert np.median(np.abs(said / times - 1)) < 0.02


# --- the command
@pytest.fixture
def files(tmp_path):
    """A profile, and measurements of it in two files."""
    write_profile(tmp_path / "my.json")
    for name, found in (
        ("a.jsonl", [measured(op, law(op)) for op in linears(60)]),
        ("b.jsonl", [measured(op, row_law(op)) for op in norms(30)]),
    ):
        measurements.start(tmp_path / name, DEVICE, {})
        with open(tmp_path / name, "a") as f:
            f.writelines(json.dumps(codec.to_json(m)) + "\n" for m in found)
    return tmp_path


def run(capsys, *words):
    code = cli.main([str(w) for w in words])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_command_from_measurements_to_a_prediction(files, capsys):
    code, out, err = run(capsys, "fit", files / "a.jsonl", files / "b.jsonl", "--profile", files / "my.json")
    assert code == 0, err
    assert [line.split()[0] for line in out.splitlines() if line.split()[0] in ("linear", "rms_norm")] == [
        "linear",
        "rms_norm",
    ]
    path = files / "my.tables.json"
    assert f"wrote {path}" in err
    assert estimator_of(hardware.find(str(files / "my.json"))).otherwise.roof.name == "round"
    assert [t.op for t in read_tables(path).operators] == ["linear", "rms_norm"]
    code, out, _ = run(capsys, "estimate", "linear", "m=64", "n=2048", "k=2048", "--gpu", files / "my.json", "--json")
    a = json.loads(out)
    assert a["source"] == "interpolated"
    assert a["us"] == pytest.approx(1e6 * law(ops.build("linear", {"m": 64, "n": 2048, "k": 2048})), rel=0.1)


def test_the_command_as_json_and_elsewhere(files, capsys):
    other = files / "deep" / "other.json"
    words = ("fit", files / "b.jsonl", "--profile", files / "my.json", "-o", other, "--json")
    code, out, err = run(capsys, *words)
    assert code == 0, err
    assert not (files / "my.tables.json").exists()
    said, made = json.loads(out), json.loads(other.read_text())
    assert said["tables"] == str(other)
    assert said["id"] == made["id"]
    assert [r["operator"] for r in said["operators"]] == ["rms_norm"]
    assert said["operators"][0]["shapes"] == made["data"]["operators"][0]["points"]


def test_the_inputs_are_recorded(files, capsys):
    run(capsys, "fit", files / "a.jsonl", files / "b.jsonl", "--profile", files / "my.json")
    made = artifact.read(files / "my.tables.json", "chip.operator_tables/1")
    wanted = [artifact.read(files / "my.json", HardwareProfile.SCHEMA).id]
    for name in ("a.jsonl", "b.jsonl"):
        found = measurements.read(files / name)[1]
        wanted.append(artifact.new(Measurement.SCHEMA, [codec.to_json(m) for m in found], {}).id)
    assert list(made.inputs) == wanted
    assert len(set(wanted)) == 3


def test_the_same_measurements_give_the_same_tables(files, capsys):
    ids = []
    for name in ("one.json", "two.json"):
        words = ("fit", files / "a.jsonl", "--profile", files / "my.json", "-o", files / name, "--json")
        ids.append(json.loads(run(capsys, *words)[1])["id"])
    assert ids[0] == ids[1]


def test_the_command_refuses_in_one_line(files, capsys):
    measurements.start(files / "other.jsonl", "Square GPU", {})
    measurements.start(files / "few.jsonl", DEVICE, {})
    for given, told in (
        ("other.jsonl", "was measured on Square GPU, the profile is of Round GPU"),
        ("few.jsonl", "nothing could be learned (there are no cold or hot measurements)"),
        ("none.jsonl", "no such file"),
        ("my.json", "line 1 is not JSON"),
    ):
        code, out, err = run(capsys, "fit", files / given, "--profile", files / "my.json")
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert told in err
    code, out, err = run(capsys, "fit", files / "a.jsonl", "--profile", files / "b.jsonl")
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert not (files / "my.tables.json").exists()


# --- the H200's records
def test_shapes_of_another_suite():
    """Products learned from tables.jsonl alone, judged by the shapes of operators-2.jsonl that are not among them.

    These are what users ask for: powers of two and the layers of known models. They were timed without pauses,
    part of the tables with pauses between samples: thin products are 10 % faster here, which makes the 90th percentile.
    """
    h = hardware.find("h200")
    taught = [m for m in measurements.read(RECORDS / "tables.jsonl")[1] if m.op["op"] == "linear"]
    estimate = Learned(fitting.fit(taught, h.profile)[0], Roofline(roof_of(h)))
    seen = {measurements.operator(m.op) for m in taught}
    judged = []
    for m in measurements.read(RECORDS / "operators-2.jsonl")[1]:
        op, seconds = measurements.operator(m.op), stats.median(m.samples_ns) * 1e-9
        e, _ = estimate(op)
        if op not in seen and e.source == "interpolated":
            judged.append((abs(e.seconds / seconds - 1), e.low_s <= seconds <= e.high_s))
    assert len(judged) >= 40
    assert stats.median([error for error, _ in judged]) <= OTHER_SUITE[0]
    assert stats.quantile([error for error, _ in judged], 0.9) <= OTHER_SUITE[1]
    assert sum(inside for _, inside in judged) / len(judged) >= 0.71


def test_every_second_prompt_under_a_mask_is_round():
    """The rows of its mask are aligned then, and the fit must see both kinds."""
    found = [p.op for p in sampling.points("bf16") if p.op.kind == "masked_attention" and p.op.q_len > 1]
    round_ones = [op for op in found if op.kv_len % 64 == 0]
    assert len(round_ones) >= len(found) / 2
    assert sum(op.kv_len % 8 != 0 for op in found) >= len(found) / 4
    assert all(op.kv_len == op.q_len + 64 for op in found)
