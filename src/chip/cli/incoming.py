"""Lines of standard input, as many at a time as are there: whoever writes one and waits gets its answer at once, and a
file comes in rounds of thousands."""

from __future__ import annotations

import io
import os
import select
import sys
from collections.abc import Callable, Iterator

from chip.artifact import MAX_LINE_CHARACTERS, MAX_QUESTION_CHARACTERS
from chip.types import ChipError

ROUND_LINES, ROUND_BYTES = 1024, 8_000_000  # held at a time
PIECE = 1 << 16
KEPT = 4 * MAX_QUESTION_CHARACTERS + 8  # bytes of a line that is too long: as many as tell that it is, in any script

Numbered = tuple[int, str]  # a line's number, from 1, and its text


def rounds() -> Iterator[list[Numbered]]:
    """Lines that are not empty. Each round waits for one line and takes all that can be had without waiting."""
    read, ready = _source()
    number, held, unended, ended = 0, b"", 0, False
    while not ended:
        lines: list[Numbered] = []
        size = 0
        while not ended and len(lines) < ROUND_LINES and size < ROUND_BYTES and (not lines or ready()):
            piece = read(PIECE)
            ended = not piece
            *whole, held = (held + piece).split(b"\n")
            if ended and held:
                whole.append(held)
            held = held[:KEPT]
            size += len(piece)
            unended = unended + len(piece) if not whole else len(held)
            if unended > MAX_LINE_CHARACTERS:
                raise ChipError(
                    f"line {number + 1} does not end after {MAX_LINE_CHARACTERS >> 20} MiB; no more is read"
                )
            for line in whole:
                number += 1
                if line.strip():
                    # JSON is UTF-8 whatever the locale; bytes that are not are their line's error, not the sweep's end
                    lines.append((number, line.decode("utf-8", "replace")))
        if lines:
            yield lines


def _source() -> tuple[Callable[[int], bytes], Callable[[], bool]]:
    """How bytes are read, and whether there are any without waiting."""
    if sys.stdin is None:
        raise ChipError("standard input is closed: there is nothing to read scenarios from")
    try:
        file = sys.stdin.fileno()
    except (AttributeError, io.UnsupportedOperation):  # a text in memory
        stdin = sys.stdin
        return (lambda size: stdin.read(size).encode("utf-8", "surrogateescape")), lambda: True

    def ready() -> bool:
        try:
            return bool(select.select([file], [], [], 0)[0])
        except (OSError, ValueError):  # no such thing as waiting for it here
            return False

    return (lambda size: os.read(file, size)), ready
