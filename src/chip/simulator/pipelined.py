"""An engine whose layers lie on the stages of a pipeline: as many batches in flight as there are stages.

As vLLM's batch queue does it: while there is room in the queue the next step is scheduled, else the oldest one is
waited for. A request has one token under way at a time, so requests stay in the batch of the step that finished their
prompt, and those that come later join the batch that is scheduled then.
"""

from __future__ import annotations

from chip.engines.server import NONE, ServerCost
from chip.engines.timeline import LiveScheduler
from chip.simulator.decodes import Decodes
from chip.simulator.engine import Scheduled, SimulatedEngine, Watch
from chip.simulator.request import InFlight
from chip.simulator.surface import Surface


class PipelinedEngine(SimulatedEngine):
    def __init__(
        self, surface: Surface, settings: LiveScheduler, blocks: int, pp: int, watch: Watch | None = None,
        server: ServerCost = NONE,
    ) -> None:  # fmt: skip
        super().__init__(surface, settings, blocks, watch, False, server)
        self.pp = pp
        self._batches: list[Decodes] = []  # of the steps in flight, oldest first
        self._free_s = [0.0] * pp  # when each stage is

    def launch(self, planned: Scheduled, took: tuple[float, float]) -> None:
        """Every stage takes its share of what one GPU with all layers would take. Hosts work beside their stages; only
        the first step after a pause waits for them."""
        device_s, joules = took
        decodes, mean, chunks, first, ended = planned
        prepare_s, launch_s, _ = self.surface.host(decodes + len(chunks), planned.tokens, planned.single)
        shares, hop_s = self.surface.stages(planned.tokens, 0.0 if chunks else mean)
        whole_s = max(device_s, launch_s if chunks else prepare_s)
        free_s = max(self.now_s, self._free_s[-1])
        at_s = self.now_s + (prepare_s if self.rested else 0.0)
        for i, share in enumerate(shares):
            at_s = max(at_s, self._free_s[i]) + share * whole_s
            if i + 1 < self.pp:
                at_s += hop_s
            self._free_s[i] = at_s
        if not chunks:
            at_s += hop_s  # the new tokens go back to the first stage
        self.rested = False
        self._flight.append(InFlight(at_s, first, ended, decodes + len(first)))
        self._batches.append(self.decodes)
        self.decodes = Decodes(self.settings.block_size)
        self.busy_s += device_s / self.pp
        self.joules += self.pp * self.surface.times.within_power(joules / self.pp, at_s - free_s)
        self.steps += 1

    def close_step(self, planned: Scheduled | None, begin_s: float) -> None:
        used = self.pool.total - self.pool.free
        self.peak_blocks = max(self.peak_blocks, used)
        if len(self._flight) == self.pp or (self._flight and not planned):
            self._collect()
            self.decodes = self._batches.pop(0)
        if self.watch:
            chunks = planned.chunks if planned else []
            self.watch(self, begin_s, self.now_s, 1 if planned else 0, sum(new for new, _ in chunks))
        self.used_block_s += used * (self.now_s - begin_s)

    @property
    def _collected(self) -> Decodes:
        return self._batches[0]
