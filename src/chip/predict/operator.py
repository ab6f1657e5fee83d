"""The answer to one operator's question: what `chip estimate` prints as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chip import hardware, ops
from chip.predict import notes
from chip.predict.estimator import Estimator, estimator_of
from chip.records import fields
from chip.types import ChipError, Op

DEFAULT_GPU = "h200"
SCHEMA = "chip.estimate/1"


def answer(request: Mapping[str, Any], default_gpu: str = DEFAULT_GPU) -> dict[str, Any]:
    """Estimate `{"op": kind, "gpu": name, axis: value, ...}`."""
    if not isinstance(request, Mapping):
        raise ChipError(f"an operator is a JSON object, got {type(request).__name__}")
    if "op" not in request:
        raise ChipError("key 'op' is missing")
    gpu = request.get("gpu", default_gpu)
    if not isinstance(gpu, str):
        raise ChipError(f"gpu must be a name such as h200, or a file, got {str(gpu)[:40]!r}")
    op = ops.build(request["op"], {k: v for k, v in request.items() if k not in ("op", "gpu")})
    h = hardware.find(gpu)
    estimator = estimator_of(h)
    seconds, low_s, high_s, bound, source, flops, moved, _, _ = estimator(op)
    found = {
        "schema": SCHEMA,
        "op": op.kind,
        "gpu": gpu,
        "axes": {f.name: getattr(op, f.name) for f in fields(op)},  # type: ignore[arg-type]
        "us": _us(seconds),
        "interval": [_us(low_s), _us(high_s)],
        "bound": bound,
        "source": source,
        "flops": flops,
        "bytes": moved,
        "intensity": round(flops / moved if moved else 0.0, 4),
        "ridge_flop_per_byte": round(estimator.roof.ridge(op.compute), 2),
    }
    said = [*notes.of_calibration(h), *filter(None, [_note(estimator, op)])]
    return found | {"notes": said} if said else found


def _note(estimator: Estimator, op: Op) -> str:
    """Why a slightly larger operator may take less time; "" where it does not."""
    if estimator.is_raised(op):
        return "measured points show that fewer rows of such a width take longer: no less is answered for these"
    if not estimator.is_unaligned(op):
        return ""
    piece, keys = op.KEY_PIECE, op.kv_len  # type: ignore[attr-defined]
    return (
        f"measured points show that keys take longer that are no multiple of {piece}, as {keys} are, so that a few "
        "more may take less time"
    )


def _us(seconds: float) -> float:
    return float(f"{seconds * 1e6:.7g}")
