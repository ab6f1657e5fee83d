"""JSON Lines in, JSON Lines out: each question answered in order and flushed, errors in their place."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from chip import cli, garbage, jsontext
from chip.types import ChipError

MAX_LINE = 1_000_000


def answer_stdin(answer: Callable[[Mapping[str, Any]], str]) -> int:
    """`answer` gives one line of JSON. 0 when every line was answered, 1 when any was an error."""
    failed = 0
    if sys.stdin is None:
        raise ChipError("standard input is closed: there is nothing to read scenarios from")
    if isinstance(sys.stdin, io.TextIOWrapper):
        # JSON is UTF-8 whatever the locale; bytes that are not are their line's error, not the end of the sweep
        sys.stdin.reconfigure(encoding="utf-8", errors="replace")
    for number, line in enumerate(_lines(), 1):
        if not line.strip():
            continue
        try:
            out = answer(_parse(line))
        except BrokenPipeError:
            raise
        except Exception as e:  # one line's trouble is never the end of a sweep
            failed += 1
            out = json.dumps({"error": cli.told(e), "line": number})
        sys.stdout.write(out + "\n")
        sys.stdout.flush()
        garbage.after_answer()
    if failed:
        print(f"chip: {failed} line{'s' if failed > 1 else ''} could not be answered", file=sys.stderr)
    return 1 if failed else 0


def _lines() -> Iterator[str]:
    """The lines of stdin; of one that is too long only as much as tells that it is."""
    while line := sys.stdin.readline(MAX_LINE + 2):
        yield line
        while len(line) == MAX_LINE + 2 and not line.endswith("\n"):  # the rest of it belongs to no other line
            line = sys.stdin.readline(MAX_LINE + 2)


def _parse(line: str) -> Any:
    if len(line) > MAX_LINE:
        raise ChipError(f"the line is longer than {MAX_LINE} characters")
    try:
        return jsontext.parse(line)
    except jsontext.Malformed:
        raise ChipError("the line is not JSON") from None
