"""Where a result is written: what may be replaced, what is a stream, and one writer at a time.

Every file of every command goes through `write`, or through `chip.files.artifact.append` where lines are added. It
replaces an empty file or an older result of the same kind. An input of the same command, another of its outputs, and
what is no plain file (a device, a FIFO, a folder) are never replaced. Symbolic links are followed.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
from _thread import get_ident
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from chip.types import ChipError

try:
    import fcntl
except ImportError:  # not a POSIX system: writers are not kept apart there
    fcntl = None  # type: ignore[assignment]


class Kind(NamedTuple):
    """What a file is, and how one of them begins: a file that begins otherwise is somebody else's."""

    title: str
    begins: re.Pattern[bytes]


def of_schema(schema: str) -> Kind:
    """JSON or JSON Lines that name their schema first, whatever its version."""
    name = schema.split("/")[0]
    return Kind(name, re.compile(rb'\s*\{\s*"schema"\s*:\s*"' + re.escape(name).encode() + rb"/\d"))


ANY = Kind("its own file", re.compile(b""))  # for what no option names: a cache, a page that is filled in place
FOLDER = Kind("a folder", re.compile(b"(?!)"))
LOG = Kind("a log of chip's", re.compile(rb"\$ chip "))
Output = tuple[Path | None, Kind | str]  # a file or folder that a command writes, with its kind or schema
STREAMS = {"-": 1, "/dev/stdout": 1, "/dev/fd/1": 1, "/dev/stderr": 2, "/dev/fd/2": 2}
SINK = os.devnull
HEAD_BYTES, TAIL_BYTES = 4096, 64
SCHEMA = re.compile(rb'\s*\{\s*"schema"\s*:\s*"(chip\.\w{1,80})/\d{1,9}"')


def is_stream(path: Path) -> bool:
    """Standard output or error, or the null device: written through, never replaced."""
    return str(path) in STREAMS or str(path) == SINK


def path(text: str) -> Path:
    """The argparse type of an option that names an output: what is not of this type is taken for an input."""
    return Path(text)


def write(path: Path, content: str | bytes, kind: Kind | str) -> None:
    """Write whole or not at all: a reader sees the old file or the new one."""
    data = content.encode() if isinstance(content, str) else content
    if is_stream(path):
        _write_stream(path, data.decode())
        return
    check(path, kind)
    real = plain(path)
    try:
        real.parent.mkdir(parents=True, exist_ok=True)
        temp = real.with_name(f".{real.name[:100]}.{os.getpid()}.{get_ident() % 10**6}")
        try:
            with open(temp, "wb") as f:
                f.write(data)
                f.flush()
                os.fsync(f.fileno())
            if real.exists():
                os.chmod(temp, stat.S_IMODE(real.stat().st_mode))
            os.replace(temp, real)
        finally:
            temp.unlink(missing_ok=True)  # gone already where all went well
    except OSError as e:
        raise ChipError(f"{path}: cannot be written ({e.strerror}); the old file, if any, is untouched") from None


def _write_stream(path: Path, text: str) -> None:
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


def check_all(outputs: Iterable[Output], inputs: Iterable[str | Path]) -> None:
    """Refuse, before any work, outputs that would destroy an input, each other, or a file of another kind."""
    names, written = [*inputs], set[Path]()
    for path, kind in outputs:
        if path is None or str(path) == SINK:
            continue
        check(path, kind)
        real = Path(f"stream {STREAMS[str(path)]}") if is_stream(path) else Path(os.path.realpath(path))
        if real in written:
            raise ChipError(f"{path}: two outputs of this command would be written there; give each a file of its own")
        written.add(real)
        if kind is not FOLDER and any(_same(real, other) for other in names):
            raise ChipError(f"{path}: is an input of this command; choose another file")


def check(path: Path, kind: Kind | str) -> None:
    """Refuse what would destroy a file that is not of this kind. Called before the work, and when the file is
    written."""
    if is_stream(path):
        return
    if kind is FOLDER:
        if os.path.lexists(path) and not os.path.isdir(path):
            raise ChipError(f"{path}: is not a folder; choose another one")
        return
    real = plain(path)
    if not real.exists() or not real.stat().st_size:
        return
    wanted = of_schema(kind) if isinstance(kind, str) else kind
    head = _ends(real)
    if not wanted.begins.match(head) and not (isinstance(kind, str) and _cut(head, wanted)):
        schema = SCHEMA.match(head)
        what = f"a {schema[1].decode()} file" if schema else "not a file that chip wrote"
        raise ChipError(
            f"{path}: is {what}, and {wanted.title} would replace it; choose another file, or remove this one"
        )


def _ends(path: Path) -> bytes:
    """How a file begins, and where it is longer how it ends: a PDF is signed there."""
    try:
        with open(path, "rb") as file:
            head = file.read(HEAD_BYTES)
            file.seek(max(HEAD_BYTES, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            return head + file.read(TAIL_BYTES)
    except OSError as e:
        raise ChipError(f"{path}: cannot be read ({e.strerror})") from None


def _cut(head: bytes, kind: Kind) -> bool:
    """Whether this is all that a kill has left of the first line of JSON Lines."""
    return b"\n" not in head and f'{{"schema":"{kind.title}/'.encode().startswith(head)


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
