"""One file a probe; each has `cases(bench) -> list[Case]`. The order matters: factors are shares of earlier ceilings,
boost rates want a cool device, and what heats it comes last."""

from __future__ import annotations

from importlib import import_module

from chip.lab.measure.bench import Bench, ProbeCase

ORDER = (
    "idle", "compute", "memory", "working_set", "transfer", "launch", "host", "staircase", "access", "sustained",
    "operators",
)  # fmt: skip


def plan(bench: Bench, only: tuple[str, ...] = ()) -> list[tuple[str, ProbeCase]]:
    """Every case in order, keyed `probe/case`."""
    return [
        (f"{name}/{case.name}", case)
        for name in ORDER
        if not only or name in only
        for case in import_module(f"{__name__}.{name}").cases(bench)
    ]
