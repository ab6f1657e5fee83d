"""What an engine held over time: waiting and running requests, KV blocks, and the prompt tokens of its steps."""

from __future__ import annotations

from chip.simulator.engine import SimulatedEngine

MOST = 1024  # stretches of time that are kept; they double in length where there would be more


class Occupancy:
    """Means over equal stretches of time. An instance is the `watch` of one engine."""

    def __init__(self, width_s: float = 0.01) -> None:
        self.width_s = width_s
        self.rows: list[list[float]] = []  # seconds, and seconds times: waiting, running, used blocks; prompt tokens

    def __call__(self, engine: SimulatedEngine, begin_s: float, end_s: float, steps: int, prompt_tokens: int) -> None:
        while end_s > self.width_s * MOST:
            self._halve()
        values = (len(engine.waiting), len(engine.running), engine.pool.total - engine.pool.free)
        at, width = int(begin_s / self.width_s), self.width_s
        first = True
        while True:
            while len(self.rows) <= at:
                self.rows.append([0.0, 0.0, 0.0, 0.0, 0.0])
            row = self.rows[at]
            span = min(end_s, (at + 1) * width) - max(begin_s, at * width)
            row[0] += span
            for k, value in enumerate(values, 1):
                row[k] += value * span
            row[4] += prompt_tokens if first else 0
            first, at = False, at + 1
            if at * width >= end_s or at >= MOST:
                return

    def _halve(self) -> None:
        pairs = [self.rows[i : i + 2] for i in range(0, len(self.rows), 2)]
        self.rows = [[sum(each) for each in zip(*pair)] for pair in pairs]
        self.width_s *= 2

    def json(self, blocks: int) -> dict[str, list[float]]:
        """Columns; a stretch in which the engine had nothing to do has zeros."""
        share = [(r[0] / self.width_s) for r in self.rows]
        return {
            "t_s": [round(i * self.width_s, 6) for i in range(len(self.rows))],
            "waiting": [round(r[1] / self.width_s, 3) for r in self.rows],
            "running": [round(r[2] / self.width_s, 3) for r in self.rows],
            "kv_share": [round(r[3] / self.width_s / blocks, 5) for r in self.rows],
            "prompt_tokens_per_s": [round(r[4] / self.width_s, 1) for r in self.rows],
            "working_share": [round(min(1.0, s), 4) for s in share],
        }
