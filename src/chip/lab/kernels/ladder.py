"""The HGEMM ladder as a table: each rung beside PyTorch (cuBLAS), its own roof, the rung before and the first."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chip.files import codec
from chip.files.measurements import operator
from chip.hardware.roofline import label
from chip.lab.kernels import build, catalog
from chip.stats import median
from chip.types import ChipError, Op

if TYPE_CHECKING:
    from chip.lab.kernels.bench import TimedKernel
    from chip.lab.measure.device import Device

# path of a rung -> source that measures it, and its number there by dtype
SOURCES = {"fma": ("roof", {"fp16": 0, "bf16": 0}), "mma": ("roof", {"fp16": 1, "bf16": 2}),
           "wgmma": ("roof_wgmma", {"fp16": 0, "bf16": 1})}  # fmt: skip
SAMPLES = 20
BURST_S = 5e-3


@dataclass(frozen=True, slots=True)
class Rung:
    rung: str
    path: str  # the instructions it runs: its roof
    flops_per_s: float
    of_cublas: float | None
    of_roof: float | None
    over_last: float | None
    over_first: float | None


def climb(timed: Sequence[TimedKernel], roofs: dict[str, float], paths: dict[str, str]) -> list[Rung]:
    """The rungs of one call, lowest first; a rung that was not measured is left out."""
    rates = {t.measurement.implementation: t.flops_per_s for t in timed if t.flops_per_s}
    first, rungs = rates.get(next(iter(paths), "")), list[Rung]()
    for rung, path in paths.items():
        if rate := rates.get(rung):
            last = rungs[-1].flops_per_s if rungs else None
            beside = (rates.get("torch"), roofs.get(path), last, first if rungs else None)
            rungs.append(Rung(rung, path, rate, *(rate / other if other else None for other in beside)))
    return rungs


def ladders(device: Device, rows: Sequence[TimedKernel], roofs: dict[str, dict[str, float]]) -> list[dict[str, Any]]:
    """A ladder for each call. `roofs`: those measured so far, by dtype; what is missing is measured and added."""
    if device.kind != "cuda":
        return []
    by_call: dict[Op, list[TimedKernel]] = {}
    for t in rows:
        by_call.setdefault(operator(t.measurement.op), []).append(t)
    tables = []
    for op, timed in by_call.items():
        dtype = str(op.dtype)  # type: ignore[attr-defined]
        if dtype not in roofs:
            roofs[dtype] = path_roofs(device, dtype)
        rungs = codec.to_json(climb(timed, roofs[dtype], paths()))
        tables.append({"call": label(op), "roofs_flops_per_s": roofs[dtype], "rungs": rungs})
    return tables


def path_roofs(device: Device, dtype: str) -> dict[str, float]:
    """FLOP/s of each instruction path when it waits for nothing, at boost clocks; only those that the device has."""
    import torch

    from chip.lab.measure import timing

    out = torch.zeros(1, device=device.torch_device)
    flops = ctypes.c_double()
    arguments = (ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    roofs = {}
    for path, (source, numbers) in SOURCES.items():
        if build.unusable(source, device.kind, device.compute_capability):
            continue

        def call(turns: int, source: str = source, number: int = numbers[dtype]) -> None:
            build.launch(source, "roof", out.device, arguments, number, turns, out.data_ptr(), ctypes.addressof(flops))

        call(1000)
        trial_s = timing.events(device, [lambda c=call: c(1000)], 1)() * 1e-9  # type: ignore[misc]
        turns = max(1000, round(1000 * BURST_S / trial_s))
        take = timing.rested(device, timing.events(device, [lambda c=call, n=turns: c(n)], 1), 1)  # type: ignore[misc]
        samples = [take() for _ in range(SAMPLES)]
        roofs[path] = flops.value / (median(samples) * 1e-9)
    if not roofs:
        raise ChipError("no instruction path of the ladder runs here")
    return roofs


def paths() -> dict[str, str]:
    from chip.lab.kernels.hgemm import path_of

    return {rung: path_of(rung) for rung in catalog.steps("hgemm")}
