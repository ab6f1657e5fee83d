"""Where a result is written: what may be replaced, what is a stream, and one writer at a time.

A result replaces an empty file or an older result of the same schema. Anything else needs `force`; an input of the
same command and what is no plain file (a device, a FIFO, a folder) are never replaced. Symbolic links are followed.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from chip.types import ChipError

try:
    import fcntl
except ImportError:  # not a POSIX system: writers are not kept apart there
    fcntl = None  # type: ignore[assignment]

STREAMS = {"-": 1, "/dev/stdout": 1, "/dev/fd/1": 1, "/dev/stderr": 2, "/dev/fd/2": 2}
SINK = os.devnull
HEAD_BYTES = 4096
SCHEMA = re.compile(rb'\s*\{\s*"schema"\s*:\s*"(chip\.\w{1,80})/\d{1,9}"')  # chip writes it first


def is_stream(path: Path) -> bool:
    """Standard output or error, or the null device: written through, never replaced."""
    return str(path) in STREAMS or str(path) == SINK


def write_stream(path: Path, text: str) -> None:
    if str(path) == SINK:
        return
    stream = sys.stdout if STREAMS[str(path)] == 1 else sys.stderr
    stream.write(text)
    stream.flush()


def plain(path: Path) -> Path:
    """The file that `path` stands for, symbolic links followed; refused where something else than a file is there."""
    try:
        real = Path(os.path.realpath(path, strict=False))
        mode = real.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return real
    except ValueError:
        raise ChipError(f"{str(path)!r}: no file can have this name") from None
    except OSError as e:
        raise ChipError(f"{_short(path)}: cannot be written ({e.strerror})") from None
    if stat.S_ISDIR(mode):
        raise ChipError(f"{path}: is a folder, a file was expected")
    if not stat.S_ISREG(mode):
        raise ChipError(f"{path}: is not a plain file and is left alone; choose a file")
    return real


def _short(path: Path) -> str:
    text = str(path)
    return text if len(text) <= 300 else text[:297] + "..."


def schema_of(path: Path) -> str:
    """Schema name of a file that chip wrote ("chip.runs"), "" for any other."""
    try:
        with open(path, "rb") as file:
            found = SCHEMA.match(file.read(HEAD_BYTES))
    except OSError as e:
        raise ChipError(f"{path}: cannot be read ({e.strerror})") from None
    return found[1].decode() if found else ""


def check(path: Path, schema: str, inputs: Iterable[str | Path] = (), force: bool = False) -> None:
    """Refuse an output that would destroy something. Called before the work, and again when the file is written."""
    if is_stream(path):
        return
    real = plain(path)
    if not real.exists():
        return
    for other in inputs:
        if _same(real, other):
            raise ChipError(f"{path}: is an input of this command; choose another file with -o")
    if force or not real.stat().st_size:
        return
    found, wanted = schema_of(real), schema.split("/")[0]
    if found != wanted:
        what = f"a {found} file" if found else "not a file that chip wrote"
        raise ChipError(f"{path}: is {what}, and {wanted} would replace it; choose another file, or --force")


def check_lines(path: Path, schema: str) -> None:
    """The same for JSON Lines, which are appended to: what is there must have begun as a file of this schema."""
    real = plain(path)
    if not real.exists():
        return
    with open(real, "rb") as file:
        head = file.read(HEAD_BYTES)
    begin = b'{"schema":"' + schema.split("/")[0].encode() + b"/"
    if b"\n" not in head and not head.startswith(begin[: len(head)]):  # a whole first line is checked when it is read
        raise ChipError(f"{path}: is not a {schema.split('/')[0]} file; choose another file")


def _same(real: Path, other: str | Path) -> bool:
    try:
        return os.path.samefile(real, other)
    except (OSError, ValueError):  # an input that is a name, not a file
        return False


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One writer of `path` at a time: a second is refused at once. A kill releases the lock."""
    if fcntl is None or is_stream(path):
        yield
        return
    real = plain(path)
    beside = real.with_name(f".{real.name[:200]}.lock")
    handle = _take(beside, path)
    try:
        yield
    finally:
        beside.unlink(missing_ok=True)  # while it is still held: who opened it meanwhile sees that it is gone
        os.close(handle)


def _take(beside: Path, path: Path) -> int:
    while True:
        try:
            beside.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as e:
            raise ChipError(f"{_short(path)}: cannot be written ({e.strerror})") from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(handle), os.stat(beside)):
                return handle
        except FileNotFoundError:  # the holder removed it in between: a new one is taken
            pass
        except OSError as e:
            os.close(handle)
            if e.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise ChipError(f"{path}: another process is writing it; wait for it, or choose another -o") from None
            raise ChipError(f"{_short(path)}: cannot be locked ({e.strerror})") from None
        os.close(handle)
