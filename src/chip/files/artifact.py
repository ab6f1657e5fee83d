"""The one file format: a JSON envelope with schema, content id, date, environment and inputs around the data.

Writes are atomic (a reader sees the old file or the new one). Long measurements append JSON Lines and survive a kill
at any byte: a last line without its newline is dropped on reading and overwritten by the next append.
"""

from __future__ import annotations

import io
import json
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from chip.files import jsontext, output
from chip.types import ChipError

MAX_BYTES = 1 << 28  # of one file that is read: what is larger is not chip's, and would fill the memory
MAX_LINE_CHARACTERS = 1 << 24  # of one line of a file, and before a line of standard input has to end
MAX_QUESTION_CHARACTERS = 1_000_000  # of one line of a sweep that is answered


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
        import hashlib  # with its library the slowest import of a cold answer, which has no need of it

        text = json.dumps([self.schema, self.data], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def new(schema: str, data: Any, environment: dict[str, Any], inputs: Sequence[str] = ()) -> Artifact:
    return Artifact(schema, data, environment, tuple(inputs), time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))


def write(path: Path, artifact: Artifact, indent: int | None = 1) -> None:
    """Replaces an artifact of the same schema only; see `chip.output`."""
    envelope = {
        "schema": artifact.schema,
        "id": artifact.id,
        "made": artifact.made,
        "environment": artifact.environment,
        "inputs": list(artifact.inputs),
        "data": artifact.data,
    }
    try:
        text = jsontext.dump(envelope, indent)
    except ValueError:
        raise ChipError(f"{path}: not written, because a value in it is not a finite number") from None
    output.write(path, text + "\n", artifact.schema)


@contextmanager
def opened_bytes(path: Path, most: int = 0) -> Iterator[BinaryIO]:
    """A plain file to read from; a FIFO or device could keep the reader waiting for ever and is refused. `most`: bytes,
    where another limit than that of all files holds."""
    most = most or MAX_BYTES
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with open(handle, "rb") as file:
            status = os.fstat(handle)
            if stat.S_ISDIR(status.st_mode):
                raise IsADirectoryError
            if not stat.S_ISREG(status.st_mode):
                raise ChipError(f"{path}: is not a plain file")
            if status.st_size > most:
                raise ChipError(f"{path}: is larger than {most >> 20} MiB, the most that is read of such a file")
            yield file
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


@contextmanager
def opened(path: Path) -> Iterator[TextIO]:
    with opened_bytes(path) as file, io.TextIOWrapper(file, encoding="utf-8") as text:
        yield text


def read_text(path: Path) -> str:
    with opened(path) as file:
        return file.read()


def read_bytes(path: Path) -> bytes:
    with opened_bytes(path) as file:
        return file.read()


def read_packed(path: Path) -> str:
    """The text of a file, gzipped or not, bounded as it is unpacked."""
    raw = read_bytes(path)
    if raw[:2] == b"\x1f\x8b":
        import gzip  # which few files are
        import zlib

        try:
            with gzip.open(io.BytesIO(raw)) as file:
                raw = file.read(MAX_BYTES + 1)
        except (OSError, EOFError, zlib.error):
            raise ChipError(f"{path}: is damaged; get it again") from None
        if len(raw) > MAX_BYTES:
            raise ChipError(f"{path}: is larger than {MAX_BYTES >> 20} MiB unpacked")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise ChipError(f"{path}: is not text") from None


def lines(path: Path) -> Iterator[str]:
    """Line by line, each with its newline, where it has one."""
    with opened(path) as file:
        for number in count(1):
            line = file.readline(MAX_LINE_CHARACTERS + 1)
            if len(line) > MAX_LINE_CHARACTERS:
                raise ChipError(f"{path}: line {number} is larger than {MAX_LINE_CHARACTERS >> 20} MiB")
            if not line:
                return
            yield line


def read_json(path: Path) -> Any:
    """What a file of JSON holds, gzipped or not."""
    text = read_packed(path)
    try:
        return jsontext.parse(text)
    except jsontext.Malformed as e:
        raise ChipError(f"{path}: is not JSON or is cut short ({e})") from None


def parse_question(line: str) -> Any:
    """A line of a sweep."""
    if len(line) > MAX_QUESTION_CHARACTERS:
        raise ChipError(f"the line is longer than {MAX_QUESTION_CHARACTERS} characters")
    try:
        return jsontext.parse(line)
    except jsontext.Malformed:
        raise ChipError("the line is not JSON") from None


def check_schema(schema: Any, wanted: str, where: str) -> None:
    """`wanted` is name/version; a newer version or another kind of file is refused."""
    name, version = wanted.split("/")
    if not isinstance(schema, str) or "/" not in schema:
        raise ChipError(f"{where}: has no schema; expected {wanted}")
    kind, its_version = schema.rsplit("/", 1)
    if kind != name:
        raise ChipError(f"{where}: is a {kind} file; expected {name}")
    if not its_version.isdecimal() or int(its_version) > int(version):
        raise ChipError(f"{where}: schema {schema} is newer than this chip reads ({wanted}); upgrade chip")


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


def check_versions(path: Path, before: Mapping[str, Any], now: Mapping[str, Any], names: Iterable[str]) -> None:
    """Refuse to add to a file what was measured with other versions, which gave other times."""
    for name in names:
        if before.get(name) != now.get(name):
            raise ChipError(
                f"{path}: was measured with {name} {before.get(name)}, this is {now.get(name)}; choose another file "
                "with -o"
            )


def append(path: Path, record: Any, schema: str) -> None:
    """Add one JSON line to a file of this schema, or begin one; durable before this returns. A last line that a kill
    has cut is dropped, which of somebody else's file could be all of it."""
    try:
        line = (jsontext.dump(record) + "\n").encode()
    except ValueError:
        raise ChipError(f"{path}: not appended, because a value is not a finite number") from None
    if output.is_stream(path):
        raise ChipError(f"{path}: lines are added to a file; name one")
    output.check(path, schema)
    real = output.plain(path)
    try:
        real.parent.mkdir(parents=True, exist_ok=True)
        with open(real, "a+b") as f:
            end = f.seek(0, os.SEEK_END)
            if end:
                f.seek(end - 1)
                if f.read(1) != b"\n":
                    f.seek(0)
                    f.truncate(f.read().rfind(b"\n") + 1)
            f.write(line)
            f.flush()
            os.fsync(f.fileno())
    except OSError as e:
        raise ChipError(f"{path}: cannot append ({e.strerror}); what was written before is kept") from None


def read_lines(path: Path) -> list[Any]:
    """Every whole line; a last line without newline was cut by a kill and does not count."""
    if not os.path.exists(path):
        return []
    records = []
    for number, line in enumerate(lines(path), 1):
        if not line.endswith("\n"):
            break
        try:
            records.append(jsontext.parse(line))
        except jsontext.Malformed:
            raise ChipError(f"{path}: line {number} is not JSON") from None
    return records
