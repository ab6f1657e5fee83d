"""How long GPUs take to exchange data: measured collectives where a system has them, else latency and bandwidth.

The size in bytes is that of the whole tensor: what each GPU holds before an all-reduce, a reduce-scatter or an
all-to-all, and after an all-gather. Points are interpolated in the logarithms of size and time, for exactly the number
of GPUs that were measured.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from math import exp, log
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from chip.hardware import gpus
from chip.stats import rising
from chip.types import ChipError, HardwareSpec, Link

if TYPE_CHECKING:
    from chip.hardware.tables.points_csv import Row

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
POINTS = gpus.IMPORTED
NCCL = "nccl"
BASE_S = 6.6e-6  # NCCL's own constant for a ring, once a collective: baseLat[Ring][LL] of its tuning.cc (2.20.3)
# Measured over formula at the same size and number of GPUs: 5th, 50th and 95th percentile of all bundled collectives. A
# PCIe system may have no path between some of its GPUs but through the host.
NVLINK_KEPT = (0.59, 1.46, 2.41)
PCIE_KEPT = (0.70, 1.76, 19.3)
BETWEEN = 0.15  # of a time between two points: 90th percentile of the error at sizes left out of the whole tables


class Transfer(NamedTuple):
    seconds: float
    low_s: float
    high_s: float
    source: str  # "measured", "interpolated", "extrapolated" or "formula"
    note: str = ""


class LinkCurve(NamedTuple):
    """Times of one collective by one kernel over one number of GPUs, as sizes grow."""

    sizes: tuple[float, ...]  # bytes
    times_s: tuple[float, ...]

    def at(self, size: float) -> tuple[float, str]:
        """Seconds, and how they were had. Below the smallest size nothing gets faster; beyond the largest the rate of
        the last one holds."""
        if size <= self.sizes[0]:
            return self.times_s[0], "measured" if size == self.sizes[0] else "extrapolated"
        if size > self.sizes[-1]:
            return self.times_s[-1] * size / self.sizes[-1], "extrapolated"
        i = bisect_left(self.sizes, size)
        if self.sizes[i] == size:
            return self.times_s[i], "measured"
        share = log(size / self.sizes[i - 1]) / log(self.sizes[i] / self.sizes[i - 1])
        a, b = log(self.times_s[i - 1]), log(self.times_s[i])
        return exp(a + share * (b - a)), "interpolated"


Curves = dict[tuple[str, str, int], LinkCurve]  # by kernel, context and ranks


def curves(rows: Sequence[Row]) -> Curves:
    found: dict[tuple[str, str, int], list[tuple[int, float]]] = defaultdict(list)
    for row in rows:
        size, ranks = row.at
        found[row.kernel, row.context, ranks].append((size, row.us * 1e-6))
    return {key: _curve(points) for key, points in found.items()}


def _curve(points: list[tuple[int, float]]) -> LinkCurve:
    """More bytes never take less time: what small ones seem to is noise."""
    sizes, times_s = zip(*sorted(points))
    return LinkCurve(sizes, tuple(rising(times_s)))


@lru_cache(maxsize=32)
def measured(gpu: str, kind: str, folder: Path = POINTS) -> Curves:
    """The curves of a GPU, or of one of the same chip with the same kind of link; empty where neither was measured.
    Over a link of half the rate half the bytes take as long."""
    from chip.hardware.tables import points_csv  # one GPU by itself has no use for it

    sibling, ratio = gpus.find(gpu).sibling if gpu in gpus.spec_names() else "", 1.0
    if sibling and _rates(gpu)[0] == _rates(sibling)[0]:
        ratio = _rates(gpu)[1] / _rates(sibling)[1]
        gpu = sibling
    path = folder / gpu / f"{kind}.csv"
    found = curves(points_csv.read(path).rows) if path.is_file() else {}
    return {key: curve._replace(sizes=tuple([ratio * size for size in curve.sizes])) for key, curve in found.items()}


def link_of(spec: HardwareSpec) -> tuple[str, Link] | None:
    """The fastest interconnect of a datasheet, with its name."""
    return max(spec.links.items(), key=lambda item: item[1].bytes_per_s.value, default=None)


def _rates(gpu: str) -> tuple[str, float, float]:
    """Name, rate and latency of a bundled GPU's fastest interconnect."""
    found = link_of(gpus.spec(gpu))
    return (found[0], found[1].bytes_per_s.value, _latency_s(found[1])) if found else ("", 0.0, 0.0)


def over_pcie(gpu: str) -> bool:
    """Whether its GPUs reach each other over PCIe alone."""
    sheet = gpus.find(gpu).spec
    found = link_of(sheet) if sheet else None
    return found is not None and found[0] == "pcie"


def formula(kind: str, size: float, ranks: int, link: Link) -> float:
    """Seconds of a ring: what passes over each link at its promised rate, and the latency of each step."""
    check(kind, size, ranks)
    rounds = 2 if kind == "all_reduce" else 1
    steps = rounds * (ranks - 1)
    return BASE_S + steps * _latency_s(link) + steps / ranks * size / link.bytes_per_s.value


def over(kind: str, size: float, ranks: int, link: Link) -> Transfer:
    """Over a link whose latency and rate the asker knows."""
    return _given(formula(kind, size, ranks, link))


def send(size: float, gpu: str) -> Transfer:
    """From one GPU to the next: the base latency once, and the bytes at the datasheet's rate; scaled as rings are."""
    if given := gpus.find(gpu).link:
        return _given(BASE_S + _latency_s(given) + size / given.bytes_per_s.value)
    name, link = link_of(gpus.find(gpu).spec or _no_link(gpu)) or ("", None)
    if link is None:
        _no_link(gpu)
    assert link
    once_s = BASE_S + _latency_s(link) + size / link.bytes_per_s.value
    low_s, seconds, high_s = (kept * once_s for kept in (PCIE_KEPT if name == "pcie" else NVLINK_KEPT))
    return Transfer(seconds, low_s, high_s, "formula", f"sent between two {gpu} over {name}: never measured")


def collective(
    kind: str, size: float, ranks: int, gpu: str, kernel: str = NCCL, context: str = "graph", folder: Path = POINTS
) -> Transfer:
    """Time of one collective between GPUs of one host. `kernel`: an engine's own all-reduce, launched in a
    CUDA graph or (context "host") one by one; where it has no points NCCL's are taken."""
    check(kind, size, ranks)
    if ranks == 1:
        return Transfer(0.0, 0.0, 0.0, "measured", "one GPU exchanges nothing")
    held = measured(gpu, kind, folder)
    curve = held.get((kernel, context, ranks)) or held.get((NCCL, "graph", ranks))
    if curve:
        seconds, source = curve.at(size)
        off = 0.0 if source == "measured" else BETWEEN
        return Transfer(seconds, seconds / (1 + off), seconds * (1 + off), source)
    found = link_of(gpus.find(gpu).spec or _no_link(gpu))
    if found is None:
        _no_link(gpu)
    assert found
    name, link = found
    ring_s = formula(kind, size, ranks, link)
    low_s, seconds, high_s = (kept * ring_s for kept in (PCIE_KEPT if name == "pcie" else NVLINK_KEPT))
    measured_ranks = sorted({r for _, _, r in held})
    why = f"measured for {', '.join(map(str, measured_ranks))} GPUs only" if measured_ranks else "never measured"
    note = f"{kind} of {ranks} {gpu} over {name}: {why}; from the datasheet's latency and bandwidth"
    return Transfer(seconds, low_s, high_s, "formula", note)


def check(kind: str, size: float, ranks: int) -> None:
    if kind not in KINDS:
        raise ChipError(f"no collective {kind[:40]!r}; choose one of {', '.join(KINDS)}")
    if not 0 < size < 1e18:
        raise ChipError(f"{kind}: bytes must be a positive number, got {size:g}")
    if ranks < 1:
        raise ChipError(f"{kind}: ranks must be at least 1, got {ranks}")


def _given(seconds: float) -> Transfer:
    return Transfer(seconds, seconds / (1 + BETWEEN), seconds * (1 + BETWEEN), "formula")


def _latency_s(link: Link) -> float:
    return link.latency_s.value if link.latency_s else 0.0


def _no_link(gpu: str) -> HardwareSpec:
    raise ChipError(f"{gpu} has no interconnect in its datasheet; name one under links to predict several GPUs")
