"""HF transformers over a StaticCache of prompt + max(output, 64), each step replayed as one CUDA graph."""

from __future__ import annotations

import time
from typing import Any, NoReturn

from chip.engines.hf_graph import cache_tokens
from chip.run import Job, Session
from chip.types import ChipError, Scenario

NAME = "hf-graph"
TITLE = "HF transformers, StaticCache of prompt + max(output, 64), one CUDA graph a step"
NO_GRAPH = "a CPU has no graphs: the same steps over the static cache, launched one by one"


def open(job: Job) -> Session:
    from chip.run.model import libraries

    libraries()
    from chip.run.session import HfSession, refuse_settings
    from chip.run.steps import Graph, Static, Steps

    on_gpu = job.device != "cpu"

    def make(model: Any, ids: Any, scenario: Scenario, feed: bool, setup: dict[str, float]) -> Steps:
        static = static_steps(model, ids, scenario, feed)
        if not on_gpu:
            return static
        began = time.perf_counter()
        try:
            graph = Graph(static, scenario.output)
        except (RuntimeError, NotImplementedError) as e:
            _explain(e, type(model).__name__, "captured as a CUDA graph")
        setup["capture"] = time.perf_counter() - began
        return graph

    def static_steps(model: Any, ids: Any, scenario: Scenario, feed: bool) -> Static:
        static = Static(model, ids, cache_tokens(scenario), feed)
        try:
            static.prefill()
        except (RuntimeError, ValueError, TypeError) as e:
            _explain(e, type(model).__name__, "run over a StaticCache")
        return static

    refuse_settings(job)
    return HfSession(NAME, job, make, () if on_gpu else (NO_GRAPH,))


def _explain(e: Exception, family: str, what: str) -> NoReturn:
    import torch

    from chip.run.model import brief, no_kernel

    if isinstance(e, torch.OutOfMemoryError) or no_kernel(e):
        raise e
    raise ChipError(f"{family} cannot be {what} ({brief(e)}); use --engine hf-eager") from None
