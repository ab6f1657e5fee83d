"""Other processes that answer: forks of this one, which begin with all that it has read and imported."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

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
        from multiprocessing import Pipe  # which most commands do without

        self._pipe, questions = Pipe()
        self.pid = os.fork()
        if self.pid:
            questions.close()
            return
        try:  # from here on in the fork, which ends with `_exit`: nothing of its parent's is to be flushed or undone
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends, and with it the questions
            for pipe in (self, *others):  # else it would wait for ever for a parent that has died
                pipe.close()
            begin()
            steps = iter(idle)
            with suppress(EOFError):
                while True:
                    _work_ahead(questions, steps)
                    questions.send_bytes(answer(questions.recv_bytes()))
            os._exit(0)
        finally:
            os._exit(1)

    def ask(self, message: bytes) -> None:
        """An OSError where it has died."""
        self._pipe.send_bytes(message)

    def told(self) -> bytes | None:
        """What it answered; None where it has died."""
        try:
            return self._pipe.recv_bytes()
        except (EOFError, OSError):
            return None

    def fileno(self) -> int:
        """For `select`: whether it has answered."""
        return self._pipe.fileno()

    def close(self) -> None:
        self._pipe.close()


def _work_ahead(questions: Connection, steps: Iterator[object]) -> None:
    """Take steps until there is a question or, after a pause, nothing left to do. A step that fails ends them: nobody
    asked for it."""
    done, pause_s = object(), PAUSE_S
    with suppress(Exception):
        while not questions.poll(pause_s) and next(steps, done) is not done:
            pause_s = 0.0
