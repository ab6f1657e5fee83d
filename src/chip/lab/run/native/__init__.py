"""`native`: our own engine for Llama-family decoders. Read it in this order:

spec       what config.json says of the model
weights    its tensors, merged as they are multiplied, from safetensors or random
pages      the KV cache in pages, and who holds which
requests   a request, its sampling and its state
scheduler  which tokens of which requests the next step computes
batch      one step's inputs as tensors
launches   who computes each launch: PyTorch, Triton or all of our kernels
decoder    the model: one function from a batch to logits
sampler    from logits to tokens
graphs     a decode step replayed as a CUDA graph
engine     requests in, tokens out
session    how `chip bench` and `chip capture` run it
"""

from __future__ import annotations

from typing import Any

from chip.lab.run import Job, Session
from chip.types import ChipError

NAME = "native"
TITLE = "our own engine: paged KV cache, continuous batching, CUDA-graph decode"
OWN_PROCESS = False


def open(job: Job) -> Session:
    from chip.lab.run.native.session import NativeSession

    return NativeSession(NAME, job)


def recordable(job: Job, phase: str, batch: int, prompt: int, no_cache: bool) -> Any:
    from chip.lab.run.native.session import recordable

    if no_cache:
        raise ChipError("--no-cache: native always writes its cache; leave it out")
    return recordable(job, phase, batch, prompt)
