"""Lines answered by several processes: forks of this one, which begin with all that it has read and imported."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import BinaryIO, NamedTuple

from chip.cli.incoming import Numbered

Answer = Callable[[Numbered], str]
Key = Callable[[Numbered], str]
SIZE = 8  # bytes that say how long a message is


def processes(wanted: int) -> int:
    """As many as are wanted, 0 for one a core; 1 where this process cannot fork."""
    if not hasattr(os, "fork") or threading.active_count() > 1:
        return 1
    return wanted or _cores()


def _cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Fork(NamedTuple):
    asked: BinaryIO
    answered: BinaryIO


class Forks:
    """`count` processes with this one. Each round is cut into as many parts of equal length, after its lines were put
    in order by `key`: lines that are alike, such as those of one model, are answered by one process, which then knows
    it. Answers come in the order of the lines."""

    def __init__(self, count: int, answer: Answer, key: Key) -> None:
        self._answer, self._key = answer, key
        sys.stdout.flush()  # else each fork has what is not yet written
        self._forks: list[Fork | None] = []
        for _ in range(count - 1):
            self._forks.append(self._forked())

    def _forked(self) -> Fork:
        (questions, asked), (answered, answers) = os.pipe(), os.pipe()
        if os.fork():
            os.close(questions)
            os.close(answers)
            return Fork(open(asked, "wb"), open(answered, "rb"))
        try:  # from here on in the fork, which ends with `_exit`: nothing of its parent's is to be flushed or undone
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends, and with it the questions
            for other in self._forks:
                if other:
                    other.asked.close()
            os.close(asked)
            with open(questions, "rb") as come, open(answers, "wb") as go:
                while (message := _received(come)) is not None:
                    lines = [line.split(":", 1) for line in message.split("\n")]
                    _send(go, "\n".join([self._answer((int(number), text)) for number, text in lines]))
            os._exit(0)
        finally:
            os._exit(1)

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
                _send(fork.asked, "\n".join([f"{number}:{text}" for number, text in part]))
        except OSError:  # it has died
            self._forks[i] = None

    def _told(self, i: int, part: Sequence[Numbered]) -> list[str]:
        """What a fork answered; where it died this process answers."""
        fork = self._forks[i]
        message = _received(fork.answered) if fork and part else None
        if message is None:
            if part:
                self._forks[i] = None
            return [self._answer(line) for line in part]
        return message.split("\n")


def _send(file: BinaryIO, text: str) -> None:
    data = text.encode("utf-8", "surrogatepass")
    file.write(len(data).to_bytes(SIZE, "big") + data)
    file.flush()


def _received(file: BinaryIO) -> str | None:
    """None where whoever wrote has ended."""
    head = file.read(SIZE)
    data = file.read(int.from_bytes(head, "big")) if len(head) == SIZE else b""
    return data.decode("utf-8", "surrogatepass") if head and len(data) == int.from_bytes(head, "big") else None
