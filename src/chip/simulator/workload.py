"""Traffic: when each request comes, how long its prompt and its answer are, and what its prompt shares with others.

A workload is a JSON Lines file, one of the bundled public traces, or a synthetic one described in a word:
`poisson:prompt=512,output=128`. It is held as plain arrays, some 30 bytes a request.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chip.files import artifact
from chip.types import ChipError

FOLDER = Path(__file__).resolve().parent.parent / "data" / "workloads"
BLOCK_TOKENS = 512  # of a prompt, for each id in `blocks`: what the Mooncake traces have
MOST_TOKENS = 100_000_000
KEYS = ("arrival_s", "prompt", "output", "blocks", "block_tokens")


@dataclass(slots=True)
class Workload:
    """Requests in the order of their arrival. `users` is not 0 for a closed loop: then arrivals are not planned, each
    user sends the next request when the last one is answered."""

    name: str
    arrival_s: array[float] = field(default_factory=lambda: array("d"))
    prompt: array[int] = field(default_factory=lambda: array("q"))
    output: array[int] = field(default_factory=lambda: array("q"))
    blocks: list[tuple[int, ...]] = field(default_factory=list)  # empty where no prompt shares anything
    block_tokens: int = BLOCK_TOKENS
    users: int = 0
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.prompt)

    @property
    def rate_per_s(self) -> float:
        """Requests a second as planned; 0 where all come at once."""
        if len(self) < 2 or not self.arrival_s[-1] > self.arrival_s[0]:
            return 0.0
        return (len(self) - 1) / (self.arrival_s[-1] - self.arrival_s[0])

    def add(self, arrival_s: float, prompt: int, output: int, blocks: Sequence[int] = ()) -> None:
        self.arrival_s.append(arrival_s)
        self.prompt.append(prompt)
        self.output.append(output)
        if blocks and not self.blocks:
            self.blocks = [()] * (len(self) - 1)
        if blocks or self.blocks:
            self.blocks.append(tuple(blocks))


def names() -> list[str]:
    return sorted(p.name.removesuffix(".csv.gz") for p in FOLDER.glob("*.csv.gz"))


def named(name: str) -> Workload:
    """A bundled trace."""
    made = Workload(name)
    with gzip.open(FOLDER / f"{name}.csv.gz", "rt", encoding="ascii", newline="") as file:
        at_ms = 0
        rows = csv.reader(file)
        next(rows)
        for gap_ms, prompt, output, *blocks in rows:
            at_ms += int(gap_ms)
            made.add(at_ms / 1e3, int(prompt), int(output), _ids(blocks[0]) if blocks else ())
    return made


def _ids(text: str) -> tuple[int, ...]:
    out: list[int] = []
    for word in text.split():
        low, _, high = word.partition("-")
        out += range(int(low), int(high or low) + 1)
    return tuple(out)


def read(path: Path) -> Workload:
    """A JSON Lines file of requests. Out of order it is sorted, and the notes say so."""
    if not os.path.exists(path):
        raise ChipError(f"{path}: no such file; bundled workloads: {', '.join(names())}")
    return parse(artifact.lines(path), str(path))


def parse(lines: Iterable[str], name: str) -> Workload:
    made = Workload(name)
    ordered, last, sizes = True, -math.inf, set()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{name}: line {number}"
        row = _row(line, where)
        arrival = row["arrival_s"]
        ordered, last = ordered and arrival >= last, arrival
        sizes.add(row.get("block_tokens", BLOCK_TOKENS) if row.get("blocks") else 0)
        made.add(arrival, row["prompt"], row["output"], row.get("blocks", ()))
    if not len(made):
        raise ChipError(f'{name}: holds no requests; a line is {{"arrival_s": 0.5, "prompt": 512, "output": 64}}')
    sizes -= {0}
    if len(sizes) > 1:
        raise ChipError(f"{name}: block_tokens must be the same in every line, found {sorted(sizes)[:4]}")
    made.block_tokens = sizes.pop() if sizes else BLOCK_TOKENS
    if not ordered:
        made = _sorted(made)
        made.notes.append(f"{name}: arrivals were out of order; they were sorted")
    return made


def _row(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise ChipError(f"{where}: is not JSON") from None
    if not isinstance(row, dict):
        raise ChipError(f'{where}: must be an object like {{"arrival_s": 0.5, "prompt": 512, "output": 64}}')
    for key in row:
        if key not in KEYS:
            raise ChipError(f"{where}: unknown field {str(key)[:40]!r}; known: {', '.join(KEYS)}")
    for key in KEYS[:3]:
        if key not in row:
            raise ChipError(f"{where}: field {key!r} is missing")
    at = row["arrival_s"]
    if isinstance(at, bool) or not isinstance(at, (int, float)) or not 0 <= at < 1e12:  # also what is not a number
        raise ChipError(f"{where}: arrival_s must be seconds of at least 0, got {at!r:.40}")
    for key in ("prompt", "output", "block_tokens"):
        value = row.get(key, 1)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_TOKENS:
            raise ChipError(f"{where}: {key} must be a whole number between 1 and {MOST_TOKENS}, got {value!r:.40}")
    _check_blocks(row, where)
    return row


def _check_blocks(row: dict[str, Any], where: str) -> None:
    blocks = row.get("blocks", [])
    if not isinstance(blocks, list) or any(type(b) is not int or abs(b) >= 2**62 for b in blocks):
        raise ChipError(f"{where}: blocks must be a list of whole numbers")
    pieces = -(-row["prompt"] // row.get("block_tokens", BLOCK_TOKENS))
    if blocks and len(blocks) > pieces:
        raise ChipError(
            f"{where}: {len(blocks)} blocks for a prompt of {row['prompt']} tokens, which has {pieces} pieces of "
            f"{row.get('block_tokens', BLOCK_TOKENS)}; give block_tokens where pieces are of another size"
        )


def _sorted(w: Workload) -> Workload:
    order = sorted(range(len(w)), key=lambda i: (w.arrival_s[i], i))
    return _picked(w, order)


def _picked(w: Workload, order: Sequence[int]) -> Workload:
    made = Workload(w.name, block_tokens=w.block_tokens, users=w.users, notes=list(w.notes))
    made.arrival_s.extend(w.arrival_s[i] for i in order)
    made.prompt.extend(w.prompt[i] for i in order)
    made.output.extend(w.output[i] for i in order)
    made.blocks = [w.blocks[i] for i in order] if w.blocks else []
    return made


def first(w: Workload, count: int) -> Workload:
    """The first `count` requests; a trace that has fewer starts again, its ids renewed, and the notes say so."""
    n = len(w)
    if count <= n:
        return _picked(w, range(count)) if count < n else w
    made = _picked(w, [i % n for i in range(count)])
    gap = (w.arrival_s[-1] - w.arrival_s[0]) * n / max(n - 1, 1)
    most = max((max(b, default=0) for b in w.blocks), default=0) + 1
    for i in range(n, count):
        made.arrival_s[i] += gap * (i // n)
        if made.blocks:
            made.blocks[i] = tuple(b + most * (i // n) for b in made.blocks[i])
    made.notes.append(f"{w.name} has {n} requests; it was repeated to give {count}")
    return made


def at_rate(w: Workload, rate_per_s: float) -> Workload:
    """The same traffic faster or slower; a rate of 0 lets all come at once."""
    made = _picked(w, range(len(w)))
    if rate_per_s == 0:
        made.arrival_s = array("d", bytes(8 * len(w)))
        return made
    own = w.rate_per_s
    if not own:
        if len(w) > 1:
            raise ChipError(f"{w.name}: all requests come at once, so --rate has nothing to rescale")
        return made
    begin, scale = w.arrival_s[0], own / rate_per_s
    made.arrival_s = array("d", ((t - begin) * scale for t in w.arrival_s))
    return made


def to_lines(w: Workload) -> Iterator[str]:
    """As a JSON Lines file has it."""
    for i in range(len(w)):
        row: dict[str, Any] = {"arrival_s": round(w.arrival_s[i], 6), "prompt": w.prompt[i], "output": w.output[i]}
        if w.blocks and w.blocks[i]:
            row["blocks"] = list(w.blocks[i])
            if w.block_tokens != BLOCK_TOKENS:
                row["block_tokens"] = w.block_tokens
        out = io.StringIO()
        json.dump(row, out, separators=(",", ":"))
        yield out.getvalue()
