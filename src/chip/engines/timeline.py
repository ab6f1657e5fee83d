"""What an engine and its host add to the operators of a step, and the timeline on which both meet.

The terms are seconds of engine and host, measured on calibration models. The timeline has two queues: the host, which
prepares steps and launches kernels, and the device, which runs them in order. A kernel starts when it has been launched
and the one before it has ended. This is the only place where host and device times meet: `chip predict` plays one step,
`chip simulate` thousands. Equal layers are not played one by one: a closed form gives the two queues after n of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import add
from typing import NamedTuple

from chip.decoders.roles import EXPERTS
from chip.types import Step

REMEMBERED = 64  # launch costs, so that a fit that tries many of them runs in bounded memory
Weighted = tuple[tuple[Step, float], ...]  # steps, and how many steps of the schedule each stands for
MEANING = {
    "gap_s": "device, between two operators",
    "step_s": "device, each step: small kernels around the model",
    "first_s": "host, once before the first step",
    "request_s": "host, each request before the first step",
    "host_step_s": "host, each step",
    "host_seq_s": "host, each sequence of a step",
    "host_call_s": "host, each operator that it launches by itself",
    "host_kernel_s": "host, each kernel that it launches by itself",
    "host_experts_s": "host, each layer's experts that it launches by themselves",
    "host_piece_s": "host, each layer that it launches as a piece of a graph",
}
ON_DEVICE = ("gap_s", "step_s")
ON_HOST = tuple(name for name in MEANING if name not in ON_DEVICE)


class Terms(NamedTuple):
    gap_s: float = 0.0
    step_s: float = 0.0
    first_s: float = 0.0
    request_s: float = 0.0
    host_step_s: float = 0.0
    host_seq_s: float = 0.0
    host_call_s: float = 0.0
    host_kernel_s: float = 0.0
    host_experts_s: float = 0.0
    host_piece_s: float = 0.0

    def prepare_s(self, sequences: int) -> float:
        """How long the host prepares a step before it launches it."""
        return self.host_step_s + self.host_seq_s * sequences

    def on_host(self, slower: float) -> Terms:
        """The same engine on a host that takes so many times as long for everything; the device stays as it is."""
        return self._replace(**{name: getattr(self, name) * slower for name in ON_HOST})


class RoleLaunches:
    """The launches of a layer: its operators in order, each as a number of kernels that are launched one by one.

    The device can only have waited longest for the first or the last kernel of an operator: within an operator launches
    and kernels are equally spaced. These kernels are the candidates, listed from the last launch back."""

    __slots__ = ("_candidates", "_launched_s", "expert_count", "kernel_count", "kernels", "names", "operators")

    def __init__(self, names: tuple[str, ...], kernels: tuple[float, ...], operators: int = 0) -> None:
        """`operators`: how many there are, where they are launched as one."""
        self.names, self.kernels, self.kernel_count = names, kernels, sum(kernels)
        self.operators = operators or len(names)
        self.expert_count = names.count(EXPERTS)
        # the operator, and what part of its seconds lies between this candidate's start and that of the one after it
        self._candidates: list[tuple[int, float]] = []
        for i, k in reversed(list(enumerate(kernels))):
            self._candidates += [(i, 1 / k), (i, (k - 1) / k)] if k > 1 else [(i, 1.0)]
        self._launched_s: dict[tuple[HostCost, float], list[float]] = {}

    def after_s(self, each_s: Sequence[float]) -> list[float]:
        """For each candidate: what it and all kernels after it take, given the seconds of each operator."""
        return list(accumulate([each_s[i] * part for i, part in self._candidates]))

    def launched_s(self, cost: HostCost, gap_s: float) -> list[float]:
        """For each candidate: when it is launched, plus the device's gaps from then on, one after each operator."""
        found = self._launched_s.get((cost, gap_s))
        if found is None:
            if len(self._launched_s) >= REMEMBERED:
                self._launched_s.clear()
            found, after, own = [], 0.0, self.operators / len(self.names)
            at_s = cost.of_all(self)
            for name, k in zip(reversed(self.names), reversed(self.kernels)):
                launch_s = cost.of_one(name, k)
                if k > 1:
                    found.append(at_s + gap_s * (after + own / k))
                at_s, after = at_s - launch_s, after + own
                found.append(at_s + launch_s / k + gap_s * after)
            self._launched_s[cost, gap_s] = found
        return found


class LaunchBlock:
    """A layer that is repeated, with the seconds of each operator (all its kernels)."""

    __slots__ = ("_after_s", "each_s", "launches", "repeat", "seconds")

    def __init__(
        self, repeat: float, launches: RoleLaunches, each_s: Sequence[float], seconds: float | None = None
    ) -> None:
        """`seconds`: the sum of `each_s`, where it is known."""
        self.repeat, self.launches, self.each_s = repeat, launches, each_s
        self.seconds = sum(each_s) if seconds is None else seconds
        self._after_s: list[float] | None = None

    def with_time(self, place: int, seconds: float) -> LaunchBlock:
        """The same layer with another operator's time at one place, where none was."""
        each_s = [*self.each_s]
        each_s[place] = seconds
        return LaunchBlock(self.repeat, self.launches, each_s, self.seconds + seconds)

    def as_one(self, name: str) -> LaunchBlock:
        """The whole layer as one launch."""
        launches = RoleLaunches((name,), (self.launches.kernel_count,), self.launches.operators)
        return LaunchBlock(self.repeat, launches, (self.seconds,))

    def behind_s(self, cost: HostCost, gap_s: float, scale: float) -> float:
        """From the host's start of a layer to the device's end of it, where the device waited for one of its launches:
        the maximum over the candidates."""
        if self._after_s is None:
            self._after_s = self.launches.after_s(self.each_s)
        after_s = self._after_s if scale == 1.0 else [scale * s for s in self._after_s]
        longest: float = max(map(add, self.launches.launched_s(cost, gap_s), after_s))
        return longest


class HostCost(NamedTuple):
    """The host's seconds to launch an operator: for the call, for each kernel, and before a layer's experts."""

    call_s: float
    kernel_s: float
    experts_s: float = 0.0

    def of_one(self, name: str, kernels: float) -> float:
        return self.call_s + self.kernel_s * kernels + (self.experts_s if name == EXPERTS else 0.0)

    def of_all(self, launches: RoleLaunches) -> float:
        own_s = self.call_s * len(launches.kernels) + self.kernel_s * launches.kernel_count
        return own_s + self.experts_s * launches.expert_count


class Timeline:
    """Where the two queues have got to, in seconds from the start."""

    __slots__ = ("ahead", "device_s", "gap_s", "host_s", "scale", "worked_s")

    def __init__(self, scale: float = 1.0, gap_s: float = 0.0, ahead: bool = True) -> None:
        """`scale`: factor on every operator's time, which holds the pauses between its own kernels. `gap_s`: the
        device's pause after each operator. `ahead`: the host launches while the device works; a CPU, which computes
        what it launches, cannot."""
        self.scale, self.gap_s, self.ahead = scale, gap_s, ahead
        self.host_s = self.device_s = 0.0
        self.worked_s = 0.0  # of the device: kernels and gaps, without waiting

    def prepare(self, name: str, seconds: float) -> None:
        """Work of the host alone. `name`: of the event, where events are recorded."""
        self.host_s += seconds

    def graph(self, name: str, launch_s: float, device_s: float) -> None:
        """One launch, of a graph of many kernels."""
        self.host_s += launch_s
        self.device_s = (self.host_s if self.host_s > self.device_s else self.device_s) + device_s
        self.worked_s += device_s
        if not self.ahead:
            self.host_s = self.device_s

    def layers(self, blocks: Sequence[LaunchBlock], cost: HostCost) -> None:
        """Blocks of layers. A layer advances the host by h. It advances the device by d, or, where that waits for a
        launch, to where the host was before the layer plus `behind_s`. After n layers the device is at the latest of
        three times: it never waited; it waited in the first layer and n - 1 layers of the slower queue followed; it
        waited in the last layer, after n - 1 layers of the slower queue.
        """
        scale, gap_s = self.scale, self.gap_s
        if not self.ahead:
            for block in blocks:
                device_s = block.seconds * scale + gap_s * block.launches.operators
                self.graph("layers", block.repeat * cost.of_all(block.launches), block.repeat * device_s)
            return
        at_host_s, at_device_s, worked_s = self.host_s, self.device_s, self.worked_s
        for block in blocks:
            repeat, launches = block.repeat, block.launches
            host_s, device_s = cost.of_all(launches), block.seconds * scale + gap_s * launches.operators
            slower_s = (repeat - 1) * (host_s if host_s > device_s else device_s)
            at_device_s += repeat * device_s
            if at_device_s < at_host_s + host_s + device_s + slower_s:  # else no wait can end later
                waited_s = at_host_s + block.behind_s(cost, gap_s, scale) + slower_s
                at_device_s = waited_s if waited_s > at_device_s else at_device_s
            at_host_s += repeat * host_s
            worked_s += repeat * device_s
        self.host_s, self.device_s, self.worked_s = at_host_s, at_device_s, worked_s

    def launch(self, step: Played, cost: HostCost) -> None:
        """All operators of a step one by one."""
        host_s = step.host_s(cost)
        if not self.ahead or self.host_s + host_s > self.device_s:
            self.layers(step.blocks, cost)
        else:  # the device waits for none of them
            device_s = step.device_s(self)
            self.host_s += host_s
            self.device_s += device_s
            self.worked_s += device_s

    def read(self) -> None:
        """The host waits for what the device computes."""
        self.host_s = max(self.host_s, self.device_s)

    def skip(self, steps: float, host_s: float, device_s: float) -> None:
        """More steps like the one before, each of which takes `host_s` and `device_s` of the two queues."""
        ahead = max(host_s, device_s) * steps
        self.device_s += ahead
        self.host_s += steps * host_s
        self.worked_s += steps * device_s


class Played:
    """A step whose operators are known, ready for an engine to play it on the timeline."""

    __slots__ = ("decode", "graph", "operators", "seconds", "sequences")

    def __init__(self, seconds: float, operators: float, graph: bool, decode: bool, sequences: int) -> None:
        """`seconds`: of all operators. `decode`: all sequences have one new token."""
        self.seconds, self.operators, self.graph, self.decode = seconds, operators, graph, decode
        self.sequences = sequences

    @property
    def blocks(self) -> Sequence[LaunchBlock]:
        """Its operators in order."""
        raise NotImplementedError

    @property
    def launches(self) -> Sequence[tuple[float, RoleLaunches]]:
        """The launches of its blocks, and how often each is repeated."""
        raise NotImplementedError

    def host_s(self, cost: HostCost) -> float:
        """What the host takes to launch all of its operators."""
        return sum([repeat * cost.of_all(launches) for repeat, launches in self.launches])

    def device_s(self, t: Timeline) -> float:
        """What the device takes for all of it, gaps between operators included."""
        return self.seconds * t.scale + t.gap_s * self.operators


@dataclass(frozen=True, slots=True)
class LiveScheduler:
    """How live traffic is scheduled: continuous batching with chunked prefill over a paged cache. Names are vLLM's."""

    max_num_seqs: int  # requests that run at once; the others wait
    max_num_batched_tokens: int  # in a step
    block_size: int = 16  # tokens of a block of the cache
    reserved_blocks: int = 0  # that hold no request's tokens
    state_blocks: int = 0  # that each request holds for its states, however long it is
    max_model_len: int = 0  # 0 for what memory and model allow
    enable_prefix_caching: bool = True
    async_scheduling: bool = True  # the next step is scheduled while the last one runs
    scheduler_reserve_full_isl: bool = True  # admit a request only when its whole prompt fits into free blocks
    mixes_prompts: bool = True  # prompts run beside decodes; else in steps of their own, which come first
    watermark: float = 0.0  # share of the blocks that admission keeps free
    polls_every: int = 1  # steps of decodes alone between two looks at what has come
