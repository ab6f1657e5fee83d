"""Reading a Chrome trace as the torch profiler writes it, event by event: memory is bounded by what is kept.

Refused in one line: what is not such a trace, is cut short, nested too deeply, or larger than the limits below.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from chip.files import artifact
from chip.types import ChipError

SCHEMA = "chip.profiler_trace/1"  # of one that `chip capture --chrome` wrote
CHUNK = 2**20
MAX_EVENT = 2**22  # characters of one event
MAX_FILE = 4 * 2**30  # characters of a file, unpacked
MAX_KEPT = 4_000_000
MAX_RATIO = 100  # of a packed file: the profiler's traces unpack to 10 to 30 times their size
SMALL = 64 * 2**20  # characters that any file may have unpacked
ARRAY = re.compile(r'"traceEvents"\s*:\s*\[|^\s*\[')
BETWEEN = re.compile(r"[\s,]*")
DEVICE = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}
INPUTS = ("Input Dims", "Input Strides", "Input type", "Concrete Inputs")
LAUNCHES = ("cuda_runtime", "cuda_driver")


class DeviceEvent(NamedTuple):
    name: str
    kind: str
    start_ns: int
    duration_ns: int
    stream: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    size_bytes: int
    correlation: int


class HostRange(NamedTuple):
    """An operator or an annotation on a thread of the host; `inputs` is one object for all calls with the same."""

    start_ns: int
    end_ns: int
    name: str
    inputs: Inputs | None = None


class Inputs(NamedTuple):
    """Arguments of an operator as the profiler tells them, each a list or absent."""

    dims: Any
    strides: Any
    types: Any
    values: Any


@dataclass
class Profile:
    """What of a trace matters here, in order of time."""

    device: list[DeviceEvent] = field(default_factory=list)
    launches: dict[int, tuple[Any, int]] = field(default_factory=dict)  # correlation -> (thread, when)
    operators: dict[Any, list[HostRange]] = field(default_factory=dict)  # by thread
    annotations: dict[Any, list[HostRange]] = field(default_factory=dict)
    _inputs: dict[str, Inputs] = field(default_factory=dict)

    def inputs(self, args: dict[str, Any]) -> Inputs:
        arguments = Inputs(*(args.get(key) for key in INPUTS))
        return self._inputs.setdefault(repr(arguments), arguments)

    def sort(self) -> Profile:
        self.device.sort(key=lambda e: e.start_ns)
        for ranges in (*self.operators.values(), *self.annotations.values()):
            ranges.sort(key=lambda r: (r.start_ns, -r.end_ns))
        return self


def read(path: Path) -> Profile:
    profile = Profile()
    count = 0
    for number, event in enumerate(events(path)):
        try:
            count += _keep(profile, event)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as e:
            raise ChipError(
                f"{path}: event {number} is not one of the torch profiler ({type(e).__name__}: {e})"
            ) from None
        if count > MAX_KEPT:
            raise ChipError(f"{path}: has more than {MAX_KEPT} events of interest; record fewer steps")
    return profile.sort()


def _keep(profile: Profile, event: Any) -> int:
    if event.get("ph") != "X":
        return 0
    category = str(event.get("cat", "")).lower()
    if category in DEVICE:
        profile.device.append(_device(event, DEVICE[category]))
    elif category in LAUNCHES:
        thread = event["pid"], event["tid"]
        profile.launches[int(event["args"].get("correlation", -1))] = thread, _ns(event["ts"])
    elif category in ("cpu_op", "user_annotation"):
        start = _ns(event["ts"])
        operator = category == "cpu_op"
        inputs = profile.inputs(event.get("args") or {}) if operator else None
        span = HostRange(start, start + _ns(event.get("dur", 0)), str(event["name"]), inputs)
        where = profile.operators if operator else profile.annotations
        where.setdefault((event["pid"], event["tid"]), []).append(span)
    else:
        return 0
    return 1


def _device(event: dict[str, Any], kind: str) -> DeviceEvent:
    args = event.get("args") or {}
    return DeviceEvent(
        str(event["name"]),
        kind,
        _ns(event["ts"]),
        _ns(event.get("dur", 0)),
        int(args.get("stream", event.get("tid", 0))),
        _three(args.get("grid")),
        _three(args.get("block")),
        int(args.get("bytes", 0)),
        int(args.get("correlation", -1)),
    )


def _ns(us: Any) -> int:
    return round(float(us) * 1000)


def _three(value: Any) -> tuple[int, int, int]:
    if value is None:
        return (0, 0, 0)
    x, y, z = value
    return int(x), int(y), int(z)


def inside(ranges: list[HostRange], starts: list[int], when_ns: int, limit: int = 64) -> HostRange | None:
    """The innermost range around a moment; ranges of a thread nest, so it is the latest begun that has not ended."""
    at = bisect_right(starts, when_ns) - 1
    for i in range(at, max(-1, at - limit * 16), -1):
        if ranges[i].end_ns >= when_ns:
            return ranges[i]
    return None


def events(path: Path) -> Iterator[Any]:
    """Every element of traceEvents."""
    with _opened(path) as (file, most):
        text = _Text(file, path, most)
        text.start()
        decoder = json.JSONDecoder()
        count = 0
        while not text.ended():
            try:
                value, text.at = decoder.raw_decode(text.buffer, text.at)
            except json.JSONDecodeError:
                text.more(f"is not JSON or is cut short after {count} events")
                continue
            except RecursionError:
                raise ChipError(f"{path}: event {count} is too deeply nested") from None
            if not isinstance(value, dict):
                raise ChipError(f"{path}: event {count} is no object")
            count += 1
            yield value


class _Text:
    """A window on a long text."""

    def __init__(self, file: io.TextIOBase, path: Path, most: int) -> None:
        self.file, self.path, self.most = file, path, most
        self.buffer, self.at, self.total = "", 0, 0

    def start(self) -> None:
        """Up to the first event. What stands before it (versions, devices) is short."""
        while not (array := ARRAY.search(self.buffer)):
            self.more("has no traceEvents: not a Chrome trace")
        self.at = array.end()

    def ended(self) -> bool:
        """True behind the last event; else stands on the next."""
        while True:
            gap = BETWEEN.match(self.buffer, self.at)
            self.at = gap.end() if gap else self.at
            if self.at < len(self.buffer):
                return self.buffer[self.at] == "]"
            self.more("is cut short: traceEvents has no end")

    def more(self, otherwise: str) -> None:
        """Read on, dropping what was consumed."""
        if len(self.buffer) - self.at > MAX_EVENT:
            raise ChipError(f"{self.path}: {otherwise}")
        try:
            chunk = self.file.read(CHUNK)
        except (OSError, EOFError, zlib.error) as e:
            raise ChipError(f"{self.path}: cannot be read ({e})") from None
        self.total += len(chunk)
        if not chunk:
            raise ChipError(f"{self.path}: {otherwise}")
        if self.total > self.most:
            raise ChipError(f"{self.path}: is larger than {self.most / 2**20:.0f} MiB unpacked; record fewer steps")
        self.buffer, self.at = self.buffer[self.at :] + chunk, 0


@contextmanager
def _opened(path: Path) -> Iterator[tuple[io.TextIOBase, int]]:
    """The text, unpacked, and how many characters of it are read: a small packed file may not keep us busy for
    minutes."""
    with artifact.opened_bytes(path, MAX_FILE) as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        most = min(MAX_FILE, max(SMALL, MAX_RATIO * os.fstat(raw.fileno()).st_size)) if packed else MAX_FILE
        unpacked = gzip.GzipFile(fileobj=raw) if packed else raw
        with io.TextIOWrapper(unpacked, encoding="utf-8", errors="replace") as text:
            yield text, most
