"""Traffic made up from a few numbers: `poisson:prompt=512,output=128`, `gamma:cv=3`, `closed:users=16`.

Lengths are lognormal around a median, `prompt=400~0.9` (a spread of 0.9 in the logarithm), or fixed, `prompt=512`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from math import log
from typing import Any

from chip.simulator.workload import MOST_TOKENS, Workload
from chip.types import ChipError

KINDS = ("poisson", "gamma", "uniform", "closed", "batch")


@dataclass(frozen=True, slots=True)
class Length:
    """Tokens: `median`, and the standard deviation of their logarithm, 0 for one fixed length."""

    median: float
    spread: float = 0.0
    least: int = 1
    most: int = MOST_TOKENS

    def draw(self, random_: random.Random) -> int:
        if not self.spread:
            return int(self.median)
        return max(self.least, min(self.most, int(random_.lognormvariate(log(self.median), self.spread))))


@dataclass(frozen=True, slots=True)
class Synthetic:
    kind: str
    rate: float = 1.0
    prompt: Length = Length(400, 0.9, 16, 4096)
    output: Length = Length(120, 0.8, 4, 1024)
    cv: float = 3.0  # of the gaps between requests, kind gamma: 1 is Poisson, more is burstier
    users: int = 8  # kind closed
    shared: int = 0  # tokens at the start of every prompt that are the same for all


def parse(text: str) -> Synthetic:
    kind, _, rest = text.partition(":")
    if kind not in KINDS:
        raise ChipError(f"synthetic workload {kind[:40]!r}: must be one of {', '.join(KINDS)}")
    made = Synthetic(kind)
    for word in (w for w in rest.split(",") if w):
        key, equals, value = word.partition("=")
        if not equals or key not in ("prompt", "output", "cv", "users", "shared", "rate"):
            raise ChipError(f"workload {text[:60]!r}: {word!r} must be prompt=, output=, rate=, cv=, users= or shared=")
        if key in ("prompt", "output"):
            changed: dict[str, Any] = {key: _length(value, key)}
        elif key in ("cv", "rate"):
            changed = {key: _number(value, key, 1e-6, 1e6)}
        else:
            changed = {key: int(_number(value, key, 0 if key == "shared" else 1, 1e7))}
        made = replace(made, **changed)
    return made


def _length(text: str, key: str) -> Length:
    median, tilde, spread = text.partition("~")
    least = Length(_number(median, key, 1, MOST_TOKENS))
    return replace(least, spread=_number(spread, f"{key}'s spread", 0, 5)) if tilde else least


def _number(text: str, key: str, least: float, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise ChipError(f"workload: {key} must be a number between {least:g} and {most:g}, got {text[:40]!r}")
    return value


def make(s: Synthetic, requests: int, seed: int, name: str) -> Workload:
    """The same seed gives the same requests, to the byte."""
    draw = random.Random(seed)
    users = s.users if s.kind == "closed" else 0
    w = Workload(name, users=users)
    at = 0.0
    for i in range(requests):
        at += _gap(s, draw) if users == 0 else 0.0
        prompt, output = max(1, s.prompt.draw(draw)), max(1, s.output.draw(draw))
        blocks = ()
        if s.shared:
            w.block_tokens = s.shared
            prompt = max(prompt, s.shared + 1)
            blocks = (0, *range((i + 1) << 20, ((i + 1) << 20) + -(-prompt // s.shared) - 1))
        w.add(at, prompt, output, blocks)
    return w


def _gap(s: Synthetic, draw: random.Random) -> float:
    if s.kind == "batch":
        return 0.0
    if s.kind == "uniform":
        return 1 / s.rate
    if s.kind == "gamma":
        shape = 1 / s.cv**2
        return draw.gammavariate(shape, 1 / (shape * s.rate))
    return draw.expovariate(s.rate)
