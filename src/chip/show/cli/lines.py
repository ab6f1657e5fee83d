"""JSON Lines in, JSON Lines out: each question answered in order and flushed, errors in their place.

Lines are read as many at a time as are there: whoever writes one and waits gets its answer at once, and a file comes
in rounds of thousands, which several processes answer.
"""

from __future__ import annotations

import io
import json
import os
import select
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from chip import forked
from chip.files import artifact
from chip.files.artifact import MAX_LINE_CHARACTERS, MAX_QUESTION_CHARACTERS
from chip.show import cli, garbage
from chip.show.cli.forks import Forks, Numbered
from chip.types import ChipError

MANY = 256  # lines that are there at once, from which on several processes are faster
SHARED = ("gpu", "engine", "model", "dtype", "tp")  # keys of lines that have much to work out in common, most first
ROUND_LINES, ROUND_BYTES = 1024, 8_000_000  # held at a time
PIECE_BYTES = 1 << 16
KEPT = 4 * MAX_QUESTION_CHARACTERS + 8  # bytes of a line that is too long: as many as tell that it is, in any script


def answer_stdin(answer: Callable[[Mapping[str, Any]], str], jobs: int = 1) -> int:
    """`answer` gives one line of JSON. `jobs`: processes, 0 for one a core. 0 when every line was answered, 1 when any
    was an error."""

    def answered(line: Numbered) -> str:
        try:
            out = answer(artifact.parse_question(line[1]))
        except BrokenPipeError:
            raise
        except Exception as e:  # one line's trouble is never the end of a sweep
            out = json.dumps({"error": cli.told(e), "line": line[0]})
        garbage.after_answer()
        return out

    def answers() -> Iterator[str]:
        several = None
        for lines in rounds():
            if several is None and jobs != 1 and len(lines) >= MANY and (count := forked.processes(jobs)) > 1:
                several = Forks(count, answered, _setting)
            if several and len(lines) >= MANY:
                yield "\n".join(several.answers(lines))
            else:
                yield from map(answered, lines)

    return write(answers())


def write(answers: Iterator[str]) -> int:
    """Each flushed when it is there; the exit code."""
    failed = 0
    for out in answers:
        failed += ("\n" + out).count('\n{"error"')
        sys.stdout.write(out + "\n")
        sys.stdout.flush()
    if failed:
        print(f"chip: {failed} line{'s' if failed > 1 else ''} could not be answered", file=sys.stderr)
    return 1 if failed else 0


def _setting(line: Numbered) -> str:
    try:
        question = artifact.parse_question(line[1])
        return str([question.get(key) for key in SHARED])
    except Exception:  # whoever answers it says what is wrong
        return ""


def rounds() -> Iterator[list[Numbered]]:
    """Lines that are not empty. Each round waits for one line and takes all that can be had without waiting."""
    read, ready = _source()
    number, partial, unended, ended = 0, b"", 0, False
    while not ended:
        lines: list[Numbered] = []
        size = 0
        while not ended and len(lines) < ROUND_LINES and size < ROUND_BYTES and (not lines or ready()):
            piece = read(PIECE_BYTES)
            ended = not piece
            head, *rest = piece.split(b"\n")
            partial += head if len(partial) < KEPT else b""
            *whole, partial = [partial, *rest]
            if ended and partial:
                whole.append(partial)
            size += len(piece)
            unended = unended + len(piece) if not whole else len(partial)
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
