"""Whether another process used the machine while something was timed: then its figures are of both.

Linux tells how long all CPUs worked and how long a hypervisor kept them (steal); less our own time, that is others'.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from chip import stats
from chip.types import DISTURBED

STAT = Path("/proc/stat")
STEAL_OVER = 0.02  # of the CPUs' time
OTHERS_OVER = 0.25  # of one CPU, where none was left idle for us
FREE_OVER = 0.5  # idle CPUs that others leave: then they took nothing from us
SPREAD_OVER = 0.3  # (slowest - fastest) / median of the repeats
SWITCHES_OVER = 0.5  # involuntary ones a sample: the median is then the scheduler's, not the operator's
LOOK_S = 0.5
WAIT_S = 5.0  # from one look to the next, where an idle machine is waited for
LEAST_S = 0.1  # a shorter time is a few ticks of the system's clock


class Reading(NamedTuple):
    """Seconds so far: of the clock, of all CPUs at work and idle, stolen, and of this process."""

    wall_s: float
    busy_s: float
    idle_s: float
    steal_s: float
    own_s: float


class Used(NamedTuple):
    """CPUs, over a while, that others used, that were idle, and that the hypervisor kept, and how many there are."""

    others: float
    idle: float
    stolen: float
    cpus: float


def read() -> Reading | None:
    """None where the system does not tell."""
    try:
        first = STAT.read_text(encoding="ascii").split("\n", 1)[0].split()
        user, nice, system, idle, waiting, irq, soft, steal = (int(n) for n in first[1:9])
    except (OSError, ValueError):
        return None
    tick, times = 1 / os.sysconf("SC_CLK_TCK"), os.times()
    busy = (user + nice + system + irq + soft) * tick
    return Reading(time.monotonic(), busy, (idle + waiting) * tick, steal * tick, sum(times[:4]))


def busy(host_of_gpu: bool = False) -> str:
    """What keeps the CPUs busy while this process rests, "" for nothing. A GPU's host is busy when no CPU is idle."""
    before = read()
    time.sleep(LOOK_S)
    after, queue = read(), runnable()
    if before is None or after is None:
        return ""
    used = _used(before, after)
    if host_of_gpu and used.idle > FREE_OVER:
        return ""
    seen = []
    if used.others > OTHERS_OVER:
        seen.append(f"other processes use {used.others:.1f} of {used.cpus:.0f} CPUs")
    if queue > used.cpus:
        seen.append(f"{queue} processes want to run on {used.cpus:.0f} CPUs")
    if used.stolen > STEAL_OVER * used.cpus:
        seen.append(f"the hypervisor keeps {used.stolen / used.cpus:.0%} of the CPUs' time")
    return DISTURBED + "; ".join(seen) if seen else ""


def runnable() -> int:
    """Processes that run or wait for a CPU, but for this one; 0 where the system does not tell."""
    try:
        found = [line for line in STAT.read_text(encoding="ascii").splitlines() if line.startswith("procs_running")]
        return int(found[0].split()[1]) - 1
    except (OSError, ValueError, IndexError):
        return 0


def wait(limit_s: float, host_of_gpu: bool, say: Callable[[str], None]) -> None:
    """Until nothing else uses the machine, no longer than `limit_s`. What is waited for is said when it changes."""
    end, last = time.monotonic() + limit_s, ""
    while time.monotonic() < end and (seen := busy(host_of_gpu)):
        if seen.split(" ")[:3] != last.split(" ")[:3]:
            say(f"waiting: {seen.removeprefix(DISTURBED)}")
            last = seen
        time.sleep(min(WAIT_S, max(0.0, end - time.monotonic())))


def _used(before: Reading, after: Reading) -> Used:
    wall, busy, idle, stolen, ours = (b - a for a, b in zip(before, after))
    others, free, withheld = (busy - ours) / wall, idle / wall, stolen / wall
    return Used(others, free, withheld, max(1.0, others + free + withheld + ours / wall))


def flags(before: Reading | None, after: Reading | None, whole_ns: Sequence[int] = ()) -> tuple[str, ...]:
    """What was seen, each beginning with DISTURBED. `whole_ns`: times of repeats."""
    lines = []
    if before is not None and after is not None and after.wall_s - before.wall_s > LEAST_S:
        used = _used(before, after)
        if used.others > OTHERS_OVER and used.idle < FREE_OVER:
            lines.append(f"other processes used {used.others:.1f} of {used.cpus:.0f} CPUs while it was timed")
        if used.stolen > STEAL_OVER * used.cpus:
            lines.append(f"the hypervisor kept {used.stolen / used.cpus:.0%} of the CPUs' time")
    if len(whole_ns) > 1 and (spread := (max(whole_ns) - min(whole_ns)) / stats.median(whole_ns)) > SPREAD_OVER:
        lines.append(f"repeats differ by {spread:.0%}")
    return tuple(DISTURBED + line for line in lines)


def switches() -> int:
    """How often this process had to leave a CPU to somebody else; 0 where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw)


def switch_flags(count: int, samples: int) -> tuple[str, ...]:
    """A flag where the CPU was shared: threads that wait for one another then lose whole time slices, and the samples
    are multiples of a slice that agree well with each other and say nothing about the operator."""
    shared = count > SWITCHES_OVER * samples
    return (f"CPU shared: {count} involuntary switches in {samples} samples",) if shared else ()
