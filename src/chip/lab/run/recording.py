"""One step of a model, made ready to be recorded: repeatable, and apart from what comes before it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from chip.engines.hf_graph import cache_tokens
from chip.lab.measure.device import reason_of
from chip.lab.run import Job, able, get
from chip.lab.run.model import build
from chip.lab.run.session import SEED, backend
from chip.lab.run.steps import Eager, Static, make_capturable
from chip.types import ChipError, Scenario

NO_STATIC_CACHE = {"bloom": "its position biases are made on the host for each length: forward without cache"}


@dataclass(frozen=True)
class Recordable:
    """`run` is the step, the same each time; `prepare` sets the device back before it and is no part of it."""

    run: Callable[[], object]
    prepare: Callable[[], object]
    graph: bool
    note: str = ""


def recordable(
    job: Job, engine: str, phase: str, batch: int, prompt: int, no_cache: bool = False
) -> AbstractContextManager[Recordable]:
    """The step of an engine with its model loaded, while the context is open."""
    if engine not in (known := able("recordable")):  # before a model is loaded
        raise ChipError(
            f"--engine {engine}: steps of {', '.join(known)} can be recorded; of another, give the Chrome trace "
            "of its own profiler to `chip replay`"
        )
    step: AbstractContextManager[Recordable] = get(engine).recordable(job, phase, batch, prompt, no_cache)
    return step


@contextmanager
def of_hf(job: Job, static: bool, phase: str, batch: int, prompt: int, no_cache: bool) -> Iterator[Recordable]:
    """A step of HF's modules, in inference mode. `static`: over a static cache, on a GPU as a graph."""
    model = build(job)
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if isinstance(positions, int) and prompt + (phase == "decode") > positions:
        raise ChipError(f"--prompt {prompt}: the model has {positions} positions; shorten it")
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode())
        stack.enter_context(backend(job.sdpa))
        draw = torch.Generator(device=job.device).manual_seed(SEED)
        ids = torch.randint(0, model.config.vocab_size, (batch, prompt), device=job.device, generator=draw)
        graph = static and job.device != "cpu"
        if graph:
            stack.enter_context(scalars_on_device())
        note = NO_STATIC_CACHE.get(model.config.model_type, "") if static else ""
        try:
            yield _step(model, ids, static, phase, graph, note, no_cache)
        except torch.OutOfMemoryError as e:
            raise ChipError(f"{job.device}: {reason_of(e)}; choose a smaller batch or prompt") from None


def _step(
    model: Any, ids: torch.Tensor, static: bool, phase: str, graph: bool, note: str, no_cache: bool
) -> Recordable:
    if no_cache or note:
        if phase == "decode":
            raise ChipError(
                f"{model.config.model_type}: a forward without cache has no decode step; use --phase prefill"
            )
        last = Eager(model, ids).last_only
        run = lambda: model(ids, use_cache=False, **last).logits[:, -1:].argmax(-1)  # noqa: E731
        return Recordable(run, lambda: None, graph, note)
    if static:
        return _static(model, ids, phase, graph)
    return _eager(Eager(model, ids), phase)


def _eager(steps: Eager, phase: str) -> Recordable:
    if phase == "prefill":
        return Recordable(steps.prefill, lambda: None, False)
    steps.prefill()
    filled = [copy.copy(layer) for layer in steps.cache.layers]

    def decode() -> object:
        steps.cache.layers = [copy.copy(layer) for layer in filled]  # the same length again; no tensor is copied
        return steps.decode()

    return Recordable(decode, lambda: None, False)


def _static(model: Any, ids: torch.Tensor, phase: str, graph: bool) -> Recordable:
    batch, prompt = ids.shape
    steps = Static(model, ids, cache_tokens(Scenario(batch, prompt, 1)))
    try:
        steps.prefill()  # makes the cache's tensors
    except (RuntimeError, ValueError, TypeError) as e:
        if isinstance(e, torch.OutOfMemoryError):
            raise
        raise ChipError(
            f"cannot be run over a StaticCache ({reason_of(e)}); use --no-cache or --engine hf-eager"
        ) from None
    if graph:
        for layer in steps.cache.layers:
            if hasattr(layer, "cumulative_length_int"):
                make_capturable(layer)
    if phase == "prefill":
        return Recordable(steps.prefill, lambda: steps.at(0), graph)
    return Recordable(steps.decode, lambda: steps.at(prompt), graph)


@contextmanager
def scalars_on_device() -> Iterator[None]:
    """`torch.tensor(0.5, device=...)` filled on the device instead of copied from the host, which no capture allows.

    transformers makes such scalars in its masks.
    """
    original = torch.tensor

    def tensor(data: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        where = kwargs.get("device")
        if isinstance(data, (int, float)) and not args and where is not None and torch.device(where).type != "cpu":
            return torch.full((), data, **kwargs)
        return original(data, *args, **kwargs)

    torch.tensor = tensor
    try:
        yield
    finally:
        torch.tensor = original
