"""Many predictions over processes or machines: lines of JSON in, lines of JSON out, in the same order."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from chip.files import artifact
from chip.predictor.request import answer_line
from chip.simulator.jobs import Pool, in_chunks, spread_out
from chip.types import ChipError

CHUNK = 500  # lines that a worker answers at a time
ROUND = 100 * CHUNK  # lines that are held at a time, so that a sweep of any length runs in bounded memory

Task = tuple[list[tuple[int, str]], dict[str, Any]]


def answers(lines: Iterable[tuple[int, str]], defaults: Mapping[str, Any], pool: Pool) -> Iterator[str]:
    """One answer for each line, which comes with its number. `defaults` stand in for keys a line leaves out."""
    lines = iter(lines)
    while held := list(islice(lines, ROUND)):
        tasks: list[Task] = [(chunk, dict(defaults)) for chunk in in_chunks(held, CHUNK)]
        for answered in spread_out(answer_chunk, tasks, pool):
            yield from answered


def answer_chunk(task: Task) -> list[str]:
    lines, defaults = task
    out = []
    for number, line in lines:
        try:
            out.append(answer_line(artifact.parse_question(line), defaults))
        except ChipError as e:
            out.append(json.dumps({"error": str(e), "line": number}))
    return out
