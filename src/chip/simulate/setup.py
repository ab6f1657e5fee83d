"""An engine ready to be made: the question, the settings with all defaults filled in, the time of its steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from chip.models import library
from chip.records import dataclass
from chip.simulate import settings
from chip.simulate.engine import SimulatedEngine
from chip.simulate.fleet import EveryFinish, ServedRequests, serve
from chip.simulate.occupancy import Occupancy
from chip.simulate.pipelined import PipelinedEngine
from chip.simulate.server import NONE, ServerCost
from chip.simulate.settings import EngineSettings
from chip.simulate.step_time import step_times
from chip.simulate.surface import PLAIN, Factors, Surface
from chip.simulate.workload import Workload
from chip.types import ChipError

DEFAULTS: dict[str, Any] = {
    "gpu": "h200", "engine": "vllm", "dtype": "bf16", "tp": 1, "pp": 1, "ep": 1, "requests": 1000, "seed": 0,
    "replicas": 1, "router": "round-robin", "draws": 20,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Question:
    """What is simulated, but for the traffic."""

    model: str
    gpu: str = DEFAULTS["gpu"]
    engine: str = DEFAULTS["engine"]
    dtype: str = DEFAULTS["dtype"]
    tp: int = DEFAULTS["tp"]
    settings: tuple[tuple[str, Any], ...] = ()
    replicas: int = DEFAULTS["replicas"]
    router: str = DEFAULTS["router"]
    launch_ns: float = 0.0  # of the host; 0 for the host that the engine's terms were measured on
    pp: int = DEFAULTS["pp"]
    ep: int = DEFAULTS["ep"]
    host: str = ""  # by name or file, instead of the reference host
    server: ServerCost = NONE

    @property
    def lockstep(self) -> int:
        """Replicas of the attention that share one set of experts."""
        return max(1, self.ep // self.tp)

    @property
    def gpus(self) -> int:
        """Of one replica."""
        return self.tp * self.pp * self.lockstep


@lru_cache(maxsize=64)
def surface_of(
    model: str, gpu: str, engine: str, dtype: str, tp: int, launch_ns: float = 0.0, pp: int = 1, ep: int = 1,
    host: str = "",
) -> Surface:  # fmt: skip
    """One for each predictor: what was asked of it once is known to all simulations that follow."""
    return Surface(step_times(library.find(model), gpu, engine, dtype, tp, launch_ns, pp, ep, host))


@dataclass(frozen=True, slots=True)
class Setup:
    """An engine ready to be made: its settings with all defaults filled in."""

    surface: Surface
    settings: EngineSettings
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


def setup(q: Question, factors: Factors = PLAIN) -> Setup:
    known = surface_of(q.model, q.gpu, q.engine, q.dtype, q.tp, q.launch_ns, q.pp, q.ep, q.host)
    if q.pp > 1 and q.lockstep > 1:
        raise ChipError(f"--pp {q.pp} with --ep {q.ep} above --tp {q.tp} is not simulated; `chip predict` answers it")
    surface = known if factors == PLAIN else Surface(known.times, factors, known)
    times = known.times
    given = settings.with_values(settings.defaults(times.memory_bytes), dict(q.settings))
    blocks = given.num_gpu_blocks or times.kv_capacity_tokens // given.block_size
    blocks -= 1  # vLLM keeps one block that means "nothing"
    if blocks < 1:
        raise ChipError(f"{q.model} on {q.gpus} x {q.gpu}: no room for a single KV block of {given.block_size} tokens")
    notes = list(times.notes)
    room = blocks * given.block_size
    longest = given.max_model_len or times.max_context or room
    if longest > room:
        if given.max_model_len:
            raise ChipError(f"max_model_len {longest} exceeds the KV cache of {room} tokens: vLLM refuses to start")
        notes.append(
            f"the model's context of {longest} tokens exceeds the KV cache of {room}: vLLM would not start without "
            f"max_model_len; {room} is taken"
        )
        longest = room
    if q.server != NONE:
        notes.append("what the server adds is as given: nobody measured it for CHIP")
    if not known.times.host(1, 1, True, True).prepare_s:
        notes.append(f"no host or engine terms are known for {q.engine} on {q.gpu}: steps are the device's time alone")
    return Setup(surface, given, blocks, longest, tuple(notes), q.pp, q.server.token_s)


def run(made: Setup, q: Question, w: Workload, every_finish: EveryFinish | None = None) -> ServedRequests:
    return serve(made.maker(), w, made.longest, q.replicas, q.router, every_finish, q.lockstep, q.server.request_s)
