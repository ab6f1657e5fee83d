"""Lines answered by several processes."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from select import select

from chip.forked import Forked

PIECE_LINES = 32  # that a fork is asked at a time, at most
Numbered = tuple[int, str]  # a line's number, from 1, and its text
Answer = Callable[[Numbered], str]
Key = Callable[[Numbered], str]


class Forks:
    """`count` processes with this one. A round is put in order by `key` and cut into as many parts: lines that are
    alike, such as those of one model, are answered by one process, which then knows it. Whoever is done with its part
    takes from the end of the longest one. Answers come in the order of the lines."""

    def __init__(self, count: int, answer: Answer, key: Key) -> None:
        self._answer, self._key = answer, key
        sys.stdout.flush()  # else each fork has what is not yet written
        self._forks: list[Forked] = []
        for _ in range(count - 1):
            self._forks.append(Forked(self._answered, self._forks))

    def _answered(self, message: bytes) -> bytes:
        """In a fork: numbered lines, and an answer to each."""
        lines = [line.split(":", 1) for line in message.decode("utf-8", "surrogatepass").split("\n")]
        return "\n".join([self._answer((int(number), text)) for number, text in lines]).encode("utf-8", "surrogatepass")

    def answers(self, lines: Sequence[Numbered]) -> list[str]:
        order = sorted(range(len(lines)), key=[self._key(line) for line in lines].__getitem__)
        workers = [None, *self._forks]  # this process and its forks, each with its part of the lines
        cuts = [len(order) * i // len(workers) for i in range(len(workers) + 1)]
        parts = {worker: deque(order[a:b]) for worker, (a, b) in zip(workers, pairwise(cuts))}
        answers = [""] * len(lines)
        pieces: dict[Forked, list[int]] = {}

        def take(worker: Forked | None, most: int) -> list[int]:
            """Fewer lines towards the end, so that all are done at once."""
            part = parts[worker] or max(parts.values(), key=len)
            pop = part.popleft if part is parts[worker] else part.pop
            return [pop() for _ in range(min(most, -(-len(part) // 2)))]

        while True:
            for fork in [f for f in self._forks if f not in pieces]:
                if piece := take(fork, PIECE_LINES):
                    self._ask(fork, [lines[i] for i in piece])
                    pieces[fork] = piece
            lines_here = take(None, 1)
            for i in lines_here:
                answers[i] = self._answer(lines[i])
            if not lines_here and not pieces:
                return answers
            ready, _, _ = select(list(pieces), [], [], 0 if lines_here else None) if pieces else ([], [], [])
            for fork in ready:
                piece = pieces.pop(fork)
                for i, text in zip(piece, self._told(fork, [lines[i] for i in piece])):
                    answers[i] = text

    def _ask(self, fork: Forked, piece: Sequence[Numbered]) -> None:
        with suppress(OSError):  # it has died, which is seen when it is read from
            fork.ask("\n".join([f"{number}:{text}" for number, text in piece]).encode("utf-8", "surrogatepass"))

    def _told(self, fork: Forked, piece: Sequence[Numbered]) -> list[str]:
        """What a fork answered; where it died this process answers."""
        message = fork.told()
        if message is None:
            self._forks.remove(fork)
            return [self._answer(line) for line in piece]
        return message.decode("utf-8", "surrogatepass").split("\n")
