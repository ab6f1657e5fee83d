"""The highest request rate at which one replica keeps a promise, found by simulations.

A simulation tells it only once the traffic is steady: the first requests meet an empty engine, and a queue that grows
takes its time to break a promise. So arrivals last for several times what a request stays, and for as many times what
it may wait; where the asked number of requests does not last so long, more are simulated. Few show about where to look;
what is answered is told by all.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, inf, log
from typing import NamedTuple, TypeVar

from chip.predictor import basis
from chip.simulator import figures
from chip.simulator.answer import Simulation, answer
from chip.simulator.fleet import ServedRequests
from chip.simulator.intervals import spreads_of, typical_steps
from chip.simulator.setup import Fleet, Setup, run, setup
from chip.simulator.slo import PERCENTILES, Target
from chip.simulator.workload import Workload, at_rate, first

NEAR = 1.03  # two rates as near as this are one
STRIDE, LONGEST_STRIDE = 1.1, 4.0  # from a rate to the next, each the square of the one before
FEW, FEW_TRIES = 200, 5  # requests that show about where to look, and how often they do
NEARLY, SURELY = 1.1, 1.25  # so near they need not look any closer; so far off they are not wrong
STEADY = 5  # times that arrivals last as long as a request stays, or may wait
ENOUGH = 0.8  # of these: the rate is nearly what it was looked for with
MEAN_OF_PROMISED = 0.8  # of the time that a percentile may take: where the first rate is looked for
MOST = 20_000  # requests of one simulation
LIGHT = 0.05  # of the first guess: the least rate that is looked at
ALONE = LIGHT / 20  # of the first guess: nothing waits
FAR = 0.5  # of what is promised: with less, it is a queue that grows which sets the rate
SATURATED = 2  # times what a full batch serves: no engine serves as much
WAITING = ("ttft", "queue", "e2e")  # what a growing queue breaks


@dataclass(frozen=True, slots=True)
class Promise:
    """What one replica is held to: traffic, of which as many requests as are needed are taken, at least `requests`."""

    fleet: Fleet
    workload: Workload
    requests: int
    targets: tuple[Target, ...]


class HighestRate(NamedTuple):
    """Of one replica. `rate_per_s` is 0 where the promise is broken at any that is worth while: then `at` is of a
    nearly idle engine, where `waits` says whether requests met others there; or None, where less than was to be beaten
    is served."""

    rate_per_s: float
    low: float
    high: float
    at: Simulation | None
    rests_on: str = ""
    notes: tuple[str, ...] = ()
    waits: bool = False


R = TypeVar("R")
InSteps = Generator[None, None, R]  # goes on to the next simulation when it is asked to


def finished(work: InSteps[R]) -> R:
    while True:
        try:
            next(work)
        except StopIteration as end:
            found: R = end.value
            return found


def highest_rate(p: Promise, intervals: bool = True, beats: float = 0.0) -> InSteps[HighestRate]:
    """`beats`: a rate; less is not looked at any closer."""
    made = setup(p.fleet)
    likely = _likely(made, p)
    alone = _simulated(
        made, p, first(p.workload, 1 if _has_equal_requests(p.workload) else p.requests), ALONE * likely.rate_per_s
    )
    about = partial(HighestRate, rests_on=_rests_on(made, p.workload), notes=made.notes)
    yield
    if not alone.completed or strain(alone, p.targets) > 1:
        return about(0.0, 0.0, 0.0, alone)
    few = first(p.workload, min(MOST, max(FEW, _lasting(likely.rate_per_s, likely.stays_s, p.targets) // 2)))
    strains = {ALONE * likely.rate_per_s: strain(alone, p.targets)}
    least, steady = float(f"{LIGHT * likely.rate_per_s:.4g}"), False
    rate, stays_s = yield from _looked_for(made, p, few, likely, strains)
    count = min(MOST, max(p.requests, _lasting(rate, stays_s, p.targets)))
    if rate < SURELY * beats and not _try(made, p, first(p.workload, count), beats):
        return HighestRate(0.0, 0.0, 0.0, None)
    yield
    while True:
        w = first(p.workload, count)
        kept = yield from _search(made, p, w, max(rate, least), (least, SATURATED * likely.most_per_s), steady)
        if not kept.at:
            return about(0.0, 0.0, 0.0, _simulated(made, p, w, least), waits=True)
        rate, needed = kept.rate_per_s, _lasting(kept.rate_per_s, _stays_s(kept.at), p.targets)
        if kept.at.queue_grows and not steady:  # by chance, or in truth: twice as many tell
            count, steady = min(MOST, 2 * count), True
        elif count < min(MOST, ENOUGH * needed):
            count = min(MOST, needed)
        else:
            break
    low, high = rate, rate
    if intervals:
        low, high = yield from _interval(made, p, few, kept, strains)
    return about(rate, low, high, kept.at)


def _has_equal_requests(w: Workload) -> bool:
    """Whether one request alone stands for all."""
    return not w.blocks and min(w.prompt) == max(w.prompt) and min(w.output) == max(w.output)


class _Likely(NamedTuple):
    rate_per_s: float
    stays_s: float  # a request
    most_per_s: float  # what is served of the largest batch


def _likely(made: Setup, p: Promise) -> _Likely:
    """The rate at which the mean decode step takes what is promised of it, each prompt adding its time to one step, and
    how long a request then stays. It is looked for by halves, among the batches that there is room for."""
    surface, n = made.surface, len(p.workload)
    prompt, output = max(1, sum(p.workload.prompt) // n), max(1, sum(p.workload.output) // n)
    most = min(made.settings.max_num_seqs, max(1, made.blocks * made.settings.block_size // (prompt + output)))
    context, new = prompt + output / 2, min(prompt, made.settings.max_num_batched_tokens)
    longest_s = min((t.seconds for t in p.targets if t.metric == "tpot"), default=inf)

    def at(batch: int) -> tuple[float, float]:
        """Requests a second that keep a batch full, and the mean step."""
        decode_s = surface.decode(batch, context).seconds
        prompt_s = (surface.mixed(batch, context, [(new, 0)]).seconds - decode_s) * prompt / new
        rate = batch / (output * decode_s + batch * max(prompt_s, 0.0))
        return rate, batch / (rate * output)

    low, high = 1, most + 1
    while high - low > max(1, low // 16):
        middle = (low + high) // 2
        low, high = (middle, high) if at(middle)[1] <= MEAN_OF_PROMISED * longest_s else (low, middle)
    rate, step_s = at(low)
    return _Likely(rate, step_s * output, at(most)[0])


def _rests_on(made: Setup, w: Workload) -> str:
    """What most of the time of a request's steps rests on: of a prompt beside decodes, and of its own decodes."""
    times, (mixed, decode) = made.surface.times, typical_steps(made, w)
    by_source = dict(times.seconds_by_source(mixed))
    share = max(1, sum(w.output) // len(w)) / decode.rows
    for source, seconds in times.seconds_by_source(decode).items():
        by_source[source] = by_source.get(source, 0.0) + share * seconds
    return basis.of_answer(by_source)


def _stays_s(at: Simulation) -> float:
    return at.e2e_s.mean if at.e2e_s else 0.0


def _lasting(rate: float, stays_s: float, targets: Sequence[Target]) -> int:
    """Requests at this rate that tell whether it is kept for as long as one likes."""
    waits_s = max((t.seconds for t in targets if t.metric in WAITING), default=0.0)
    return ceil(STEADY * rate * max(stays_s, waits_s))


def _looked_for(
    made: Setup, p: Promise, w: Workload, likely: _Likely, strains: dict[float, float]
) -> InSteps[tuple[float, float]]:
    """About the highest rate, by few requests, and how long one then stays. `strains` gets what they show."""
    rate, stays_s = likely.rate_per_s, likely.stays_s
    for _ in range(FEW_TRIES):
        at = _simulated(made, p, w, rate)
        yield
        strains[rate], stays_s = strain(at, p.targets), _stays_s(at)
        before, rate = rate, min(max(rate_at(strains, 1.0), rate / LONGEST_STRIDE), rate * LONGEST_STRIDE)
        if max(rate / before, before / rate) < NEARLY:
            break
    return rate, stays_s


def rate_at(strains: Mapping[float, float], wanted: float) -> float:
    """Where the strain is likely to be as much, by that of some rates; 0 where it is more at any of them. Beyond them
    it grows at least as the rate does."""
    points = sorted(strains.items())
    below = [one for one in points if one[1] <= wanted]
    if not below:
        return 0.0
    rate, strained = below[-1]
    above = [one for one in points if one[0] > rate]
    if above:
        other, more = above[0]
        return float(rate * (other / rate) ** (log(wanted / strained) / log(more / strained)))
    other, less = below[-2] if len(below) > 1 else (0.0, 0.0)
    grows = max(1.0, log(strained / less) / log(rate / other)) if 0 < less < strained else 1.0
    return float(rate * (wanted / strained) ** (1 / grows))


class _Kept(NamedTuple):
    rate_per_s: float  # the highest
    at: Simulation | None  # None where the least is not kept


def _search(
    made: Setup, p: Promise, w: Workload, start: float, among: tuple[float, float], steady: bool
) -> InSteps[_Kept]:
    """Out from `start`, each stride longer than the one before, until one rate keeps the promise and another does not;
    then by halves. `among`: the least rate, and one that nothing serves."""
    low, high, rate, at, stride = 0.0, inf, start, None, STRIDE
    least, most = among
    while high / max(low, least) > NEAR:
        rate = float(f"{rate:.4g}")  # as people say it: what is answered was simulated
        now = _try(made, p, w, rate, steady) if rate < most else None
        yield
        if now is None:
            high = rate
        else:
            low, at = rate, now
        if low and high < inf:
            rate = (low * high) ** 0.5
        elif low or rate > least:
            rate = rate * stride if low else max(rate / stride, least)
            stride = min(stride * stride, LONGEST_STRIDE)
    return _Kept(low, at)


def strain(found: Simulation, targets: Sequence[Target]) -> float:
    """How much of what is promised is used up; 1 is all."""
    return max(max(value(found, t) / t.seconds for t in targets), 1e-9)


def _try(made: Setup, p: Promise, w: Workload, rate: float, steady: bool = False) -> Simulation | None:
    """One simulation, given up as soon as a promise cannot be kept any more. `steady`: a queue that grows breaks it."""
    w = at_rate(w, rate)
    done = run(made, p.fleet, w, _Promises(p.targets, len(w)))
    if done.stopped:
        return None
    found = answer(p.fleet, made, w, done, 0)
    kept = found.completed and strain(found, p.targets) <= 1 and not (steady and found.queue_grows)
    return found if kept else None


class _Promises:
    """Counts requests that take longer than promised: more of them than the percentile allows ends the simulation."""

    def __init__(self, targets: Sequence[Target], requests: int) -> None:
        self.targets = targets
        self.left = [requests - min(requests - 1, int(PERCENTILES[t.percentile] * requests)) for t in targets]

    def __call__(self, done: ServedRequests, i: int) -> bool:
        kept = True
        for k, t in enumerate(self.targets):
            if figures.latency_s(done, i, t.metric) > t.seconds:
                self.left[k] -= 1
            kept = kept and self.left[k] > 0
        return kept


def _simulated(made: Setup, p: Promise, w: Workload, rate: float) -> Simulation:
    w = at_rate(w, rate)
    return answer(p.fleet, made, w, run(made, p.fleet, w), 0)


def value(found: Simulation, t: Target) -> float:
    """The figure that a target is of."""
    percentiles = getattr(found, f"{t.metric}_s")
    return float(getattr(percentiles, t.percentile)) if percentiles else 0.0


def _interval(
    made: Setup, p: Promise, w: Workload, kept: _Kept, strains: dict[float, float]
) -> InSteps[tuple[float, float]]:
    """The highest rate, were all times as much longer or shorter as the predictor says they may be: each of three
    independent errors by its share of the 90 % edge. An engine whose times are longer by a factor does at a rate what
    the predicted one does at that rate times the factor, in that many times the time. Few requests do: only
    the share counts by which the rate changes."""
    at, (mixed, decode) = kept.at, typical_steps(made, w)
    assert at is not None
    times, output = made.surface.times, sum(w.output) / len(w)
    seconds = [sum(times.seconds_by_source(step).values()) for step in (decode, mixed)]
    decodes_s, mixed_s = seconds[0] * max(0.0, output / decode.rows - 1), seconds[1]
    of_device = at.gpu_busy / (decodes_s + mixed_s)
    shares = (of_device * decodes_s, of_device * mixed_s, 1 - at.gpu_busy)
    spreads, ends = spreads_of(made, w), []
    by_few, saturated = rate_at(strains, 1.0), strain(at, p.targets) < FAR
    for edges in ([s.high for s in spreads], [max(s.low, 1e-3) for s in spreads]):
        longer = sum(share * edge ** (1 / len(spreads) ** 0.5) for share, edge in zip(shares, edges))
        if saturated:
            ends.append(kept.rate_per_s / longer)
            continue
        rate = rate_at(strains, 1 / longer)
        if rate and min(max(rate / r, r / rate) for r in strains) > NEARLY:
            strains[rate] = strain(_simulated(made, p, w, rate), p.targets)
            yield
        ends.append(kept.rate_per_s / by_few * rate_at(strains, 1 / longer) / longer)
    return min(ends[0], kept.rate_per_s), max(ends[1], kept.rate_per_s)
