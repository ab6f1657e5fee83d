"""Whether another process used the machine while something was timed: then its figures are of both.

Linux tells how long all CPUs worked and how long a hypervisor kept them (steal); less our own time, that is others'.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from chip import stats
from chip.types import DISTURBED

STAT = Path("/proc/stat")
STEAL_OVER = 0.02  # of the CPUs' time
OTHERS_OVER = 0.25  # of one CPU, where none was left idle for us
FREE_OVER = 0.5  # idle CPUs that others leave: then they took nothing from us
SPREAD_OVER = 0.3  # (slowest - fastest) / median of the repeats
LOOK_S = 0.5
LEAST_S = 0.1  # a shorter time is a few ticks of the system's clock


@dataclass(frozen=True)
class Reading:
    """Seconds so far: of the clock, of all CPUs at work and idle, stolen, and of this process."""

    wall_s: float
    busy_s: float
    idle_s: float
    steal_s: float
    own_s: float


def read() -> Reading | None:
    """None where the system does not tell."""
    try:
        first = STAT.read_text(encoding="ascii").split("\n", 1)[0].split()
        user, nice, system, idle, waiting, irq, soft, steal = (int(n) for n in first[1:9])
    except (OSError, ValueError):
        return None
    tick = 1 / os.sysconf("SC_CLK_TCK")
    own = os.times()
    mine = own.user + own.system + own.children_user + own.children_system
    busy = (user + nice + system + irq + soft) * tick
    return Reading(time.monotonic(), busy, (idle + waiting) * tick, steal * tick, mine)


def busy(seconds: float = LOOK_S) -> str:
    """What keeps the CPUs busy while this process rests, "" for nothing."""
    before = read()
    time.sleep(seconds)
    after = read()
    if before is None or after is None:
        return ""
    found = _used(before, after)
    return f"{DISTURBED}other processes use {found.others:.1f} of {found.cpus:.0f} CPUs" if found.busy else ""


class Used(NamedTuple):
    """CPUs, over a while, that others used, that were idle, and that the hypervisor kept, and how many there are."""

    others: float
    idle: float
    stolen: float
    cpus: float

    @property
    def busy(self) -> bool:
        return self.others > OTHERS_OVER


def _used(before: Reading, after: Reading) -> Used:
    wall, own = after.wall_s - before.wall_s, after.own_s - before.own_s
    others, idle = (after.busy_s - before.busy_s - own) / wall, (after.idle_s - before.idle_s) / wall
    stolen = (after.steal_s - before.steal_s) / wall
    return Used(others, idle, stolen, max(1.0, others + idle + stolen + own / wall))


def flags(before: Reading | None, after: Reading | None, whole_ns: Sequence[int]) -> tuple[str, ...]:
    """What was seen, each beginning with DISTURBED."""
    found = []
    if before is not None and after is not None and after.wall_s - before.wall_s > LEAST_S:
        used = _used(before, after)
        if used.busy and used.idle < FREE_OVER:
            found.append(
                f"{DISTURBED}other processes used {used.others:.1f} of {used.cpus:.0f} CPUs while it was timed"
            )
        if used.stolen > STEAL_OVER * used.cpus:
            found.append(f"{DISTURBED}the hypervisor kept {used.stolen / used.cpus:.0%} of the CPUs' time")
    if len(whole_ns) > 1 and (spread := (max(whole_ns) - min(whole_ns)) / stats.median(whole_ns)) > SPREAD_OVER:
        found.append(f"{DISTURBED}repeats differ by {spread:.0%}")
    return tuple(found)
