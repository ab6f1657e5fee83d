"""How `chip bench` and `chip capture` run the engine: requests of one size, all submitted at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from chip import __version__
from chip.lab.run import Job
from chip.lab.run.native.batch import build
from chip.lab.run.native.engine import NativeEngine, NativeSettings, default_kernels
from chip.lab.run.native.graphs import length_for
from chip.lab.run.native.requests import NativeRequest, SamplingParams, State
from chip.lab.run.native.scheduler import StepShare
from chip.lab.run.recording import Recordable
from chip.lab.run.session import SEED, HfSession, refuse_settings
from chip.lab.run.steps import LEAST_STEPS
from chip.types import ChipError, Scenario

KNOWN = ("kernels", "graphs", "overlap", "page_tokens", "step_tokens")


def settings_of(job: Job) -> NativeSettings:
    """--engine-setting kernels=..., graphs=on|off, overlap=on|off, page_tokens=N, step_tokens=N."""
    refuse_settings(job, KNOWN)
    default, settings = NativeSettings(), job.settings
    return NativeSettings(
        kernels=settings.get("kernels", default_kernels(torch.device(job.device).type)),
        dtype=job.dtype,
        device=job.device,
        max_context=job.max_context + LEAST_STEPS,
        page_tokens=_whole(settings, "page_tokens", default.page_tokens),
        max_step_tokens=_whole(settings, "step_tokens", default.max_step_tokens),
        graphs=_switch(settings, "graphs"),
        overlap=_switch(settings, "overlap"),
    )


def _switch(settings: Any, name: str) -> bool:
    word = settings.get(name, "on")
    if word not in ("on", "off"):
        raise ChipError(f"--engine-setting {name}={word}: must be on or off")
    return bool(word == "on")


def _whole(settings: Any, name: str, default: int) -> int:
    word = settings.get(name, str(default))
    if not word.isdecimal() or not 1 <= int(word) <= 2**20:
        raise ChipError(f"--engine-setting {name}={word}: must be a whole number between 1 and 2^20")
    return int(word)


class NativeSteps:
    """Steps as the clock wants them: `prefill` until every request has its first token, `decode` one more for each."""

    def __init__(self, engine: NativeEngine, prompts: list[list[int]], output: int) -> None:
        self.engine, self.prompts = engine, prompts
        room = engine.scheduler.max_context - len(prompts[0])
        self.sampling = SamplingParams(max_tokens=min(room, max(output, 1 + LEAST_STEPS)), ignore_eos=True)
        self.requests: list[NativeRequest] = []
        self.told = 0

    def rewind(self) -> None:
        for request in self.requests:
            if request.state is not State.FINISHED:
                self.engine.scheduler.finish(request)
        self.requests, self.told = [], 0

    def prefill(self) -> torch.Tensor:
        self.requests = [NativeRequest(f"row {i}", tuple(p), self.sampling) for i, p in enumerate(self.prompts)]
        for request in self.requests:
            self.engine.add(request)
        return self._next()

    def decode(self) -> torch.Tensor:
        return self._next()

    def _next(self) -> torch.Tensor:
        """The next token of each; one whose prompt was computed before the others' may have more already."""
        self.told += 1
        while any(len(r.output) < self.told for r in self.requests):
            self.engine.step()
        return torch.tensor([[r.output[self.told - 1]] for r in self.requests])


class NativeSession(HfSession):
    """The session of HF's engines with our model and steps in it: clock, energy and profiler are the same."""

    def __init__(self, name: str, job: Job) -> None:
        if job.sdpa:
            raise ChipError("--sdpa chooses the attention of the HF engines; native has --engine-setting kernels=torch")
        self.chosen = settings_of(job)
        super().__init__(name, job, self._steps)

    def _steps(
        self, engine: NativeEngine, ids: torch.Tensor, s: Scenario, feed: bool, setup: dict[str, float]
    ) -> NativeSteps:
        steps = NativeSteps(engine, ids.tolist(), s.output)
        if engine.graphs:
            began = time.perf_counter()
            with torch.inference_mode():
                engine.graphs.ready(s.batch)
                if s.batch == 1:  # a prompt alone may be a graph too
                    steps.prefill()
                    steps.rewind()
            setup["capture"] = time.perf_counter() - began
        return steps

    def _load(self) -> NativeEngine:
        return NativeEngine(self.job.config, self.job.model, self.chosen, self.job.folder)

    def _attention(self) -> str:
        return str(self.model.launches.by["decode_attention"].by)

    def _refuse(self, s: Scenario) -> None:
        positions = self.model.spec.positions
        if s.prompt + s.output > positions:
            raise ChipError(
                f"prompt + output is {s.prompt + s.output} tokens and the model has {positions} positions; shorten them"
            )

    def _vocabulary(self) -> int:
        return int(self.model.spec.vocab)

    def _version(self) -> str:
        return f"chip {__version__}, torch {torch.__version__}"

    def _settings(self) -> dict[str, Any]:
        by = {row["launch"]: row["by"] for row in self.model.launches.rows()}
        return {"kernels": self.chosen.kernels, "launches": by, **self.job.settings}


@contextmanager
def recordable(job: Job, phase: str, batch: int, prompt: int) -> Iterator[Recordable]:
    with torch.inference_mode():
        yield _recordable(job, phase, batch, prompt)


def _recordable(job: Job, phase: str, batch: int, prompt: int) -> Recordable:
    chosen = settings_of(Job(job.model, job.config, job.folder, job.dtype, job.device, prompt + 1))
    engine = NativeEngine(job.config, job.model, chosen, job.folder)
    draw = torch.Generator().manual_seed(SEED)
    ids = torch.randint(0, engine.spec.vocab, (batch, prompt + 1), generator=draw).tolist()
    if prompt + (phase == "decode") > engine.spec.positions:
        raise ChipError(f"--prompt {prompt}: the model has {engine.spec.positions} positions; shorten it")
    past = prompt if phase == "decode" else 0
    shares = []
    for i, row in enumerate(ids):
        request = NativeRequest(f"row {i}", tuple(row if past else row[:prompt]), SamplingParams(1))
        if not engine.allocator.grow(request.table, prompt + 1):
            raise ChipError(f"--batch {batch}: the KV cache has no room for it; choose a smaller batch or prompt")
        request.computed = past
        shares.append(StepShare(request, 1 if past else prompt))
    alone = engine.prompts is not None and engine.prompts.takes(shares)
    inputs = build(shares, chosen.page_tokens, engine.device, length_for(prompt) if alone else 0)
    graph = alone or (bool(past) and engine.graphs is not None)
    return Recordable(lambda: engine.decoder.logits(inputs).argmax(-1), lambda: None, graph)
