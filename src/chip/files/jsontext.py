"""JSON in and out, stricter than the standard library: finite numbers only, and none too large to compute with.

Python's parser takes NaN, Infinity, 1e999 and whole numbers of any length. None of them means anything in a file of
chip's, and each ends in a wrong answer or an overflow far from where it was read.
"""

from __future__ import annotations

import json
import math
from typing import Any

MOST = 1 << 63  # of a whole number, either side of zero: nanoseconds of 292 years, bytes of 8 EiB


class Malformed(ValueError):
    """Text that is not JSON as chip takes it; says why in a few words."""


def parse(text: str) -> Any:
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as e:
        raise Malformed(f"line {e.lineno}: {e.msg}") from None
    except RecursionError:
        raise Malformed("too deeply nested") from None


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


_DECODER = json.JSONDecoder(parse_constant=_constant, parse_int=_whole, parse_float=_real)
