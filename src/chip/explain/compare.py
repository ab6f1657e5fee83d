"""Two runs side by side: for each metric, is the second better, worse, or is it unclear?"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from chip import stats
from chip.files import runs
from chip.files.runs import Run
from chip.types import DISTURBED, Scenario

METER = 0.05  # two joule figures closer than this are the same: what counter and integrated power may differ by
BETWEEN = 0.01  # medians of two processes differ by this much, whatever they run (an H200's GPU-bound latencies)
GPU_BOUND = 0.95  # busy share from which on the host does not set the time
CHANCE = 0.05  # of a verdict between equals that is allowed
T_975 = (  # Student's t: from so many degrees of freedom on
    (60, 2.0), (30, 2.04), (20, 2.09), (14, 2.14), (10, 2.23), (8, 2.31), (7, 2.36), (6, 2.45), (5, 2.57), (4, 2.78),
    (3, 3.18), (2, 4.30), (0, 12.71),
)  # fmt: skip
ROOM = 0.01  # the same for two peaks of memory


@dataclass(frozen=True, slots=True)
class ComparedMetric:
    """One metric. `ratio` is second / first, with the worst the samples allow on either side."""

    metric: str
    unit: str
    first: float
    second: float
    ratio: float
    low: float
    high: float
    verdict: str  # times: faster, slower, unclear; all else: less, more, unclear
    samples: tuple[int, int]

    @property
    def worse(self) -> bool:
        return self.verdict in ("slower", "more")


@dataclass(frozen=True, slots=True)
class RunPair:
    first: Run
    second: Run
    lines: tuple[ComparedMetric, ...]


def compare(first: Run, second: Run) -> RunPair:
    """Every metric that both runs have. Times of a run that was disturbed tell nothing of the other."""
    unsure = any(f.startswith(DISTURBED) for r in (first, second) for f in r.flags)
    apart = _hosts_apart(first, second)
    lines = [
        _times("TTFT", first.ttft_ns, second.ttft_ns, unsure, apart),
        _times("TPOT", _means(first), _means(second), unsure, apart) if first.decodes and second.decodes else None,
        _times("end to end", first.e2e_ns, second.e2e_ns, unsure, apart),
        _single("peak memory", "B", _peak(first), _peak(second), ROOM),
        _single("J/token", "J", first.joules_per_token, second.joules_per_token, METER),
    ]
    return RunPair(first, second, tuple(line for line in lines if line))


def pairs(first: Sequence[Run], second: Sequence[Run]) -> tuple[list[RunPair], list[Run]]:
    """Runs that belong together, and those without a partner.

    A model is known by its identity (`chip.identity`). First the same model, engine, variant and scenario; then, where
    only one is left on either side, the same model and scenario with whatever engine.
    """
    known = all(r.identity for r in (*first, *second))  # else labels are all there is to go by
    by_key = {_key(r, known): r for r in second if r.status == "ok"}
    left = [r for r in first if r.status == "ok"]
    matched = [(r, by_key.pop(_key(r, known))) for r in left if _key(r, known) in by_key]
    matched_ids = {id(r) for r, _ in matched}
    left = [r for r in left if id(r) not in matched_ids]
    here, there = _by_question(left, known), _by_question(list(by_key.values()), known)
    for question, mine in here.items():
        theirs = there.get(question, [])
        if len(mine) == len(theirs) == 1:
            matched.append((mine[0], theirs[0]))
    matched_ids = {id(r) for pair in matched for r in pair}
    alone = [r for r in (*left, *by_key.values()) if id(r) not in matched_ids]
    return [compare(a, b) for a, b in matched], alone


def _key(run: Run, known: bool) -> runs.Key:
    return run.identity if known else run.model, run.engine, run.variant, run.scenario


def _by_question(some: Sequence[Run], known: bool) -> dict[tuple[str, Scenario], list[Run]]:
    by_question: dict[tuple[str, Scenario], list[Run]] = {}
    for r in some:
        by_question.setdefault((r.identity if known else r.model, r.scenario), []).append(r)
    return by_question


def _means(run: Run) -> list[float]:
    return [sum(steps) / len(steps) for steps in run.step_ns]


def _peak(run: Run) -> float | None:
    return next((run.memory[k] for k in ("allocated_peak_bytes", "process_peak_bytes") if k in run.memory), None)


def _hosts_apart(first: Run, second: Run) -> float:
    """By how much the host was faster in one of them, as a share, where it sets the time: launch latencies were taken
    between the repeats, and a clock that comes and goes moves them too. 0 where the GPU sets it."""
    if any(not r.launch_ns for r in (first, second)) or all(
        r.busy and min(r.busy.values()) >= GPU_BOUND for r in (first, second)
    ):
        return 0.0
    ends = [(min(r.launch_ns), max(r.launch_ns)) for r in (first, second)]
    return max(ends[0][1] / ends[1][0], ends[1][1] / ends[0][0]) - 1


def _times(
    metric: str, first_ns: Sequence[float], second_ns: Sequence[float], unsure: bool = False, apart: float = 0.0
) -> ComparedMetric:
    """As `stats.compare`, but a verdict must also hold for runs of two processes at two times: these differ by as much
    as the repeats of one do, by BETWEEN, and by what their hosts are `apart`."""
    v = stats.compare(first_ns, second_ns)
    a, b = stats.median(first_ns) * 1e-9, stats.median(second_ns) * 1e-9
    freedom = len(first_ns) + len(second_ns) - 2
    reach = next(t for least, t in T_975 if freedom >= least)
    margin = BETWEEN + apart + reach * math.hypot(_spread(first_ns), _spread(second_ns))
    low, high = min(v.low, v.ratio / (1 + margin)), max(v.high, v.ratio * (1 + margin))
    chance = 2 / math.comb(len(first_ns) + len(second_ns), len(first_ns))  # that equals fall apart wholly
    clear = not unsure and chance <= CHANCE and (high < 1 or low > 1)
    word = v.verdict if clear else "unclear"
    return ComparedMetric(metric, "s", a, b, v.ratio, low, high, word, (len(first_ns), len(second_ns)))


def _spread(samples: Sequence[float]) -> float:
    """Standard deviation of the repeats over their mean."""
    if len(samples) < 2:
        return 1.0  # one sample tells nothing of its spread
    return statistics.stdev(samples) / statistics.fmean(samples)


def _single(
    metric: str, unit: str, first: float | None, second: float | None, known_to: float
) -> ComparedMetric | None:
    """One figure on each side, known to a share of itself."""
    if not first or not second or first < 0 or second < 0:
        return None
    ratio = second / first
    low, high = ratio / (1 + known_to), ratio * (1 + known_to)
    word = "less" if high < 1 else "more" if low > 1 else "unclear"
    return ComparedMetric(metric, unit, first, second, ratio, low, high, word, (1, 1))
