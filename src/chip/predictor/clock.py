"""How the clock falls under load.

Arithmetic starts at the boost clock and settles, within a fraction of a second, at the clock that the power limit
allows. Points were measured somewhere in between: a short prefill runs at higher clocks than they did, a long one at
lower ones.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import exp, inf, log
from typing import NamedTuple

from chip.types import ChipError

# Shares of the settled rate: up to the first arithmetic keeps its clock, from the second on the power limit sets it.
FREE, BOUND = 0.8, 1.0
# Time constant of the clock's recovery after a prompt: read off the decode steps of one recorded run, Llama-3.1-8B
# after 8 x 2048 tokens on an H200 (`tests/pure/test_clock.py`).
RECOVERY_S = 0.03
NO_LOAD = 1e-4  # a clock that is lowered by less has recovered


@dataclass(frozen=True, slots=True)
class Settling:
    boost: float  # the part of the settled time that arithmetic saves at first
    measured: float  # time over settled time while the points were measured
    time_s: float  # time constant of the fall
    flop_per_s: float  # settled rate, which draws all the power there is

    @classmethod
    def read(cls, text: str, device: Settling | None = None) -> Settling:
        """From a line of a file of points. `device`: what a line about other arithmetic leaves out is taken from it."""
        words = dict(word.partition("=")[::2] for word in text.split())
        names = [f.name for f in fields(cls)]
        known = {name: getattr(device, name) for name in names} if device else {}
        try:
            settling = cls(*(float((known | words)[name]) for name in names))
        except (KeyError, ValueError):
            raise ChipError(f"settling: must give {', '.join(names)}, got {text[:80]!r}") from None
        boost, measured, time_s, flop_per_s = (getattr(settling, name) for name in names)
        if not (0 <= boost < 1 and 0.5 <= measured <= 1.5 and time_s > 0 and flop_per_s > 0):
            raise ChipError("settling: needs 0 <= boost < 1, measured near 1, and time and rate above 0")
        return settling

    def write(self) -> str:
        return " ".join(f"{f.name}={getattr(self, f.name):.4g}" for f in fields(self))

    def limited(self, flop_per_s: float) -> float:
        """How far the power limit holds arithmetic at this rate: 0 where it keeps its clock, 1 where it draws all the
        power there is."""
        limited = (flop_per_s / self.flop_per_s - FREE) / (BOUND - FREE)
        return 0.0 if limited < 0.0 else 1.0 if limited > 1.0 else limited

    def factor(self, load_s: float) -> float:
        """Mean time over the time at the points' clock, for `load_s` of arithmetic that the power limit holds, on a GPU
        that was rested. Memory traffic between it does not count: it draws less, and the clock stays up longer."""
        return (1 - self.boost * _mean_decay(load_s / self.time_s)) / self.measured

    @property
    def settled(self) -> float:
        """The same after a long time."""
        return 1 / self.measured

    def from_rest(self, seconds: float, flops: float, calls: tuple[int, int] = (0, 0)) -> float:
        """The time at the points' clock of a call that took `seconds` on a GPU that was rested before. `calls`: the
        mean of those from one to another in a row."""
        points_s = seconds
        for _ in range(20):
            limited = self.limited(flops / points_s)
            if not limited:
                break
            first, last = (count * points_s * limited / self.time_s for count in calls)
            decay = (exp(-first) - exp(-last)) / (last - first) if last > first else 1.0
            points_s = seconds / (1 - (1 - (1 - self.boost * decay) / self.measured) * limited)
        return points_s

    def recovery(self, load_s: float, seconds: float) -> float:
        """By what part arithmetic takes longer while the clock recovers, after `load_s` at full power: the mean over
        the `seconds` that follow."""
        lowered = 1 - exp(-load_s / self.time_s)
        return self.boost / (1 - self.boost) * lowered * _mean_decay(seconds / RECOVERY_S)


class PowerLimit(NamedTuple):
    """How the power limit sets an operator's time on a GPU."""

    settling: Settling | None = None
    power: float = 1.0  # of its FLOP, relative to one in bf16
    shift: float = 0.0  # the part that its points take more at the clock of all others, where the limit sets it

    @property
    def free_flop_per_s(self) -> float:
        """FLOP/s up to which its arithmetic keeps its clock."""
        return FREE * self.settling.flop_per_s / self.power if self.settling else inf

    def at_same_clock(self, seconds: float, flops: float) -> float:
        """Seconds by its points at the clock of all others' points."""
        if not self.shift or self.settling is None:
            return seconds
        return seconds * (1 + self.shift * self.settling.limited(self.power * flops / seconds))

    def settled_s(self, seconds: float, flops: float) -> float:
        """At the clock that the GPU settles at."""
        seconds = self.at_same_clock(seconds, flops)
        return seconds + self.limited_s(seconds, flops) * (self.settling.settled - 1) if self.settling else seconds

    def limited_s(self, seconds: float, flops: float) -> float:
        """The part of the seconds that the power limit sets."""
        if self.settling is None:
            return 0.0
        return seconds * self.settling.limited(self.power * flops / seconds)


class Clock:
    """The clock of a GPU from step to step. It starts rested and falls while arithmetic draws all the power there is.
    Decode steps between prompts recover from that, but they draw power too: prompts find the clock as low as it was
    until there is nothing to do."""

    def __init__(self, settling: Settling | None) -> None:
        self.settling = settling
        self.rest()

    def rest(self) -> None:
        self._held_s = self._load_s = 0.0  # at the power limit since it was rested: of operators, and of their FLOPs

    def prompt_s(self, seconds: float, held_s: float, flops: float) -> float:
        """The time of a step with a prompt that takes `seconds` at the clock of its points, `held_s` of it at the power
        limit."""
        s = self.settling
        if s is None:
            return seconds
        gained = s.boost * exp(-self._held_s / s.time_s) * _mean_decay(held_s / s.time_s)
        self._held_s += held_s
        took_s = seconds + held_s * ((1 - gained) / s.measured - 1)
        self._load_s += min(flops / s.flop_per_s, took_s)
        return took_s

    def recovery_s(self, seconds: float, by_clock_s: float) -> float:
        """What decode steps of so many seconds take more while the clock recovers from prompts, if it sets
        `by_clock_s` of them."""
        s = self.settling
        if s is None or not self._load_s:
            return 0.0
        lowered = 1 - exp(-self._load_s / s.time_s)
        more_s = s.boost / (1 - s.boost) * lowered * _mean_decay(seconds / RECOVERY_S) * by_clock_s
        left = lowered * exp(-seconds / RECOVERY_S)
        self._load_s = -s.time_s * log(1 - left) if left > NO_LOAD else 0.0
        return more_s


def _mean_decay(until: float) -> float:
    """The mean of exp(-t) for t from 0 to `until`."""
    return (1 - exp(-until)) / until if until > 1e-9 else 1.0
