"""Other processes that answer: forks of this one, which begin with all that it has read and imported."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from select import select
from typing import BinaryIO

SIZE = 8  # bytes that say how long a message is
PAUSE_S = 1.0  # who asks again and again does so sooner


def processes(wanted: int) -> int:
    """As many as are wanted, 0 for one a core; 1 where this process cannot fork."""
    if not hasattr(os, "fork") or threading.active_count() > 1:
        return 1
    return wanted or _cores()


def _cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Forked:
    """One process: a message gets one message back, until this process ends."""

    def __init__(
        self,
        answer: Callable[[bytes], bytes],
        others: Iterable[Forked] = (),
        begin: Callable[[], object] = int,
        idle: Iterable[object] = (),
    ) -> None:
        """`others`: those that were forked before. `begin`: what it does first. `idle`: what it goes through, step by
        step, while nobody asks."""
        (questions, to_fork), (from_fork, answers) = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(questions)
            os.close(answers)
            self._asked, self._answered = os.fdopen(to_fork, "wb"), os.fdopen(from_fork, "rb")
            return
        try:  # from here on in the fork, which ends with `_exit`: nothing of its parent's is to be flushed or undone
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends, and with it the questions
            for other in others:
                other.close()
            begin()
            os.close(to_fork)
            os.close(from_fork)  # else it would wait for ever to write to a parent that has died
            with open(questions, "rb") as come, open(answers, "wb") as go:
                steps = iter(idle)
                while (message := _received(_waited_for(come, steps))) is not None:
                    _send(go, answer(message))
            os._exit(0)
        finally:
            os._exit(1)

    def ask(self, message: bytes) -> None:
        """An OSError where it has died."""
        _send(self._asked, message)

    def told(self) -> bytes | None:
        """What it answered; None where it has died."""
        return _received(self._answered)

    def fileno(self) -> int:
        """For `select`: whether it has answered."""
        return self._answered.fileno()

    def close(self) -> None:
        for file in (self._asked, self._answered):
            with suppress(OSError):
                file.close()


def _waited_for(come: BinaryIO, steps: Iterator[object]) -> BinaryIO:
    """Until there is a question, or, after a pause, nothing left to do: whoever asks reads the answer before asking
    again, so that nothing is left in the file's buffer. A step that fails ends them: nobody asked for it."""
    done, pause_s = object(), PAUSE_S
    with suppress(Exception):
        while not select([come], [], [], pause_s)[0] and next(steps, done) is not done:
            pause_s = 0.0
    return come


def _send(file: BinaryIO, data: bytes) -> None:
    file.write(len(data).to_bytes(SIZE, "big") + data)
    file.flush()


def _received(file: BinaryIO) -> bytes | None:
    """None where whoever wrote has ended."""
    head = file.read(SIZE)
    data = file.read(int.from_bytes(head, "big")) if len(head) == SIZE else b""
    return data if head and len(data) == int.from_bytes(head, "big") else None
