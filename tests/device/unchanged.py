"""Work that is not repeated while its inputs are the same: compiling every kernel takes minutes, running them in
Triton's interpreter half a minute.

`unchanged.json` holds a digest of the inputs (sources, flags, version of the compiler) of all work that passed. A test
whose digest is there is skipped; any change makes it run. It is kept by

    CHIP_RECORD=1 pytest -p no:xdist tests/device -k "compile or every_part"
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

RECORD = Path(__file__).with_name("unchanged.json")
RECORDING = "CHIP_RECORD"


def digest(inputs: Iterable[Path | str]) -> str:
    found = hashlib.sha256()
    for one in inputs:
        data = one.read_bytes() if isinstance(one, Path) else one.encode()
        found.update(len(data).to_bytes(8, "big") + data)
    return found.hexdigest()


def unless_unchanged(name: str, inputs: Iterable[Path | str], work: Callable[[], None], record: Path = RECORD) -> None:
    """Do the work, or skip the test where it passed before with the same inputs."""
    now, recording = digest(inputs), os.environ.get(RECORDING)
    before = json.loads(record.read_text()) if record.exists() else {}
    if before.get(name) == now and not recording:
        pytest.skip(f"{name}: sources and compiler are those it passed with")
    work()
    if recording:
        kept = {**json.loads(record.read_text() if record.exists() else "{}"), name: now}
        record.write_text(json.dumps(kept, indent=2, sort_keys=True) + "\n")
