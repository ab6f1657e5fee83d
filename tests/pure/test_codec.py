"""JSON to dataclass and back, strictly: whatever is wrong is told with its path."""

import json
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chip.files import codec
from chip.types import Ceiling, ChipError, HardwareProfile, Measurement


@dataclass(frozen=True, slots=True)
class Part:
    size: int
    label: str = ""


@dataclass(frozen=True, slots=True)
class Whole:
    name: str
    ratio: float
    on: bool
    parts: tuple[Part, ...]
    by_name: dict[str, Part] = field(default_factory=dict)
    pair: tuple[int, str] = (0, "")
    maybe: Part | None = None
    mixed: dict[str, int | str | bool | float] = field(default_factory=dict)


GOOD = {
    "name": "it",
    "ratio": 0.5,
    "on": True,
    "parts": [{"size": 1}, {"size": 2, "label": "two"}],
    "by_name": {"a": {"size": 3}},
    "pair": [4, "four"],
    "maybe": {"size": 5},
    "mixed": {"m": 8, "dtype": "bf16", "causal": True, "scale": 0.5},
}
WHOLE = Whole(
    "it", 0.5, True, (Part(1), Part(2, "two")), {"a": Part(3)}, (4, "four"), Part(5),
    {"m": 8, "dtype": "bf16", "causal": True, "scale": 0.5},
)  # fmt: skip


def test_from_json():
    assert codec.from_json(Whole, GOOD, "it.json") == WHOLE


def test_to_json_says_defaults_too():
    assert codec.to_json(Part(3)) == {"size": 3, "label": ""}
    assert codec.from_json(Whole, json.loads(json.dumps(codec.to_json(WHOLE))), "it.json") == WHOLE


def test_what_is_left_out_is_at_its_default():
    small = {"name": "it", "ratio": 1, "on": False, "parts": []}
    assert codec.from_json(Whole, small, "it.json") == Whole("it", 1, False, ())
    assert codec.from_json(Whole, {**GOOD, "maybe": None}, "it.json").maybe is None


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"nmae": "it"}, "it.json: unknown field 'nmae'; did you mean 'name'?"),
        ({"zzz": 1}, "it.json: unknown field 'zzz'; known: name, ratio, on, parts, by_name, pair, maybe, mixed"),
        ({"name": 3}, "it.json.name: expected text, got int '3'"),
        ({"name": None}, "it.json.name: expected text, got NoneType 'None'"),
        ({"ratio": "half"}, "it.json.ratio: expected a number, got str 'half'"),
        ({"ratio": True}, "it.json.ratio: expected a number, got bool 'True'"),
        ({"on": 1}, "it.json.on: expected true or false, got int '1'"),
        ({"parts": {}}, "it.json.parts: expected a list, got dict '{}'"),
        ({"parts": [{"size": 1}, {"size": 1.5}]}, "it.json.parts[1].size: expected a whole number, got float '1.5'"),
        ({"parts": [{"size": True}]}, "it.json.parts[0].size: expected a whole number, got bool 'True'"),
        ({"parts": [{}]}, "it.json.parts[0]: field 'size' is missing"),
        ({"parts": [7]}, "it.json.parts[0]: expected an object, got int '7'"),
        ({"by_name": []}, "it.json.by_name: expected an object, got list '[]'"),
        ({"by_name": {"a": {"sise": 1}}}, "it.json.by_name.a: unknown field 'sise'; did you mean 'size'?"),
        ({"pair": [1]}, "it.json.pair: expected 2 items, got 1"),
        ({"pair": ["1", "four"]}, "it.json.pair[0]: expected a whole number, got str '1'"),
        ({"maybe": 3}, "it.json.maybe: expected an object, got int '3'"),
        ({"mixed": {"m": None}}, "it.json.mixed.m: expected a value, got NoneType 'None'"),
        ({"mixed": {"m": [1]}}, "it.json.mixed.m: expected int or str or bool or float, got list '[1]'"),
    ],
    ids=str,
)
def test_what_is_wrong_is_told_with_its_path(change, line):
    with pytest.raises(ChipError) as told:
        codec.from_json(Whole, {**GOOD, **change}, "it.json")
    assert str(told.value) == line


@pytest.mark.parametrize("field", ["name", "ratio", "on", "parts"])
def test_what_is_missing_is_named(field):
    with pytest.raises(ChipError, match=f"^it.json: field '{field}' is missing$"):
        codec.from_json(Whole, {k: v for k, v in GOOD.items() if k != field}, "it.json")


@pytest.mark.parametrize("raw", [None, [], "text", 3, True])
def test_not_an_object(raw):
    with pytest.raises(ChipError, match="expected an object"):
        codec.from_json(Whole, raw, "it.json")


def test_a_long_value_is_cut_in_the_message():
    with pytest.raises(ChipError) as told:
        codec.from_json(Part, {"size": "9" * 10_000}, "it.json")
    assert len(str(told.value)) < 120


FLOATS = st.floats(allow_nan=False, allow_infinity=False)
CEILINGS = st.builds(
    Ceiling, FLOATS, FLOATS, FLOATS, st.text(), st.text(), st.lists(FLOATS, max_size=3).map(tuple), st.none() | FLOATS
)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.builds(
        HardwareProfile,
        st.text(),
        st.text(),
        st.text(),
        st.text(),
        st.integers(),
        st.integers(),
        st.integers(),
        st.dictionaries(st.text(), CEILINGS, max_size=3),
        missing=st.dictionaries(st.text(), st.text(), max_size=2),
    )
)
def test_a_profile_survives_the_round_trip(profile):
    text = json.dumps(codec.to_json(profile))
    assert codec.from_json(HardwareProfile, json.loads(text), "it.json") == profile


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(["op", "implementation", "status", "samples_ns", "flags", "clock_hz", "zzz"]), JSON)
def test_any_json_is_a_value_or_one_clear_line(name, value):
    good = {"op": {"op": "add"}, "implementation": "torch", "context": "cold", "status": "ok", "samples_ns": [5]}
    try:
        found = codec.from_json(Measurement, {**good, name: value}, "it.json")
    except ChipError as e:
        found = str(e)
    assert isinstance(found, Measurement) or found.startswith("it.json")
