"""Replicas of the attention over one set of experts: their steps begin and end together.

Every layer exchanges tokens among all replicas, so that one without requests still takes part in the step, and all wait
for the one whose step is the longest. That step is timed as if each replica had as many tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from chip.simulator.engine import SimulatedEngine


class Lockstep:
    """Drives its engines; each of them has a queue and a KV cache of its own."""

    def __init__(self, engines: Sequence[SimulatedEngine]) -> None:
        self.engines = tuple(engines)

    def advance(self, until_s: float, stop_at_finish: bool = False) -> None:
        while self.engines[0].now_s < until_s:
            if not any(e.has_work for e in self.engines):
                arrivals = [e.inbox[0].arrival_s for e in self.engines if e.inbox]
                if not arrivals:
                    return
                self._clock(max(self.engines[0].now_s, min(arrivals)))
                if self.engines[0].now_s >= until_s:
                    return
                for e in self.engines:
                    e.wake()
            else:
                for e in self.engines:
                    e.admit_arrivals()
            self._clock(max(e.now_s for e in self.engines))
            self._one_step()
            if stop_at_finish and any(e.finished for e in self.engines):
                return

    def _clock(self, now_s: float) -> None:
        for e in self.engines:
            e.now_s = now_s

    def _one_step(self) -> None:
        begin_s = self.engines[0].now_s
        planned = [e.schedule() for e in self.engines]
        times = {i: self.engines[i].device(p) for i, p in enumerate(planned) if p}
        longest_s = max((s for s, _ in times.values()), default=0.0)
        for i, (e, p) in enumerate(zip(self.engines, planned)):
            if p:
                e.launch(p, (longest_s, times[i][1]))
        free_s = max(e.device_free_s for e in self.engines)
        for e, p in zip(self.engines, planned):
            e.device_free_s, e.rested = free_s, False
            e.close_step(p, begin_s)
        self._clock(max(e.now_s for e in self.engines))
