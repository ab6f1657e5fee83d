"""An energy meter of one's own, by name: `--energy-probe FILE.py:NAME` or the variable CHIP_ENERGY_PROBE.

The name goes through the environment, so that worker processes use the same meter.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from chip.measure.energy import EnergyProbe
from chip.types import ChipError

VARIABLE = "CHIP_ENERGY_PROBE"


def probe() -> EnergyProbe | None:
    """What the user named, made anew; None where nothing is named."""
    where = os.environ.get(VARIABLE, "")
    return _made(where) if where else None


def _made(where: str) -> EnergyProbe:
    made = _maker(where)
    try:
        found = made()
    except Exception as e:
        raise ChipError(f"energy probe {where}: cannot be made ({type(e).__name__}: {e})") from None
    missing = [name for name in ("start", "stop") if not callable(getattr(found, name, None))]
    if missing:
        raise ChipError(f"energy probe {where}: has no {' and no '.join(missing)}; see docs/calibrate.md")
    return cast(EnergyProbe, found)


@lru_cache(maxsize=4)
def _maker(where: str) -> Any:
    place, _, name = where.rpartition(":")
    if not place or not name:
        raise ChipError(f"energy probe {where!r}: write FILE.py:NAME or MODULE:NAME")
    try:
        module = _file(place) if place.endswith(".py") else importlib.import_module(place)
    except Exception as e:
        raise ChipError(f"energy probe {where}: cannot be imported ({type(e).__name__}: {e})") from None
    if not callable(made := getattr(module, name, None)):
        raise ChipError(f"energy probe {where}: no class or function {name} there")
    return made


def _file(path: str) -> Any:
    spec = importlib.util.spec_from_file_location(Path(path).stem, Path(path).absolute())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
