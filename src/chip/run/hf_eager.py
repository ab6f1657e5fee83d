"""HF transformers as it comes: eager, a DynamicCache, sdpa attention."""

from __future__ import annotations

from typing import Any

from chip.run import Job, Session
from chip.types import Scenario

NAME = "hf-eager"
TITLE = "HF transformers, eager, DynamicCache, sdpa"
OWN_PROCESS = False


def open(job: Job) -> Session:
    from chip.run.model import libraries

    libraries()
    from chip.run.session import HfSession, refuse_settings
    from chip.run.steps import Eager

    def make(model: Any, ids: Any, scenario: Scenario, feed: bool, setup: dict[str, float]) -> Eager:
        return Eager(model, ids, feed)

    refuse_settings(job)
    return HfSession(NAME, job, make)
