"""The one file format: a JSON envelope with schema, content id, date, environment and inputs around the data.

Writes are atomic (a reader sees the old file or the new one). Long measurements append JSON Lines and survive a kill
at any byte: a last line without its newline is dropped on reading and overwritten by the next append.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chip.types import ChipError

MAX_CHARACTERS = 1 << 28  # of one document: what is larger is not chip's, and would fill the memory


@dataclass(frozen=True, slots=True)
class Artifact:
    schema: str
    data: Any
    environment: dict[str, Any] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    made: str = ""

    @property
    def id(self) -> str:
        """Content id: the same data gives the same id, whoever wrote it and when."""
        text = json.dumps([self.schema, self.data], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def new(schema: str, data: Any, environment: dict[str, Any], inputs: Sequence[str] = ()) -> Artifact:
    return Artifact(schema, data, environment, tuple(inputs), time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))


def write_text(path: Path, text: str) -> None:
    """Write whole or not at all."""

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temp = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with open(temp, "w", encoding="utf-8") as f:
                f.write(text)
                f.flush()
                os.fsync(f.fileno())
            os.replace(temp, path)
        finally:
            temp.unlink(missing_ok=True)  # gone already where all went well
    except OSError as e:
        raise ChipError(f"{path}: cannot be written ({e.strerror}); the old file, if any, is untouched") from None


def write(path: Path, artifact: Artifact, indent: int | None = 1) -> None:
    envelope = {
        "schema": artifact.schema,
        "id": artifact.id,
        "made": artifact.made,
        "environment": artifact.environment,
        "inputs": list(artifact.inputs),
        "data": artifact.data,
    }
    write_text(path, json.dumps(envelope, indent=indent, separators=None if indent else (",", ":")) + "\n")


def refuse_folder(path: Path) -> None:
    """Said before long work goes into a file, not after."""
    if path.is_dir():
        raise ChipError(f"{path}: is a folder, a file was expected")


def read_text(path: Path) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(MAX_CHARACTERS + 1)
    except FileNotFoundError:
        raise ChipError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise ChipError(f"{path}: is a folder, a file was expected") from None
    except UnicodeDecodeError:
        raise ChipError(f"{path}: is not text") from None
    except OSError as e:
        raise ChipError(f"{path}: cannot be read ({e.strerror})") from None
    except ValueError:  # a name that no file can have
        raise ChipError(f"{str(path)!r}: no such file") from None
    if len(text) > MAX_CHARACTERS:
        raise ChipError(f"{path}: is larger than {MAX_CHARACTERS >> 20} MiB, which no file of chip's is")
    return text


def read_json(path: Path) -> Any:
    text = read_text(path)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as e:
        detail = (
            f"line {e.lineno}: {e.msg}"
            if isinstance(e, json.JSONDecodeError)
            else "too deeply nested"
            if isinstance(e, RecursionError)
            else "a number too long"
        )
        raise ChipError(f"{path}: is not JSON or is cut short ({detail})") from None


def check_schema(found: Any, wanted: str, where: str) -> None:
    """`wanted` is name/version; a newer version or another kind of file is refused."""
    name, version = wanted.split("/")
    if not isinstance(found, str) or "/" not in found:
        raise ChipError(f"{where}: has no schema; expected {wanted}")
    found_name, found_version = found.rsplit("/", 1)
    if found_name != name:
        raise ChipError(f"{where}: is a {found_name} file; expected {name}")
    if not found_version.isdecimal() or int(found_version) > int(version):
        raise ChipError(f"{where}: schema {found} is newer than this chip reads ({wanted}); upgrade chip")


def read(path: Path, schema: str) -> Artifact:
    raw = read_json(path)
    if not isinstance(raw, dict):
        raise ChipError(f"{path}: expected an object with a schema")
    check_schema(raw.get("schema"), schema, str(path))
    for key in ("data", "environment", "inputs"):
        if key not in raw:
            raise ChipError(f"{path}: field {key!r} is missing")
    if not isinstance(raw["environment"], dict) or not isinstance(raw["inputs"], list):
        raise ChipError(f"{path}: environment must be an object and inputs a list")
    return Artifact(raw["schema"], raw["data"], raw["environment"], tuple(raw["inputs"]), str(raw.get("made", "")))


def append(path: Path, record: Any) -> None:
    """Add one JSON line, durable before this returns."""
    line = (json.dumps(record, separators=(",", ":")) + "\n").encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a+b") as f:
            end = f.seek(0, os.SEEK_END)
            if end:
                f.seek(end - 1)
                if f.read(1) != b"\n":
                    f.truncate(_last_newline(f, end))
            f.write(line)
            f.flush()
            os.fsync(f.fileno())
    except OSError as e:
        raise ChipError(f"{path}: cannot append ({e.strerror}); what was written before is kept") from None


def _last_newline(f: Any, end: int) -> int:
    """Length of the file up to and with its last newline."""
    at = end
    while at > 0:
        start = max(0, at - 65536)
        f.seek(start)
        found = f.read(at - start).rfind(b"\n")
        if found >= 0:
            return int(start + found + 1)
        at = start
    return 0


def read_lines(path: Path) -> list[Any]:
    """Every whole line; a last line without newline was cut by a kill and does not count."""
    if not path.exists():
        return []
    refuse_folder(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise ChipError(f"{path}: cannot be read as text") from None
    records = []
    for number, line in enumerate(text.split("\n")[:-1], 1):
        try:
            records.append(json.loads(line))
        except (ValueError, RecursionError):
            raise ChipError(f"{path}: line {number} is not JSON") from None
    return records
