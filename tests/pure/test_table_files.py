"""Files of operator tables: found beside a profile, read, and refused in one line when they are wrong."""

import copy
import json
import math
import shutil
from dataclasses import dataclass

import pytest
from conftest import round_profile, write_profile

from chip import artifact, cli, codec, hardware
from chip.predict import operator
from chip.predict.estimator import read_tables
from chip.predict.rows import Kernel, Rows
from chip.predict.tables import Base, Forest, OperatorTable, Spread, Surface, Tables
from chip.predict.tiled import Tiled
from chip.types import ChipError

H200 = hardware.find("h200")
BUNDLED = read_tables(H200.tables)


SMALL = Tables(
    "Round GPU",
    100,
    (
        OperatorTable(
            "linear", "torch", "bf16", Base(2e-6, 1e14, 1e12), {"m": (1, 64), "n": (64, 4096), "k": (64, 4096)},
            (Spread(1e-5, 0.5, 2.0), Spread(1e9, 0.9, 1.2)), 20, 0.03, 0.1,
            forest=Forest(0.0, (0,), (0, 0, 0), (3.5, 0.0, 0.0), (1, -1, -1), (2, -1, -1), (0.0, math.log(2), 0.0)),
        ),
        OperatorTable(
            "rms_norm", "torch", "bf16", Base(3e-6, 1e13, 1e12), {"rows": (1, 64), "cols": (64, 4096)},
            (Spread(1e9, 0.9, 1.1),), 20, 0.03, 0.1, surface=Surface((0.0,), (10.0,), (0.0,), math.log(3)),
        ),
    ),
)  # fmt: skip


def document():
    return copy.deepcopy(codec.to_json(SMALL))


def write_tables(path, data=None, text=None):
    artifact.write(path, artifact.new(Tables.SCHEMA, data or document(), {}), indent=None)
    if text:
        path.write_text(text(path.read_text()))
    return path


def ask(gpu, kind="linear", **axes):
    return operator.answer({"op": kind, "gpu": str(gpu), **(axes or {"m": 8, "n": 1024, "k": 1024})})


def test_a_profile_with_tables_beside_it_uses_them(tmp_path):
    gpu = write_profile(tmp_path / "my.json", round_profile())
    write_tables(tmp_path / "my.tables.json")
    base = 2 + 2 * (8 * 1024 * 2 + 1024 * 1024) / 1e6
    a = ask(gpu)
    assert a["source"] == "interpolated"
    assert a["us"] == pytest.approx(2 * base)
    assert a["interval"] == pytest.approx([base, 4 * base])
    assert ask(gpu, m=16, n=1024, k=1024)["us"] == pytest.approx(2 + 2 * (16 * 1024 * 2 + 1024 * 1024) / 1e6)
    norm = ask(gpu, "rms_norm", rows=8, cols=1024)
    assert norm["us"] == pytest.approx(3 * (3 + 2 * (2 * 8 * 1024 + 1024) / 1e6))
    assert norm["bound"] == "launch"
    assert ask(gpu, m=100, n=1024, k=1024)["source"] == "roofline"


def test_a_profile_without_tables_is_a_roofline(tmp_path):
    gpu = write_profile(tmp_path / "my.json", round_profile())
    write_tables(tmp_path / "other.tables.json")
    a = ask(gpu)
    assert (a["source"], a["us"]) == ("roofline", pytest.approx(1 + 2 * (8 * 1024 * 2 + 1024 * 1024) / 1e6))


def test_the_command_line_finds_tables_beside_a_profile(tmp_path, capsys):
    shutil.copy(hardware.PROFILES / "h200.json", tmp_path / "my.json")
    words = ["estimate", "linear", "m=8", "n=4096", "k=4096", "--json", "--gpu"]
    assert cli.main([*words, str(tmp_path / "my.json")]) == 0
    assert json.loads(capsys.readouterr().out)["source"] == "roofline"
    shutil.copy(hardware.PROFILES / "h200.json", tmp_path / "with.json")
    shutil.copy(H200.tables, tmp_path / "with.tables.json")
    assert cli.main([*words, str(tmp_path / "with.json")]) == 0
    mine = json.loads(capsys.readouterr().out)
    assert cli.main([*words, "h200"]) == 0
    bundled = json.loads(capsys.readouterr().out)
    assert {**mine, "gpu": ""} == {**bundled, "gpu": ""}
    assert mine["source"] == "interpolated"


def test_the_floor_of_kernels_without_a_table(tmp_path):
    """Where an addition was measured, elementwise kernels that were not start from its floor."""
    data = document()
    data["operators"][1] |= {"op": "add", "ranges": {"elements": [64, 4096]}}
    gpu = write_profile(tmp_path / "my.json", round_profile())
    write_tables(tmp_path / "my.tables.json", data)
    assert ask(gpu, "copy", rows=1, cols=64)["us"] == pytest.approx(3 + 2 * 2 * 64 / 1e6)
    assert ask(gpu, m=100, n=1024, k=1024)["us"] == pytest.approx(1 + 2 * (100 * 1024 * 2 + 1024 * 1024) / 1e6)


TIMES_OF_ROWS = codec.to_json(Rows((Kernel(1e-6, 1e-9, 1e-9, 1e-12),), (), 1.0, 1e30, 0.0, 0.0))


def put(path, value):
    """A change of the document: `operators.0.base.floor_s` -> value; None takes the field away."""

    def change(data):
        *way, last = [int(p) if p.isdecimal() else p for p in path.split(".")]
        for step in way:
            data = data[step]
        if value is None and isinstance(data, dict) and last not in ("forest", "surface"):
            del data[last]
        else:
            data[last] = value

    return change


BAD = {
    "a typo": (put("operators.0.spread", []), "unknown field 'spread'; did you mean 'spreads'?"),
    "a missing field": (put("operators.0.base.floor_s", None), "field 'floor_s' is missing"),
    "an unknown operator": (put("operators.0.op", "linaer"), "there is no such operator"),
    "neither": (put("operators.0.forest", None), "either a forest or a surface"),
    "both": (lambda d: d["operators"][0].update(surface=d["operators"][1]["surface"]), "either a forest or a surface"),
    "the other": (put("operators.1.op", "attention"), "needs a forest"),
    "a surface for a product": (put("operators.0.op", "add"), "needs a surface"),
    "an operator of another kind": (put("operators.1.op", "conv2d"), "no surface over rows and columns"),
    "no time of a tile": (
        put(
            "operators.0.base.tiled",
            {**codec.to_json(Tiled(True, 1e-6, 1, 1, 1, 1, 1, 1)), "tile_s": 0},
        ),
        "base must have positive rates and times",
    ),
    "half a tiling": (put("operators.0.base.tiled", {"packs": True}), "field 'tile_s' is missing"),
    "no copies": (put("operators.0.base.copy_bytes_per_s", -1), "base must have positive rates and times"),
    "no spreads": (put("operators.0.spreads", []), "spreads"),
    "a spread without the value": (put("operators.0.spreads.0.low", 1.5), "spreads"),
    "text among numbers": (put("operators.0.forest.value.1", "1"), "forest.value[1]: expected a number, got str"),
    "a bool among numbers": (
        put("operators.0.forest.left.1", True),
        "forest.left[1]: expected a whole number, got bool",
    ),
    "code among numbers": (
        put("operators.0.forest.threshold.0", "__import__('os')"),
        "threshold[0]: expected a number",
    ),
    "half a node": (put("operators.0.forest.feature.0", 0.5), "forest.feature[0]: expected a whole number, got float"),
    "a null among numbers": (put("operators.1.surface.weight.0", None), "surface.weight[0]: expected a number"),
    "NaN in a forest": (put("operators.0.forest.value.1", math.nan), "NaN or infinity"),
    "infinity in a forest": (put("operators.0.forest.threshold.0", math.inf), "NaN or infinity"),
    "a start that is none": (put("operators.0.forest.start", -math.inf), "NaN or infinity"),
    "a huge whole number": (put("operators.0.forest.value.1", 10**400), "NaN or infinity"),
    "NaN in a surface": (put("operators.1.surface.x.0", math.nan), "NaN or infinity"),
    "NaN in a base": (put("operators.0.base.floor_s", math.nan), "base"),
    "no bandwidth": (put("operators.0.base.bytes_per_s", 0), "base"),
    "rows of a product": (
        put("operators.0.base.rows", TIMES_OF_ROWS),
        "base",
    ),
    "NaN in a range": (put("operators.0.ranges.m", [math.nan, 1]), "ranges"),
    "half a range": (put("operators.0.ranges.m", [1]), "ranges.m: expected 2 items"),
    "a range the wrong way": (put("operators.0.ranges.m", [2, 1]), "ranges"),
    "an unknown axis": (put("operators.0.ranges.rows", [1, 2]), "ranges must give 0 < least <= most of m, n, k"),
    "a missing axis": (put("operators.0.ranges.m", None), "ranges"),
    "NaN in a spread": (put("operators.0.spreads.1.high", math.nan), "spreads"),
    "no units": (put("units", 0), "units"),
    "arrays cut short": (lambda d: d["operators"][0]["forest"]["value"].pop(), "arrays of one length"),
    "a surface cut short": (lambda d: d["operators"][1]["surface"]["y"].clear(), "arrays of one length"),
    "no trees": (put("operators.0.forest.roots", []), "needs roots"),
    "a root outside": (put("operators.0.forest.roots.0", 3), "root or a feature"),
    "a feature outside": (put("operators.0.forest.feature.0", 99), "root or a feature"),
    "a child outside": (put("operators.0.forest.right.0", 7), "child"),
    "one child": (put("operators.0.forest.right.0", -1), "child"),
    "a circle": (put("operators.0.forest.left.0", 0), "child"),
    "another device": (put("device", "Square GPU"), "holds tables of Square GPU, the profile is of Round GPU"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_one_clear_line(tmp_path, name, capsys):
    change, told = BAD[name]
    data = document()
    change(data)
    gpu = write_profile(tmp_path / "my.json", round_profile())
    path = write_tables(tmp_path / "my.tables.json", data)
    assert cli.main(["estimate", "linear", "m=8", "n=1024", "k=1024", "--gpu", gpu]) == 2
    out, line = capsys.readouterr()
    assert out == ""
    assert line.count("\n") == 1
    assert line.startswith(f"chip estimate: {path}")
    assert told in line


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (lambda t: t[: len(t) // 2], "is not JSON or is cut short"),
        (lambda t: " ", "is not JSON or is cut short"),
        (lambda t: "[]", "expected an object with a schema"),
        (lambda t: t.replace("operator_tables/1", "operator_tables/2"), "is newer than this chip reads"),
        (lambda t: t.replace("chip.operator_tables/1", "chip.hardware_profile/1"), "is a chip.hardware_profile file"),
    ],
    ids=("half", "empty", "a list", "newer", "another kind"),
)
def test_a_broken_file_is_one_clear_line(tmp_path, text, told):
    gpu = write_profile(tmp_path / "my.json", round_profile())
    write_tables(tmp_path / "my.tables.json", text=text)
    with pytest.raises(ChipError, match=told) as error:
        ask(gpu)
    assert "\n" not in str(error.value)


def test_the_bundled_tables_are_of_the_bundled_profile():
    assert BUNDLED.device == H200.profile.device
    assert BUNDLED.units == H200.profile.units
    found = artifact.read(H200.tables, Tables.SCHEMA)
    assert json.loads(H200.tables.read_text())["id"] == found.id, "edited by hand"
    profile = artifact.read(hardware.PROFILES / "h200.json", H200.profile.SCHEMA)
    assert found.inputs[0] == profile.id, "fitted to another profile"


# --- the codec's fast path
@dataclass(frozen=True)
class Arrays:
    whole: tuple[int, ...] = ()
    real: tuple[float, ...] = ()
    listed: list[float] | None = None


def test_arrays_of_numbers_are_read_at_once():
    a = codec.from_json(Arrays, {"whole": [1, 2], "real": [1, 2.5], "listed": [3]}, "it.json")
    assert a == Arrays((1, 2), (1, 2.5), [3])


@pytest.mark.parametrize(
    ("raw", "line"),
    [
        ({"whole": [1, True]}, "it.json.whole[1]: expected a whole number, got bool 'True'"),
        ({"whole": [1, 2.0]}, "it.json.whole[1]: expected a whole number, got float '2.0'"),
        ({"whole": ["1"]}, "it.json.whole[0]: expected a whole number, got str '1'"),
        ({"real": [1.5, False]}, "it.json.real[1]: expected a number, got bool 'False'"),
        ({"real": [1.5, "2"]}, "it.json.real[1]: expected a number, got str '2'"),
        ({"real": [1.5, None]}, "it.json.real[1]: expected a number, got NoneType 'None'"),
        ({"real": [[1.5]]}, "it.json.real[0]: expected a number, got list '[1.5]'"),
        ({"listed": [1.5, True]}, "it.json.listed[1]: expected a number, got bool 'True'"),
        ({"real": "12"}, "it.json.real: expected a list, got str '12'"),
    ],
    ids=str,
)
def test_arrays_hold_nothing_but_numbers(raw, line):
    with pytest.raises(ChipError) as told:
        codec.from_json(Arrays, raw, "it.json")
    assert str(told.value) == line
