"""HF transformers with torch.compile: prefill as it comes, decode compiled (reduce-overhead) over a StaticCache."""

from __future__ import annotations

import time
from typing import Any

from chip.engines.hf_graph import cache_tokens
from chip.lab.run import Job, Session
from chip.types import Scenario

NAME = "hf-compile"
TITLE = "HF transformers, StaticCache, decode step by torch.compile (reduce-overhead)"
OWN_PROCESS = False
DEFAULTS = {"backend": "inductor", "mode": "reduce-overhead"}
WARM_CALLS = 6  # compile, once more where a sliding window counts in Python, record, replay; any cache has room for it


def open(job: Job) -> Session:
    from chip.lab.run.model import libraries

    torch, _ = libraries()
    from chip.lab.run.session import HfSession, refuse_settings
    from chip.lab.run.steps import Static

    refuse_settings(job, tuple(DEFAULTS))
    chosen = {**DEFAULTS, **job.settings}
    if chosen["backend"] != "inductor":
        chosen.pop("mode")  # a mode of inductor's

    def make(model: Any, ids: Any, scenario: Scenario, feed: bool, setup: dict[str, float]) -> Static:
        static = Static(model, ids, cache_tokens(scenario), feed)
        began = time.perf_counter()
        torch._dynamo.reset()
        torch._dynamo.config.fail_on_recompile_limit_hit = True  # instead of going on eagerly in silence
        compiled = torch.compile(model.forward, **chosen)

        def decoder(*args: Any, **kwargs: Any) -> Any:
            torch.compiler.cudagraph_mark_step_begin()
            return compiled(*args, **kwargs)

        static.rewind()
        static.prefill()
        static.decoder = decoder
        for _ in range(WARM_CALLS):
            static.decode()
        if ids.is_cuda:
            torch.cuda.synchronize()
        setup["compile"] = time.perf_counter() - began
        return static

    return HfSession(NAME, job, make, grad=torch.no_grad)
