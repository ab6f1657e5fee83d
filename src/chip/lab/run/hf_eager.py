"""HF transformers as it comes: eager, a DynamicCache, sdpa attention."""

from __future__ import annotations

from typing import Any

from chip.lab.run import Job, Session
from chip.types import Scenario

NAME = "hf-eager"
TITLE = "HF transformers, eager, DynamicCache, sdpa"
OWN_PROCESS = False


def open(job: Job) -> Session:
    from chip.lab.run.model import libraries

    libraries()
    from chip.lab.run.session import HfSession, refuse_settings
    from chip.lab.run.steps import Eager

    def make(model: Any, ids: Any, scenario: Scenario, feed: bool, setup: dict[str, float]) -> Eager:
        return Eager(model, ids, feed)

    refuse_settings(job)
    return HfSession(NAME, job, make)


def recordable(job: Job, phase: str, batch: int, prompt: int, no_cache: bool) -> Any:
    from chip.lab.run.recording import of_hf

    return of_hf(job, False, phase, batch, prompt, no_cache)
