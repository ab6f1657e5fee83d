"""The answer to one operator's question: what `chip estimate` prints as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, NamedTuple

from chip import ops
from chip.hardware import gpus
from chip.predictor import notes
from chip.predictor.estimator import estimator_of
from chip.types import ChipError

DEFAULT_GPU = "h200"
SCHEMA = "chip.estimate/1"


class Estimate(NamedTuple):
    """The time of one operator, and what it rests on."""

    op: str
    gpu: str
    axes: Mapping[str, Any]
    seconds: float
    interval: tuple[float, float]  # 90 %, in seconds
    bound: str
    source: str
    flops: float
    bytes: float
    intensity: float  # FLOP for a byte
    ridge: float  # the intensity from which arithmetic is the limit
    notes: tuple[str, ...] = ()

    def json(self) -> dict[str, Any]:
        """As `chip estimate --json` has it."""
        low_s, high_s = self.interval
        found = {
            "schema": SCHEMA,
            **{name: getattr(self, name) for name in ("op", "gpu", "axes")},
            "us": _us(self.seconds),
            "interval": [_us(low_s), _us(high_s)],
            **{name: getattr(self, name) for name in ("bound", "source", "flops", "bytes")},
            "intensity": round(self.intensity, 4),
            "ridge_flop_per_byte": round(self.ridge, 2),
        }
        return found | {"notes": list(self.notes)} if self.notes else found


def answer(request: Mapping[str, Any], default_gpu: str = DEFAULT_GPU) -> dict[str, Any]:
    """`estimate` as JSON."""
    return estimate(request, default_gpu).json()


def estimate(request: Mapping[str, Any], default_gpu: str = DEFAULT_GPU) -> Estimate:
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
    time, said = estimator.time(op), tuple(notes.of_calibration(h))
    axes = {f.name: getattr(op, f.name) for f in fields(op)}  # type: ignore[arg-type]
    return Estimate(
        op.kind, gpu, axes, time.seconds, (time.low_s, time.high_s), time.bound, time.source, time.flops, time.bytes,
        time.flops / time.bytes if time.bytes else 0.0, estimator.roof.ridge(op.compute), said,
    )  # fmt: skip


def _us(seconds: float) -> float:
    return float(f"{seconds * 1e6:.7g}")
