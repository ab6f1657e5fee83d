"""Files of measured points: written and read back, sorted so that they can be compared, and one line for a bad one."""

from dataclasses import replace
from pathlib import Path

import pytest
from folding import each
from hypothesis import given, settings
from hypothesis import strategies as st
from round_profiles import round_profile, write_profile

from chip import ops
from chip.hardware import gpus, points
from chip.hardware.points import PointGroup
from chip.ops.elementwise import RmsNorm
from chip.ops.linear import GemmBase, Linear
from chip.show import cli
from chip.types import ChipError

FOLDER = gpus.POINTS / "h200"
BUNDLED = sorted(FOLDER.glob("*.csv"))
BASE = GemmBase(2e-6, 7e14, 4e12, 132, sharp=2.5)
ABOUT = {"device": "NVIDIA H200", "source": "made up"}


def group(**changes):
    shapes = (Linear(1, 128, 256), Linear(64, 128, 256), Linear(7, 4096, 4096))
    values = ("linear", "torch", "cold", "bf16", BASE, shapes, (3.25e-6, 4.5e-6, 12e-6), (0.01, -0.125, 0.3))
    return replace(PointGroup(*values), **changes)


def written(path, *groups, about=ABOUT):
    points.write(path, about, groups)
    points.read.cache_clear()
    return points.read(path)


def by_shape(g):
    return sorted(zip(map(repr, g.ops), g.seconds, g.loo))


def test_what_is_written_is_read_back(tmp_path):
    hot = group(context="hot", base=None)
    found = written(tmp_path / "linear.csv", group(), hot)
    assert {k: v for k, v in found.about.items() if not k.startswith("base")} == ABOUT
    assert [(g.kind, g.kernel, g.context, g.dtype, g.base) for g in found.groups] == [
        ("linear", "torch", "cold", "bf16", BASE), ("linear", "torch", "hot", "bf16", None)
    ]  # fmt: skip
    for was, now in zip((group(), hot), found.groups):
        assert [x[0] for x in by_shape(now)] == [x[0] for x in by_shape(was)]
        for a, b in zip(by_shape(was), by_shape(now)):
            assert b[1:] == pytest.approx(a[1:], rel=1e-3)
    assert found.groups[0].name == "linear (torch, bf16, cold)"


def test_errors_nobody_computed_are_no_column(tmp_path):
    found = written(tmp_path / "linear.csv", group(loo=()))
    assert ",loo" not in (tmp_path / "linear.csv").read_text()
    assert found.groups[0].loo == ()
    assert set(written(tmp_path / "linear.csv", group()).groups[0].loo) == {0.01, 0.3, -0.125}
    half = "kernel,context,dtype,m,n,k,us,loo\ntorch,cold,bf16,1,8,8,3,1.5\ntorch,cold,bf16,2,8,8,3,\n"
    assert read_text(tmp_path, half).groups[0].loo == (), "known of every point, or of none"


def test_axes_at_their_defaults_are_no_columns(tmp_path):
    written(tmp_path / "linear.csv", group())
    assert "kernel,context,dtype,m,n,k,us,loo" in (tmp_path / "linear.csv").read_text().splitlines()
    attention = ops.build("attention", {"batch": 2, "heads": 8, "kv_heads": 2, "head_dim": 64, "q_len": 3, "kv_len": 9,
                                        "causal": False})  # fmt: skip
    made = PointGroup(
        "attention", "flash", "cold", "bf16", None, (attention, replace(attention, causal=True)), (1e-6, 2e-6)
    )
    found = written(tmp_path / "attention.csv", made)
    assert set(found.groups[0].ops) == set(made.ops)
    header = next(x for x in (tmp_path / "attention.csv").read_text().splitlines() if x.startswith("kernel"))
    assert "causal" in header
    assert "window" not in header


@settings(deadline=None)
@given(st.permutations(range(3)), st.permutations(range(2)))
def test_rows_are_sorted_whatever_order_they_come_in(order, of_groups):
    g = group()
    mixed = replace(g, **{name: tuple(getattr(g, name)[i] for i in order) for name in ("ops", "seconds", "loo")})
    rows = [g, group(context="hot")], [[mixed, group(context="hot")][i] for i in of_groups]
    one, other = (
        [line for line in points.render(ABOUT, some).splitlines() if line[0] != "#"] for some in rows
    )  # fmt: skip
    assert one == other


@each(BUNDLED)
def test_bundled_files_are_whole(path):
    found = points.read(path)
    assert found.about["device"] == "NVIDIA H200"
    assert found.about["source"]
    assert len(found.about["inputs"].split()) >= 2, "the profile and the measurements"
    again = points.render(found.about, found.groups).splitlines()
    assert sorted(again) == sorted(path.read_text().splitlines()), "as `chip fit` writes it"
    for g in found.groups:
        assert len(g.ops) >= 10
        assert len(set(g.ops)) == len(g.ops)
        assert g.base is not None
        assert len(g.loo) == len(g.ops)
        assert all(op.like_measured() == op and op.kernel_of(g.kernel.split(".")[0]) == g.kernel for op in g.ops)
        assert max(g.seconds) < 1


def test_every_kind_is_a_file():
    assert points.kinds(FOLDER) == tuple(p.stem for p in BUNDLED)
    assert set(points.kinds(FOLDER)) <= set(ops.names())
    assert points.kinds(Path("no such folder")) == ()


# --- bad files
HEAD = "# device: X\nkernel,context,dtype,m,n,k,us,loo\n"
ROW = "torch,cold,bf16,1,8,8,3.5,1.0\n"
NUMBERS = "floor_s=1e-6 flop_per_s=1e14 bytes_per_s=1e12"
BAD = {
    "a comment without a key": ("# hello\n" + HEAD + ROW, ":1: a line of # must be `# key: value`"),
    "no header": ("", ": its columns must be kernel, context, dtype"),
    "a header of something else": ("a,b,c\n1,2,3\n", ": its columns must be"),
    "no time": ("kernel,context,dtype,m,n,k\n", ": its columns must be"),
    "an axis that is none": (HEAD.replace(",k,", ",q,") + ROW, ": its columns must be"),
    "a missing axis": ("kernel,context,dtype,m,n,us\ntorch,cold,bf16,1,8,3\n", ": linear needs axis 'k'"),
    "too few values": (HEAD + ROW + "torch,cold,bf16,1\n", ":4: 4 values, the header has 8"),
    "too many values": (HEAD + ROW.replace("1.0", "1.0,9"), ":3: 9 values, the header has 8"),
    "words for numbers": (HEAD + ROW.replace(",8,8,", ",eight,8,"), ":3: invalid literal for int"),
    "half a token": (HEAD + ROW.replace(",1,8", ",1.5,8"), ":3: invalid literal for int"),
    "no size": (HEAD + ROW.replace(",1,8,8", ",0,8,8"), ":3: sizes must be whole numbers from 1"),
    "no time in a row": (HEAD + ROW.replace("3.5", ""), ":3: could not convert string to float"),
    "no time at all": (HEAD + ROW.replace("3.5", "0"), ":3: us must be positive"),
    "a negative time": (HEAD + ROW.replace("3.5", "-1"), ":3: us must be positive"),
    "NaN": (HEAD + ROW.replace("3.5", "nan"), ":3: us must be positive"),
    "no end": (HEAD + ROW.replace("3.5", "inf"), ":3: us must be positive"),
    "an error of all of it": (HEAD + ROW.replace("1.0", "-100"), ":3: us must be positive, loo above -100 %"),
    "an error that is none": (HEAD + ROW.replace("1.0", "nan"), ":3: us must be positive, loo above -100 %"),
    "another dtype": (HEAD + ROW.replace("bf16", "bf61"), ":3: dtype 'bf61' is not known"),
    "a base of words": (f"# base torch cold bf16: floor_s=fast\n{HEAD}{ROW}", "'floor_s=fast' is no number of Gemm"),
    "a base of others": (f"# base torch cold bf16: {NUMBERS} row_s=1\n{HEAD}{ROW}", "'row_s=1' is no number of"),
    "a negative base": (f"# base torch cold bf16: {NUMBERS} fill=-1\n{HEAD}{ROW}", "'fill=-1' is no number of"),
    "a base without a rate": (f"# base torch cold bf16: floor_s=1e-6\n{HEAD}{ROW}", "bytes_per_s are needed"),
    "a rate of nothing": (f"# base torch cold bf16: {NUMBERS.replace('1e14', '0')}\n{HEAD}{ROW}", "must be above 0"),
    "an attempt at multi-line values": (HEAD + 'torch,cold,"bf16\n,1,8,8,3.5,1.0\n', ": "),
}


def read_text(folder, text, kind="linear"):
    path = folder / f"{kind}.csv"
    path.write_text(text)
    points.read.cache_clear()
    return points.read(path)


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_one_clear_line(name, tmp_path):
    text, told = BAD[name]
    with pytest.raises(ChipError) as error:
        read_text(tmp_path, text)
    said = str(error.value)
    assert said.startswith(f"{tmp_path / 'linear.csv'}:")
    assert told in said
    assert "\n" not in said
    assert len(said) < 400


def test_a_file_of_no_operator_is_one_clear_line(tmp_path):
    with pytest.raises(ChipError, match=r"liner\.csv: no operator is called 'liner'; the file's name says whose"):
        read_text(tmp_path, HEAD + ROW, "liner")
    (tmp_path / "linear.csv").write_bytes(b"\xff\xfe\x00")
    points.read.cache_clear()
    with pytest.raises(ChipError, match=r"linear\.csv") as error:
        points.read(tmp_path / "linear.csv")
    assert "\n" not in str(error.value)


def test_a_command_over_a_bad_file_is_one_line(tmp_path, capsys):
    gpu = tmp_path / "my.json"
    write_profile(gpu, round_profile())
    gpus.points_folder(gpu).mkdir()
    (gpus.points_folder(gpu) / "linear.csv").write_text(HEAD.replace("X", "Round GPU") + ROW.replace("3.5", "-1"))
    assert cli.main(["predict", "gpt2", "--gpu", str(gpu)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "linear.csv:3: us must be positive" in err
    assert cli.main(["estimate", "linear", "m=8", "n=64", "k=64", "--gpu", str(gpu)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_points_of_another_device_are_refused(tmp_path, capsys):
    gpu = tmp_path / "my.json"
    write_profile(gpu, round_profile())
    points.write(gpus.points_folder(gpu) / "linear.csv", {"device": "Square GPU"}, [group()])
    assert cli.main(["predict", "gpt2", "--gpu", str(gpu)]) == 2
    err = capsys.readouterr().err
    assert "holds points of Square GPU, the profile is of Round GPU" in err
    assert err.count("\n") == 1


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from(list('#:=,.-"\n abcdefhilkmnorstu0189xé\0')), max_size=120), st.booleans())
def test_any_text_is_points_or_one_clear_line(tmp_path_factory, text, after_header):
    path = tmp_path_factory.mktemp("points") / "linear.csv"
    path.write_text(HEAD + text if after_header else text)
    try:
        points.read(path)
    except ChipError as e:
        said = str(e)
        assert "\n" not in said
        assert str(path) in said


def test_a_base_does_not_depend_on_where_its_line_stands(tmp_path):
    lines = f"# base torch cold bf16: {NUMBERS}\n# device: X\n", f"# device: X\n# base torch cold bf16: {NUMBERS}\n"
    found = [read_text(tmp_path, head + HEAD.split("\n", 1)[1] + ROW).groups for head in lines]
    assert found[0] == found[1]
    assert found[0][0].base == GemmBase(1e-6, 1e14, 1e12)


def test_operators_without_a_dtype_axis_keep_that_of_their_row(tmp_path):
    norm = PointGroup("rms_norm", "torch.0", "hot", "bf16", None, (RmsNorm(8, 64),), (2e-6,), (0.0,))
    assert written(tmp_path / "rms_norm.csv", norm).groups == (norm,)
