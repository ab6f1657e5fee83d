"""HF transformers over a StaticCache of prompt + max(output, 64), each step replayed as one CUDA graph."""

from __future__ import annotations

import time
from typing import Any, NoReturn

from chip.engines.hf_graph import cache_tokens
from chip.lab.run import Job, Session
from chip.types import ChipError, Scenario

NAME = "hf-graph"
TITLE = "HF transformers, StaticCache of prompt + max(output, 64), one CUDA graph a step"
OWN_PROCESS = False
NO_GRAPH = "a CPU has no graphs: the same steps over the static cache, launched one by one"


def open(job: Job) -> Session:
    from chip.lab.run.model import libraries

    libraries()
    from chip.lab.run.session import HfSession, refuse_settings
    from chip.lab.run.steps import Graph, Static, Steps

    on_gpu = job.device != "cpu"

    def make(model: Any, ids: Any, scenario: Scenario, feed: bool, setup: dict[str, float]) -> Steps:
        static = static_steps(model, ids, scenario, feed)
        if not on_gpu:
            return static
        began = time.perf_counter()
        try:
            graph = Graph(static, scenario.output)
        except (RuntimeError, NotImplementedError) as e:
            _explain(e, model, "captured as a CUDA graph", job.dtype)
        setup["capture"] = time.perf_counter() - began
        return graph

    def static_steps(model: Any, ids: Any, scenario: Scenario, feed: bool) -> Static:
        static = Static(model, ids, cache_tokens(scenario), feed)
        try:
            static.prefill()
        except (RuntimeError, ValueError, TypeError) as e:
            _explain(e, model, "run over a StaticCache", job.dtype)
        return static

    refuse_settings(job)
    return HfSession(NAME, job, make, () if on_gpu else (NO_GRAPH,))


def recordable(job: Job, phase: str, batch: int, prompt: int, no_cache: bool) -> Any:
    from chip.lab.run.recording import of_hf

    return of_hf(job, True, phase, batch, prompt, no_cache)


def _explain(e: Exception, model: Any, what: str, dtype: str) -> NoReturn:
    import torch

    from chip.lab.measure.device import reason_of
    from chip.lab.run.model import no_kernel

    if isinstance(e.__context__, RuntimeError):  # what went wrong in a capture, not the error of ending it
        e = e.__context__
    if isinstance(e, torch.OutOfMemoryError) or no_kernel(e):
        raise e
    # torch's grouped product of experts has a kernel of its own for bf16; else it reads its offsets on the host
    grouped = getattr(model.config, "_experts_implementation", None) == "grouped_mm"
    remedy = "--dtype bf16 or --engine hf-eager" if grouped and dtype != "bf16" else "--engine hf-eager"
    raise ChipError(f"{type(model).__name__} cannot be {what} ({reason_of(e)}); use {remedy}") from None
