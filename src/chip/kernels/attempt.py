"""One try of a kernel that may be wrong: where it is to write lies poison, margins included, and whatever it raises is
told, not raised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from chip.kernels.subjects import Variant
from chip.measure.device import Device
from chip.types import ChipError

MARGIN = 64  # poisoned elements on either side


@dataclass(frozen=True, slots=True)
class Finding:
    kernel: str
    variant: str
    case: str
    status: str  # "ok", "failed", "skipped"
    error: float = 0.0  # largest, against float64; of several results that of the one nearest to its limit
    native_error: float = 0.0  # PyTorch's own, same precision
    allowed: float = 0.0  # twice that, and the rounding of the result
    reason: str = ""
    picture: tuple[str, ...] = ()  # where it is wrong


def attempt(v: Variant, inputs: tuple[torch.Tensor, ...], out: Any, device: Device, title: str) -> str:
    """Run it; what it raised, or nothing. A fault that took the device with it ends the check."""
    try:
        v.call(*inputs, out=out)
        device.synchronize()
        return ""
    except Exception as e:
        why = str(e).strip().splitlines()[0][:200] if str(e).strip() else type(e).__name__
    try:
        device.synchronize()
    except Exception:
        raise ChipError(f"{v.name} at {title}: {why}; the device no longer answers, see `check --sanitize`") from None
    return why


def poisoned(like: torch.Tensor, pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(buffer, a view in it of the result's shape): all NaN, with margins, rows `pad` elements further apart."""
    *outer, last = like.shape
    strides, step = [1], last + pad
    for n in reversed(outer):
        strides.insert(0, step)
        step *= n
    buffer = torch.full((2 * MARGIN + step,), float("nan"), dtype=like.dtype, device=like.device)
    return buffer, buffer.as_strided(like.shape, strides, MARGIN)


def intact(buffer: torch.Tensor, view: torch.Tensor) -> bool:
    """Whether everything around the result is still poison."""
    outside = torch.ones_like(buffer, dtype=torch.bool)
    outside.as_strided(view.shape, view.stride(), view.storage_offset()).fill_(False)
    return bool(buffer[outside].isnan().all())
