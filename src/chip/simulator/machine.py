"""How one machine differs from what is predicted: fitted by `chip calibrate --from` to what clients measured on it.

The file of a host says what its CPU takes to launch a kernel. A fitted one says also how long steps take there over
those predicted, of decodes alone and with prompts: cards of one kind differ by some per cent.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from chip.engines.server import ServerCost
from chip.files import artifact, codec
from chip.hardware.hosts import LATENCY
from chip.simulator.step_time import Spread
from chip.simulator.surface import PLAIN, Factors
from chip.types import Ceiling, ChipError, HostProfile

DECODES, PROMPTS = "decode_steps", "prompt_steps"  # terms of a host's file: seconds over those predicted
# ... and what the event loop of a server takes there, where it was watched: fields of `ServerCost` by term
LOOP = {
    "server_request": "request_s", "server_prompt_token": "prompt_token_s", "server_step": "step_s",
    "server_chunk": "token_s",
}  # fmt: skip
LEAST, MOST = 0.2, 5.0


class Machine(NamedTuple):
    """`spreads` around the factors: of decode steps, steps with prompts and the host; None where nothing was fitted."""

    factors: Factors = PLAIN
    spreads: tuple[Spread, Spread, Spread] | None = None
    loop: tuple[tuple[str, float], ...] = ()  # fields of a server's cost

    def behind(self, server: ServerCost) -> ServerCost:
        """The server as it is on this machine."""
        seconds: dict[str, Any] = dict(self.loop)
        return replace(server, **seconds) if server.host_step_s else server


@lru_cache(maxsize=32)
def machine_of(host: str) -> Machine:
    """That of a host's name or file."""
    path = Path(host)
    if not host or not path.is_file():
        return Machine()
    raw = artifact.read_json(path)
    if not isinstance(raw, dict) or not str(raw.get("schema", "")).startswith(HostProfile.SCHEMA.split("/")[0] + "/"):
        return Machine()
    terms = codec.from_json(HostProfile, artifact.read(path, HostProfile.SCHEMA).data, f"{path}: data").terms
    if DECODES not in terms or PROMPTS not in terms or LATENCY not in terms:
        return Machine()
    for name in (DECODES, PROMPTS):
        if not LEAST <= terms[name].value <= MOST:
            raise ChipError(f"{path}: data.terms.{name} must be between {LEAST:g} and {MOST:g}")
    decode, prompt, latency = (_spread(terms[name]) for name in (DECODES, PROMPTS, LATENCY))
    loop = tuple((field, terms[term].value) for term, field in LOOP.items() if term in terms)
    return Machine(Factors(terms[DECODES].value, terms[PROMPTS].value), (decode, prompt, latency), loop)


def _spread(term: Ceiling) -> Spread:
    return Spread(term.low / term.value, term.high / term.value)
