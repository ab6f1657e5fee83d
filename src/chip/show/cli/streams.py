"""Standard streams as a terminal can take them: no control characters from files and names, no failing encoders."""

from __future__ import annotations

import io
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

from chip.types import ChipError

# C0 and C1 but for tab, newline and (for progress bars) return, and what changes the direction of text
CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
PLAIN = bytes(range(0x20, 0x7F)) + b"\t\n\r"  # of ASCII, what is not among them


def printable(text: str) -> str:
    """With every control character written out, as `\\x1b`."""
    if text.isascii() and not text.encode().translate(None, PLAIN):  # as nearly all is: many times faster
        return text
    return CONTROLS.sub(lambda match: ascii(match[0])[1:-1], text)


class Printable:
    """A stream whose text passes `printable`. `lossy`: what cannot be written is dropped, there is nobody to tell."""

    def __init__(self, inner: TextIO, lossy: bool = False) -> None:
        self._inner, self._lossy = inner, lossy

    def write(self, text: str) -> int:
        try:
            return self._inner.write(printable(text))
        except OSError:
            if not self._lossy:
                raise
            discard(self._inner)
            return 0

    def flush(self) -> None:
        try:
            self._inner.flush()
        except OSError:
            if not self._lossy:
                raise
            discard(self._inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@contextmanager
def standard_streams() -> Iterator[None]:
    """stdout and stderr made safe for the time of a command, and put back."""
    before = sys.stdout, sys.stderr
    if sys.stderr is None:  # closed by who started this process
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - as long as the process
    if sys.stdout is None:
        raise ChipError("standard output is closed: there is nowhere to write the answer to")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name that the terminal's encoding lacks
    sys.stdout = cast(TextIO, Printable(sys.stdout))
    sys.stderr = cast(TextIO, Printable(sys.stderr, lossy=True))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def discard(stream: TextIO) -> None:
    """After a failed write: what is left in the buffer goes nowhere, so that the exit of Python does not fail on it."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def progress(what: str) -> Callable[[int, int], None] | None:
    """Tells how many of all are done, on one line, where somebody looks."""
    if not sys.stderr.isatty():
        return None
    began = time.monotonic()

    def tell(done: int, total: int) -> None:
        left_s = (time.monotonic() - began) / done * (total - done)
        text = f"{done} of {total} {what}, {left_s / 60:.0f} min left"
        print(f"\r{text}  ", end="\n" if done == total else "", file=sys.stderr, flush=True)

    return tell
