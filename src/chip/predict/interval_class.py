"""How wide intervals must be, by kind of GPU.

An interval is made from the errors of single operators. Whether it holds for whole steps shows where predictions were
compared with runs, and differs between kinds of GPUs. So the logarithm of an interval's width is scaled by a factor of
its kind. data/interval_classes.csv is made by `python benchmarks/interval_classes.py` from the index of validated
runs. The factor is 1 where intervals as they are hold 80 to 97 % of the runs of a kind. Where they hold fewer it is the
least that holds 90 %; where they hold more, the largest that holds no more than 97 %.
"""

from __future__ import annotations

from functools import lru_cache

from chip import artifact, hardware
from chip.hardware import Hardware
from chip.predict import basis

FILE = hardware.DATA / "interval_classes.csv"
OTHER_VENDOR = "datasheet, never measured"
MEASURED_VENDOR = "nvidia"  # the only one on whose GPUs operators were measured


def kind_of(h: Hardware) -> str:
    """What the times of its operators rest on."""
    known = basis.of_gpu(h)
    other = known == basis.DATASHEET and h.spec is not None and h.spec.vendor != MEASURED_VENDOR
    return OTHER_VENDOR if other else known


def scale_of(h: Hardware, several: bool) -> float:
    """The factor on the logarithm of an interval's width. Several GPUs of a kind that no run was compared with take the
    one of several with imported operators."""
    found = scales()
    return found.get((kind_of(h), several)) or found[basis.IMPORTED, several]


@lru_cache(maxsize=1)
def scales() -> dict[tuple[str, bool], float]:
    _about, _head, *lines = artifact.read_text(FILE).splitlines()
    return {(kind, gpus == "several"): float(scale) for kind, gpus, scale, *_ in (line.split(";") for line in lines)}
