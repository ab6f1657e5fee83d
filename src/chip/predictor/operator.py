"""The answer to one operator's question: what `chip estimate` prints as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from chip import ops
from chip.hardware import gpus
from chip.predictor import notes
from chip.predictor.estimator import estimator_of
from chip.types import ChipError

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
    h = gpus.find(gpu)
    estimator = estimator_of(h)
    time = estimator.time(op)
    found = {
        "schema": SCHEMA,
        "op": op.kind,
        "gpu": gpu,
        "axes": {f.name: getattr(op, f.name) for f in fields(op)},  # type: ignore[arg-type]
        "us": _us(time.seconds),
        "interval": [_us(time.low_s), _us(time.high_s)],
        "bound": time.bound,
        "source": time.source,
        "flops": time.flops,
        "bytes": time.bytes,
        "intensity": round(time.flops / time.bytes if time.bytes else 0.0, 4),
        "ridge_flop_per_byte": round(estimator.roof.ridge(op.compute), 2),
    }
    said = [*notes.of_calibration(h)]
    return found | {"notes": said} if said else found


def _us(seconds: float) -> float:
    return float(f"{seconds * 1e6:.7g}")
