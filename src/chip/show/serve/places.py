"""Places for connections: bounded, and none can be held by saying nothing."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from socket import SHUT_RDWR, socket

MOST = 512  # connections at once, one thread each
IDLE_S = 30.0  # between two answers, or for a request to arrive whole
YIELD_S = 1.0  # a connection that has waited for so long makes room when all places are taken


class Places:
    """A connection is idle from its start, and from each answer, until a whole request has arrived."""

    def __init__(self, most: int = MOST) -> None:
        self._free = threading.BoundedSemaphore(most)
        self._idle: dict[socket, float] = {}  # since when
        self._lock = threading.Lock()
        self.most = most

    def take(self, connection: socket) -> bool:
        """False where every place is held by somebody who is being answered, or has only just come."""
        if not self._free.acquire(blocking=False):
            with self._lock:
                longest = min(self._idle.items(), key=lambda item: item[1], default=None)
            if longest is None or time.monotonic() - longest[1] < YIELD_S:
                return False
            _end(longest[0])
            if not self._free.acquire(timeout=YIELD_S):
                return False
        self.idle(connection)
        return True

    def give_back(self, connection: socket) -> None:
        with self._lock:
            self._idle.pop(connection, None)
        self._free.release()

    def idle(self, connection: socket) -> None:
        with self._lock:
            self._idle[connection] = time.monotonic()

    def busy(self, connection: socket) -> None:
        with self._lock:
            self._idle.pop(connection, None)

    def sweep(self, idle_s: float = IDLE_S) -> None:
        """End connections that were idle too long, however many single bytes they sent."""
        now = time.monotonic()
        with self._lock:
            slow = [c for c, since in self._idle.items() if now - since > idle_s]
        for connection in slow:
            _end(connection)


def _end(connection: socket) -> None:
    """Its thread, which waits for bytes, then sees the end and gives the place back."""
    with suppress(OSError):
        connection.shutdown(SHUT_RDWR)
