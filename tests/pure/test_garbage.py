"""Memory of a process that answers for long: tables that are dropped are freed at once, and collections stay short."""

from __future__ import annotations

import gc
import io
import sys
import weakref
from collections.abc import Iterator
from functools import _lru_cache_wrapper

import pytest

from chip.predictor import estimator, request
from chip.question import complete, question_of
from chip.show import garbage
from chip.show.cli import lines


@pytest.fixture
def no_collections() -> Iterator[None]:
    known = [vars(m) for name, m in sys.modules.items() if name.startswith(("chip.predictor", "chip.simulator"))]
    for cache in [v for values in known for v in values.values() if isinstance(v, _lru_cache_wrapper)]:
        cache.cache_clear()  # what tests before this one have asked for
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


def test_a_dropped_model_is_freed_without_a_collection(no_collections: None) -> None:
    for question in (
        {"model": "llama-3.1-8b", "gpu": "h200"},
        {"model": "gpt-oss-20b", "gpu": "l40s", "engine": "hf-eager", "batch": 9},
        {"model": "gemma-3-27b", "gpu": "h100", "engine": "hf-graph", "tp": 2},
        {"model": "deepseek-v2-lite", "gpu": "a10", "output": 1},
        {"model": "qwen3-0.6b", "gpu": "a10", "engine": "native"},
    ):
        values = complete(question)
        request.answer(question)
        q = question_of(values).with_formats()
        hits = request.prepared.cache_info().hits
        steps = request.setting(q).steps
        assert request.prepared.cache_info().hits == hits + 1  # the one that answered
        left = weakref.ref(steps)
        del steps
        request.prepared.cache_clear()
        estimator._estimator.cache_clear()
        assert left() is None, question


def test_what_a_collection_has_seen_is_not_looked_at_again(no_collections: None) -> None:
    held = [[i] for i in range(garbage.NEW + 1)]
    garbage.after_answer()
    assert gc.get_freeze_count() > len(held)
    assert len(gc.get_objects()) < len(held)


def test_a_sweep_keeps_collections_short(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[None] = []
    monkeypatch.setattr(garbage, "after_answer", lambda: calls.append(None))
    monkeypatch.setattr("sys.stdin", io.StringIO("{}\nnot json\n\n{}\n"))
    assert lines.answer_stdin(lambda question: "{}") == 1
    assert len(calls) == 3
