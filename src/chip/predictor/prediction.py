"""A prediction, and its JSON: names and layout of `chip predict --json`, which other programs rely on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import hypot
from typing import Any, NamedTuple

from chip.decoders.decoder import Decoder
from chip.predictor import basis, prediction_text
from chip.predictor.phase import Line, Phase
from chip.predictor.roof import Power, Range
from chip.types import Scenario

# Joules per FLOP and per byte leave out clocks, values and caches. This is the p90 error of energy over recorded runs.
ENERGY_OFF = 0.17


class Prediction(NamedTuple):
    """How fast a model runs on a GPU, how sure that is, and where the time goes."""

    asked: Mapping[str, str]  # model, gpu, engine, and the host whose terms were taken
    scenario: Scenario
    prefill: Phase
    decode: Phase | None  # the mean decode step; None where one token was asked for
    ridge: float
    power: Power | None
    memory: Mapping[str, Any]
    notes: list[str]
    decoder: Decoder | None = None  # None where operators were traced
    request_tpot_s: float | None = None  # mean over requests of (last - first token) / (output - 1), as in live traffic

    @property
    def nearest_validated(self) -> list[dict[str, Any]]:
        """Runs that predictions were compared with, nearest first, with errors (`chip.predictor.validated_runs`)."""
        from chip.predictor.validated_runs import nearest  # here, since a sweep does not need it

        return nearest(self.decoder, self.asked["gpu"], self.asked["engine"], self.scenario) if self.decoder else []

    @property
    def ttft_s(self) -> float:
        """Time until every request of the batch has its first token."""
        return self.prefill.seconds

    @property
    def tpot_s(self) -> float | None:
        """The mean step after the last request has its first token; None where one token was asked for."""
        return self.decode.seconds if self.decode else None

    @property
    def e2e_s(self) -> float:
        return self.whole().value

    @property
    def tokens_per_s(self) -> float:
        """Output tokens of the whole batch over the end-to-end time."""
        return self.scenario.batch * self.scenario.output / self.e2e_s

    @property
    def energy_j_per_token(self) -> float | None:
        energy = self.energy()
        return energy.value / (self.scenario.batch * self.scenario.output) if energy else None

    @property
    def bound(self) -> dict[str, str]:
        """What limits each phase: memory, compute, launch, host or link."""
        return {"ttft": self.prefill.bound} | ({"tpot": self.decode.bound} if self.decode else {})

    @property
    def dtype(self) -> str:
        """The format of the weights, as `auto` came out."""
        return self.scenario.dtype

    @property
    def interval(self) -> dict[str, tuple[float, float]]:
        """90 % intervals in SI units: ttft_s, tpot_s, e2e_s, tokens_per_s, energy_j_per_token."""
        whole, tokens = self.whole(), self.scenario.batch * self.scenario.output
        spans = {"ttft_s": (self.prefill.low_s, self.prefill.high_s), "e2e_s": (whole.low, whole.high)}
        spans["tokens_per_s"] = (tokens / whole.high, tokens / whole.low)
        if self.decode:
            spans["tpot_s"] = (self.decode.low_s, self.decode.high_s)
        if energy := self.energy():
            spans["energy_j_per_token"] = (energy.low / tokens, energy.high / tokens)
        return spans

    @property
    def lines(self) -> dict[str, list[Line]]:
        """The breakdown: rows of the time to first token and of the mean decode step, longest first."""
        return {"ttft": self.prefill.lines, "tpot": self.decode.lines if self.decode else []}

    @property
    def rests_on(self) -> str:
        """What most of its operators' time rests on: measured, imported or datasheet."""
        return basis.of_answer(self.seconds_by_source())

    def seconds_by_source(self) -> dict[str, float]:
        """Of the end-to-end time."""
        time_by, steps = dict(self.prefill.seconds_by_source), self.scenario.output - 1
        for source, seconds in self.decode.seconds_by_source.items() if self.decode else ():
            time_by[source] = time_by.get(source, 0.0) + steps * seconds
        return time_by

    def whole(self) -> Range:
        """Seconds from end to end."""
        steps, p, d = self.scenario.output - 1, self.prefill, self.decode
        if d is None:
            return Range(p.seconds, p.low_s, p.high_s)
        return Range(p.seconds + steps * d.seconds, p.low_s + steps * d.low_s, p.high_s + steps * d.high_s)

    def energy(self) -> Range | None:
        """Joules of the whole batch, all GPUs together; None where power was not measured."""
        if self.power is None:
            return None
        steps, idle_w, whole = self.scenario.output - 1, self.power.idle_w, self.whole()
        above = self.prefill.joules + (steps * self.decode.joules if self.decode else 0.0)
        value, low, high = (above + idle_w * seconds for seconds in whole)
        off = ENERGY_OFF * value
        low, high = value - hypot(value - low, off), value + hypot(high - value, off)
        gpus = self.scenario.gpus
        return Range(gpus * value, gpus * max(0.0, low), gpus * high)

    def row(self) -> dict[str, Any]:
        """The figures as a flat row of a table; `notes` become lines of one text."""
        prefill, decode, whole, tokens = (
            self.prefill,
            self.decode,
            self.whole(),
            self.scenario.batch * self.scenario.output,
        )
        energy = self.energy()
        return {
            "ttft_s": prefill.seconds,
            "ttft_low_s": prefill.low_s,
            "ttft_high_s": prefill.high_s,
            "tpot_s": decode.seconds if decode else None,
            "tpot_low_s": decode.low_s if decode else None,
            "tpot_high_s": decode.high_s if decode else None,
            "e2e_s": whole.value,
            "tokens_per_s": tokens / whole.value,
            "energy_j_per_token": energy.value / tokens if energy else None,
            "fits": self.memory["fits"],
            "memory_bytes": self.memory["total_bytes"],
            "notes": "\n".join(self.notes),
        }

    def to_dict(self) -> dict[str, Any]:
        """As `chip predict --json` has it."""
        return self.json()

    def _repr_html_(self) -> str:
        """A table and bars, for notebooks."""
        return prediction_text.html(self)

    def figures(self, breakdown: bool = True) -> dict[str, Any]:
        """The answer as in a sweep: what `line` says, as values."""
        figures: dict[str, Any] = json.loads(self.line(breakdown))
        return figures

    def json(self) -> dict[str, Any]:
        """The same, with `nearest_validated`."""
        return {**self.figures(), "nearest_validated": self.nearest_validated}

    def line(self, breakdown: bool = True) -> str:
        """The answer as one line of JSON."""
        return prediction_text.line(self, breakdown)
