"""How much time and memory a calibration may take, per mode and kind of device. Every knob of the probes lies here."""

from __future__ import annotations

from dataclasses import dataclass, replace

from chip.lab.measure.device import Device
from chip.lab.measure.profile import TABLES, ProfileSettings
from chip.lab.measure.stopping import StopRule

MIB = 2**20
GIB = 2**30


@dataclass(frozen=True)
class Budget:
    mode: str  # "quick" or "full"
    total_s: float  # cases that would start later than this are left out, and said to be
    rule: StopRule  # of one number
    trial: StopRule  # of one candidate among several, or one point of a curve
    burst: StopRule  # of a boost rate: bursts with pauses
    burst_s: float  # one burst
    burst_gap_s: float  # the pause before it
    call_s: float  # a matrix product that would take longer is not tried
    gemm_sizes: tuple[int, ...]
    gemm_layouts: tuple[str, ...]  # "linear": second operand transposed, as a layer's weight is; "plain": not
    settle_s: float  # load before the settled rate is read
    tail_s: float  # how long it is read
    idle_s: float
    warm_s: float  # of each memory probe
    sample_s: float  # least length of one sample of a memory probe
    buffer_bytes: int  # one big buffer; cut down to a share of the free memory
    curve_from_bytes: int
    curve_to_bytes: int
    curve_per_octave: int
    access_bytes: tuple[int, ...]  # pieces of the strided and random probes; the turnaround's chunks in MiB
    staircase_step: int  # in units of 8 tiles
    operators: ProfileSettings  # how each size of an operator is timed
    operator_share: float  # of the sizes of each operator
    operator_s: float  # an operator that would take longer is not
    operator_case_s: float  # expected for one size
    operator_large_flops: float  # products from which on only the clock limits the rate
    transfer_bytes: int


_GPU_FULL = Budget(
    mode="full", total_s=270, rule=StopRule(0.003, 20, 200, 2.0), trial=StopRule(0.005, 7, 30, 0.3),
    burst=StopRule(0.003, 20, 40, 3.0), burst_s=0.01, burst_gap_s=0.05, call_s=0.1, gemm_sizes=(4096, 8192, 16384),
    gemm_layouts=("linear", "plain"), settle_s=4.0, tail_s=2.0, idle_s=3.0, warm_s=0.4, sample_s=0.01,
    buffer_bytes=2 * GIB, curve_from_bytes=256 * 1024, curve_to_bytes=4 * GIB, curve_per_octave=4,
    access_bytes=(32, 64, 128, 512, 2048, 8192), staircase_step=1, operators=TABLES,
    operator_share=1.0, operator_s=4e-3, operator_case_s=0.1, operator_large_flops=1e12, transfer_bytes=256 * MIB,
)  # fmt: skip
_GPU_QUICK = replace(
    _GPU_FULL, mode="quick", total_s=88, rule=StopRule(0.005, 10, 60, 0.5), trial=StopRule(0.01, 5, 15, 0.1),
    burst=StopRule(0.005, 10, 20, 1.0), burst_gap_s=0.04, call_s=0.05, gemm_sizes=(4096, 8192),
    gemm_layouts=("linear",), settle_s=1.5, tail_s=0.5, idle_s=0.5, warm_s=0.1, sample_s=0.005,
    curve_from_bytes=1 * MIB, curve_to_bytes=2 * GIB, curve_per_octave=2, access_bytes=(32, 128, 2048),
    staircase_step=3, transfer_bytes=64 * MIB,
)  # fmt: skip
_CPU_FULL = replace(
    _GPU_FULL, rule=StopRule(0.005, 10, 60, 4.0), trial=StopRule(0.01, 5, 20, 1.5), burst=StopRule(0.005, 10, 60, 3.0),
    burst_s=0.02, burst_gap_s=0.0, call_s=1.0, gemm_sizes=(512, 1024, 2048), settle_s=3.5, tail_s=1.5, idle_s=2.0,
    warm_s=0.3, sample_s=0.02, buffer_bytes=1 * GIB, curve_from_bytes=4 * MIB, curve_to_bytes=2 * GIB,
    curve_per_octave=2, staircase_step=0, operator_s=0.02, operator_case_s=0.3, operator_large_flops=1e18,
    transfer_bytes=64 * MIB,
)  # fmt: skip
_CPU_QUICK = replace(
    _CPU_FULL, mode="quick", total_s=170, rule=StopRule(0.01, 5, 30, 0.8), trial=StopRule(0.02, 3, 8, 0.25),
    burst=StopRule(0.01, 5, 40, 0.7), call_s=0.3, gemm_sizes=(512, 1024), gemm_layouts=("linear",), settle_s=1.5,
    tail_s=0.5, idle_s=0.5, warm_s=0.1, sample_s=0.01, buffer_bytes=512 * MIB, curve_from_bytes=8 * MIB,
    curve_to_bytes=1 * GIB, curve_per_octave=1, access_bytes=(32, 128, 2048),
    operators=replace(TABLES, runs=3, noise=0.05, max_s=0.03, warm_s=0.01, arithmetic_warm_s=0.02),
    operator_share=0.6, operator_s=0.01, operator_case_s=0.15,
)  # fmt: skip
_BUDGETS = {
    ("cuda", "full"): _GPU_FULL,
    ("cuda", "quick"): _GPU_QUICK,
    ("cpu", "full"): _CPU_FULL,
    ("cpu", "quick"): _CPU_QUICK,
}


def budget_for(device: Device, mode: str) -> Budget:
    return _BUDGETS[device.kind, mode]
