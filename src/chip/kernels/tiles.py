"""Where a matrix product went wrong: patterns whose answer tells the place, and a map of the tiles that are off."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from chip.kernels.attempt import Finding, attempt, intact, poisoned
from chip.kernels.subjects import KernelSubject, Variant
from chip.measure.device import Device

TILE = 64
MOST = 24  # tiles shown each way
SIZES = (64, 128, 256, 320, 512)


def error_map(got: torch.Tensor, want: torch.Tensor, allowed: float) -> tuple[str, ...]:
    """The first wrong element, and one character for each 64 x 64 tile: `.` right, `x` wrong, `n` NaN."""
    off = got.double().reshape(-1, got.shape[-1]) - want.reshape(-1, want.shape[-1])
    wrong = ~(off.abs() <= allowed)
    row, col = (int(i) for i in wrong.nonzero()[0])
    value, truth = float(got.reshape(-1, got.shape[-1])[row, col]), float(want.reshape(-1, want.shape[-1])[row, col])
    lines = [f"{int(wrong.sum())} of {wrong.numel()} wrong; first at ({row}, {col}): {value:.6g}, not {truth:.6g}"]
    for i in range(0, min(off.shape[0], MOST * TILE), TILE):
        cells = [
            (off[i : i + TILE, j : j + TILE], wrong[i : i + TILE, j : j + TILE]) for j in range(0, off.shape[1], TILE)
        ]
        lines.append("".join("n" if o.isnan().any() else "x" if w.any() else "." for o, w in cells[:MOST]))
    return tuple(lines)


def check_patterns(s: KernelSubject, variants: list[Variant], device: Device) -> Iterator[Finding]:
    """The identity times a matrix whose entries name their place: every element is exact, and a misplaced one shows
    where it came from (row x 16 + column, modulo 256, all exact in fp16 and bf16)."""
    for n in SIZES:
        for dtype in (torch.bfloat16, torch.float16):
            a = torch.eye(n, dtype=dtype, device=device.torch_device)
            place = torch.arange(n, device=device.torch_device)
            b = ((16 * place[:, None] + place[None, :]) % 256).to(dtype)
            for v in variants:
                buffer, out = poisoned(b, 0)
                title = f"identity {n} {str(dtype).removeprefix('torch.')}"
                if failed := attempt(v, (a, b), out, device, title):
                    yield Finding(s.name, v.name, title, "failed", reason=failed)
                elif not torch.equal(out, b.t()):
                    picture = error_map(out, b.t().double(), 0.0)
                    yield Finding(s.name, v.name, title, "failed", reason="not exact", picture=picture)
                elif not intact(buffer, out):
                    yield Finding(s.name, v.name, title, "failed", reason="wrote outside its result")
                else:
                    yield Finding(s.name, v.name, title, "ok")
