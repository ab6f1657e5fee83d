"""The file of measured operators: JSON Lines, a header first (schema, device, environment), then one `Measurement` a
line. It is appended to as a run goes, so that a run that was stopped continues where it was."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from chip import ops
from chip.files import artifact, codec, output
from chip.types import ChipError, Measurement, Op

Key = tuple[str, str, str]
RESTED = "a rest after each"  # in the method of what was timed at the boost clock
COMPARABLE = ("torch", "driver", "cuda")  # a file holds one of each: other versions, other times


def key(op: Mapping[str, Any], implementation: str, context: str) -> Key:
    """What makes a measurement the same one again."""
    return json.dumps(op, sort_keys=True), implementation, context


def key_of(m: Measurement) -> Key:
    return key(m.op, m.implementation, m.context)


def record(op: Op) -> dict[str, Any]:
    """An operator as a measurement holds it."""
    return {"op": op.kind, **codec.to_json(op)}


def operator(record: Mapping[str, Any]) -> Op:
    """The operator of a measurement's `op` field."""
    axes = dict(record)
    kind = axes.pop("op", None)
    if not isinstance(kind, str):
        raise ChipError("a measurement's op must name its kind under 'op'")
    return ops.build(kind, axes)


def start(path: Path, device: str, environment: Mapping[str, Any], runs: Sequence[str] = ()) -> list[Measurement]:
    """Make the file ready to append to: its header written, or what it already holds returned. `runs`: ids of the runs
    that the measurements were read out of, where they were."""
    output.check(path, Measurement.SCHEMA)
    if not artifact.read_lines(path):
        first_line: dict[str, Any] = {
            "schema": Measurement.SCHEMA,
            "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "device": device,
            "environment": dict(environment),
            **({"runs": list(runs)} if runs else {}),
        }
        artifact.append(path, first_line, Measurement.SCHEMA)
        return []
    header, measured = read(path)
    if header["device"] != device:
        raise ChipError(f"{path}: holds measurements of {header['device']}, this is {device}; choose another file")
    artifact.check_versions(path, header["environment"], environment, COMPARABLE)
    return measured


def add(path: Path, m: Measurement) -> None:
    artifact.append(path, codec.to_json(m), Measurement.SCHEMA)


def read(path: Path) -> tuple[dict[str, Any], list[Measurement]]:
    """(header, measurements); the last of a repeated measurement counts."""
    if not path.exists():
        raise ChipError(f"{path}: no such file")
    lines = artifact.read_lines(path)
    if not lines:
        raise ChipError(f"{path}: holds no whole line; it is empty or was cut in its first")
    header = lines[0]
    if not isinstance(header, dict):
        raise ChipError(f"{path}: line 1 must be a header with a schema")
    artifact.check_schema(header.get("schema"), Measurement.SCHEMA, str(path))
    if not isinstance(header.get("device"), str) or not isinstance(header.get("environment"), dict):
        raise ChipError(f"{path}: its header must name a device and an environment")
    if not all(isinstance(run, str) for run in header.get("runs", [])):
        raise ChipError(f"{path}: the runs of its header must be a list of ids")
    by_key: dict[Key, Measurement] = {}
    for number, line in enumerate(lines[1:], 2):
        m = codec.from_json(Measurement, line, f"{path}: line {number}")
        _check(m, f"{path}: line {number}")
        by_key[key_of(m)] = m
    return header, list(by_key.values())


def _check(m: Measurement, where: str) -> None:
    if m.status not in ("ok", "skipped", "failed"):
        raise ChipError(f"{where}: status {m.status!r} is not known; it is ok, skipped or failed")
    if (m.status == "ok") != bool(m.samples_ns):
        raise ChipError(f"{where}: ok means samples, anything else means none; status is {m.status!r}")
    try:
        operator(m.op)
    except ChipError as e:
        raise ChipError(f"{where}: {e}") from None
    if any(s <= 0 for s in m.samples_ns):
        raise ChipError(f"{where}: samples_ns must be positive")


def rested(m: Measurement) -> bool:
    """Whether it was timed at the boost clock, as the first tens of milliseconds of a prompt run."""
    return RESTED in m.method


def ok(measured: Iterable[Measurement]) -> list[Measurement]:
    return [m for m in measured if m.status == "ok"]
