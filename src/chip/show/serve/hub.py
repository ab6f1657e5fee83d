"""A config of the Hugging Face hub for the page: what a hub id stands for on the command line, and no other file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from chip.decoders import library
from chip.show.serve.names import LONGEST_NAME
from chip.types import ChipError

SCHEMA = "chip.hub/1"
REPO = r"[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9][A-Za-z0-9_.-]*"


def config(question: Any) -> dict[str, Any]:
    """`{"model": "org/name"}` -> its config.json, which other questions take as `config`."""
    if not isinstance(question, Mapping) or list(question) != ["model"]:
        raise ChipError('a hub id is asked for as {"model": "org/name"}')
    repo = question["model"]
    if not isinstance(repo, str) or len(repo) > LONGEST_NAME or not re.fullmatch(REPO, repo):
        raise ChipError(f"a hub id is org/name in up to {LONGEST_NAME} characters, got {str(repo)[:40]!r}")
    return {"schema": SCHEMA, "model": repo, "config": library.with_quantization(library.from_hub(repo))}
