"""Lines answered by several processes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from chip.cli.incoming import Numbered
from chip.forked import Forked

Answer = Callable[[Numbered], str]
Key = Callable[[Numbered], str]


class Forks:
    """`count` processes with this one. Each round is cut into as many parts of equal length, after its lines were put
    in order by `key`: lines that are alike, such as those of one model, are answered by one process, which then knows
    it. Answers come in the order of the lines."""

    def __init__(self, count: int, answer: Answer, key: Key) -> None:
        self._answer, self._key = answer, key
        sys.stdout.flush()  # else each fork has what is not yet written
        self._forks: list[Forked | None] = []
        for _ in range(count - 1):
            self._forks.append(Forked(self._answered, [f for f in self._forks if f]))

    def _answered(self, message: bytes) -> bytes:
        """In a fork: numbered lines, and an answer to each."""
        lines = [line.split(":", 1) for line in message.decode("utf-8", "surrogatepass").split("\n")]
        return "\n".join([self._answer((int(number), text)) for number, text in lines]).encode("utf-8", "surrogatepass")

    def answers(self, lines: Sequence[Numbered]) -> Iterator[str]:
        order = sorted(range(len(lines)), key=[self._key(line) for line in lines].__getitem__)
        count = len(self._forks) + 1
        cuts = [len(order) * i // count for i in range(count + 1)]
        parts = [[lines[i] for i in order[a:b]] for a, b in pairwise(cuts)]
        for i, part in enumerate(parts[1:]):
            self._ask(i, part)
        found = [self._answer(line) for line in parts[0]]
        for i, part in enumerate(parts[1:]):
            found += self._told(i, part)
        in_order = [""] * len(lines)
        for at, text in zip(order, found):
            in_order[at] = text
        yield from in_order

    def _ask(self, i: int, part: Sequence[Numbered]) -> None:
        fork = self._forks[i]
        try:
            if fork and part:
                fork.ask("\n".join([f"{number}:{text}" for number, text in part]).encode("utf-8", "surrogatepass"))
        except OSError:  # it has died
            self._forks[i] = None

    def _told(self, i: int, part: Sequence[Numbered]) -> list[str]:
        """What a fork answered; where it died this process answers."""
        fork = self._forks[i]
        message = fork.told() if fork and part else None
        if message is None:
            if part:
                self._forks[i] = None
            return [self._answer(line) for line in part]
        return message.decode("utf-8", "surrogatepass").split("\n")
