"""One at a time, in order."""

from __future__ import annotations

import threading
from collections import deque


class Turn:
    """A lock that is had in the order it was asked for: threads that share one interpreter answer sooner one after
    another, and none is passed over."""

    def __init__(self) -> None:
        self._lock, self._taken = threading.Lock(), False
        self._waiting: deque[threading.Lock] = deque()

    def __enter__(self) -> None:
        with self._lock:
            if not self._taken:
                self._taken = True
                return
            mine = threading.Lock()
            mine.acquire()
            self._waiting.append(mine)
        mine.acquire()  # until the one before hands over

    def __exit__(self, *_: object) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._taken = False
