"""An engine ready to be made: the question, the settings with all defaults filled in, the time of its steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from chip.models import library
from chip.simulate import settings
from chip.simulate.engine import SimulatedEngine
from chip.simulate.fleet import EveryFinish, ServedRequests, serve
from chip.simulate.occupancy import Occupancy
from chip.simulate.settings import EngineSettings
from chip.simulate.step_time import step_times
from chip.simulate.surface import PLAIN, Factors, Surface
from chip.simulate.workload import Workload
from chip.types import ChipError

DEFAULTS: dict[str, Any] = {
    "gpu": "h200", "engine": "vllm", "dtype": "bf16", "tp": 1, "requests": 1000, "seed": 0, "replicas": 1,
    "router": "round-robin", "draws": 20,
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


@lru_cache(maxsize=64)
def surface_of(model: str, gpu: str, engine: str, dtype: str, tp: int, launch_ns: float = 0.0) -> Surface:
    """One for each predictor: what was asked of it once is known to all simulations that follow."""
    return Surface(step_times(library.find(model), gpu, engine, dtype, tp, launch_ns))


@dataclass(frozen=True, slots=True)
class Setup:
    """An engine ready to be made: its settings with all defaults filled in."""

    surface: Surface
    settings: EngineSettings
    blocks: int
    longest: int
    notes: tuple[str, ...]

    def maker(self, watches: Sequence[Occupancy] = (), merge: bool = True) -> Callable[[int], SimulatedEngine]:
        return lambda i: SimulatedEngine(
            self.surface, self.settings, self.blocks, watches[i] if watches else None, merge
        )


def setup(q: Question, factors: Factors = PLAIN) -> Setup:
    known = surface_of(q.model, q.gpu, q.engine, q.dtype, q.tp, q.launch_ns)
    surface = known if factors == PLAIN else Surface(known.times, factors, known)
    times = known.times
    given = settings.with_values(settings.defaults(times.memory_bytes), dict(q.settings))
    blocks = given.num_gpu_blocks or times.kv_capacity_tokens // given.block_size
    blocks -= 1  # vLLM keeps one block that means "nothing"
    if blocks < 1:
        raise ChipError(f"{q.model} on {q.tp} x {q.gpu}: no room for a single KV block of {given.block_size} tokens")
    notes = []
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
    if not known.times.host(1, 1, True, True).prepare_s:
        notes.append(f"no host or engine terms are known for {q.engine} on {q.gpu}: steps are the device's time alone")
    return Setup(surface, given, blocks, longest, tuple(notes))


def run(made: Setup, q: Question, w: Workload, every_finish: EveryFinish | None = None) -> ServedRequests:
    return serve(made.maker(), w, made.longest, q.replicas, q.router, every_finish)
