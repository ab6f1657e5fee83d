"""What a point under a roofline means and what would make it faster, derived from its numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from chip.hardware.roofline import OVER, RooflinePoint, Roofs
from chip.ops.attention import Attention
from chip.ops.linear import Linear
from chip.types import DISTURBED, Op

AT_ROOF = 0.85
SMALL_EXCESS_S = 5e-6  # launch, ramp and tail of a kernel stay under this; more is the kernel's own doing
TILE_M, TILE_N = 128, 256  # the usual tile of a large 16-bit product on recent NVIDIA GPUs
TILE_ATTENTION = 128

# Eager torch runs these as several kernels: (kernels, bytes moved over the least that one kernel would move).
COMPOSED = {
    "silu_mul": (2, 5 / 3),
    "layer_norm_gelu": (2, 2.0),
    "add_rms_norm": (2, 5 / 4),
    "add_layer_norm": (2, 5 / 4),
    "softcap": (3, 3.0),
    "row_normalize": (4, 3.0),
    "rope": (10, 5.0),
}


def verdict(p: RooflinePoint) -> str:
    """One line: what bounds it and how near it is."""
    if p.context == "host":
        return f"{p.share:.0%} of its roof as the host sees it (dispatch and synchronisation included)"
    if p.bound == "launch":
        return f"launch-bound: {_us(p.ideal_s)} of work in {_us(p.seconds)}"
    where = f"{p.roof.name} roof"
    if p.above:
        return f"{p.bound}-bound at {p.share:.3g} times the {where}: that roof is too low"
    if p.share > OVER:
        return f"{p.bound}-bound, {p.share:.0%} of the {where}: above it"
    text = f"{p.bound}-bound, {p.share:.0%} of the {where}"
    if p.cached:
        text += "; faster than memory, so partly served from cache"
    settled = p.settled_share
    if settled is not None and p.share < AT_ROOF:
        text += f" ({settled:.0%} of the settled one)"
    return text


def help_for(p: RooflinePoint, roofs: Roofs) -> str:
    """What would help, with the number that says so."""
    if p.context == "host":
        return _host(p)
    if p.bound == "launch":
        return _launch(p, roofs)
    if p.above:
        return f"nothing can be said of it under such a roof: {repeat(roofs)}"
    if p.cached:
        return "faster than memory already: where a model finds its input cold, expect the memory's roof"
    if p.share > OVER:
        return _above(p)
    if p.bound == "compute":
        return _compute(p, roofs)
    return _memory(p, roofs)


def repeat(roofs: Roofs) -> str:
    """What to do about roofs that lie below what was measured."""
    if roofs.source == "measured":
        return "calibrate again, while nothing else uses the machine"
    return "the datasheet is not this device's: `chip calibrate` measures its roofs"


def _us(seconds: float) -> str:
    us = seconds * 1e6
    return f"{us:.3g} us" if us < 1000 else f"{us / 1000:.3g} ms"


def _host(p: RooflinePoint) -> str:
    return f"{_us(p.seconds - p.ideal_s)} beyond its roof; a graph or fewer, larger calls keep the host out"


def _launch(p: RooflinePoint, roofs: Roofs) -> str:
    times = roofs.floor_s / p.ideal_s if p.ideal_s else math.inf
    room = f", or give it {times:.0f}x the work for the same time" if 2 <= times < math.inf else ""
    return f"no kernel takes under {_us(roofs.floor_s)} here: fuse it into a neighbour{room}"


def _above(p: RooflinePoint) -> str:
    if p.bound == "compute":
        return "faster than the shape its roof was measured with: at the roof, within what clocks vary"
    return "its bytes came from a nearer level than its roof's, or the roof was measured under load: at the roof"


def _memory(p: RooflinePoint, roofs: Roofs) -> str:
    composed = COMPOSED.get(p.op.kind) if p.implementation == "torch" else None
    if composed and p.share < AT_ROOF:
        kernels, ratio = composed
        return (
            f"torch runs {kernels} kernels that move {ratio:.2g}x its bytes, {_us(ratio * p.ideal_s)} at the roof: "
            f"one fused kernel could be up to {1 / p.share:.2g}x faster"
        )
    if p.share >= AT_ROOF:
        return _fewer_bytes(p, roofs)
    return _fixed_cost(p) or (
        f"it takes as long as {1 / p.share:.2g}x its bytes would: bytes moved more than once, "
        "scattered access or too few bytes in flight"
    )


def _fewer_bytes(p: RooflinePoint, roofs: Roofs) -> str:
    op = p.op
    if isinstance(op, Linear):
        weight = op.n * op.k * (p.cost.read_bytes / (op.n * op.k + op.m * op.k))  # read bytes in proportion
        free = p.compute.value * weight / (op.n * op.k) / (2 * roofs.memory[p.level].value)
        if weight / p.cost.bytes > 0.5 and free > op.m:
            return (
                f"at the roof; the weight is {weight / p.cost.bytes:.0%} of its bytes: more rows are nearly free up to "
                f"m = {free:.0f}, a narrower weight saves in proportion"
            )
    if isinstance(op, Attention) and op.q_len == 1:
        return "at the roof; it reads the cache once: fewer key heads, a narrower cache or a window is what is left"
    saved = min(p.cost.read_bytes, p.cost.write_bytes) / p.cost.bytes
    return f"at the roof: only fewer bytes help; fused with a neighbour it saves up to {max(saved, 0.0):.0%} of them"


def _compute(p: RooflinePoint, roofs: Roofs) -> str:
    settled = p.settled_share
    if p.share >= AT_ROOF or (settled is not None and settled >= 0.95):
        return (
            "at what the clocks sustain: " + _narrower(p, roofs)
            if p.share < AT_ROOF
            else ("at the roof: " + _narrower(p, roofs))
        )
    reason = _tiles(p.op, roofs.sm_count if roofs.kind == "cuda" else 0) or _fixed_cost(p)
    if reason:
        return reason
    if settled is not None and settled >= 0.85:
        return f"{settled:.0%} of what the clocks sustain: power, more than the kernel, holds it"
    other = " or another backend (--impl)" if isinstance(p.op, Attention) else ""
    return f"{_us(p.seconds - p.ideal_s)} beyond its roof with tiles that fit: another algorithm{other}"


def _narrower(p: RooflinePoint, roofs: Roofs) -> str:
    wider = [r for r in roofs.compute.values() if r.value > 1.2 * p.compute.value]
    if not wider:
        return "only fewer FLOPs help"
    best = min(wider, key=lambda r: r.value)
    return f"fewer FLOPs, or a narrower type ({best.name}'s roof is {best.value / p.compute.value:.2g}x as high)"


def _tiles(op: Op, sm_count: int) -> str:
    """Work lost to tiles that stick out and waves that do not fill, where that explains a tenth or more."""
    if isinstance(op, Linear) and sm_count:
        rows, cols = math.ceil(op.m / TILE_M), math.ceil(op.n / TILE_N)
        tiles = rows * cols
        waves = math.ceil(tiles / sm_count)
        filled, covered = tiles / (waves * sm_count), op.m * op.n / (tiles * TILE_M * TILE_N)
        if filled * covered < 0.9:
            edge = f", {1 - covered:.0%} of them beyond the edge" if covered < 0.95 else ""
            return (
                f"{tiles} tiles of {TILE_M}x{TILE_N} on {sm_count} SMs are {waves} wave{'s' if waves > 1 else ''} "
                f"{filled:.0%} full{edge}: another m or n, or splitting k"
            )
    if isinstance(op, Attention) and sm_count and op.causal and op.q_len == op.kv_len:
        wasted = TILE_ATTENTION / (op.q_len + TILE_ATTENTION)
        if wasted > 0.1:
            return (
                f"about {wasted:.0%} of the pairs its tiles compute are masked at {op.q_len} tokens: longer sequences"
            )
    return ""


def _fixed_cost(p: RooflinePoint) -> str:
    """Small work: launch, ramp and tail weigh; say how much more work would bury them."""
    excess = p.seconds - p.ideal_s
    if excess > SMALL_EXCESS_S:
        return ""
    times = 9 * excess / p.ideal_s
    return f"{_us(excess)} of launch, ramp and tail: {times:.2g}x the work in one call would bring it to 90 %"


def warnings(points: Sequence[RooflinePoint], roofs: Roofs) -> list[str]:
    """Why the roofs are not to be trusted."""
    lines = [f"{flag.removeprefix(DISTURBED)} when the roofs were measured" for flag in roofs.flags]
    if roofs.estimated:
        lines.append(f"{roofs.title}; `chip calibrate` measures its own roofs")
    if low := [p for p in points if p.above]:
        most = max(low, key=lambda p: p.share)
        lines.append(
            f"{len(low)} of {len(points)} points are above their roof, up to {most.share:.3g} times ({most.label}): "
            f"{repeat(roofs)}"
        )
    return lines
