"""Physical limits: a rate above one is a bug in the measurement or in the formula, never a record. Pure."""

from __future__ import annotations

from chip.types import Ceiling, Op

TOLERANCE = 1.02  # clocks are read beside the samples, not inside them

# Dense FLOP per clock and SM (or compute unit), from the vendors' rates over SM count and clock. Consumer cards of 8.6,
# 8.9 and 12.0 halve some of these: a limit may be too high, never too low.
FLOP_PER_CLOCK: dict[str, dict[str, int]] = {
    "7.0": {"fp32": 128, "fp16": 1024},
    "7.5": {"fp32": 128, "fp16": 1024},
    "8.0": {"fp32": 128, "tf32": 1024, "fp16": 2048, "bf16": 2048},
    "8.6": {"fp32": 256, "tf32": 512, "fp16": 1024, "bf16": 1024},
    "8.9": {"fp32": 256, "tf32": 512, "fp16": 1024, "bf16": 1024, "fp8": 2048},
    "9.0": {"fp32": 256, "tf32": 2048, "fp16": 4096, "bf16": 4096, "fp8": 8192},
    "10.0": {"fp32": 256, "tf32": 4096, "fp16": 8192, "bf16": 8192, "fp8": 16384},
    "12.0": {"fp32": 256, "tf32": 512, "fp16": 1024, "bf16": 1024, "fp8": 2048},
    "gfx90a": {"fp32": 256, "fp16": 1024, "bf16": 1024},
    "gfx942": {"fp32": 256, "tf32": 1024, "fp16": 2048, "bf16": 2048, "fp8": 4096},
}


class AboveLimit(Exception):
    """A measured rate that physics does not allow."""


def flop_limit(capability: str | None, dtype: str, sm_count: int, clock_hz: float | None) -> float | None:
    """FLOP/s of all SMs at a clock; None where the architecture or the clock is not known."""
    per_clock = FLOP_PER_CLOCK.get(capability or "", {}).get(dtype)
    return per_clock * sm_count * clock_hz if per_clock and clock_hz else None


def check_compute(ceiling: Ceiling, limit_flops: float | None, basis: str) -> Ceiling:
    if limit_flops is not None and ceiling.value > limit_flops * TOLERANCE:
        raise AboveLimit(
            f"{ceiling.value / 1e12:.4g} TFLOP/s is above the physical limit {limit_flops / 1e12:.4g} ({basis})"
        )
    return ceiling


def check_memory(ceiling: Ceiling, limit_bytes_per_s: float | None, basis: str) -> Ceiling:
    if limit_bytes_per_s is not None and ceiling.value > limit_bytes_per_s:
        raise AboveLimit(
            f"{ceiling.value / 1e12:.4g} TB/s is above the memory's limit {limit_bytes_per_s / 1e12:.4g} ({basis})"
        )
    return ceiling


def is_sustained(op: Op) -> bool:
    """Long arithmetic, whose rate depends on the clock that the power limit leads to."""
    cost = op.cost()
    return cost.flops > 4e9 and cost.intensity > 60
