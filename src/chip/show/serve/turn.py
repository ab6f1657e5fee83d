"""One at a time, in order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class Busy(Exception):
    """The turn did not come in time."""


class Turn:
    """A lock that is had in the order it was asked for: threads that share one interpreter answer sooner one after
    another, and none is passed over."""

    def __init__(self) -> None:
        self._lock, self._taken = threading.Lock(), False
        self._waiting: deque[threading.Lock] = deque()

    @property
    def load(self) -> int:
        """How many have it or wait for it."""
        return self._taken + len(self._waiting)

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        if not self._take(seconds):
            raise Busy
        try:
            yield
        finally:
            with self._lock:
                if self._waiting:
                    self._waiting.popleft().release()
                else:
                    self._taken = False

    def _take(self, seconds: float) -> bool:
        with self._lock:
            if not self._taken:
                self._taken = True
                return True
            mine = threading.Lock()
            mine.acquire()
            self._waiting.append(mine)
        if mine.acquire(timeout=seconds):  # the one before hands over
            return True
        with self._lock:
            if mine in self._waiting:
                self._waiting.remove(mine)
                return False
        return True  # it was handed over in the last moment
