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
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from chip import artifact, ops
from chip.dtypes import BYTES
from chip.ops.base_time import BaseTime
from chip.types import ChipError, Op

SCHEMA = "chip.points/1"  # what a report calls such a file, which has no envelope
NAMED = ("kernel", "context", "dtype")
LARGEST = 1e30
SUFFIX = ".csv"


@dataclass(frozen=True, slots=True)
class Group:
    """Points of one kernel in one context and dtype, with the base time that they correct."""

    kind: str
    kernel: str
    context: str  # cold: operands come from memory; hot: from cache
    dtype: str
    base: BaseTime | None  # None: the GPU's ceilings give it
    ops: tuple[Op, ...]
    seconds: tuple[float, ...]
    loo: tuple[float, ...] = ()  # predicted from the others over measured, less 1; empty where nobody computed it

    @property
    def name(self) -> str:
        return f"{self.kind} ({self.kernel}, {self.dtype}, {self.context})"


@dataclass(frozen=True, slots=True)
class PointFile:
    about: Mapping[str, str]  # device, source, licence, inputs ...
    groups: tuple[Group, ...] = field(default=())


def kinds(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(p.stem for p in folder.glob(f"*{SUFFIX}")))


def about(path: Path) -> dict[str, str]:
    """What the lines of # say, the points left unread; nothing where there is no such file."""
    found: dict[str, str] = {}
    if path.is_file():
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                if not line.startswith("#"):
                    break
                key, _, text = line[1:].partition(":")
                found[key.strip()] = text.strip()
    return found


@lru_cache(maxsize=512)
def read(path: Path, dtype: str = "") -> PointFile:
    """`dtype`: only the points of this one, where a prediction needs no others; all that operators know without it."""
    kind = path.stem
    about: dict[str, str] = {}
    lines = artifact.read_text(path).splitlines()
    body = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    for number, line in enumerate(lines[:body], 1):
        key, colon, text = line[1:].partition(":")
        if not colon:
            raise ChipError(f"{path}:{number}: a line of # must be `# key: value`")
        about[key.strip()] = text.strip()
    rows = csv.reader(lines[body:])
    header = next(rows, [])
    axes = _axes(kind, header, path)
    found: dict[tuple[str, str, str], list[tuple[Op, float, float | None]]] = {}
    for number, row in enumerate(rows, body + 2):
        if row and (len(row) < 3 or (row[2] == dtype if dtype else row[2] in BYTES)):
            key3, point = _point(kind, header, axes, row, f"{path}:{number}")
            found.setdefault(key3, []).append(point)
    return PointFile(about, tuple(_group(kind, key3, points, about, path) for key3, points in found.items()))


def _axes(kind: str, header: Sequence[str], path: Path) -> list[str]:
    if kind not in ops.names():
        raise ChipError(f"{path}: no operator is called {kind!r}; the file's name says whose points it holds")
    known = ops.axes(ops.get(kind))
    axes = [c for c in header if c not in (*NAMED, "us", "loo")]
    if tuple(header[:3]) != NAMED or "us" not in header or any(a not in known for a in axes):
        raise ChipError(f"{path}: its columns must be {', '.join(NAMED)}, axes of {kind} ({', '.join(known)}), us, loo")
    return axes


def _point(
    kind: str, header: Sequence[str], axes: Sequence[str], row: Sequence[str], where: str
) -> tuple[tuple[str, str, str], tuple[Op, float, float | None]]:
    if len(row) != len(header):
        raise ChipError(f"{where}: {len(row)} values, the header has {len(header)}")
    values = dict(zip(header, row))
    try:
        sizes: dict[str, Any] = {a: int(values[a]) for a in axes}
        us, loo = float(values["us"]), float(values["loo"]) / 100 if values.get("loo") else None
    except ValueError as e:
        raise ChipError(f"{where}: {e}") from None
    if not 0 < us < LARGEST or (loo is not None and not -1 < loo < LARGEST):
        raise ChipError(f"{where}: us must be positive, loo above -100 %")
    if "dtype" in ops.axes(ops.get(kind)):
        sizes["dtype"] = values["dtype"]
    if min(sizes[a] for a in axes) < 0:
        raise ChipError(f"{where}: sizes must not be negative")
    op = ops.get(kind)(**sizes)  # its columns are axes of the operator, as checked: a sweep reads thousands of rows
    check = getattr(op, "check", None)
    if check:
        try:
            check()
        except (ChipError, ZeroDivisionError) as e:
            raise ChipError(f"{where}: {e}") from None
    return (values["kernel"], values["context"], values["dtype"]), (op, us * 1e-6, loo)


def _group(
    kind: str,
    key: tuple[str, str, str],
    points: Sequence[tuple[Op, float, float | None]],
    about: Mapping[str, str],
    path: Path,
) -> Group:
    kernel, context, dtype = key
    text = about.get(f"base {kernel} {context} {dtype}")
    base = _base(kind, kernel, text, f"{path}: base {kernel} {context} {dtype}") if text else None
    loo = tuple(e for _, _, e in points if e is not None)
    return Group(
        kind, kernel, context, dtype, base, tuple(p[0] for p in points), tuple(p[1] for p in points),
        loo if len(loo) == len(points) else (),
    )  # fmt: skip


def _base(kind: str, kernel: str, text: str, where: str) -> BaseTime:
    cls = ops.get(kind).base_class(kernel)
    known = {f.name for f in dataclasses.fields(cls)}
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
        made: BaseTime = cls(**values)
    except TypeError:
        raise ChipError(f"{where}: floor_s, flop_per_s and bytes_per_s are needed") from None
    if not (made.flop_per_s > 0 and made.bytes_per_s > 0 and made.sm_count >= 1):
        raise ChipError(f"{where}: rates must be above 0")
    return made


def write(path: Path, about: Mapping[str, str], groups: Iterable[Group]) -> None:
    artifact.write_text(path, render(about, list(groups)))


def render(about: Mapping[str, str], groups: Sequence[Group]) -> str:
    """Rows sorted, so that two versions differ where their points do."""
    kind = groups[0].kind
    axes = [a for a in ops.axes(ops.get(kind)) if a != "dtype" and _varies(a, groups)]
    lines = [f"# {key}: {value}" for key, value in about.items() if not key.startswith("base ")]
    for g in groups:
        if g.base is not None:
            numbers = " ".join(f"{f.name}={getattr(g.base, f.name):.6g}" for f in dataclasses.fields(g.base))
            lines.append(f"# base {g.kernel} {g.context} {g.dtype}: {numbers}")
    with_loo = all(g.loo for g in groups)
    lines.append(",".join((*NAMED, *axes, "us", *(("loo",) if with_loo else ()))))
    for g in sorted(groups, key=lambda g: (g.kernel, g.context, g.dtype)):
        rows = []
        for i, (op, seconds) in enumerate(zip(g.ops, g.seconds)):
            sizes = tuple(int(getattr(op, a)) for a in axes)
            tail = [f"{100 * g.loo[i]:.1f}"] if with_loo else []
            words = (g.kernel, g.context, g.dtype, *map(str, sizes), f"{seconds * 1e6:.4g}", *tail)
            rows.append((sizes, ",".join(words)))
        lines += [text for _, text in sorted(rows)]
    return "\n".join(lines) + "\n"


def _varies(axis: str, groups: Sequence[Group]) -> bool:
    """Whether any point departs from the axis's default."""
    default = ops.axes(ops.get(groups[0].kind))[axis].default
    return default is dataclasses.MISSING or any(getattr(op, axis) != default for g in groups for op in g.ops)
