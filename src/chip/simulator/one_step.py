"""Seconds of single steps, for programs that schedule requests themselves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from chip.question import SYSTEM, Model
from chip.simulator.setup import Fleet, setup
from chip.simulator.simulation import system_of
from chip.types import ChipError


class StepTimes:
    """Seconds of single steps of a model on an engine, for programs that schedule requests themselves.

    `chip.StepTimes("llama-3.1-8b", gpu="h200").step_s([(1, 700), (1, 512), (256, 0)])`: two requests decode behind 700
    and 512 tokens, a third has 256 tokens of its prompt computed. What was asked before is remembered.
    """

    def __init__(
        self,
        model: Model,
        gpu: str = SYSTEM["gpu"],
        engine: str = SYSTEM["engine"],
        *,
        dtype: str = SYSTEM["dtype"],
        kv_dtype: str = SYSTEM["kv_dtype"],
        tp: int = SYSTEM["tp"],
        ep: int = SYSTEM["ep"],
        host: str = SYSTEM["host"],
        engine_version: str = SYSTEM["engine_version"],
        answer_as: str = SYSTEM["answer_as"],
    ) -> None:
        """`model`, `gpu` and the others as in `chip.predict`. `engine` is one with a scheduler of live traffic."""
        given = {name: value for name, value in locals().items() if name not in ("self", "model")}
        made = setup(Fleet(system_of(model, given)))
        settling = made.surface.times.settling
        self.notes = made.notes  # what the times rest on
        self._surface, self._asynchronous = made.surface, made.settings.async_scheduling
        self._slower = settling.settled - 1 if settling else 0.0  # of what the power limit holds

    def step_s(self, sequences: Sequence[tuple[int, int]]) -> float:
        """Seconds from the begin of this step to the begin of the next, of (new, past) tokens of each sequence."""
        device_s = self.device_s(sequences)
        tokens, single = sum(new for new, _ in sequences), all(new == 1 for new, _ in sequences)
        prepare_s, launch_s, tail_s = self._surface.host(len(sequences), tokens, single)
        if self._asynchronous:
            return max(device_s + tail_s, prepare_s + launch_s)
        return prepare_s + max(device_s, launch_s) + tail_s

    def device_s(self, sequences: Iterable[tuple[int, int]]) -> float:
        """The part of the device, at the clock that lasts."""
        decodes, context, chunks = 0, 0, list[tuple[int, int]]()
        for new, past in sequences:
            if new < 1 or past < 0:
                raise ChipError(f"a sequence of a step has new tokens, and past tokens or none; got ({new}, {past})")
            if new == 1 and past:
                decodes += 1
                context += past
            else:
                chunks.append((new, past))
        if not chunks and not decodes:
            raise ChipError("a step has at least one sequence of (new, past) tokens")
        mean = context / decodes if decodes else 0.0
        if not chunks:
            return self._surface.decode(decodes, mean).seconds
        work = self._surface.mixed(decodes, mean, chunks)
        return work.seconds + self._slower * work.held_s
