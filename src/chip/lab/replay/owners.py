"""Tying kernels to the operator calls that launched them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher

from chip.files.traces import Kernel, KernelEvent, Operator
from chip.lab.replay import tiers
from chip.lab.replay.chrome import DeviceEvent, Profile, inside


def marked(profile: Profile, mark: str) -> list[tuple[DeviceEvent, int]]:
    """(kernel, number n of the annotation `mark`n in which it was launched, or -1), in order of time."""
    ranges = {thread: [r for r in rs if r.name.startswith(mark)] for thread, rs in profile.annotations.items()}
    starts = {thread: [r.start_ns for r in rs] for thread, rs in ranges.items()}
    owned = []
    for event in profile.device:
        thread, when = profile.launches.get(event.correlation, (None, 0))
        around = inside(ranges[thread], starts[thread], when) if thread in ranges else None
        owned.append((event, int(around.name.removeprefix(mark)) if around else -1))
    return owned


def during(profile: Profile, mark: str) -> list[list[DeviceEvent]]:
    """Kernels that began while an annotation `mark`... was open, for each such annotation in order of time."""
    ranges = sorted(r for rs in profile.annotations.values() for r in rs if r.name.startswith(mark))
    starts = [e.start_ns for e in profile.device]
    return [profile.device[bisect_left(starts, r.start_ns) : bisect_right(starts, r.end_ns)] for r in ranges]


def aligned(names: Sequence[str], known: Sequence[tuple[str, int]]) -> list[int]:
    """Owner of each name in turn, from a second run with the same sequence of kernels; -1 where it had no such one."""
    ran, before = [tiers.plain(name) for name in names], [tiers.plain(name) for name, _ in known]
    if ran == before:
        return [owner for _, owner in known]
    owners = [-1] * len(names)
    matcher = SequenceMatcher(None, before, ran, autojunk=False)
    for block in matcher.get_matching_blocks():
        for i in range(block.size):
            owners[block.b + i] = known[block.a + i][1]
    return owners


def assemble(
    events: Sequence[DeviceEvent], calls: Sequence[int], operators: Mapping[int, Operator]
) -> tuple[tuple[Operator, ...], tuple[Kernel, ...], tuple[KernelEvent, ...]]:
    """Unique operators, unique kernels and the launches of a trace; times count from the first launch."""
    unique: dict[str, int] = {}
    seen: dict[int, int] = {}  # the same object needs no second look
    table: list[Operator] = []
    kernels: dict[Kernel, int] = {}
    positions: dict[int, int] = {}
    launches = []
    first = min((e.start_ns for e in events), default=0)
    for event, call in zip(events, calls):
        index = None
        if call in operators:
            operator = operators[call]
            index = seen.get(id(operator))
            if index is None:
                index = seen[id(operator)] = unique.setdefault(repr(operator), len(table))
            if index == len(table):
                table.append(operator)
        position = positions.get(call, 0) if call >= 0 else 0
        positions[call] = position + 1
        kernel = Kernel(event.name, event.kind, event.grid, event.block, event.size_bytes, index, position)
        number = kernels.setdefault(kernel, len(kernels))
        launches.append(KernelEvent(number, event.start_ns - first, event.duration_ns, event.stream, call))
    return tuple(table), tuple(kernels), tuple(launches)
