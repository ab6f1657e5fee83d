"""How wide intervals must be for the kind of GPU that they are of.

An interval is made of what single operators may err by. Whether that holds for a whole step is seen where predictions
were held against runs, and differs between kinds of GPUs: the logarithm of an interval's width is scaled by what its
kind needs. data/interval_classes.csv is made by `python benchmarks/interval_classes.py` from the index of validated
runs: 1 where the intervals as they are hold 80 to 97 % of the runs of a kind; where they hold fewer, the least that
holds 90 %; where they hold more, the largest that holds no more than 97 %.
"""

from __future__ import annotations

from functools import lru_cache

from chip import artifact, hardware
from chip.hardware import Hardware

FILE = hardware.DATA / "interval_classes.csv"
MEASURED, IMPORTED, DATASHEET = "measured", "imported", "datasheet"
OTHER_VENDOR = "datasheet, never measured"
MEASURED_VENDOR = "nvidia"  # no operator was ever measured on a GPU of another


def kind_of(h: Hardware) -> str:
    """What the times of its operators rest on."""
    if h.profile is not None:
        return MEASURED
    if h.points:
        return IMPORTED
    return DATASHEET if h.spec is None or h.spec.vendor == MEASURED_VENDOR else OTHER_VENDOR


def scale_of(h: Hardware, several: bool) -> float:
    """Of the logarithm of an interval's width. Several GPUs of a kind that was never held against a run are no surer
    than several whose operators were imported."""
    found = scales()
    return found.get((kind_of(h), several)) or found[IMPORTED, several]


@lru_cache(maxsize=1)
def scales() -> dict[tuple[str, bool], float]:
    _about, _head, *lines = artifact.read_text(FILE).splitlines()
    return {(kind, gpus == "several"): float(scale) for kind, gpus, scale, *_ in (line.split(";") for line in lines)}
