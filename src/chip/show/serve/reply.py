"""How a question ends: with an answer, or with a status and one line. The same for the server and for its processes."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from chip.files import jsontext
from chip.show.serve.limit import Overrun
from chip.show.serve.turn import Busy
from chip.types import ChipError


class Refused(Exception):
    """A request that gets `status` and one line."""

    def __init__(self, status: int, why: str, **headers: str) -> None:
        super().__init__(why)
        self.status, self.headers = status, headers


class Reply(NamedTuple):
    status: int
    body: bytes
    headers: Mapping[str, str] = MappingProxyType({})


def parsed(body: bytes) -> Any:
    try:
        return jsontext.parse(body.decode("utf-8"))
    except ValueError:
        raise Refused(400, "the body is not JSON") from None


def failure(error: Exception, asked: str, limit_s: float) -> Reply:
    """`asked`: what the log names where it is a fault of ours."""
    if isinstance(error, Refused):
        return Reply(error.status, told(str(error)), error.headers)
    if isinstance(error, ChipError):
        return Reply(422, told(str(error)))
    if isinstance(error, RecursionError):
        return Reply(422, told("the question is nested too deeply"))
    if isinstance(error, Busy):
        return Reply(503, told("too many questions at once; try again"), {"Retry-After": "1"})
    if isinstance(error, Overrun):
        return Reply(503, told(f"stopped after {limit_s:g} s; ask for something smaller"))
    print(f"chip serve: {asked}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    return Reply(500, told("a fault of chip's own; the server's log has it"))


def told(why: str) -> bytes:
    return json.dumps({"error": why}).encode()
