"""The JSON Lines file of requests that `chip generate --requests` reads."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from chip import artifact
from chip.run.native.requests import GREEDY, SamplingParams
from chip.types import ChipError

SAMPLING = {f.name: type(f.default) for f in fields(SamplingParams)}


@dataclass(frozen=True, slots=True)
class Wish:
    """A request as it was asked for: text or tokens."""

    name: str
    prompt: str = ""
    tokens: tuple[int, ...] = ()
    system: str = ""
    sampling: SamplingParams = GREEDY


def read_wishes(path: Path, given: Wish) -> list[Wish]:
    """Requests of a JSON Lines file; what a line leaves out is as in `given`."""
    numbered = enumerate(artifact.lines(path), 1)
    found = [_wish(line, f"{path}: line {i}", f"request {i}", given) for i, line in numbered if line.strip()]
    if not found:
        raise ChipError(f"{path}: holds no request")
    names = [w.name for w in found]
    if doubled := next((n for n in names if names.count(n) > 1), None):
        raise ChipError(f"{path}: two requests are called {doubled!r}")
    return found


def _wish(line: str, where: str, name: str, given: Wish) -> Wish:
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError):
        raise ChipError(f"{where}: is not JSON") from None
    if not isinstance(raw, dict):
        raise ChipError(f"{where}: a request is a JSON object")
    known = {"name", "prompt", "tokens", "system", *SAMPLING}
    if unknown := sorted(set(raw) - known):
        raise ChipError(f"{where}: unknown field {unknown[0]!r}; known: {', '.join(sorted(known))}")
    if ("prompt" in raw) == ("tokens" in raw):
        raise ChipError(f"{where}: give prompt or tokens, one of them")
    for key in ("name", "prompt", "system"):
        if key in raw and (not isinstance(raw[key], str) or (key != "system" and not raw[key])):
            raise ChipError(f"{where}: {key} must be text")
    tokens = raw.get("tokens", [0])
    if not isinstance(tokens, list) or not tokens or not all(type(t) is int for t in tokens):
        raise ChipError(f"{where}: tokens must be a list of whole numbers")
    chosen = {key: _typed(raw[key], kind, f"{where}: {key}") for key, kind in SAMPLING.items() if key in raw}
    sampling = replace(given.sampling, **chosen)
    sampling.check(where)
    return Wish(
        name=raw.get("name", name),
        prompt=raw.get("prompt", ""),
        tokens=tuple(tokens) if "tokens" in raw else (),
        system=raw.get("system", given.system),
        sampling=sampling,
    )


def _typed(value: Any, kind: type, where: str) -> Any:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if kind is bool and isinstance(value, bool):
        return value
    if kind is int and whole:
        return value
    if kind is float and (whole or isinstance(value, float)):
        return float(value)
    words = {bool: "true or false", int: "a whole number", float: "a number"}[kind]
    raise ChipError(f"{where} must be {words}")
