"""The process in which kernels are replayed: a unit as a JSON line on stdin, its results as one on stdout.

A crash, a hang or a lost device ends this process, not the run.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from chip import codec
from chip.measure.device import Device, open_device
from chip.measure.profile import reason_of
from chip.measure.replay.unit import Settings, replay_unit
from chip.replay.signatures import Unit
from chip.types import ChipError


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints must not reach the answers
    device = open_device(sys.argv[1])
    settings = codec.from_json(Settings, json.loads(sys.argv[2]), "settings")
    print(json.dumps({"ready": device.title}), file=answers, flush=True)
    for line in sys.stdin:
        unit = codec.from_json(Unit, json.loads(line), "unit")
        answer: dict[str, Any]
        try:
            answer = {"kernels": codec.to_json(replay_unit(unit, device, settings))}
        except Exception as e:  # out of memory, an operator that refuses: a record of this unit, and on
            answer = {"error": str(e) if isinstance(e, ChipError) else reason_of(e)}
        print(json.dumps(answer), file=answers, flush=True)
        if "error" in answer and not _answers(device):
            return  # and is started anew for the next unit


def _answers(device: Device) -> bool:
    try:
        device.synchronize()
    except Exception:
        return False
    return True


if __name__ == "__main__":
    main()
