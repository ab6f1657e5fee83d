"""Measured points of operators: one CSV file for each kind of operator on a GPU, which people can read and diff.

    # device: NVIDIA H200
    # base torch cold bf16: floor_s=2.289e-06 flop_per_s=6.984e+14 ...
    kernel,context,dtype,m,n,k,us,loo
    torch,cold,bf16,1,512,512,3.42,1.2

Lines that begin with # say where the points come from, and the base time of each group of points (kernel, context,
dtype). `us` is the median time; `loo` the error, in percent, of the prediction for that point from all others.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from chip import ops
from chip.dtypes import BYTES
from chip.files import artifact, output
from chip.ops import BaseTime
from chip.types import ChipError, Op

SCHEMA = "chip.points/1"  # what a report calls such a file, which has no envelope
NAMED = ("kernel", "context", "dtype")
LARGEST = 1e30
SUFFIX = ".csv"
PRODUCT = "linear"  # the operator that every folder of points has
KIND = output.Kind("a file of points", re.compile(rb"# device: "))
FORMATS = ("fp8_block", "bf16_kv_fp8", "nvfp4", "mxfp4")  # of imported points that no plain operator has


@dataclass(frozen=True, slots=True)
class PointGroup:
    """Points of one kernel in one context and dtype, with the base time that they correct."""

    kind: str
    kernel: str
    context: str  # cold: operands come from memory; hot: from cache
    dtype: str
    base: BaseTime | None  # None: the GPU's ceilings give it
    ops: tuple[Op, ...]
    seconds: tuple[float, ...]
    loo: tuple[float, ...] = ()  # predicted from the others over measured, less 1; empty where it was not computed
    imported: bool = False  # published by others, under their licence

    @property
    def name(self) -> str:
        return f"{self.kind} ({self.kernel}, {self.dtype}, {self.context})"

    @property
    def implementation(self) -> str:
        return self.kernel.partition(".")[0]  # `torch.2` is torch's third kernel (`Op.kernel_of`)


@dataclass(frozen=True, slots=True)
class PointFile:
    about: Mapping[str, str]  # device, source, licence, inputs ...
    groups: tuple[PointGroup, ...] = field(default=())


def kinds(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(p.stem for p in folder.glob(f"*{SUFFIX}")))


def about(path: Path) -> dict[str, str]:
    """What the lines of # say, the points left unread; nothing where there is no such file."""
    values: dict[str, str] = {}
    if path.is_file():
        for line in artifact.lines(path):
            if not line.startswith("#"):
                break
            key, _, text = line[1:].partition(":")
            values[key.strip()] = text.strip()
    return values


@lru_cache(maxsize=512)
def read(path: Path) -> PointFile:
    """All points that operators know."""
    all_points = PointTable(path)
    return PointFile(all_points.about, all_points.groups())


Key = tuple[str, str, str]  # kernel, context, dtype


class PointTable:
    """A file of points, made into operators group by group: a prediction needs few of them."""

    def __init__(self, path: Path, written: Sequence[str] = ()) -> None:
        """`written`: its lines, where it is not a file of its own."""
        lines = written or artifact.read_text(path).splitlines()
        body = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
        self.about: dict[str, str] = {}
        for number, line in enumerate(lines[:body], 1):
            key, colon, text = line[1:].partition(":")
            if not colon:
                raise ChipError(f"{path}:{number}: a line of # must be `# key: value`")
            self.about[key.strip()] = text.strip()
        columns = Columns(path, next(csv.reader(lines[body:]), []))
        self._path, self._columns, self._groups = path, columns, dict[Key, PointGroup]()
        self._lines: dict[Key, list[tuple[int, str]]] = {}
        group = list[tuple[int, str]]()
        start = "\n"  # of the lines of one group, which mostly follow each other
        for number, line in enumerate(lines[body + 1 :], body + 2):
            if not line.startswith(start):
                if not line:
                    continue
                kernel, context, dtype = columns.key(line, f"{path}:{number}")
                start, group = f"{kernel},{context},{dtype},", self._lines.setdefault((kernel, context, dtype), [])
            group.append((number, line))

    @property
    def dtypes(self) -> set[str]:
        return {dtype for _, _, dtype in self._lines}

    def groups(self, dtype: str = "", kernels: tuple[str, ...] = (), context: str = "") -> tuple[PointGroup, ...]:
        """`dtype`, `kernels`: only these points; else all that operators know. `context`: only those in it, if any
        are."""
        keys = [
            key
            for key in self._lines
            if (key[2] == dtype if dtype else key[2] in BYTES) and (not kernels or key[0] in kernels)
        ]
        return tuple(map(self._group, [key for key in keys if key[1] == context] or keys))

    def bases(self, dtype: str) -> list[tuple[str, BaseTime, str]]:
        """Of each group that has one: its kernel, its base time, and the compute ceiling that it runs under."""
        bases = []
        for key, lines in self._lines.items():
            base = self._base(key) if key[2] == dtype else None
            if base is not None:
                (op,), _, _ = self._columns.points(self._rows(lines[:1]), self._path)
                bases.append((key[0], base, op.compute))
        return bases

    def _base(self, key: Key) -> BaseTime | None:
        name = f"base {' '.join(key)}"
        text = self.about.get(name)
        return _base(self._path.stem, key[0], text, f"{self._path}: {name}") if text else None

    def _rows(self, lines: Sequence[tuple[int, str]]) -> list[tuple[int, list[str]]]:
        rows = [(number, row) for (number, _), row in zip(lines, csv.reader([line for _, line in lines]))]
        for number, row in rows:
            self._columns.check(len(row), f"{self._path}:{number}")
        return rows

    def _group(self, key: Key) -> PointGroup:
        if key not in self._groups:
            points, imported = self._columns.points(self._rows(self._lines[key]), self._path), "licence" in self.about
            self._groups[key] = PointGroup(self._path.stem, *key, self._base(key), *points, imported)
        return self._groups[key]


table = lru_cache(maxsize=128)(PointTable)


# Operators, their seconds, and the errors of predicting each from the others; no errors where some lack.
MeasuredOps = tuple[tuple[Op, ...], tuple[float, ...], tuple[float, ...]]
BAD = (ValueError, TypeError, ZeroDivisionError, ChipError)  # that a row of senseless numbers raises


class Columns:
    """What the columns of a file of points are: a prediction reads thousands of rows, so this is worked out once."""

    def __init__(self, path: Path, header: Sequence[str]) -> None:
        kind = path.stem
        if kind not in ops.names():
            raise ChipError(f"{path}: no operator is called {kind!r}; the file's name says whose points it holds")
        self.op: Any = ops.get(kind)
        known = ops.axes(self.op)
        axes = [c for c in header if c not in (*NAMED, "us", "loo")]
        if tuple(header[:3]) != NAMED or "us" not in header or any(a not in known for a in axes):
            names = f"{', '.join(NAMED)}, axes of {kind} ({', '.join(known)}), us, loo"
            raise ChipError(f"{path}: its columns must be {names}")
        for name, axis in known.items():
            if axis.default is MISSING and name not in axes:
                raise ChipError(f"{path}: {kind} needs axis {name!r}; its columns are {', '.join(header)}"[:400])
        self.count, self.has_dtype = len(header), "dtype" in known
        self.needed = [header.index(name) for name, axis in known.items() if axis.default is MISSING]
        words = [a for a in axes if isinstance(known[a].default, str)]  # number formats
        axes = [a for a in axes if a not in words]
        self.axes, self.words = ([header.index(a) for a in some] for some in (axes, words))
        self.names = [*axes, *words, "dtype"] if self.has_dtype else [*axes, *words]
        self.checks = hasattr(self.op, "check")
        self.us, self.loo = header.index("us"), header.index("loo") if "loo" in header else None

    def key(self, line: str, where: str) -> Key:
        """Of a row that is not parsed yet."""
        words = line.split(",", 3)
        if len(words) < 4:
            self.check(len(words), where)
        kernel, context, dtype = words[:3]
        if dtype not in BYTES and dtype not in FORMATS and self.has_dtype:
            raise ChipError(f"{where}: dtype {dtype[:40]!r} is not known")
        return kernel, context, dtype

    def check(self, count: int, where: str) -> None:
        if count != self.count:
            raise ChipError(f"{where}: {count} values, the header has {self.count}")

    def points(self, rows: Sequence[tuple[int, Sequence[str]]], path: Path) -> MeasuredOps:
        """Of numbered rows of one kernel."""
        try:
            return self._points(list(zip(*[row for _, row in rows])))
        except BAD:
            for number, row in rows:  # which of them is to blame
                try:
                    self._points([(word,) for word in row])
                except BAD as e:
                    raise ChipError(f"{path}:{number}: {e}") from None
            raise

    def _points(self, texts: Sequence[Sequence[str]]) -> MeasuredOps:
        """From the columns as text."""
        sizes = [list(map(int, texts[i])) for i in self.axes]
        us = list(map(float, texts[self.us]))
        loo = [float(e) / 100 for e in texts[self.loo]] if self.loo is not None and all(texts[self.loo]) else []
        if not all(0 < u < LARGEST for u in us) or not all(-1 < e < LARGEST for e in loo):
            raise ValueError("us must be positive, loo above -100 %")
        if min(map(min, sizes)) < 0 or any("0" in texts[i] for i in self.needed):
            raise ValueError("sizes must be whole numbers from 1")
        columns = dict(zip(self.names, (*sizes, *[texts[i] for i in self.words], texts[2])))
        axes = [columns.get(f.name) or [f.default] * len(us) for f in fields(self.op)]
        calls: tuple[Op, ...] = tuple(map(self.op, *axes))
        for op in calls:
            if self.checks:
                op.check()  # type: ignore[attr-defined]
            if columns.get("dtype", ("",))[0] not in FORMATS:
                op.cost()
        return calls, tuple([u * 1e-6 for u in us]), tuple(loo)


def _base(kind: str, kernel: str, text: str, where: str) -> BaseTime:
    cls: type[Any] = ops.get(kind).base_class(kernel) or BaseTime
    on_cpu = ops.get(kind).ON_CPU or BaseTime
    if {word.partition("=")[0] for word in text.split()} == {f.name for f in fields(on_cpu)}:
        cls = on_cpu
    known = {f.name for f in fields(cls)}
    values: dict[str, float] = {}
    for word in text.split():
        name, _, value = word.partition("=")
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if name not in known or not 0 <= number < LARGEST:
            raise ChipError(f"{where}: {word[:40]!r} is no number of {cls.__name__} ({', '.join(sorted(known))})")
        values[name] = int(number) if name == "sm_count" else number
    try:
        base: BaseTime = cls(**values)
    except TypeError:
        raise ChipError(f"{where}: floor_s, flop_per_s and bytes_per_s are needed") from None
    if not (base.flop_per_s > 0 and base.bytes_per_s > 0 and base.sm_count >= 1):
        raise ChipError(f"{where}: rates must be above 0")
    return base


class Library:
    """The folders of one GPU's points, ours first. Each kind of operator is a file, read when it is asked for."""

    def __init__(self, folders: tuple[Path, ...], calibrated: Mapping[str, Sequence[str]] | None = None) -> None:
        """`calibrated`: the tables within a profile, which answer where the folders have none."""
        self._kinds = {folder: frozenset(kinds(folder)) for folder in folders}
        self._calibrated = {k: PointTable(Path(f"{k}{SUFFIX}"), lines) for k, lines in (calibrated or {}).items()}
        self.about: Mapping[str, str] = {}
        if folders:
            self.about = about(folders[0] / f"{PRODUCT}{SUFFIX}")
        elif PRODUCT in self._calibrated:
            self.about = self._calibrated[PRODUCT].about
        self.shared: dict[int, tuple[PointGroup, Any]] = {}  # by id(group): what all engines make of a group alike

    def _tables(self, kind: str) -> Iterator[PointTable]:
        """Those of a kind of operator, folder by folder."""
        yield from (table(folder / f"{kind}{SUFFIX}") for folder, kinds in self._kinds.items() if kind in kinds)
        if kind in self._calibrated:
            yield self._calibrated[kind]

    def has(self, kind: str, dtype: str) -> bool:
        return any(dtype in table.dtypes for table in self._tables(kind))

    def groups(self, kind: str, dtype: str, kernels: tuple[str, ...] = (), context: str = "") -> tuple[PointGroup, ...]:
        """The groups of the first folder that has any."""
        return next((some for table in self._tables(kind) if (some := table.groups(dtype, kernels, context))), ())

    def clock(self, kind: str, dtype: str) -> str:
        """How the clock settled under these points, where their file says that it was not as for all others."""
        return next((table.about.get(f"clock {dtype}", "") for table in self._tables(kind)), "")

    def bases(self, kind: str, dtype: str = "bf16") -> list[tuple[str, BaseTime, str]]:
        """The fitted base times of a kind: kernel, base, and the compute ceiling it ran under; those in bf16
        where there are none of this dtype."""
        return next((some for t in self._tables(kind) if (some := t.bases(dtype) or t.bases("bf16"))), [])


def write(path: Path, about: Mapping[str, str], groups: Iterable[PointGroup]) -> None:
    output.write(path, render(about, list(groups)), KIND)


def render(about: Mapping[str, str], groups: Sequence[PointGroup]) -> str:
    """Rows sorted, so that two versions differ where their points do."""
    kind = groups[0].kind
    axes = [a for a in ops.axes(ops.get(kind)) if a != "dtype" and _varies(a, groups)]
    lines = [f"# {key}: {value}" for key, value in about.items() if not key.startswith("base ")]
    for g in sorted(groups, key=lambda g: (g.kernel, g.context, g.dtype)):
        if g.base is not None:
            numbers = " ".join(f"{f.name}={getattr(g.base, f.name):.6g}" for f in fields(g.base))
            lines.append(f"# base {g.kernel} {g.context} {g.dtype}: {numbers}")
    with_loo = all(g.loo for g in groups)
    lines.append(",".join((*NAMED, *axes, "us", *(("loo",) if with_loo else ()))))
    for g in sorted(groups, key=lambda g: (g.kernel, g.context, g.dtype)):
        rows = []
        for i, (op, seconds) in enumerate(zip(g.ops, g.seconds)):
            sizes = tuple(v if isinstance(v := getattr(op, a), str) else int(v) for a in axes)
            tail = [f"{100 * g.loo[i]:.1f}"] if with_loo else []
            words = (g.kernel, g.context, g.dtype, *map(str, sizes), f"{seconds * 1e6:.4g}", *tail)
            rows.append((sizes, ",".join(words)))
        lines += [text for _, text in sorted(rows)]
    return "\n".join(lines) + "\n"


def _varies(axis: str, groups: Sequence[PointGroup]) -> bool:
    """Whether any point departs from the axis's default."""
    default = ops.axes(ops.get(groups[0].kind))[axis].default
    return default is MISSING or any(getattr(op, axis) != default for g in groups for op in g.ops)
