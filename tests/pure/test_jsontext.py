"""JSON as chip takes it: finite numbers, none too large to compute with, whatever they are written like."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chip.files import jsontext


@pytest.mark.parametrize(
    "text",
    [
        "1e400",
        "1E+999",
        "-1e309",
        "9223372036854775808",
        "-99999999999999999999999",
        "9" * 400,
        "9" * 400 + ".0",
        "NaN",
    ],
)
def test_what_cannot_be_computed_with_is_refused(text):
    for around in ("%s", "[%s]", '{"a": {"b": %s}}', '["1.5", %s, 0.1]'):
        with pytest.raises(jsontext.Malformed):
            jsontext.parse(around % text)


@pytest.mark.parametrize(
    "text", ["9223372036854775807", "0." + "1" * 40, "1e-999", "1.5e+300", '"e999"', '"' + "9" * 40 + '"']
)
def test_what_only_looks_large_is_taken(text):
    assert jsontext.parse(text) == json.loads(text)


@given(st.integers(-(2**70), 2**70))
def test_whole_numbers_are_taken_up_to_sixty_three_bits(value):
    if abs(value) < jsontext.MOST:
        assert jsontext.parse(f"[{value}]") == [value]
    else:
        with pytest.raises(jsontext.Malformed):
            jsontext.parse(f"[{value}]")
