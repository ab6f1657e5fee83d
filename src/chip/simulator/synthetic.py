"""Traffic made up from a few numbers: `poisson:prompt=512,output=128`, `gamma:cv=3`, `closed:users=16`.

Lengths are lognormal around a median, `prompt=400~0.9` (a spread of 0.9 in the logarithm), or fixed, `prompt=512`.
`range=0.2` draws fixed ones between 0.8 and 1.2 of themselves, as benchmarking tools do by their random-range-ratio.
Users of a closed loop whose requests are all equal go in lock-step, all prompts in one step, which no real ones do:
there it is 0.1 where nothing else is said.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from math import isnan, log, nan
from typing import Any

from chip.simulator.workload import MOST_TOKENS, Workload
from chip.types import ChipError

CLOSED_RANGE = 0.1
KINDS = ("poisson", "gamma", "uniform", "closed", "batch")


@dataclass(frozen=True, slots=True)
class Length:
    """Tokens: `median`, and the standard deviation of their logarithm, 0 for one fixed length."""

    median: float
    spread: float = 0.0
    least: int = 1
    most: int = MOST_TOKENS
    range: float = 0.0  # of a fixed one, to both sides

    def draw(self, random_: random.Random) -> int:
        if not self.spread:
            share = random_.uniform(1 - self.range, 1 + self.range) if self.range else 1.0
            return round(share * self.median)
        return max(self.least, min(self.most, int(random_.lognormvariate(log(self.median), self.spread))))


@dataclass(frozen=True, slots=True)
class Synthetic:
    kind: str
    rate: float = 1.0
    prompt: Length = Length(400, 0.9, 16, 4096)
    output: Length = Length(120, 0.8, 4, 1024)
    cv: float = 3.0  # of the gaps between requests, kind gamma: 1 is Poisson, more is burstier
    users: int = 8  # kind closed
    range: float = nan  # of fixed lengths; not a number where nothing is said
    shared: int = 0  # tokens at the start of every prompt that are the same for all


def parse(text: str) -> Synthetic:
    kind, _, rest = text.partition(":")
    if kind not in KINDS:
        raise ChipError(f"synthetic workload {kind[:40]!r}: must be one of {', '.join(KINDS)}")
    made = Synthetic(kind)
    for word in (w for w in rest.split(",") if w):
        key, equals, value = word.partition("=")
        if not equals or key not in ("prompt", "output", "cv", "users", "shared", "rate", "range"):
            keys = "prompt=, output=, rate=, cv=, users=, range= or shared="
            raise ChipError(f"workload {text[:60]!r}: {word!r} must be {keys}")
        if key in ("prompt", "output"):
            changed: dict[str, Any] = {key: _length(value, key)}
        elif key in ("cv", "rate"):
            changed = {key: _number(value, key, 1e-6, 1e6)}
        elif key == "range":
            changed = {key: _number(value, key, 0, 0.99)}
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
    equal = users > 1 and not (s.prompt.spread or s.output.spread)
    share = (CLOSED_RANGE if equal else 0.0) if isnan(s.range) else s.range
    lengths = [replace(length, range=share) for length in (s.prompt, s.output)]
    if equal and isnan(s.range):
        w.notes.append(
            f"lengths are drawn within {share:.0%} of those asked for, as tools do by a random-range-ratio: users with "
            "equal requests go in lock-step; range=0 makes them equal"
        )
    at = 0.0
    for i in range(requests):
        at += _gap(s, draw) if users == 0 else 0.0
        prompt, output = (max(1, length.draw(draw)) for length in lengths)
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
