"""Memory of one GPU under an engine: what a model asks for, and what the engine uses."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from chip.decoders.decoder import Decoder
from chip.dtypes import Precision
from chip.types import Scenario

Pool = Callable[[int, float], int]


class Room(NamedTuple):
    """What an engine takes of one GPU beside weights and cache, and how large its cache and its steps are."""

    share: float  # of the card that it may use
    context_bytes: float  # driver, framework and kernels beside the tensors
    cache_tokens: int  # in the cache of one sequence
    step_tokens: int  # in the largest step
    sequences: int  # that run at once
    workspace_bytes: float = 0.0  # of cuBLAS
    longest: int = 0  # context that it was told to allow; 0 for the model's
    at_once: int = 0  # requests that the engine runs at most; 0 for as many as there are


class Load(NamedTuple):
    """A model and its requests on one GPU."""

    decoder: Decoder
    precision: Precision
    scenario: Scenario
    weight_bytes: float
    token_bytes: float  # of the cache, for a token that all layers keep
    capacity_bytes: float  # of the GPU


class Memory(NamedTuple):
    """What an engine uses of a GPU, beside the weights."""

    usable_bytes: float
    kv_bytes_per_token: float
    kv_bytes: float
    activation_bytes: float
    context_bytes: float
    max_batch: int  # requests of such lengths that fit
    max_model_len: int = 0
    kv_capacity_tokens: int | None = None  # of a pool that is taken at the start; None where there is none


def sequence_bytes(load: Load, tokens: int) -> float:
    """Of a request's cache: keys and values of so many tokens, and states, whose size no length changes."""
    d, p, tp = load.decoder, load.precision, load.scenario.tp
    return d.kv_bytes(tokens, p, tp=tp) + state_bytes(d, p, tp)


@lru_cache(maxsize=256)
def state_bytes(d: Decoder, p: Precision, tp: int) -> float:
    """Of one sequence on each GPU, whatever its length."""
    return d.state_bytes(p, tp)


def used(load: Load, room: Room, peak_bytes: float, copies: float, pool: Pool | None) -> Memory:
    """`peak_bytes`: the most that a step holds. `copies`: how often the cache holds each key. `pool`: the tokens of a
    pool that takes all memory which weights and steps leave, from the longest context and the bytes of the pool; None
    where the cache is allocated as requests need it."""
    kv_sequence, usable = sequence_bytes(load, room.cache_tokens) * copies, load.capacity_bytes * room.share
    free = usable - load.weight_bytes - room.context_bytes - room.workspace_bytes
    most = (free - peak_bytes) // kv_sequence if pool else free // (kv_sequence + peak_bytes / load.scenario.batch)
    longest = (room.longest or load.decoder.max_context) if pool else 0
    return Memory(
        usable, kv_sequence / room.cache_tokens, room.sequences * kv_sequence, peak_bytes + room.workspace_bytes,
        room.context_bytes, max(0, min(int(most), room.at_once or int(most))), longest,
        pool(longest, free - peak_bytes) if pool else None,
    )  # fmt: skip
