"""An engine ready to be made: the question, the settings with all defaults filled in, the time of its steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from chip import engines
from chip.engines.vllm.options import VllmOptions
from chip.predict import request
from chip.predict.notes import over_capacity
from chip.question import Question
from chip.records import dataclass, replace
from chip.simulate.engine import SimulatedEngine
from chip.simulate.fleet import EveryFinish, ServedRequests, serve
from chip.simulate.occupancy import Occupancy
from chip.simulate.pipelined import PipelinedEngine
from chip.simulate.server import NONE, ServerCost
from chip.simulate.step_time import step_times
from chip.simulate.surface import PLAIN, Factors, Surface
from chip.simulate.workload import Workload
from chip.types import ChipError

REQUESTS, SEED, DRAWS = 1000, 0, 20  # of synthetic traffic, and simulations for intervals


@dataclass(frozen=True, slots=True)
class Fleet:
    """What traffic comes to: replicas of what a question describes, a router and perhaps a server before them."""

    question: Question  # without `auto`
    replicas: int = 1
    router: str = "round-robin"
    server: ServerCost = NONE

    @property
    def lockstep(self) -> int:
        """Replicas of the attention that share one set of experts."""
        return self.question.replicas

    @property
    def gpus(self) -> int:
        return self.question.gpus * self.replicas


@lru_cache(maxsize=64)
def surface_of(q: Question) -> Surface:
    """One for each predictor: what was asked of it once is known to all simulations that follow."""
    return Surface(step_times(q))


@dataclass(frozen=True, slots=True)
class Setup:
    """An engine ready to be made: its settings with all defaults filled in."""

    surface: Surface
    settings: VllmOptions
    blocks: int
    longest: int
    notes: tuple[str, ...]
    pp: int = 1
    token_s: float = 0.0  # of the server

    def maker(self, watches: Sequence[Occupancy] = (), merge: bool = True) -> Callable[[int], SimulatedEngine]:
        about = (self.surface, self.settings, self.blocks)

        def make(i: int) -> SimulatedEngine:
            watch = watches[i] if watches else None
            if self.pp > 1:
                return PipelinedEngine(*about, self.pp, watch, self.token_s)
            return SimulatedEngine(*about, watch, merge, self.token_s)

        return make


def setup(fleet: Fleet, factors: Factors = PLAIN) -> Setup:
    q = fleet.question
    if q.pp > 1 and q.replicas > 1:
        raise ChipError(f"--pp {q.pp} with --ep {q.ep} above --tp {q.tp} is not simulated; `chip predict` answers it")
    known = surface_of(replace(q, engine_settings=()))
    surface = known if factors == PLAIN else Surface(known.times, factors, known)
    times = known.times
    room_bytes = request.room(q, q.scenario(1, 1, 1))
    options: VllmOptions = engines.get(q.engine).options(q.engine_settings, room_bytes["capacity_bytes"])
    blocks = room_bytes["kv_capacity_tokens"] // options.block_size
    blocks -= 1  # vLLM keeps one block that means "nothing"
    if blocks < 1:
        raise ChipError(
            f"{q.model.name} does not fit {q.gpus} x {q.gpu}: weights take {room_bytes['weights_bytes'] / 2**30:.1f} "
            f"GiB of the {room_bytes['usable_bytes'] / 2**30:.1f} that the engine uses of a GPU; no room is left for a "
            "KV cache; take a larger GPU, more --tp or --pp, or a smaller --dtype"
        )
    notes = list(times.notes)
    room = blocks * options.block_size
    longest = options.max_model_len or times.max_context or room
    if longest > room:
        if options.max_model_len:
            raise ChipError(f"max_model_len {longest} exceeds the KV cache of {room} tokens: vLLM refuses to start")
        notes.append(f"{over_capacity(longest, room)}; {room} is taken")
        longest = room
    if fleet.server != NONE:
        notes.append("what the server adds is as given: nobody measured it for CHIP")
    if not known.times.host(1, 1, True, True).prepare_s:
        notes.append(f"no host or engine terms are known for {q.engine} on {q.gpu}: steps are the device's time alone")
    return Setup(surface, options, blocks, longest, tuple(notes), q.pp, fleet.server.token_s)


def run(made: Setup, fleet: Fleet, w: Workload, every_finish: EveryFinish | None = None) -> ServedRequests:
    return serve(
        made.maker(), w, made.longest, fleet.replicas, fleet.router, every_finish, fleet.lockstep,
        fleet.server.request_s,
    )  # fmt: skip
