"""Which estimator answers for a GPU: operator tables where it has them, the roofline for the rest."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from chip import artifact, codec
from chip.hardware import Hardware
from chip.predict.learned import Learned
from chip.predict.roof import roof_of
from chip.predict.roofline import Roofline
from chip.predict.stages import ALL, Stage
from chip.predict.tables import Tables
from chip.predict.tables_check import check
from chip.types import ChipError

SIMPLEST = "add"  # the elementwise kernel whose floor stands for those that were not measured


@lru_cache(maxsize=16)
def read_tables(path: Path) -> Tables:
    found = codec.from_json(Tables, artifact.read(path, Tables.SCHEMA).data, f"{path}: data")
    check(found, f"{path}: data")
    return found


def estimator_of(h: Hardware, runs_as: Mapping[str, str] | None = None, stage: Stage = ALL) -> Roofline | Learned:
    """`runs_as`: which implementation an engine runs of each operator. `stage`: what it may rest on."""
    if h.tables is None or h.profile is None or stage < Stage.TABLES:
        return Roofline(roof_of(h, stage))
    tables = read_tables(h.tables)
    if tables.device != h.profile.device:
        raise ChipError(f"{h.tables}: holds tables of {tables.device}, the profile is of {h.profile.device}")
    floor_s = next((t.base.floor_s for t in tables.operators if t.op == SIMPLEST), None)
    return Learned(tables, Roofline(roof_of(h), floor_s), runs_as)
