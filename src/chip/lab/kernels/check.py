"""Is a kernel right? Against float64, with an error at most twice that of PyTorch's own result of the same precision.

Shapes are awkward on purpose (tails, one row, one column, no powers of two, rows at odd distances), data is fresh, and
what a kernel is to write is poisoned with NaN first, margins included: a missed element or one too many shows.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import torch

from chip import ops
from chip.hardware.roofline import label
from chip.lab.kernels.subjects import KernelSubject, Variant
from chip.lab.measure.device import Device
from chip.types import ChipError, Op

SCHEMA = "chip.kernel_check/1"
TIMES = 2.0  # the error of PyTorch's own that is allowed
FP32_ROUNDINGS = 4
DIMS = (16, 32, 64, 80, 96, 128)
EDGES = ((1, 1), (1, 7), (3, 1), (5, 100), (2, 257), (4, 1024), (3, 4097), (2, 20000), (2, 33000))
# the last has more tiles than there are SMs: blocks that stay take a second one
EDGE_PRODUCTS = ((1, 1, 8), (16, 16, 16), (64, 64, 64), (128, 256, 64), (256, 256, 256), (129, 257, 72), (1, 4096, 512),
                 (300, 200, 136), (33, 17, 19), (512, 768, 1024), (2200, 2400, 200))  # fmt: skip

MARGIN = 64  # poisoned elements on either side
MAP_TILE = 64
MAP_MOST = 24  # tiles shown each way
IDENTITIES = (64, 128, 256, 320, 512)


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


@dataclass(frozen=True)
class CheckCase:
    op: Op
    pad: int = 0  # elements between one row and the next


def cases(kind: str, seed: int, count: int, small: bool) -> list[CheckCase]:
    """Edges first, then `count` random shapes. `small`: for the interpreter, which rounds to bf16 by cutting off."""
    draw = random.Random(seed)
    dtypes = ("fp32", "fp16") if small else ("bf16", "fp16", "fp32")

    def dtype() -> str:
        return "fp32" if kind == "row_normalize" else draw.choice(dtypes[:2] if kind == "linear" else dtypes)

    def whole(high: int, low: int = 1) -> int:
        return int(low * (high / low) ** draw.random())

    listed: list[CheckCase] = []
    if kind == "linear":
        shapes = [*EDGE_PRODUCTS, *((whole(700), whole(700), whole(700)) for _ in range(count))]
        shapes += [(m, n, -(-k // 8) * 8) for m, n, k in shapes[len(EDGE_PRODUCTS) :]]
        for m, n, k in shapes:
            listed += [CheckCase(_op(kind, m=m, n=n, k=k, dtype=d), draw.choice((0, 0, 8, 3))) for d in dtypes[:2]]
    elif kind == "attention":
        for _ in range(count + 4):
            kv_heads = draw.choice((1, 2, 4, 8))
            axes = {"batch": whole(5), "heads": kv_heads * draw.choice((1, 2, 3, 4, 8)), "kv_heads": kv_heads}
            length = whole(300 if small else 9000)
            op = _op(kind, **axes, head_dim=draw.choice(DIMS), q_len=1, kv_len=length, dtype=draw.choice(dtypes[:2]))
            listed.append(CheckCase(op, draw.choice((0, 8))))
    elif kind == "rope":
        for _ in range(count + 4):
            op = _op(kind, rows=whole(70), heads=whole(50, 2), head_dim=2 * whole(64), dtype=dtype())
            listed.append(CheckCase(op, draw.choice((0, 1, 8))))
    else:
        edges = [(r, max(2, c)) if kind == "row_normalize" else (r, c) for r, c in EDGES]
        edges = [(r, c) for r, c in edges if not small or c < 5000]
        shapes2 = [*edges, *((whole(40), whole(3000 if small else 20000, 2)) for _ in range(count))]
        listed = [CheckCase(_op(kind, rows=r, cols=c, dtype=dtype()), draw.choice((0, 0, 1, 3, 8))) for r, c in shapes2]
    return listed


def _cases_of(s: KernelSubject, seed: int, count: int, small: bool) -> list[CheckCase]:
    """A kernel that serves only some calls of its operator has `cases` of its own."""
    if not hasattr(s.module, "cases"):
        return cases(s.kind, seed, count, small)
    draw, dtypes = random.Random(seed), ("fp32", "fp16") if small else ("bf16", "fp16", "fp32")
    return [CheckCase(op, draw.choice((0, 0, 8))) for op in s.module.cases(draw, count, small, dtypes)]


def _op(kind: str, **axes: Any) -> Op:
    return ops.build(kind, axes)


def check(s: KernelSubject, device: Device, seed: int, count: int) -> Iterator[Finding]:
    """Every variant on every case; whatever a kernel raises becomes its finding."""
    small = device.kind != "cuda"
    for v in s.variants:
        if v.unusable:
            yield Finding(s.name, v.name, "", "skipped", reason=v.unusable)
    usable = [v for v in s.variants if not v.unusable]
    if s.kind == "linear" and usable and not hasattr(s.module, "cases"):
        yield from check_patterns(s, usable, device)
    for number, case in enumerate(_cases_of(s, seed, count, small) if usable else []):
        generator = torch.Generator(device.torch_device).manual_seed(seed * 1000 + number)
        with torch.no_grad():
            inputs = s.module.inputs(case.op, device.torch_device, generator, case.pad)
            truth, natives = together(s.module.reference(*inputs)), together(s.module.native(*inputs))
            for v in usable:
                yield examine(s, v, case, inputs, truth, natives, device)


def together(result: Any) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def examine(
    s: KernelSubject,
    v: Variant,
    case: CheckCase,
    inputs: tuple[torch.Tensor, ...],
    truth: tuple[torch.Tensor, ...],
    natives: tuple[torch.Tensor, ...],
    device: Device,
) -> Finding:
    title = label(case.op) + (f", rows {case.pad} apart" if case.pad else "")
    out_pad = 0 if getattr(s.module, "PACKED", False) else case.pad
    buffers = [poisoned(t, out_pad) for t in natives]
    outs = [view for _, view in buffers]
    refused = v.takes(*inputs, *outs)
    if refused:
        return Finding(s.name, v.name, title, "skipped", reason=refused)
    failed = attempt(v, inputs, outs[0] if len(outs) == 1 else tuple(outs), device, title)
    if failed:
        return Finding(s.name, v.name, title, "failed", reason=failed)
    errors, allowed = [], []
    for got, want, theirs in zip(outs, truth, natives):
        errors.append(distance(got, want))
        allowed.append(TIMES * distance(theirs, want) + rounding(got.dtype) * float(want.abs().max()))
    wrong = [i for i in range(len(errors)) if not errors[i] <= allowed[i]]  # NaN never passes
    worst = wrong[0] if wrong else max(range(len(errors)), key=lambda i: errors[i] / (allowed[i] or inf))
    finding = Finding(
        s.name, v.name, title, "ok", errors[worst], distance(natives[worst], truth[worst]), allowed=allowed[worst]
    )
    if wrong:
        picture = error_map(outs[worst], truth[worst], allowed[worst])
        reason = f"error {errors[worst]:.3g}, allowed {allowed[worst]:.3g}"
        return replace(finding, status="failed", reason=reason, picture=picture)
    if any(not intact(buffer, view) for buffer, view in buffers):
        return replace(finding, status="failed", reason="wrote outside its result")
    return finding


def distance(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.double() - want).abs().max())


def rounding(dtype: torch.dtype) -> float:
    """What no kernel can be blamed for, as a share of the largest value: rounding the result (half a unit in its last
    place), and a few of the sums that are fp32 whatever the result is."""
    return float(torch.finfo(dtype).eps) / 2 + FP32_ROUNDINGS * float(torch.finfo(torch.float32).eps)


# -- one try of a kernel that may be wrong ----------------------------------------------------------------------------
def attempt(v: Variant, inputs: tuple[torch.Tensor, ...], out: Any, device: Device, title: str) -> str:
    """Run it; what it raised, or nothing. A fault that took the device with it ends the check."""
    try:
        v.call(*inputs, out=out)
        device.synchronize()
        return ""
    except Exception as e:
        why = (str(e).strip() or type(e).__name__).splitlines()[0][:200]
    if device.lost():
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


# -- where a matrix product went wrong --------------------------------------------------------------------------------
def error_map(got: torch.Tensor, want: torch.Tensor, allowed: float) -> tuple[str, ...]:
    """The first wrong element, and one character for each 64 x 64 tile: `.` right, `x` wrong, `n` NaN."""
    off = got.double().reshape(-1, got.shape[-1]) - want.reshape(-1, want.shape[-1])
    wrong = ~(off.abs() <= allowed)
    row, col = (int(i) for i in wrong.nonzero()[0])
    value, truth = float(got.reshape(-1, got.shape[-1])[row, col]), float(want.reshape(-1, want.shape[-1])[row, col])
    lines = [f"{int(wrong.sum())} of {wrong.numel()} wrong; first at ({row}, {col}): {value:.6g}, not {truth:.6g}"]
    for i in range(0, min(off.shape[0], MAP_MOST * MAP_TILE), MAP_TILE):
        places = [(slice(i, i + MAP_TILE), slice(j, j + MAP_TILE)) for j in range(0, off.shape[1], MAP_TILE)]
        cells = [(off[at], wrong[at]) for at in places[:MAP_MOST]]
        lines.append("".join("n" if o.isnan().any() else "x" if w.any() else "." for o, w in cells))
    return tuple(lines)


def check_patterns(s: KernelSubject, variants: list[Variant], device: Device) -> Iterator[Finding]:
    """The identity times a matrix whose entries name their place: every element is exact, and a misplaced one shows
    where it came from (row x 16 + column, modulo 256, all exact in fp16 and bf16)."""
    for n in IDENTITIES:
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
