"""What changed in an engine from version to version: facts that predictions use, each with its source."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from chip.types import ChipError


class EngineVersion(NamedTuple):
    """What holds from version `since` on."""

    since: str
    overlaps_steps: bool  # whether the host prepares a step while the device runs the one before
    hopper_attention: str  # the attention kernels that it runs on a Hopper GPU
    beside_tokens: int  # in steps of up to so many tokens shared experts run beside the routed ones, on a second stream
    source: str

    def on(self, capability: float) -> EngineVersion:
        """The same on a GPU of such a compute capability, 0 for other vendors: only NVIDIA's get the second stream."""
        return self if capability else self._replace(beside_tokens=0)


def number(version: str) -> tuple[int, ...]:
    """`0.6.1.post2` as (0, 6, 1)."""
    found = re.match(r"\d+(\.\d+)*", version)
    if found is None:
        raise ChipError(f"--engine-version {version[:40]!r}: must be a version such as 0.6.1")
    return tuple(int(n) for n in found[0].split("."))


def version_at(engine: str, versions: Sequence[EngineVersion], asked: str) -> EngineVersion | None:
    """The facts of the version that is asked for; of the newest where none is."""
    if not asked:
        return versions[0] if versions else None
    if not versions:
        raise ChipError(f"--engine-version {asked[:40]}: no facts by version are known of {engine}; leave it out")
    wanted = number(asked)
    return next((v for v in versions if wanted >= number(v.since)), versions[-1])
