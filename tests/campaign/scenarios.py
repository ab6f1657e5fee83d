"""Scenarios and operators that the fuzzers draw: every bundled model, GPU, engine and precision."""

from __future__ import annotations

import dataclasses
from functools import cache
from itertools import product
from random import Random
from typing import Any

from chip import engines, ops
from chip.decoders import library
from chip.dtypes import PRECISIONS
from chip.hardware import gpus

LIMITS = {"batch": 4096, "prompt": 131_072, "output": 4096}  # of what is asked in earnest
STRIDE = 104_729  # a prime that divides no number of combinations there may be


def scenario(draw: Random, group: Random | None = None) -> dict[str, Any]:
    """`group` draws model, GPU, engine, precision and split: a sweep asks many sizes of one of those."""
    group = group or draw
    return {
        "model": group.choice(library.names()),
        "gpu": gpu(group),
        "engine": group.choice(engines.names()),
        "dtype": group.choice(sorted(PRECISIONS)),
        "tp": group.choice((1, 1, 1, 2, 4, 8)),
        **{axis: size(draw, most) for axis, most in LIMITS.items()},
    }


@cache
def combinations() -> tuple[tuple[str, str, str, str], ...]:
    """Every GPU x model x engine x precision."""
    return tuple(product(gpus.spec_names(), library.names(), engines.names(), sorted(PRECISIONS)))


def combination(number: int) -> dict[str, str]:
    """In an order in which any stretch holds all kinds; after the last one the first comes again."""
    every = combinations()
    gpu, model, engine, dtype = every[number * STRIDE % len(every)]
    return {"gpu": gpu, "model": model, "engine": engine, "dtype": dtype}


def gpu(draw: Random) -> str:
    """One that was measured as often as all others together: tables have more edges than datasheets."""
    measured = [name for name in gpus.profile_names() if name in gpus.spec_names()]
    return draw.choice(measured if measured and draw.random() < 0.5 else gpus.spec_names())


def operator(draw: Random) -> dict[str, Any]:
    kind = draw.choice(ops.names())
    axes: dict[str, Any] = {"op": kind, "gpu": gpu(draw)}
    for f in dataclasses.fields(ops.get(kind)):  # type: ignore[arg-type]
        if f.type == "int" and f.default is dataclasses.MISSING:
            axes[f.name] = size(draw, 8192)
        elif f.name == "dtype":
            axes["dtype"] = draw.choice(("bf16", "fp16", "fp32"))
    return axes


def size(draw: Random, most: int) -> int:
    """Even over powers of two, at, just below and just above them or anywhere between."""
    base = 1 << draw.randrange(most.bit_length())
    return min(most, max(1, draw.choice((base, base - 1, base + 1, draw.randint(base, 2 * base)))))
