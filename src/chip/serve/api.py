"""What the API answers: the JSON of the command line, from names and pasted configs alone.

On the command line MODEL and GPU may be files. Here they may not: a name is looked up among the bundled ones before
anything that opens a file sees it, so that no file of the host can be read through the API.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from chip import catalog, hardware, roofline
from chip.dtypes import AUTO, PRECISIONS
from chip.models import describe, library
from chip.models.decoder import Decoder
from chip.predict import operator, request
from chip.types import ChipError

PASTED = "pasted"  # the name of a config that was given none
LONGEST_NAME = 80


def predict(question: Any) -> str:
    """`chip predict --json`; `config` may hold a config.json in place of a bundled model, `model` then names it."""
    if not isinstance(question, dict):
        raise ChipError(f"a scenario is a JSON object, got {type(question).__name__}")
    asked = dict(question)
    config = asked.pop("config", None)
    if config is not None:
        asked.setdefault("model", PASTED)
    values = request.values_of(asked)
    decoder = _bundled(values["model"]) if config is None else _pasted(config, values["model"])
    gpu = _gpu(values["gpu"])
    return request.predict(decoder, gpu, values["engine"], request.scenario_of(values)).line()


def estimate(question: Any) -> str:
    """`chip estimate --json`."""
    if isinstance(question, dict) and isinstance(question.get("gpu"), str):
        _gpu(question["gpu"])
    return _encode(operator.answer(question))


def roofs(gpu: str) -> str:
    """`chip roofline --gpu NAME --json`, without points."""
    return _encode({"schema": "chip.roofline/1", **roofline.describe(roofline.roofs_of(hardware.find(_gpu(gpu))))})


@lru_cache(maxsize=8)
def listing(what: str) -> str:
    """`chip list WHAT --json`."""
    return _encode(catalog.ROWS[what]())


@lru_cache(maxsize=1)
def defaults() -> str:
    """What a question may leave out, how large its numbers may be, and the dtypes there are."""
    return _encode({"defaults": request.DEFAULTS, "limits": request.LIMITS, "dtypes": [AUTO, *PRECISIONS]})


def warm_up() -> None:
    """Read models, datasheets, profiles and tables before anyone waits for them."""
    for what in catalog.ROWS:
        listing(what)
    for gpu in hardware.spec_names():
        with suppress(ChipError):  # a GPU that is too old for the default engine
            predict({"model": "llama-3.2-1b", "gpu": gpu, "dtype": "fp16"})


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
    return describe(config, name, "config")


def _gpu(name: str) -> str:
    if hardware.is_known(name):
        return name
    near = get_close_matches(name.lower()[:LONGEST_NAME], hardware.spec_names(), 3, 0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "/api/gpus lists the bundled ones;"
    raise ChipError(f"no GPU {name[:LONGEST_NAME]!r}; {hint} another one may be given as sm_90:80GB")


def _encode(found: Mapping[str, Any] | list[Any]) -> str:
    return json.dumps(found, separators=(",", ":"), allow_nan=False)


Answer = Callable[[Any], str]
ASKED: dict[str, Answer] = {"/api/predict": predict, "/api/estimate": estimate}  # POST, a JSON object in the body
LISTED = {f"/api/{what}": what for what in catalog.ROWS}  # GET
ROOFS = "/api/gpus/"  # GET, a GPU's name after it
DEFAULTS = "/api/defaults"  # GET
