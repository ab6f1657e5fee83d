"""What a question may name: bundled models, pasted configs and known GPUs.

On the command line MODEL and GPU may be files. Here they may not: a name is looked up among the bundled ones before
anything that opens a file sees it, so that no file of the host can be read through the API.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from difflib import get_close_matches
from hashlib import sha256
from typing import Any

from chip import question
from chip.decoders import describe, library
from chip.decoders.decoder import Decoder
from chip.hardware import gpus as hardware
from chip.question import Question
from chip.types import ChipError, Scenario

PASTED = "pasted"  # the name of a config that was given none
LONGEST_NAME = 80
MOST_DESCRIBED = 8
described: dict[bytes, Decoder] = {}  # one for each pasted config: what was answered of it is found again


def decoder_of(name: Any, config: Any = None) -> Decoder:
    """A bundled model, or the one that `config` describes."""
    if not isinstance(name, str):
        raise ChipError(f"model must be text, got {str(name)[:40]!r}")
    return _bundled(name) if config is None else _pasted(config, name)


def question_of(asked: Mapping[str, Any], config: Any = None) -> tuple[Question, Scenario]:
    """A prediction's question in plain values, of which none opens a file."""
    values = question.complete(asked, known=question.ANYWHERE)
    values["gpu"] = gpu_of(values["gpu"])
    q = question.question_of(values, decoder_of(values["model"], config))
    return q, question.scenario_of(values, q)


def gpu_of(name: Any) -> str:
    if not isinstance(name, str):
        raise ChipError(f"gpu must be text, got {str(name)[:40]!r}")
    if hardware.is_known(name):
        return name
    near = get_close_matches(name.lower()[:LONGEST_NAME], hardware.spec_names(), 3, 0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "/api/gpus lists the bundled ones;"
    raise ChipError(f"no GPU {name[:LONGEST_NAME]!r}; {hint} another one may be given as sm_90:80GB")


def _bundled(name: str) -> Decoder:
    if name.lower() in library.names():
        return library.find(name.lower())
    near = get_close_matches(name.lower()[:LONGEST_NAME], library.names(), 3, 0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "/api/models lists the bundled ones;"
    raise ChipError(f"no model {name[:LONGEST_NAME]!r}; {hint} for another model send its config.json as 'config'")


def _pasted(config: Any, name: str) -> Decoder:
    if not isinstance(config, dict):
        raise ChipError(f"config must be the object that a config.json holds, got {type(config).__name__}")
    if not name or len(name) > LONGEST_NAME:
        raise ChipError(f"model must name the pasted config in 1 to {LONGEST_NAME} characters")
    key = sha256(json.dumps([name, config]).encode()).digest()  # a config may be megabytes: it is not remembered
    decoder = described.get(key)
    if decoder is None:
        while len(described) >= MOST_DESCRIBED:
            described.pop(next(iter(described)), None)
        decoder = described[key] = describe(config, name, "config")
    return decoder
