"""What the engine may be told about its scheduler: vLLM's own names, and vLLM 0.26's own defaults."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from chip.records import dataclass, fields, replace
from chip.simulate.step_time import BLOCK_TOKENS, default_limits
from chip.suggest import get_close_matches
from chip.types import ChipError


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Scheduler and cache settings of one engine. `num_gpu_blocks` and `max_model_len` are 0 for what the GPU's memory
    and the model allow."""

    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int = BLOCK_TOKENS
    num_gpu_blocks: int = 0
    max_model_len: int = 0
    enable_prefix_caching: bool = True
    async_scheduling: bool = True
    scheduler_reserve_full_isl: bool = True  # admit a request only when its whole prompt fits into free blocks
    watermark: float = 0.0  # share of the blocks that admission keeps free


LIMITS = {  # of whole numbers
    "max_num_seqs": (1, 16384),
    "max_num_batched_tokens": (1, 1 << 20),
    "block_size": (1, 1 << 16),
    "num_gpu_blocks": (0, 1 << 40),
    "max_model_len": (0, 1 << 40),
}


def defaults(memory_bytes: float) -> EngineSettings:
    """Of the offline `LLM` class on a GPU of this size."""
    return EngineSettings(*default_limits(memory_bytes))


def parse(words: Iterable[str]) -> dict[str, Any]:
    """`key=value` words, several in one word with commas, as --engine-setting takes them."""
    found: dict[str, Any] = {}
    for word in (part for words_ in words for part in words_.split(",") if part):
        key, equals, text = word.partition("=")
        if not key or not equals:
            raise ChipError(f"--engine-setting {word!r}: must be key=value")
        try:
            found[key] = json.loads(text.lower() if text in ("True", "False") else text)
        except ValueError:
            raise ChipError(f"--engine-setting {key}: {text[:40]!r} is neither a number nor true or false") from None
    return found


def with_values(base: EngineSettings, given: Mapping[str, Any]) -> EngineSettings:
    kinds = {f.name: type(getattr(base, f.name)) for f in fields(base)}
    for key, value in given.items():
        if key not in kinds:
            near = get_close_matches(str(key), kinds, 1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(kinds)}"
            raise ChipError(f"engine setting {str(key)[:40]!r} is not simulated; {hint}")
        wanted = (int, float) if kinds[key] is float else (kinds[key],)
        if type(value) not in wanted:
            raise ChipError(f"engine setting {key}: must be {_named(kinds[key])}, got {str(value)[:40]!r}")
        if key in LIMITS and not LIMITS[key][0] <= value <= LIMITS[key][1]:
            least, most = LIMITS[key]
            raise ChipError(f"engine setting {key}: must be between {least} and {most}, got {value!r:.40}")
    made = replace(base, **given)
    if not 0 <= made.watermark < 1:
        raise ChipError(f"engine setting watermark: must be at least 0 and below 1, got {made.watermark:g}")
    if made.max_num_batched_tokens < made.max_num_seqs:
        raise ChipError(
            f"max_num_batched_tokens ({made.max_num_batched_tokens}) must be at least max_num_seqs "
            f"({made.max_num_seqs}): vLLM refuses this too"
        )
    return made


def _named(kind: type) -> str:
    return {bool: "true or false", int: "a whole number", float: "a number"}[kind]
