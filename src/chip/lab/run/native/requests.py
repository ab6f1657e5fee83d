"""A request: its prompt, how its tokens are drawn, and how far it has come."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from chip.lab.run.native.pages import PageTable
from chip.types import ChipError


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """temperature 0 takes the likeliest token; top_k 0 and top_p 1 cut nothing off."""

    max_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    ignore_eos: bool = False

    def check(self, where: str) -> None:
        limits = (
            ("max_tokens", self.max_tokens >= 1, "at least 1"),
            ("temperature", 0 <= self.temperature <= 100, "between 0 and 100"),
            ("top_k", self.top_k >= 0, "at least 0"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
        )
        for name, holds, words in limits:
            if not holds:
                raise ChipError(f"{where}: {name} must be {words}, got {getattr(self, name)}")


GREEDY = SamplingParams()


class State(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(eq=False)
class NativeRequest:
    """`computed` tokens of `tokens` have their keys and values in the cache."""

    name: str
    prompt: tuple[int, ...]
    sampling: SamplingParams = GREEDY
    on_token: Callable[[NativeRequest, int], None] | None = None  # called as soon as a token is known
    output: list[int] = field(default_factory=list)
    state: State = State.WAITING
    computed: int = 0
    table: PageTable = field(default_factory=PageTable)
    finish: str = ""  # "stop": an end token, "length": max_tokens
    preempted: int = 0
    added_s: float = field(default_factory=time.perf_counter)
    token_s: list[float] = field(default_factory=list)  # when each token was known

    def __post_init__(self) -> None:
        self._draw = random.Random(self.sampling.seed)

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.output)

    @property
    def remaining(self) -> int:
        """Tokens to compute until the next one can be sampled."""
        return self.length - self.computed

    def tokens(self, start: int, stop: int) -> list[int]:
        n = len(self.prompt)
        return [*self.prompt[start:stop], *self.output[max(0, start - n) : max(0, stop - n)]]

    def chance(self) -> float:
        """A number in [0, 1) for the next token: of this request alone, whoever it is batched with."""
        return self._draw.random()

    def accept(self, token: int, ends: tuple[int, ...]) -> None:
        self.output.append(token)
        self.token_s.append(time.perf_counter())
        if token in ends and not self.sampling.ignore_eos:
            self.finish = "stop"
        elif len(self.output) >= self.sampling.max_tokens:
            self.finish = "length"
        if self.on_token:
            self.on_token(self, token)
