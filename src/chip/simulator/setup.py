"""An engine ready to be made: the question, the settings with all defaults filled in, the time of its steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from chip import engines
from chip.engines.server import NONE, ServerCost
from chip.engines.timeline import LiveScheduler
from chip.predictor import request
from chip.question import Question
from chip.simulator.engine import SimulatedEngine
from chip.simulator.fleet import EveryFinish, ServedRequests, serve
from chip.simulator.machine import machine_of
from chip.simulator.occupancy import Occupancy
from chip.simulator.pipelined import PipelinedEngine
from chip.simulator.step_time import step_times
from chip.simulator.surface import PLAIN, Factors, Surface
from chip.simulator.workload import Workload
from chip.types import ChipError

LINK = "ib"  # between workers for prompts and workers for decodes
REQUESTS, SEED, DRAWS = 1000, 0, 20  # of synthetic traffic, and simulations for intervals


@dataclass(frozen=True, slots=True)
class Fleet:
    """What traffic comes to: replicas of what a question describes, a router and perhaps a server before them."""

    question: Question  # without `auto`
    replicas: int = 1
    router: str = "round-robin"
    server: ServerCost = NONE
    before: Fleet | None = None  # that computes the prompts, where these engines only decode
    link: str = LINK  # over which keys and values come from there

    @property
    def lockstep(self) -> int:
        """Replicas of the attention that share one set of experts."""
        return self.question.replicas

    @property
    def gpus(self) -> int:
        return self.question.gpus * self.replicas + (self.before.gpus if self.before else 0)


def behind_server(fleet: Fleet) -> Fleet:
    """The same with the engine's own HTTP server before each replica, in the server's defaults."""
    q = fleet.question
    e, of_server = engines.get(q.engine), engines.get(q.engine).server()
    if of_server is None:
        raise ChipError(
            f"--server: nobody measured a server of {q.engine}; give --server-request-ms, --server-token-us"
        )
    defaults = e.server_settings(request.room(q, q.scenario(1, 1, 1))["capacity_bytes"])
    settings = {**defaults, **dict(q.engine_settings)}
    return replace(fleet, question=replace(q, engine_settings=tuple(sorted(settings.items()))), server=of_server)


@lru_cache(maxsize=64)
def surface_of(q: Question, server: ServerCost = NONE) -> Surface:
    """One for each predictor: what was asked of it once is known to all simulations that follow."""
    return Surface(step_times(q, server))


@dataclass(frozen=True, slots=True)
class Setup:
    """An engine ready to be made: its settings with all defaults filled in."""

    surface: Surface
    settings: LiveScheduler
    options: Any  # of the engine, by its own names
    blocks: int
    longest: int
    notes: tuple[str, ...]
    pp: int = 1
    server: ServerCost = NONE  # on this host
    host: str = ""  # its name or file

    def maker(self, watches: Sequence[Occupancy] = (), merge: bool = True) -> Callable[[int], SimulatedEngine]:
        about = (self.surface, self.settings, self.blocks)

        def make(i: int) -> SimulatedEngine:
            watch = watches[i] if watches else None
            if self.pp > 1:
                return PipelinedEngine(*about, self.pp, watch, self.server)
            return SimulatedEngine(*about, watch, merge, self.server)

        return make


def setup(fleet: Fleet, factors: Factors = PLAIN) -> Setup:
    q = fleet.question
    if q.pp > 1 and q.replicas > 1:
        raise ChipError(f"--pp {q.pp} with --ep {q.ep} above --tp {q.tp} is not simulated; `chip predict` answers it")
    e = engines.get(q.engine)
    room_bytes = request.room(q, q.scenario(1, 1, 1))
    options = e.options(q.engine_settings, room_bytes["capacity_bytes"])
    settings = e.scheduler(options)
    if settings is None:
        raise ChipError(f"engine {q.engine[:40]!r} cannot be simulated: it has no scheduler of live traffic")
    of_steps = tuple((name, value) for name, value in q.engine_settings if name in e.OF_STEPS)
    known = surface_of(replace(q, engine_settings=of_steps), fleet.server)
    machine = machine_of(q.host)
    factors = factors.times(machine.factors)
    surface = known if factors == PLAIN else Surface(known.times, factors, known)
    times = known.times
    capacity, longest = room_bytes["kv_capacity_tokens"], room_bytes["max_model_len"]
    operators = times.steps.operators
    settings, blocks = e.paged(operators.decoder, operators.precision, q.tp, settings, capacity, longest, options)
    blocks -= settings.reserved_blocks
    if blocks < 1:
        raise ChipError(
            f"{q.model.name} does not fit {q.gpus} x {q.gpu}: weights take {room_bytes['weights_bytes'] / 2**30:.1f} "
            f"GiB of the {room_bytes['usable_bytes'] / 2**30:.1f} that the engine uses of a GPU; no room is left for a "
            "KV cache; take a larger GPU, more --tp or --pp, or a smaller --dtype"
        )
    notes = list(times.notes)
    room = (blocks - settings.state_blocks) * settings.block_size
    longest = settings.max_model_len or times.max_context or room
    if longest > room:
        if settings.max_model_len:
            raise ChipError(
                f"max_model_len {longest} exceeds the KV cache of {room} tokens: {q.engine} refuses to start"
            )
        notes.append(f"{e.over_capacity(longest, room)}; {room} is taken")
        longest = room
    if fleet.server.host_step_s:
        notes.append(f"behind {q.engine}'s HTTP server, whose terms were fitted to one model on one host")
    elif fleet.server != NONE:
        notes.append("what the server adds is as given: nobody measured it for CHIP")
    if machine.spreads:
        of = machine.factors
        notes.append(
            f"steps as fitted to this machine: {of.decode:.3f} of those predicted, with prompts {of.mixed:.3f}"
        )
    if not known.times.host(1, 1, True, True).prepare_s:
        notes.append(f"no host or engine terms are known for {q.engine} on {q.gpu}: steps are the device's time alone")
    return Setup(
        surface,
        settings,
        options,
        blocks,
        longest,
        tuple(notes),
        q.pp,
        machine.behind(fleet.server.on_host(times.host_step_s)),
        q.host,
    )


def run(made: Setup, fleet: Fleet, w: Workload, every_finish: EveryFinish | None = None) -> ServedRequests:
    if fleet.before:
        from chip.simulator.disaggregated import serve_disaggregated

        return serve_disaggregated(made, fleet, w)
    return serve(made.maker(), w, made.longest, fleet.replicas, fleet.router, every_finish, fleet.lockstep)
