"""Records behave as the frozen dataclasses of the standard library do."""

import copy
import dataclasses
import pickle
import subprocess
import sys

import pytest

from chip import records
from chip.records import dataclass, field


@dataclass(frozen=True, slots=True)
class Size:
    rows: int
    cols: int = 2
    names: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Named(Size):
    name: str = ""


@dataclass(frozen=True, slots=True)
class Alone:
    value: int


@dataclass(frozen=True, slots=True, eq=False)
class ById:
    value: int


def test_fields_defaults_and_repr():
    one = Named(3, name="x")
    assert (one.rows, one.cols, one.names, one.name) == (3, 2, {}, "x")
    assert one.names is not Named(3).names
    assert repr(one) == f"{Named.__qualname__}(rows=3, cols=2, names={{}}, name='x')"
    assert [f.name for f in dataclasses.fields(one)] == ["rows", "cols", "names", "name"]
    with pytest.raises(TypeError, match="rows"):
        Named()


def test_equal_by_value_and_class():
    assert Size(1) == Size(1, 2) != Size(2)
    assert Named(1) != Size(1)
    assert hash(Alone(1)) == hash(Alone(1))
    assert Alone(1) != (1,)
    assert ById(1) != ById(1)
    assert len({ById(1), ById(1)}) == 2


def test_frozen_without_a_dict():
    one = Named(1)
    for change in (lambda: setattr(one, "rows", 2), lambda: setattr(one, "other", 2), lambda: delattr(one, "rows")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            change()
    assert not hasattr(one, "__dict__")


def test_copied_pickled_and_replaced():
    one = Named(1, 5, {"a": 1}, "n")
    assert pickle.loads(pickle.dumps(one)) == copy.deepcopy(one) == one
    assert dataclasses.replace(one, rows=2) == Named(2, 5, {"a": 1}, "n")


@dataclasses.dataclass(frozen=True)
class Plain:
    rows: int
    names: list[int] = dataclasses.field(default_factory=list)


def test_fields_are_told_alike_of_records_and_dataclasses():
    for cls in (Size, Plain):
        rows, *_, names = records.fields(cls)
        assert (rows.name, rows.default) == ("rows", records.MISSING)
        assert (names.name, names.default) == ("names", records.MISSING)
        assert names.default_factory in (dict, list)
        assert records.is_dataclass(cls)
        assert records.replace(cls(1), rows=4) == dataclasses.replace(cls(1), rows=4) == cls(4)
    assert not records.is_dataclass(int)
    described = dataclasses.fields(Size)
    assert [(f.name, f.default) for f in described[:2]] == [("rows", dataclasses.MISSING), ("cols", 2)]
    assert dataclasses.asdict(Named(1, name="x")) == {"rows": 1, "cols": 2, "names": {}, "name": "x"}


def test_a_prediction_needs_no_dataclasses():
    """Unless whatever starts Python here has imported them before."""
    code = """if True:
        import sys
        before = "dataclasses" in sys.modules
        import chip
        chip.predict("llama-3.1-8b").line()
        print(before or "dataclasses" not in sys.modules)
    """
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.stdout == "True\n", found.stderr
