"""One engine under live traffic: its scheduler, and the two queues its steps go through, host and device.

Each step first gives one token to every decode, then fills what is left of the token budget with prompts, first come
first served. With asynchronous scheduling the next step is scheduled while the last one runs, so a request that comes
during step k waits for the rest of k and for k+1 before its prompt runs in k+2. Steps with nothing but decodes are
taken together.
"""

from __future__ import annotations

from collections import deque
from math import ceil, inf
from typing import Any, NamedTuple, Protocol

from chip.engines.server import NONE, ServerCost
from chip.engines.timeline import LiveScheduler
from chip.predictor.clock import Clock
from chip.simulator import gaps
from chip.simulator.decodes import Decodes
from chip.simulator.kv_blocks import Blocks
from chip.simulator.request import InFlight, Request
from chip.simulator.server import EventLoop
from chip.simulator.stretch import steps_until, total_s
from chip.simulator.surface import DecodeLine, Surface
from chip.types import ChipError


class Watch(Protocol):
    """Told of every stretch of steps: `begin_s` and `end_s` by the host's clock."""

    def __call__(
        self, engine: SimulatedEngine, begin_s: float, end_s: float, steps: int, prompt_tokens: int
    ) -> None: ...


class Scheduled(NamedTuple):
    """What one step holds: decodes and their mean context, prompts' chunks of (new, past) tokens; and what its end
    brings."""

    decodes: int
    mean: float
    chunks: list[tuple[int, int]]
    first: list[Request]
    ended: list[Request]

    @property
    def single(self) -> bool:
        """Whether every sequence has one new token, so that the step runs as decodes do."""
        return all(new == 1 for new, _ in self.chunks)

    @property
    def tokens(self) -> int:
        return self.decodes + sum(new for new, _ in self.chunks)


class SimulatedEngine:
    def __init__(
        self, surface: Surface, settings: LiveScheduler, blocks: int, watch: Watch | None = None, merge: bool = True,
        server: ServerCost = NONE,
    ) -> None:  # fmt: skip
        self.surface, self.settings = surface, settings
        caching = settings.enable_prefix_caching
        self.pool = Blocks(blocks, settings.block_size, caching, settings.state_blocks)
        self.watch, self.merge = watch, merge
        self._server = server
        self._loop = EventLoop(server) if server != NONE else None
        self.now_s = 0.0  # the host's clock, between steps
        self.device_free_s = 0.0
        self.inbox: deque[Request] = deque()
        self.waiting: deque[Request] = deque()
        self.running: dict[Request, None] = {}  # in the order of admission
        self.partial: Request | None = None  # whose prompt is not yet done; its `offset` is how much of it is
        self.finished: list[Request] = []  # since somebody last looked
        self.gaps: gaps.Gaps = gaps.Gaps()
        self._flight: deque[InFlight] = deque()
        self.decodes = Decodes(settings.block_size)
        self.rested = False  # the next step is the first one after a pause
        self.clock = Clock(surface.times.settling)
        self._blocked = False  # the first waiting request could not be admitted, and nothing was freed since
        self.steps = self.preemptions = self.prompt_tokens = self.found_tokens = self.peak_blocks = 0
        self.busy_s = self.joules = self.used_block_s = 0.0
        self._next_poll = 0

    @property
    def load(self) -> int:
        """Requests it has not answered."""
        return len(self.inbox) + len(self.waiting) + len(self.running)

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting or self._flight)

    def submit(self, request: Request) -> None:
        if self._loop:
            request.arrival_s = self._loop.take_in(request.arrival_s, request.prompt)
        self.inbox.append(request)

    def advance(self, until_s: float, stop_at_finish: bool = False) -> None:
        """Go on until the host, between two steps, has reached `until_s`, or there is nothing to do."""
        while self.now_s < until_s:
            if not self.has_work:
                if not self.inbox:
                    return
                self.now_s = max(self.now_s, self.inbox[0].arrival_s)
                if self.now_s >= until_s:
                    return
                self.wake()
            elif self.steps >= self._next_poll:
                self.admit_arrivals()
                self._next_poll = self.steps + self.settings.polls_every
            blind = self._next_poll - self.steps if self.settings.polls_every > 1 else 0
            soon_s = self.inbox[0].arrival_s if self.inbox and not blind else until_s
            if not (self.merge and self._steps_together(min(until_s, soon_s), blind if self.inbox else 0)):
                self._one_step()
            if stop_at_finish and self.finished:
                return

    def wake(self) -> None:
        """To the first step after a pause."""
        self.device_free_s = max(self.device_free_s, self.now_s)  # a pause is no time to draw less in
        self.admit_arrivals()
        self.now_s += self.surface.wake_s()
        self.rested = True
        self.clock.rest()

    def admit_arrivals(self) -> None:
        now = self.now_s
        while self.inbox and self.inbox[0].arrival_s <= now:
            request = self.inbox.popleft()
            self.waiting.append(request)
            self.now_s += self.surface.request_s(request.prompt)

    def _one_step(self) -> None:
        begin_s = self.now_s
        planned = self.schedule()
        if planned:
            self.launch(planned, self.device(planned))
        self.close_step(planned, begin_s)

    def schedule(self) -> Scheduled | None:
        """The next step, None where nothing can run."""
        first: list[Request] = []
        ended: list[Request] = []
        held, room = self.decodes, self.pool.free
        n, mean = held.n, held.mean
        mixes = self.settings.mixes_prompts
        chunks = [] if n and mixes else self._admit(0, self._continue(0, [], first), first)
        if chunks:
            n = 0
        elif n:
            if held.blocks_now() > room:
                self._preempt()
                n, mean = held.n, held.mean
                chunks = self._continue(n, [], first)
            else:
                self.pool.take(held.blocks_now())
                chunks = self._admit(n, self._continue(n, [], first), first) if mixes else []
            held.count += 1
            ended = held.end(self.pool)
        ended += self._begin_decodes(first)
        if n or chunks:
            return Scheduled(n, mean, chunks, first, ended)
        if not self._flight and not self.preemptions and self.waiting:
            raise ChipError(f"request {self.waiting[0].index}: needs more KV blocks than the engine has")
        return None

    def device(self, planned: Scheduled) -> tuple[float, float]:
        """Seconds and joules of a step on the device."""
        if planned.chunks:
            work = self.surface.mixed(planned.decodes, planned.mean, planned.chunks)
            return self.clock.prompt_s(work.seconds, work.held_s, work.flops), work.joules
        line = self.surface.decode(planned.decodes, planned.mean)
        return line.seconds + self.clock.recovery_s(line.seconds, line.by_clock_s), line.joules

    def launch(self, planned: Scheduled, took: tuple[float, float]) -> None:
        device_s, joules = took
        decodes, _, chunks, first, ended = planned
        prepare_s, launch_s, tail_s = self.surface.host(decodes + len(chunks), planned.tokens, planned.single)
        if self._flight and self._flight[-1].rested:
            prepare_s = 0.0  # what precedes a first step holds all that the host does until its tokens are out
        ready_s = self.now_s + prepare_s
        host_end_s = ready_s + launch_s
        free_s = self.device_free_s
        end_s = max(max(free_s, ready_s) + device_s, host_end_s) + tail_s
        self.device_free_s, self.now_s = end_s, host_end_s
        self._flight.append(InFlight(end_s, first, ended, decodes + len(first), self.rested))
        self.rested = False
        self.busy_s += device_s
        self.joules += self.surface.times.within_power(joules, end_s - free_s)
        self.steps += 1

    def close_step(self, planned: Scheduled | None, begin_s: float) -> None:
        """Take the tokens of a step that must be waited for, and count what was held meanwhile."""
        if planned and planned.chunks:
            self._next_poll = self.steps
        used = self.pool.total - self.pool.free
        self.peak_blocks = max(self.peak_blocks, used)
        if self._flight and (len(self._flight) > 1 or not self.settings.async_scheduling or not planned):
            self._collect()
        if self.watch:
            chunks = planned.chunks if planned else []
            self.watch(self, begin_s, self.now_s, 1 if planned else 0, sum(new for new, _ in chunks))
        self.used_block_s += used * (self.now_s - begin_s)

    def _collect(self) -> None:
        """Wait for the oldest step and take its tokens."""
        step = self._flight.popleft()
        self.now_s = max(self.now_s, step.end_s)
        seen_s = self._seen_s(1, step.tokens, step.tokens - len(step.first))
        for request in step.first:
            if request.first_s < 0:  # not one that comes back after a preemption
                request.first_s = seen_s
        for request in step.ended:
            request.last_s = seen_s
            del self.running[request]
            self.pool.release(request.holding, request.prompt + request.output - 1, False)
            self.finished.append(request)
            self._blocked = False

    def _seen_s(self, steps: int, tokens: int, readers: int) -> float:
        """When the tokens of the steps that end now have reached their readers."""
        seen_s = self._loop.pass_on(steps, tokens, self.now_s) if self._loop else self.now_s
        batch = self._collected
        if not (self._loop and self._loop.merged):
            gaps.add(self.gaps, (seen_s - batch.seen_s) / steps, steps * readers)
            batch.seen_s = seen_s
        return seen_s

    @property
    def _collected(self) -> Decodes:
        """The batch whose step ends."""
        return self.decodes

    # prompts

    def _continue(self, decodes: int, chunks: list[tuple[int, int]], first: list[Request]) -> list[tuple[int, int]]:
        """A prompt that the last step had no room to finish."""
        request = self.partial
        if request is None:
            return chunks
        room = self.settings.max_num_batched_tokens - decodes
        past, wanted = request.offset, request.prompt + request.done
        new = min(wanted - past, room)
        if new <= 0:
            return chunks
        blocks = self.pool.needed(past + new) - request.holding.private - request.holding.shared
        if blocks > self.pool.free:  # it is the last of those that run: it makes room by going
            self._send_back(request, past)
            self.partial = None
            return chunks
        self.pool.take(blocks)
        request.holding.private += blocks
        self._computed(request, past, new, wanted, first)
        return [*chunks, (new, past)]

    def _computed(self, request: Request, past: int, new: int, wanted: int, first: list[Request]) -> None:
        request.offset = past + new
        if request.path:
            self.pool.fill(request.path, request.holding, min(past + new, request.prompt))
        if past + new == wanted:
            self.partial = None
            first.append(request)
        else:
            self.partial = request
        self.prompt_tokens += new

    def _admit(self, decodes: int, chunks: list[tuple[int, int]], first: list[Request]) -> list[tuple[int, int]]:
        """Waiting requests, in order, while there are tokens, places and blocks."""
        settings, pool, waiting = self.settings, self.pool, self.waiting
        room = settings.max_num_batched_tokens - decodes - sum(new for new, _ in chunks)
        spare = int(settings.watermark * pool.total)
        while waiting and room > 0 and self.partial is None and len(self.running) < settings.max_num_seqs:
            request = waiting[0]
            wanted = request.prompt + request.done
            past = request.holding.past
            found, hit = self.known(request, past, wanted)
            new = min(wanted - found, room)
            blocks = pool.needed(found + new)
            gate = pool.needed(wanted) if settings.scheduler_reserve_full_isl else blocks
            if not pool.fits(request.path, past, hit, gate, spare if self.running else 0):
                self._blocked = True
                break
            waiting.popleft()
            pool.admit(request.path, request.holding, hit, blocks)
            self.running[request] = None
            if request.queue_s < 0:
                request.queue_s, request.cached = self.now_s, found
            self.found_tokens += found
            self._computed(request, found, new, wanted, first)
            chunks = [*chunks, (new, found)]
            room -= new
        else:
            self._blocked = bool(waiting) and len(self.running) >= settings.max_num_seqs
        return chunks

    def known(self, request: Request, past: Any, wanted: int) -> tuple[int, int]:
        """Tokens of a request that need not be computed, and the blocks of the cache that hold them already."""
        found = self.pool.hit(request.path, past, wanted - 1) if self.pool.caching else 0
        return found, found // self.pool.block_tokens

    # decodes

    def _begin_decodes(self, requests: list[Request]) -> list[Request]:
        """Prompts that this step finishes decode from the next one on; those that want one token end with it."""
        ended = []
        for request in requests:
            request.done += 1
            if request.done >= request.output:
                ended.append(request)
                continue
            self.decodes.begin(request)
        return ended

    def _preempt(self) -> None:
        """Decodes take their blocks in order; where none is free the youngest gives up all of its own, until it is the
        one that asked."""
        if self.partial is not None:
            self._send_back(self.partial, self.partial.offset)
            self.partial = None
        held = self.decodes
        decoding = [r for r in self.running if held.has(r)]
        at = 0
        while at < len(decoding):
            request = decoding[at]
            if held.needs_block(request):
                while not self.pool.free:
                    victim = decoding.pop()
                    held.give_up(victim, self.pool)
                    self._send_back(victim, victim.offset + held.count)
                    if victim is request:
                        return
                self.pool.take(1)
            at += 1

    def _send_back(self, request: Request, context: int) -> None:
        del self.running[request]
        self.pool.release(request.holding, context, True)
        request.preempted += 1
        self.preemptions += 1
        self.waiting.appendleft(request)
        self._blocked = False

    # many steps at once

    def _steps_together(self, until_s: float, at_most: int = 0) -> bool:
        """Steps of decodes alone, until the next request comes or ends, or the time of a step bends; no more than
        `at_most`, where that is not 0."""
        if (
            not self.decodes.n
            or self.partial is not None
            or (self.waiting and not self._blocked)
            or len(self._flight) != (1 if self.settings.async_scheduling else 0)
            or (self._flight and (self._flight[0].first or self._flight[0].ended))
            or self.decodes.n > self.surface.most_graph
        ):
            return False
        held = self.decodes
        n, mean = held.n, held.mean
        line = self.surface.decode(n, mean)
        most = min(held.next_end - held.count - 1, int(line.until - mean) + 1)
        most = min(most, at_most) if at_most else most
        if most < 2:
            return False
        prepare_s = self.surface.host(n, n, True).prepare_s
        most = self._most_blocks(most)
        if most < 2:
            return False
        return self._timed(line, prepare_s, most, until_s) > 0

    def _most_blocks(self, most: int) -> int:
        """How many steps the free blocks last for, at least."""
        size, free, n = self.settings.block_size, self.pool.free, self.decodes.n
        if free >= n * (most // size + 1):
            return most
        return min(most, max(0, free // n * size))

    def _timed(self, line: DecodeLine, prepare_s: float, most: int, until_s: float) -> int:
        seconds, slope = line.seconds, line.slope
        begin_s, free_s, asynchronous = self.now_s, self.device_free_s, self.settings.async_scheduling
        if not asynchronous:
            each = seconds + prepare_s
            steps = min(most, steps_until(each, slope, until_s - begin_s))
            took_s = total_s(each, slope, steps)
            self.now_s = self.device_free_s = begin_s + took_s
        elif begin_s + prepare_s <= self.device_free_s and prepare_s <= min(seconds, seconds + slope * most):
            # the device is never idle: the host comes back when the step before the last is done
            steps = min(most, 1 + steps_until(seconds, slope, until_s - self.device_free_s))
            device_s = self.device_free_s
            self.now_s = device_s + total_s(seconds, slope, steps - 1)
            self.device_free_s = device_s + total_s(seconds, slope, steps)
        elif self.device_free_s <= begin_s + prepare_s and max(seconds, seconds + slope * most) <= prepare_s:
            steps = min(most, max(1, ceil((until_s - begin_s) / prepare_s))) if until_s < inf else most
            self.now_s = begin_s + steps * prepare_s
            self.device_free_s = self.now_s + seconds + slope * (steps - 1)
        else:
            return 0
        more_s = self.clock.recovery_s(total_s(seconds, slope, steps), line.by_clock_s * steps)
        self.device_free_s += more_s
        if not asynchronous or begin_s + prepare_s <= self.device_free_s - more_s:
            self.now_s += more_s
        if asynchronous:
            self._flight[0].end_s = self.device_free_s
        self._count_steps(steps, seconds, slope, begin_s, free_s)
        return steps

    def _count_steps(self, steps: int, seconds: float, slope: float, begin_s: float, free_s: float) -> None:
        held = self.decodes
        used = self.pool.total - self.pool.free
        middle = self.surface.decode(held.n, held.mean + (steps - 1) / 2)
        blocks = held.blocks_in(steps)
        self.pool.take(blocks)
        self.peak_blocks = max(self.peak_blocks, used + blocks)
        held.count += steps
        self._seen_s(steps, held.n, held.n)
        self.steps += steps
        self.busy_s += total_s(seconds, slope, steps)
        self.joules += self.surface.times.within_power(middle.joules * steps, self.device_free_s - free_s)
        self.used_block_s += (used + blocks / 2) * (self.now_s - begin_s)
        if self.watch:
            self.watch(self, begin_s, self.now_s, steps, 0)
