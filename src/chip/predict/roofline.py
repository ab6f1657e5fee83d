"""The roofline estimator: launch floor plus the longer of arithmetic and memory time. It answers for every operator."""

from __future__ import annotations

from chip.ops.all_reduce import AllReduce
from chip.predict.roof import Range, Roof, check_dtype
from chip.types import ChipError, Cost, Estimate, Op


class Roofline:
    """Estimates under one roof."""

    def __init__(self, roof: Roof, kernel_floor_s: float | None = None) -> None:
        """`kernel_floor_s`: least time of an elementwise kernel in a graph, where operators were measured; else that
        of the smallest kernel there is."""
        self.roof = roof
        launch = roof.launch_s
        scale = kernel_floor_s / launch.value if kernel_floor_s and launch.value else 1.0
        self._kernel = Range(*(scale * s for s in launch))

    def __call__(self, op: Op) -> tuple[Estimate, Cost]:
        cost = op.cost()
        if isinstance(op, AllReduce):
            return self._over_link(op), cost
        roof = self.roof
        name = op.compute
        if name not in roof.compute:
            check_dtype(roof, name)
        compute = roof.compute[name]
        memory = roof.stream if name == "matmul_fp32" else roof.weights
        flops, moved = cost[0], cost[1] + cost[2]
        arithmetic_s, memory_s = flops / compute.value, moved / memory.value
        launch = self._kernel if name == "matmul_fp32" else roof.launch_s
        if arithmetic_s >= memory_s:
            work_s, bound = arithmetic_s, "compute"
        else:
            work_s, bound = memory_s, "memory"
        if launch.value > work_s:
            bound = "launch"
        low_s = launch.low + max(flops / compute.high, moved / memory.high)
        high_s = launch.high + max(flops / compute.low, moved / memory.low)
        return Estimate(launch.value + work_s, low_s, high_s, roof.source, bound), cost

    def _over_link(self, op: AllReduce) -> Estimate:
        link = self.roof.link
        if link is None:
            raise ChipError(f"--tp above 1 cannot be predicted on {self.roof.name}: {self.roof.ranks_need}")
        latency = link.latency_s.value * op.hops if link.latency_s else 0.0
        ideal = op.bytes_over_link / link.bytes_per_s.value
        seconds = self.roof.launch_s.value + latency + ideal
        # a link's promise is kept to an unmeasured part: from all of it to half of it
        return Estimate(seconds, seconds, self.roof.launch_s.high + 2 * (latency + ideal), "datasheet", "link")
