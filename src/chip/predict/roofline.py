"""The roofline estimator: launch floor plus the longer of arithmetic and memory time. It answers for every operator."""

from __future__ import annotations

from collections.abc import Callable

from chip.ops.all_reduce import AllReduce
from chip.ops.attention import Attention
from chip.ops.composed import Composed
from chip.ops.kv_roll import SlidingAppend
from chip.ops.masked_attention import MaskedAttention
from chip.ops.mla import Mla
from chip.predict.along import AlongTokens, Answer, OverSequences, answer, grown
from chip.predict.parts import summed
from chip.predict.roof import Range, Roof, check_dtype
from chip.predict.settling import Settling
from chip.types import ChipError, Cost, Estimate, Op

# what depends on the sequences of a step, not on its tokens alone
Attentive = Attention | MaskedAttention | Mla | SlidingAppend


class Roofline:
    """Estimates under one roof."""

    def __init__(self, roof: Roof, kernel_floor_s: float | None = None) -> None:
        """`kernel_floor_s`: least time of an elementwise kernel in a graph, where operators were measured; else that
        of the smallest kernel there is."""
        self.roof = roof
        self.settling: Settling | None = None  # its rates are settled ones
        launch = roof.launch_s
        scale = kernel_floor_s / launch.value if kernel_floor_s and launch.value else 1.0
        self._kernel = Range(*(scale * s for s in launch))
        self._by_ceiling: dict[tuple[str, int], Callable[[float, float], Answer]] = {}

    def __call__(self, op: Op) -> tuple[Estimate, Cost]:
        if isinstance(op, Composed):
            return summed(op, self)
        cost = op.cost()
        if isinstance(op, AllReduce):
            return self._over_link(op), cost
        seconds, low_s, high_s, bound, source, _, _ = self._under(op.compute, op.KERNELS)(cost[0], cost[1] + cost[2])
        return Estimate(seconds, low_s, high_s, source, bound), cost

    def _under(self, name: str, kernels: int) -> Callable[[float, float], Answer]:
        """The answer for so many FLOPs and bytes in so many kernels under one compute ceiling."""
        found = self._by_ceiling.get((name, kernels))
        if found is None:
            found = self._by_ceiling[name, kernels] = self._made_for(name, kernels)
        return found

    def _made_for(self, name: str, kernels: int) -> Callable[[float, float], Answer]:
        roof = self.roof
        check_dtype(roof, name)
        rate, rate_low, rate_high = roof.compute[name]
        moving, moving_low, moving_high = roof.stream if name == "matmul_fp32" else roof.weights
        each = self._kernel if name == "matmul_fp32" else roof.launch_s
        launch, launch_low, launch_high = (kernels * s for s in each)
        source = roof.source

        def under(flops: float, moved: float) -> Answer:
            arithmetic_s, memory_s = flops / rate, moved / moving
            if arithmetic_s >= memory_s:
                work_s, bound = arithmetic_s, "compute"
            else:
                work_s, bound = memory_s, "memory"
            if launch > work_s:
                bound = "launch"
            low_s = launch_low + max(flops / rate_high, moved / moving_high)
            high_s = launch_high + max(flops / rate_low, moved / moving_low)
            return launch + work_s, low_s, high_s, bound, source, flops, moved

        return under

    def along(self, op: Op) -> AlongTokens:
        """For an operator lowered for one token: its answer for any number of tokens."""
        make = grown(op)
        one, two, four = (make(n).cost() for n in (1, 2, 4))
        (f1, b1), (f2, b2), (f4, b4) = ((c[0], c[1] + c[2]) for c in (one, two, four))
        if isinstance(op, AllReduce) or (f4 - f2, b4 - b2) != (2 * (f2 - f1), 2 * (b2 - b1)):
            return lambda tokens: answer(*self(make(tokens)))
        under, flops, moved = self._under(op.compute, op.KERNELS), f2 - f1, b2 - b1
        fixed_flops, fixed_bytes = f1 - flops, b1 - moved
        return lambda tokens: under(fixed_flops + flops * tokens, fixed_bytes + moved * tokens)

    def over(self, op: Attentive) -> OverSequences:
        """For attention: its answer for any sequences."""
        return lambda seq: answer(*self(op.over(seq)))

    def _over_link(self, op: AllReduce) -> Estimate:
        link = self.roof.link
        if link is None:
            raise ChipError(f"--tp above 1 cannot be predicted on {self.roof.name}: {self.roof.ranks_need}")
        latency = link.latency_s.value * op.hops if link.latency_s else 0.0
        ideal = op.bytes_over_link / link.bytes_per_s.value
        seconds = self.roof.launch_s.value + latency + ideal
        # a link's promise is kept to an unmeasured part: from all of it to half of it
        return Estimate(seconds, seconds, self.roof.launch_s.high + 2 * (latency + ideal), "datasheet", "link")
