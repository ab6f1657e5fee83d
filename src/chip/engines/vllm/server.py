"""vLLM's HTTP server: what `benchmarks/server_terms.py` fitted to a server that really ran."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from chip.engines.server import ServerCost
from chip.engines.vllm.options import LARGE_GPU_BYTES
from chip.files import artifact, codec

FILE = Path(__file__).resolve().parents[2] / "data" / "servers" / "vllm.json"
SCHEMA = "chip.server/1"
STEP_TOKENS_LARGE, STEP_TOKENS_SMALL = 8192, 2048
MERGES_UP_TO = 128  # VLLM_V1_OUTPUT_PROC_CHUNK_SIZE: the loop passes on so many before it takes more in


def settings(memory_bytes: float) -> Mapping[str, int]:
    """What its defaults are that differ from those of `LLM`, on a GPU of this size."""
    return {"max_num_batched_tokens": STEP_TOKENS_LARGE if memory_bytes >= LARGE_GPU_BYTES else STEP_TOKENS_SMALL}


@cache
def cost() -> ServerCost:
    return codec.from_json(ServerCost, artifact.read(FILE, SCHEMA).data, str(FILE))
