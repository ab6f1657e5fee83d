"""The rate of matrix products that a GPU sustains, and how its clock settles at it.

A GPU lowers its clock until it draws no more than its power limit. What a FLOP draws above idle grows with the clock,
as an H200 showed that was metered rested and settled. So the rate that one GPU settles at tells that of another of like
silicon: by its own limit, and by what part of its own peak that rate is. A GPU with little arithmetic for its power
keeps its clock. Settled rates were measured on an H200 (`chip calibrate`), and stand in published tables (`settling`
in their files of points).
"""

from __future__ import annotations

from functools import lru_cache
from math import log
from pathlib import Path
from typing import NamedTuple

from chip.hardware import gpus, points
from chip.hardware.gpus import Hardware
from chip.predictor.clock import Settling
from chip.types import HardwareSpec

METERED = "h200"  # the GPU whose power and clock were metered
IDLE = 0.18  # of its power limit, what a GPU draws idle: an H200 129 of 700 W
# Joules of a FLOP grow with this power of the clock: an H200 draws 919 W at first and 703 W settled, 126 W of it idle,
# and is 1.20 times as fast at first (results/h200/power-limit.json, the burst of 23 ms).
STEEPNESS = 0.714
# Part of their peak that products reach where power does not limit them: the best tenth of vLLM's published products of
# 10 ms and more, whose weights are zeros, on an A100 and an RTX PRO 6000.
UNLIMITED = 0.95
# Joules of a FLOP relative to the measured GPU of the same architecture, by compute capability. As the foundries state:
# Samsung's 8LPP draws 10 % less than its 10LPP, TSMC's N7 40 % less than N10, N10 40 % less than 16FF, 12FF 25 % less.
OF_PROCESS = {"7.0": 2.1, "7.5": 2.1, "8.6": 1.5, "8.7": 1.5}
# Widths of matrix units are alike within this ratio; a B200's is 8 times that of an RTX card of its name
WIDTH_RATIO = 5.0
BEFORE = {"volta": "ampere", "turing": "ampere"}  # no GPU of theirs was measured: that of the next one stands in


class Anchor(NamedTuple):
    """A GPU whose settled rate is known."""

    spec: HardwareSpec
    settling: Settling


def settling_of(h: Hardware) -> Settling | None:
    """How the clock of a GPU settles: as its points say, else by its power; None where neither tells."""
    for folder in h.points:
        about = points.about(folder / f"{points.PRODUCT}{points.SUFFIX}")
        if "settling" in about:
            return Settling.read(about["settling"], _metered() if "licence" in about else None)
    if h.profile is not None:
        lines = h.profile.operators.get(points.PRODUCT, ())
        about = points.PointTable(Path(f"{points.PRODUCT}{points.SUFFIX}"), lines).about if lines else {}
        return Settling.read(about["settling"]) if "settling" in about else None
    return _by_power(h.spec) if h.spec else None


@lru_cache(maxsize=1)
def _metered() -> Settling:
    path = gpus.POINTS / METERED / f"{points.PRODUCT}{points.SUFFIX}"
    return Settling.read(points.about(path)["settling"])


@lru_cache(maxsize=1)
def _anchors() -> tuple[Anchor, ...]:
    folders = [f for f in sorted(gpus.IMPORTED.iterdir()) if f.is_dir() and f.name != METERED]
    lines = {f.name: points.about(f / f"{points.PRODUCT}{points.SUFFIX}").get("settling", "") for f in folders}
    imported = [Anchor(gpus.spec(name), Settling.read(line, _metered())) for name, line in lines.items() if line]
    return Anchor(gpus.spec(METERED), _metered()), *imported


def _nearest(s: HardwareSpec) -> Anchor | None:
    """Of the same vendor, with matrix units of like width: the same compute capability first, then the same
    architecture, then the like of it in its rates."""
    architecture = BEFORE.get(s.architecture, s.architecture)
    others = [a for a in _anchors() if a.spec.vendor == s.vendor and a.spec.name != s.name]

    def apart(anchor: Anchor) -> tuple[bool, bool, float]:
        theirs = anchor.spec
        pairs = [(q.value, theirs.ceilings[name].value) for name, q in s.ceilings.items() if name in theirs.ceilings]
        rates = sum(abs(log(own / other)) for own, other in pairs)
        return theirs.compute_capability != s.compute_capability, theirs.architecture != architecture, rates

    width = _width(s)
    alike = [a for a in others if width and 1 / WIDTH_RATIO < _width(a.spec) / width < WIDTH_RATIO]
    return min(alike, key=apart, default=None)


def _width(s: HardwareSpec) -> float:
    """FLOP of an SM's matrix units at each clock."""
    return peak_flop_per_s(s) / (s.units.value * s.boost_clock_hz.value)


def peak_flop_per_s(s: HardwareSpec) -> float:
    """Of matrix products in 16 bits; 0 where its datasheet has no matrix units."""
    found = s.ceilings.get("matmul_bf16") or s.ceilings.get("matmul_fp16")
    return found.value if found else 0.0


def _by_power(s: HardwareSpec) -> Settling | None:
    like, peak = _nearest(s), peak_flop_per_s(s)
    if like is None or not peak:
        return None
    theirs, their_peak = like.settling, peak_flop_per_s(like.spec)
    flop_j = like.spec.power_w.value * (1 - IDLE) / theirs.flop_per_s * OF_PROCESS.get(s.compute_capability, 1.0)
    # limit - idle = rate * flop_j * (rate / peak relative to theirs) ** STEEPNESS
    at_limit = s.power_w.value * (1 - IDLE) / flop_j
    drawing = (at_limit * (peak * theirs.flop_per_s / their_peak) ** STEEPNESS) ** (1 / (1 + STEEPNESS))
    most = UNLIMITED * peak
    if drawing >= most:
        return Settling(0.0, 1.0, theirs.time_s, drawing)
    rested = min(most, drawing / (1 - theirs.boost))
    return Settling(1 - drawing / rested, 1.0, theirs.time_s, drawing)


def relative_share(h: Hardware, like: Hardware) -> float:
    """How many times the part of its datasheet that another GPU sustains a GPU does; 1 where nothing tells."""
    own, theirs = share_of_peak(h), share_of_peak(like)
    return own / theirs if own and theirs else 1.0


def share_of_peak(h: Hardware) -> float | None:
    """The part of the datasheet's rate that large products sustain; None where nothing tells."""
    settling = settling_of(h)
    if settling is None or h.spec is None or not peak_flop_per_s(h.spec):
        return None
    return min(UNLIMITED, settling.flop_per_s / peak_flop_per_s(h.spec))
