"""Split what `chip profile --suite quant` or `between` measured: shapes that points are made from, and those that take
another time in the engine, where benchmarks/points_of_runs.py reads it (Machete from 17 rows on, roundings from 129).

    python benchmarks/split_alone.py MEASURED.jsonl quant.jsonl prompts-alone.jsonl
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

MACHETE_ROWS, ROUNDED_ROWS = 16, 128  # most that are fitted alone


def in_engine(row: dict[str, Any]) -> bool:
    """Whether the engine's own time is to be used."""
    op, ran = row["op"], row["implementation"]
    machete = op["op"] == "packed_linear" and ran == "machete" and op["weight_dtype"] == "int4"
    rounded = ran == "compiled" and "quant" in op["op"] and not op.get("static")
    return (machete and op["m"] > MACHETE_ROWS) or (rounded and op.get("rows", 0) > ROUNDED_ROWS)


def main(measured: str, alone: str, aside: str) -> None:
    head, *lines = Path(measured).read_text(encoding="utf-8").splitlines()
    kept, left = [head], [head]
    for line in lines:
        (left if in_engine(json.loads(line)) else kept).append(line)
    for path, held in ((alone, kept), (aside, left)):
        Path(path).write_text("\n".join(held) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
