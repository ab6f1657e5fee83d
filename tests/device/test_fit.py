"""From measurements to points: a known law is found again, points are judged by the others, and `chip fit` whole."""

import json
import random
from collections import Counter
from dataclasses import replace
from math import ceil

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("scipy")

from chip import ops, stats  # noqa: E402
from chip.files import artifact, codec, measurements  # noqa: E402
from chip.hardware import gpus  # noqa: E402
from chip.hardware import points as point_files  # noqa: E402
from chip.lab.measure import fit as fitting  # noqa: E402
from chip.lab.measure import point_cases  # noqa: E402
from chip.ops import composed  # noqa: E402
from chip.ops.attention_tiles import CudnnBase, TiledBase  # noqa: E402
from chip.predictor.estimator import estimator_of  # noqa: E402
from chip.predictor.interpolate import Points  # noqa: E402
from chip.show import cli  # noqa: E402
from chip.types import Ceiling, ChipError, HardwareProfile, Measurement  # noqa: E402

FLOPS, BYTES, UNITS = 1e14, 1e12, 100
DEVICE = "Round GPU"


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
        ops.build("rms_norm", {"rows": int(2 ** rng.uniform(0, 14)), "cols": 64 * int(2 ** rng.uniform(0, 4))})
        for _ in range(count)
    ]


@pytest.fixture(scope="module")
def groups():
    found = [measured(op, law(op)) for op in linears(250)] + [measured(op, row_law(op)) for op in norms(60)]
    return fitting.fit(found, profile())[0]


def of(groups, kind):
    """The largest group of a kind: torch has several kernels for rows of several widths."""
    return max((g for g in groups if g.kind == kind), key=lambda g: len(g.ops))


def errors(group):
    return [abs(e) for e in group.loo]


def test_a_known_law_is_found_again(groups):
    linear = of(groups, "linear")
    assert (linear.kernel, linear.dtype, linear.context) == ("torch", "bf16", "cold")
    assert set(linear.ops) == set(linears(250))
    assert stats.median(errors(linear)) < 0.06
    assert stats.quantile(errors(linear), 0.9) < 0.16
    assert linear.base.bytes_per_s == pytest.approx(BYTES, rel=0.3)
    assert stats.median(errors(of(groups, "rms_norm"))) < 0.03


@pytest.mark.parametrize(("kind", "unseen", "truth"), [("linear", linears, law), ("rms_norm", norms, row_law)])
def test_shapes_never_seen_follow_the_law(groups, kind, unseen, truth):
    group = of(groups, kind)
    points = Points(group, group.base)
    mine = [op for op in unseen(200, seed=1) if op.kernel_of("torch") == group.kernel]
    off = [points.seconds(op).seconds / truth(op) - 1 for op in mine]
    assert len(off) > 20
    assert stats.median([abs(e) for e in off]) < 0.06
    assert stats.quantile([abs(e) for e in off], 0.9) < 0.2
    spreads = [points.seconds(op).spread for op in mine]
    inside = sum(abs(np.log(1 + e)) <= 1.645 * s for e, s in zip(off, spreads)) / len(off)
    assert inside >= 0.75


def test_each_point_is_judged_by_the_others():
    """A point that is off by half is off by half, and tells so."""
    shapes = linears(60)
    found, _ = fitting.fit([measured(op, (1.5 if op == shapes[7] else 1) * law(op)) for op in shapes], profile())
    group = of(found, "linear")
    assert group.loo[group.ops.index(shapes[7])] == pytest.approx(1 / 1.5 - 1, abs=0.15)


def test_repeated_shapes_count_once_with_their_median():
    shapes = linears(30)
    slow = [measured(op, 9 * law(op), context="graph") for op in shapes]
    once, _ = fitting.fit([measured(op, law(op)) for op in shapes], profile())
    thrice, _ = fitting.fit([measured(op, f * law(op)) for f in (1, 0.5, 2) for op in shapes] + slow, profile())
    assert of(thrice, "linear").ops == of(once, "linear").ops
    assert of(thrice, "linear").seconds == pytest.approx(of(once, "linear").seconds, rel=1e-3)


def test_what_is_no_neighbour_is_left_out():
    odd = [ops.build("linear", {"m": m, "n": 4097, "k": 4096}) for m in range(1, 40)]
    wide = [
        ops.build("attention", {"batch": 1, "heads": 8, "kv_heads": 8, "head_dim": 64, "q_len": q, "kv_len": 9,
                                "causal": False})
        for q in range(10, 40)
    ]  # fmt: skip
    with pytest.raises(ChipError, match="there are no cold or hot measurements"):
        fitting.fit([measured(op, 1e-3) for op in (*odd, *wide)], profile())


def test_what_cannot_be_fitted_is_refused_in_one_line():
    with pytest.raises(ChipError, match=r"linear \(torch, bf16, cold\) 9 shapes measured, 10 needed"):
        fitting.fit([measured(op, law(op)) for op in linears(9)], profile())
    for found in (
        [measured(op, law(op), context="graph") for op in linears(50)],
        [replace(measured(op, law(op)), flags=("CPU shared: 40 %",)) for op in linears(30)],
    ):
        with pytest.raises(ChipError, match="no cold or hot measurements"):
            fitting.fit(found, profile())
    ceilings = {k: v for k, v in profile().ceilings.items() if k != "matmul_bf16"}
    with pytest.raises(ChipError, match="no ceiling matmul_bf16; run `chip calibrate` again"):
        fitting.fit([measured(op, law(op)) for op in linears(30)], profile(ceilings=ceilings))


def test_what_is_left_out_is_named_with_the_reason():
    found = [measured(op, law(op)) for op in linears(30)] + [measured(op, row_law(op)) for op in norms(5)]
    image = {"in_channels": 8, "height": 8, "width": 8, "out_channels": 8, "kernel_h": 3, "kernel_w": 3}
    found += [measured(ops.build("conv2d", {"batch": r, **image}), 1e-5) for r in range(1, 30)]
    groups, left_out = fitting.fit(found, profile())
    assert [g.kind for g in groups] == ["linear"]
    assert left_out["conv2d (torch, bf16, cold)"] == "has no coordinates to interpolate over"
    assert any("rms_norm" in name and "shapes measured, 10 needed" in why for name, why in left_out.items())


def test_long_arithmetic_takes_no_longer_in_a_layer():
    """Among kernels that draw little power it would run at another clock: such points are those of the cold context."""
    short, long = (ops.build("linear", {"m": m, "n": 4096, "k": 4096}) for m in (8, 4096))
    found = [measured(op, s, context=c) for op, c, s in (
        (short, "cold", 1e-5), (short, "layer", 2e-5), (long, "cold", 2e-4), (long, "layer", 1e-4)
    )]  # fmt: skip
    assert fitting.medians(found)["linear", "torch", "bf16", "layer"] == {short: 2e-5, long: 2e-4}


def test_contexts_have_points_of_their_own():
    """What is warm in cache is faster; both are kept, apart."""
    found = [measured(op, f * row_law(op), context=c) for op in norms(40) for c, f in (("cold", 1), ("hot", 0.5))]
    groups, _ = fitting.fit(found, profile())
    cold, hot = (of([g for g in groups if g.context == c], "rms_norm") for c in ("cold", "hot"))
    for op in cold.ops:
        warm = Points(hot, hot.base).seconds(op).seconds
        assert warm == pytest.approx(0.5 * Points(cold, cold.base).seconds(op).seconds, rel=0.1)


@pytest.mark.parametrize(("implementation", "base"), [("fa3", TiledBase), ("cudnn", CudnnBase)])
def test_a_tiled_law_is_found_again(implementation, base):
    """Measurements made by the formula itself, in other numbers than the search starts from."""
    rng = random.Random(0)
    truth = base(6e-6, 0.7 * FLOPS, 0.8 * BYTES, UNITS, tile_s=4e-6, tile_keys=60.0, imbalance=0.5)
    found = {}
    while len(found) < 60:
        q = rng.choice((1, int(2 ** rng.uniform(5, 12))))
        axes = {"batch": int(2 ** rng.uniform(0, 6)), "heads": 32, "kv_heads": rng.choice((4, 8, 32))}
        axes |= {"head_dim": rng.choice((64, 96, 128)), "q_len": q, "kv_len": q + int(2 ** rng.uniform(5, 13))}
        op = ops.build("attention", axes)
        found[op] = truth.seconds(op)
    groups, _ = fitting.fit([measured(op, s, implementation) for op, s in found.items()], profile())
    (group,) = groups
    assert type(group.base) is base
    assert stats.median(errors(group)) < 0.08


@pytest.mark.parametrize("kind", composed.KINDS)
def test_attention_of_several_kernels_is_told_by_its_points(kind):
    """Products and passes over the scores follow each other; those of odd lengths are half as fast."""

    def truth(op):
        slow = 2 if op.keys % 8 and op.q_len > 1 else 1
        return 20e-6 + slow * op.cost().flops / (0.3 * FLOPS) + op.cost().bytes / (0.5 * BYTES)

    points = [p.op for p in point_cases.same("tables", "bf16") if p.op.kind == kind]
    (group,), _ = fitting.fit([measured(op, truth(op)) for op in points], profile())
    assert stats.median(errors(group)) < 0.12
    seen = replace(points[0], batch=3, q_len=512, kv_len=512)
    assert Points(group, group.base).seconds(seen).seconds == pytest.approx(truth(seen), rel=0.3)


def test_what_the_tables_suite_measures_is_enough():
    points = Counter((p.op.kind, p.implementation, p.context) for p in point_cases.same("tables", "bf16"))
    assert min(points.values()) >= fitting.LEAST_POINTS


def test_how_the_clock_settles_is_told_by_large_products():
    large = [ops.build("linear", {"m": 8192, "n": 8192, "k": 8192 + 64 * i}) for i in range(8)]
    settled = {**profile().ceilings, "matmul_bf16_settled": Ceiling(0.8 * FLOPS, 0.7 * FLOPS, FLOPS, "", "made up")}
    ran = [measured(op, op.cost().flops / (0.9 * FLOPS)) for op in large]  # between the two
    found = fitting.settling(ran, profile(ceilings=settled))
    assert found.boost == pytest.approx(0.2)
    assert found.measured == pytest.approx(0.8 / 0.9, rel=1e-3)
    assert found.factor(0.0) < 1 < found.factor(100.0)
    assert fitting.settling(ran, profile()) is None, "nobody measured a settled rate"
    assert fitting.settling(ran[:2], profile(ceilings=settled)) is None, "too few"


# --- the command
@pytest.fixture
def files(tmp_path):
    """A profile, and measurements of it in two files."""
    write_profile(tmp_path / "my.json")
    for name, found in (
        ("a.jsonl", [measured(op, law(op)) for op in linears(60)]),
        ("b.jsonl", [measured(op, row_law(op)) for op in norms(60)]),
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
    assert "linear" in out
    assert "rms_norm" in out
    folder = files / "my.points"
    assert f"wrote {folder}" in err
    assert point_files.kinds(folder) == ("linear", "rms_norm")
    wanted = [artifact.read(files / "my.json", HardwareProfile.SCHEMA).id]
    for name in ("a.jsonl", "b.jsonl"):
        found = measurements.read(files / name)[1]
        wanted.append(artifact.new(Measurement.SCHEMA, [codec.to_json(m) for m in found], {}).id)
    about = point_files.read(folder / "linear.csv").about
    assert about["inputs"].split() == wanted
    assert (about["device"], about["source"]) == (DEVICE, "a.jsonl, b.jsonl")
    code, out, _ = run(capsys, "estimate", "linear", "m=64", "n=2048", "k=2048", "--gpu", files / "my.json", "--json")
    a = json.loads(out)
    assert a["source"] == "interpolated"
    assert a["us"] == pytest.approx(1e6 * law(ops.build("linear", {"m": 64, "n": 2048, "k": 2048})), rel=0.15)


def test_the_command_as_json_and_elsewhere(files, capsys):
    texts = []
    for name in ("one", "two"):
        other = files / "deep" / name
        words = ("fit", files / "b.jsonl", "--profile", files / "my.json", "-o", other, "--json")
        code, out, err = run(capsys, *words)
        assert code == 0, err
        said = json.loads(out)
        assert said["points"] == str(other)
        assert {r["operator"] for r in said["operators"]} == {"rms_norm"}
        texts.append((other / "rms_norm.csv").read_text())
    assert not (files / "my.points").exists()
    assert texts[0] == texts[1], "the same measurements give the same points"


def test_the_command_refuses_in_one_line(files, capsys):
    measurements.start(files / "other.jsonl", "Square GPU", {})
    measurements.start(files / "few.jsonl", DEVICE, {})
    for given, told in (
        ("other.jsonl", "was measured on Square GPU, the profile is of Round GPU"),
        ("few.jsonl", "no points (there are no cold or hot measurements)"),
        ("none.jsonl", "no such file"),
        ("my.json", "line 1 is not JSON"),
    ):
        code, out, err = run(capsys, "fit", files / given, "--profile", files / "my.json")
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert told in err
    code, out, err = run(capsys, "fit", files / "a.jsonl", "--profile", files / "b.jsonl")
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert not (files / "my.points").exists()


def test_points_read_again_are_those_that_were_fitted(files, capsys):
    run(capsys, "fit", files / "a.jsonl", "--profile", files / "my.json")
    h = gpus.find(str(files / "my.json"))
    op = linears(1, seed=5)[0]
    assert estimator_of(h).time(op).seconds == pytest.approx(law(op), rel=0.3)
