"""Reading what Nsight Systems exports: `nsys export --type sqlite`, or `--type json` (one object a line).

A CUDA graph whose nodes were not traced is one span without kernels: nsys takes `--cuda-graph-trace=node`.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chip.files import artifact
from chip.lab.replay.chrome import MAX_FILE, MAX_KEPT, DeviceEvent, HostRange, Profile
from chip.types import ChipError

SQLITE = b"SQLite format 3\x00"
KERNELS, GRAPHS, RANGES = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "NVTX_EVENTS"
COPIES = {"memcpy": "CUPTI_ACTIVITY_KIND_MEMCPY", "memset": "CUPTI_ACTIVITY_KIND_MEMSET"}
NODES = "its CUDA graphs were not traced node by node: record with `nsys profile --cuda-graph-trace=node`"


def is_sqlite(path: Path) -> bool:
    with artifact.opened_bytes(path, MAX_FILE) as file:
        return file.read(len(SQLITE)) == SQLITE


def is_json(path: Path) -> bool:
    """Its first line is the table of strings."""
    with artifact.opened_bytes(path, MAX_FILE) as file:
        return file.read(64).lstrip().startswith((b'{"data"', b'{ "data"'))


def read_sqlite(path: Path) -> Profile:
    try:
        with sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True) as db:
            return _of_tables(db, path)
    except sqlite3.Error as e:
        raise ChipError(f"{path}: not an export of Nsight Systems ({e})") from None


def _of_tables(db: sqlite3.Connection, path: Path) -> Profile:
    db.row_factory = sqlite3.Row
    tables = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if KERNELS not in tables:
        raise ChipError(f"{path}: {NODES}" if GRAPHS in tables else f"{path}: has no table {KERNELS}: no kernel ran")
    names, profile = dict(db.execute("SELECT id, value FROM StringIds").fetchall()), Profile()
    for row in _rows(db, KERNELS, path):
        grid, block = ((row[f"{of}X"], row[f"{of}Y"], row[f"{of}Z"]) for of in ("grid", "block"))
        name = str(names.get(row["demangledName"], row["demangledName"]))
        profile.device.append(_event(name, "kernel", row, grid, block))
    for kind, table in COPIES.items():
        if table in tables:
            profile.device += [_event(kind, kind, row, size=row["bytes"]) for row in _rows(db, table, path)]
    if RANGES in tables:
        for row in _rows(db, RANGES, path):
            text = row["text"] or names.get(row["textId"], "")
            if text and row["end"]:
                span = HostRange(row["start"], row["end"], str(text))
                profile.annotations.setdefault(row["globalTid"], []).append(span)
    return profile.sort()


def _rows(db: sqlite3.Connection, table: str, path: Path) -> Iterator[sqlite3.Row]:
    for count, row in enumerate(db.execute(f"SELECT * FROM {table}")):  # a constant's name
        if count > MAX_KEPT:
            raise ChipError(f"{path}: {table} has more than {MAX_KEPT} rows; record fewer steps")
        yield row


def _event(
    name: str, kind: str, row: Any, grid: tuple[int, int, int] = (0, 0, 0), block: tuple[int, int, int] = (0, 0, 0),
    size: int = 0,
) -> DeviceEvent:  # fmt: skip
    start = int(row["start"])
    return DeviceEvent(name, kind, start, int(row["end"]) - start, int(row["streamId"]), grid, block, int(size), -1)


def read_json(path: Path) -> Profile:
    """Strings are numbers into the list that stands in the first line."""
    profile, names = Profile(), list[Any]()
    for number, line in enumerate(artifact.lines(path), 1):
        try:
            value = json.loads(line)
            if "data" in value:
                names = value["data"]
            elif (event := value.get("CudaEvent")) and (kind := next((k for k in _KINDS if k in event), "")):
                profile.device.append(_of_json(event, kind, names))
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as e:
            raise ChipError(f"{path}:{number}: not an export of Nsight Systems ({type(e).__name__}: {e})") from None
    return profile.sort()


_KINDS = ("kernel", "memcpy", "memset")


def _of_json(event: Any, kind: str, names: list[Any]) -> DeviceEvent:
    about, start = event[kind], int(event["startNs"])
    name = str(names[int(about["demangledName"])]) if kind == "kernel" else kind
    grid, block = (tuple(int(about.get(f"{of}{axis}", 0)) for axis in "XYZ") for of in ("grid", "block"))
    size = int(about.get("sizebytes", 0))
    ran_ns = int(event["endNs"]) - start
    return DeviceEvent(name, kind, start, ran_ns, int(event.get("streamId", 0)), grid, block, size, -1)  # type: ignore[arg-type]


def read(path: Path) -> Profile | None:
    """None where the file is of another kind."""
    if not path.is_file():
        return None
    return read_sqlite(path) if is_sqlite(path) else read_json(path) if is_json(path) else None
