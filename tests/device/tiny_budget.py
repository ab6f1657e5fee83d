"""A calibration that measures everything in a moment."""

from dataclasses import replace

from chip.lab.measure.budget import Budget, budget_for
from chip.lab.measure.device import open_device
from chip.lab.measure.profile import TABLES
from chip.lab.measure.stopping import StopRule

MIB = 2**20


def tiny() -> Budget:
    """Everything is measured, nothing well: a test of the path, not of the machine."""
    fast = StopRule(0.5, 2, 3, 0.05)
    return replace(
        budget_for(open_device("cpu"), "quick"),
        rule=fast,
        trial=fast,
        burst=fast,
        gemm_sizes=(64, 128),
        settle_s=0.02,
        tail_s=0.02,
        idle_s=0.02,
        warm_s=0.0,
        sample_s=0.001,
        buffer_bytes=8 * MIB,
        curve_from_bytes=1 * MIB,
        curve_to_bytes=8 * MIB,
        operators=replace(TABLES, runs=2, noise=0.5, max_s=0.01, warm_s=0.0, arithmetic_warm_s=0.0),
        operator_share=0.5,
        operator_s=1e-4,
    )
