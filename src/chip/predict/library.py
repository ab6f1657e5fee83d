"""Folders of measured points, read when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from chip import points as point_files
from chip.ops.base_time import BaseTime
from chip.points import PointGroup, PointTable
from chip.predict.clock import Settling
from chip.predict.interpolate import Points

PRODUCT = "linear"  # the operator that every folder of points has


class Library:
    """The folders of one GPU, ours first. Each kind of operator is a file, read when it is asked for."""

    def __init__(self, folders: tuple[Path, ...]) -> None:
        self._kinds = {folder: frozenset(point_files.kinds(folder)) for folder in folders}
        about = point_files.about(folders[0] / f"{PRODUCT}{point_files.SUFFIX}")
        self.device = about.get("device", "")
        self.settling = Settling.read(about["settling"]) if "settling" in about else None
        self._clocks: dict[tuple[str, str], Settling | None] = {}
        self._points: dict[int, tuple[PointGroup, Points]] = {}  # by id(group), which is unique while the group is held

    def _tables(self, kind: str) -> Iterator[PointTable]:
        """Those of a kind of operator, folder by folder."""
        for folder, kinds in self._kinds.items():
            if kind in kinds:
                yield point_files.table(folder / f"{kind}{point_files.SUFFIX}")

    def has(self, kind: str, dtype: str) -> bool:
        return any(dtype in table.dtypes for table in self._tables(kind))

    def groups(self, kind: str, dtype: str, kernels: tuple[str, ...] = (), context: str = "") -> tuple[PointGroup, ...]:
        """The groups of the first folder that has any."""
        return next((found for table in self._tables(kind) if (found := table.groups(dtype, kernels, context))), ())

    def points(self, group: PointGroup) -> Points:
        """A group's points, shared by all engines that run its kernel."""
        assert group.base is not None
        if id(group) not in self._points:
            self._points[id(group)] = group, Points(group, group.base)
        return self._points[id(group)][1]

    def clock(self, kind: str, dtype: str) -> Settling | None:
        """How the clock settled under these points, where their file says that it was not as for all others."""
        if (kind, dtype) not in self._clocks:
            said = next((t.about.get(f"clock {dtype}") for t in self._tables(kind)), None)
            self._clocks[kind, dtype] = Settling.read(said, self.settling) if said and self.settling else None
        return self._clocks[kind, dtype]

    def bases(self, kind: str) -> list[tuple[str, BaseTime, str]]:
        """The fitted base times of a kind in bf16: kernel, base, and the compute ceiling it ran under."""
        return next((found for table in self._tables(kind) if (found := table.bases("bf16"))), [])


@lru_cache(maxsize=16)
def library(folders: tuple[Path, ...]) -> Library:
    return Library(folders)
