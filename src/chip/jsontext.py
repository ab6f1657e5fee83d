"""JSON in and out, stricter than the standard library: finite numbers only, and none too large to compute with.

Python's parser takes NaN, Infinity, 1e999 and whole numbers of any length. None of them means anything in a file of
chip's, and each ends in a wrong answer or an overflow far from where it was read.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

MOST = 1 << 63  # of a whole number, either side of zero: nanoseconds of 292 years, bytes of 8 EiB
DIGITS = 19  # of a whole number that may be too large
SHAPE = bytes.maketrans(b"123456789E", b"000000000e")  # every digit as 0
EXPONENT = re.compile(rb"e\+?000")
WHOLE = re.compile(rb"(?<![0.])0{%d}" % DIGITS)  # not the digits of a fraction


class Malformed(ValueError):
    """Text that is not JSON as chip takes it; says why in a few words."""


def parse(text: str) -> Any:
    try:  # a hook for each number is slow, so only where one may matter
        return (_CHECKED if _may_be_large(text) else _PLAIN).decode(text)
    except json.JSONDecodeError as e:
        raise Malformed(f"line {e.lineno}: {e.msg}") from None
    except RecursionError:
        raise Malformed("too deeply nested") from None


def _may_be_large(text: str) -> bool:
    """Whether a number of it may be too large; also true of some texts where none is."""
    shape = text.encode("utf-8", "surrogatepass").translate(SHAPE)
    if (b"e000" in shape or b"e+000" in shape) and any(_is_number(shape, e.start()) for e in EXPONENT.finditer(shape)):
        return True
    return b"0" * DIGITS in shape and WHOLE.search(shape) is not None


def _is_number(shape: bytes, end: int) -> bool:
    """Whether what ends here may be a number, and not part of an id such as 3e123f."""
    before = shape[max(0, end - DIGITS - 1) : end].rstrip(b"0.")
    return before[-1:] in b"-,:[ \t\r\n"


def dump(value: Any, indent: int | None = None) -> str:
    """JSON text; a value that is not finite is a ValueError, never a NaN in a file."""
    return json.dumps(value, indent=indent, separators=None if indent else (",", ":"), allow_nan=False)


def _constant(word: str) -> Any:
    raise Malformed(f"{word} is not a number")


def _whole(digits: str) -> int:
    value = int(digits) if len(digits) < 30 else MOST
    if not -MOST < value < MOST:
        raise Malformed("a number too long")
    return value


def _real(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise Malformed("a number too large")
    return value


_PLAIN = json.JSONDecoder(parse_constant=_constant)
_CHECKED = json.JSONDecoder(parse_constant=_constant, parse_int=_whole, parse_float=_real)
