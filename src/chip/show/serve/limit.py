"""A time limit on pure Python code in a thread: what overruns is stopped, not left running behind the answer."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Overrun(Exception):
    """Raised inside the code that took too long."""


class Watchdog:
    """One thread that looks after all others, so that a request costs no thread of its own."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._deadlines: dict[int, float] = {}  # thread -> when it must be done
        self._lock, self._started = threading.Lock(), False

    @contextmanager
    def limit(self) -> Iterator[None]:
        thread = threading.get_ident()
        with self._lock:
            self._deadlines[thread] = time.monotonic() + self.seconds
            if not self._started:  # with the first question: whoever made the server may want to fork before
                self._started = True
                threading.Thread(target=self._watch, name="watchdog", daemon=True).start()
        try:
            yield
        finally:
            with self._lock:
                if self._deadlines.pop(thread, None) is None:
                    _raise_in(thread, None)  # what was raised while this line was reached must not hit later code

    def _watch(self) -> None:
        while True:
            time.sleep(min(0.05, self.seconds / 4))
            now = time.monotonic()
            with self._lock:
                for thread in [t for t, deadline in self._deadlines.items() if now > deadline]:
                    del self._deadlines[thread]
                    _raise_in(thread, Overrun)


def _raise_in(thread: int, what: type[Exception] | None) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(what) if what else None)
