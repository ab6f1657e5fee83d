"""How a kernel over rows is launched: the rule, what tuning found better, and what is worth trying.

`chip kernels tune --keep` writes what it finds into TUNED, a JSON file; every later call reads it there.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from chip.files import artifact, output

TUNED = Path(__file__).parents[2] / "data" / "kernels" / "plans.json"
THREAD_BYTES = 128  # of a row in each thread: eight 16-byte loads under way
LONG_BYTES = 32 << 10  # rows from here on are held
HELD_BYTES = 128 << 10  # what 1024 threads can hold
ANY = 0  # columns of a plan that holds for all
NORMS = ("layer_norm", "rms_norm", "add_rms_norm")  # whose chunks divide rows between powers of two: measured so


@dataclass(frozen=True)
class LaunchPlan:
    rows: int = 1
    warps: int = 4
    stages: int = 1
    per_unit: int = 0
    chunk: int = 0  # columns at a time; 0: the whole row at once
    held: bool = False  # the chunks of a row stay in registers; otherwise they are read twice
    registers: int = 0  # at most, a thread; 0: as many as the compiler likes
    evict: str = "evict_first"  # what caches are told of data that is touched once
    cache: str = ""  # ".cg": it passes by L1, which is then left to weights
    fetched: int = 1  # parts of a weight that are loaded before they are needed
    kept: int = 65536  # columns of weights that L1 is asked to keep for the next row; the others pass by it
    back: bool = False  # softmax: what is read twice is read backwards the second time, the last chunk first

    def __str__(self) -> str:
        changed = (f for f in fields(self) if getattr(self, f.name) != f.default)
        return ", ".join(f"{f.name}={getattr(self, f.name)}" for f in changed) or "the defaults"


def plan(kernel: str, cols: int, element_bytes: int) -> LaunchPlan:
    """What tuning found for 16-bit rows of this length; for norms of a length between powers of two, chunks that divide
    it; what tuning found for the next power of two; otherwise 128 bytes of a row a thread, at least 2 KiB of rows a
    warp."""
    padded = power_of_two(cols)
    if element_bytes == 2:
        best: LaunchPlan | None = tuned(kernel, cols)
        if not best and kernel in NORMS and cols != padded and 2048 < cols <= 8192:
            return dividing(cols)[-1]
        if best := best or tuned(kernel, padded):
            return best
    if cols * element_bytes > HELD_BYTES:
        return LaunchPlan(1, 16, 2, 1, 8192)
    row_bytes = padded * element_bytes
    warps = max(1, row_bytes // (32 * THREAD_BYTES))
    if row_bytes >= LONG_BYTES:
        return hold(warps, element_bytes)
    return LaunchPlan(max(1, 2048 // row_bytes), warps)


def hold(warps: int, element_bytes: int = 2, loads: int = 1, registers: int = 64) -> LaunchPlan:
    """Parts of so many 16-byte loads a thread. With 64 registers a thread, 1024 threads fill an SM."""
    return LaunchPlan(
        1, warps, chunk=32 * warps * loads * 16 // element_bytes, held=True, registers=registers, fetched=2 // loads
    )


def dividing(cols: int) -> list[LaunchPlan]:
    """Plans for 16-bit rows whose length is no power of two. A thread that holds fewer loads than it has registers for
    leaves an SM with fewer bytes under way: so eight to fifteen loads each, and registers to match."""
    warps = max(1, 1 << ((cols // 2048).bit_length() - 1)) if cols >= 2048 else 1
    plans = []
    for w in (warps, 2 * warps):
        loads = -(-cols // (256 * w))
        for spare in (24, 32, 40):
            registers = min(128, -(-(4 * loads + spare) // 8) * 8)
            plans.append(
                LaunchPlan(1, w, chunk=256 * w, held=True, registers=registers, evict="", cache=".cg", fetched=2)
            )
    return list(dict.fromkeys(plans))


def power_of_two(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


# -- candidates -------------------------------------------------------------------------------------------------------
def candidates(kernel: str, cols: int) -> list[LaunchPlan]:
    """Plans worth trying for such rows of 16-bit elements."""
    padded = power_of_two(cols)
    if cols != padded and 1024 <= cols <= 32768:
        return dividing(cols) + candidates(kernel, padded)
    if 2 * padded > HELD_BYTES:
        return TWICE
    if 2 * padded >= LONG_BYTES:
        bases = LONG[padded]
        if kernel != "softmax":  # which has no weight to fetch
            few = [replace(p, fetched=1) for p in bases if p.fetched > 1 and p.registers <= 64]
            bases = bases + few + [replace(p, fetched=4) for p in bases if p.registers > 64]
            if kernel == "layer_norm" and padded > 32768:  # weight and bias exceed L1 together
                bases = [replace(p, kept=columns) for p in bases for columns in (65536, 98304, 114688)]
                return [_past_l1(p) for p in bases]
        if padded == 16384:
            bases = [
                *bases,
                LaunchPlan(warps=16),
                LaunchPlan(warps=16, registers=40),
                LaunchPlan(warps=32, registers=32),
            ]
        twice = [replace(p, back=back) for p in TWICE for back in (False, True)] if kernel == "softmax" else []
        return [p for base in bases for p in (base, _past_l1(base))] + twice
    plans = [LaunchPlan(rows, warps) for rows, warps in _dealt(padded)]
    if padded >= 4096:
        plans += [hold(padded // 2048), hold(padded // 1024)]
    plans = [p for base in plans for p in (base, replace(base, evict=""), _past_l1(base))]
    return plans + NEAR if kernel == "softmax" and padded >= 4096 else plans


def _dealt(padded: int) -> list[tuple[int, int]]:
    """(rows, warps) with 16 to 64 elements a thread."""
    alone = {(1, w) for w in (1, 2, 4, 8) if 16 <= padded // (32 * w) <= 64}
    return sorted(alone | {(1024 * w // padded, w) for w in (1, 2, 4) if padded < 1024 * w})


def _past_l1(p: LaunchPlan) -> LaunchPlan:
    return replace(p, evict="", cache=".cg")


NEAR = [
    LaunchPlan(1, warps, chunk=chunk) for warps, chunk in ((4, 2048), (8, 2048), (8, 4096), (16, 4096))
]  # read twice
DEALT = ((8, 0, 4096), (16, 0, 8192), (16, 0, 16384), (16, 2, 16384), (16, 3, 8192), (16, 2, 8192), (8, 4, 4096))
TWICE = [LaunchPlan(1, warps, 1, per_unit, chunk) for warps, per_unit, chunk in DEALT]
TWICE += [LaunchPlan(1, 32, 1, per_unit, 8192, registers=32) for per_unit in (0, 2)]
LONG = {
    16384: [hold(8), hold(16, registers=40), hold(4, registers=128), hold(8, loads=2)],
    32768: [hold(16), hold(8, registers=128), hold(16, loads=2)],
    65536: [hold(32), hold(16, registers=128), hold(32, loads=2), hold(16, loads=2, registers=128)],
}


# -- what tuning found ------------------------------------------------------------------------------------------------
def tuned(kernel: str, key: int | str) -> Any:
    """The plan of a kernel over rows, the config of an HGEMM rung; None where nothing was kept."""
    return _tuned(TUNED).get(kernel, {}).get(str(key))


def product(m: int, n: int, k: int) -> str:
    return f"{m}x{n}x{k}"


def keep(kernel: str, key: int | str, choice: LaunchPlan | int) -> None:
    """For every later call, here and in other processes. A plan is stored as what differs from the defaults."""
    data = artifact.read_json(TUNED)
    default = asdict(LaunchPlan())
    changed = choice if isinstance(choice, int) else {k: v for k, v in asdict(choice).items() if v != default[k]}
    data.setdefault(kernel, {})[str(key)] = changed
    output.write(TUNED, json.dumps(data, indent=1, sort_keys=True) + "\n", output.ANY)
    _tuned.cache_clear()


@lru_cache(maxsize=1)
def _tuned(path: Path) -> dict[str, dict[str, LaunchPlan | int]]:
    return {
        kernel: {key: p if isinstance(p, int) else LaunchPlan(**p) for key, p in by_key.items()}
        for kernel, by_key in artifact.read_json(path).items()
    }
