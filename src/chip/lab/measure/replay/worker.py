"""The process in which kernels are replayed: requests as JSON lines on stdin, an answer to each as one on stdout.

A crash, a hang or a lost device ends this process, not the run.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from typing import Any

from chip.files import codec
from chip.lab.measure import disturbance
from chip.lab.measure.device import Device, open_device, reason_of
from chip.lab.measure.replay.sequence import replay_sequence
from chip.lab.measure.replay.unit import ReplaySettings, replay_units
from chip.lab.replay.results import Replayed
from chip.lab.replay.sequence import Sequence
from chip.lab.replay.signatures import Unit
from chip.types import ChipError


def units_beside(units: list[Unit], device: Device, settings: ReplaySettings) -> list[list[Replayed] | str]:
    """What replaying units gives, flagged where another process used the machine meanwhile."""
    before = disturbance.read()
    results = replay_units(units, device, settings)
    flags = disturbance.flags(before, disturbance.read())
    return [f if isinstance(f, str) else [replace(k, flags=(*k.flags, *flags)) for k in f] for f in results]


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints must not reach the answers
    device = open_device(sys.argv[1])
    device.synchronize()  # makes its context now
    print(json.dumps({"ready": device.title}), file=answers, flush=True)

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if "sequence" in request:
            whole, places = replay_sequence(codec.from_json(Sequence, request["sequence"], "sequence"), device)
            return {"sequence": codec.to_json(whole), "places": codec.to_json(places)}
        settings = codec.from_json(ReplaySettings, request["settings"], "settings")
        units = codec.from_json(list[Unit], request["units"], "units")
        return {"units": codec.to_json(units_beside(units, device, settings))}

    for line in sys.stdin:
        try:
            reply = answer(json.loads(line))
        except Exception as e:  # out of memory, an operator that refuses: said, and on
            reply = {"error": str(e) if isinstance(e, ChipError) else reason_of(e)}
        print(json.dumps(reply), file=answers, flush=True)
        if device.lost():
            return  # and is started anew for the next


if __name__ == "__main__":
    main()
