"""What times rest on, in a word: operators that CHIP measured, tables that others published, either of them for another
GPU of the same chip, or a datasheet. And how wide intervals must be where they rest on it.

An interval is made from the errors of single operators. Whether it holds for whole steps shows where predictions were
compared with runs, and differs between kinds of GPUs. So the logarithm of an interval's width is scaled by a factor of
its kind. data/interval_classes.csv is made by `python benchmarks/interval_classes.py` from the index of validated
runs. The factor is 1 where intervals as they are hold 80 to 97 % of the runs of a kind. Where they hold fewer it is the
least that holds 90 %; where they hold more, the largest that holds no more than 97 %.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from chip.files import artifact
from chip.hardware import gpus
from chip.hardware.gpus import Hardware
from chip.predictor import operator_time

MEASURED, IMPORTED, SAME_CHIP, DATASHEET = "measured", "imported", "same chip", "datasheet"
OF_SOURCE = {
    operator_time.INTERPOLATED: MEASURED,
    "roofline": MEASURED,  # under ceilings that were
    operator_time.IMPORTED: IMPORTED,
    operator_time.SCALED: SAME_CHIP,
    operator_time.DATASHEET: DATASHEET,
}
FILE = gpus.DATA / "interval_classes.csv"
LEAST_INSIDE = 0.5  # part of the published runs that intervals of a kind hold as they are, where answers are of use
NOT_USABLE = "not usable"  # how a note begins that says so
OTHER_VENDOR = "datasheet, never measured"
MEASURED_VENDOR = "nvidia"  # the only one on whose GPUs operators were measured


def of_answer(by_source: Mapping[str, float]) -> str:
    """What most of the operators' time rests on, from its seconds or shares by source; the least sure where two are
    equal."""
    by_basis = dict.fromkeys((DATASHEET, SAME_CHIP, IMPORTED, MEASURED), 0.0)
    for source, part in by_source.items():
        if source in OF_SOURCE:
            by_basis[OF_SOURCE[source]] += part
    return max(by_basis, key=by_basis.__getitem__)


def of_gpu(h: Hardware) -> str:
    """The most that an answer on this GPU can rest on."""
    if h.profile is not None:
        return MEASURED
    return IMPORTED if h.points else SAME_CHIP if h.sibling else DATASHEET


def kind_of(h: Hardware) -> str:
    """What the times of its operators rest on."""
    known = of_gpu(h)
    other = known == DATASHEET and h.spec is not None and h.spec.vendor != MEASURED_VENDOR
    return OTHER_VENDOR if other else known


def scale_of(h: Hardware, several: bool) -> float:
    """The factor on the logarithm of an interval's width. No width makes an answer that is not usable one that is."""
    judged = _judged(h, several)
    return judged.scale if judged.inside >= LEAST_INSIDE else 1.0


def not_usable(h: Hardware, several: bool) -> str:
    """Why answers for a GPU are no ground for a decision; "" where they are one."""
    judged = _judged(h, several)
    if judged.inside >= LEAST_INSIDE:
        return ""
    return (
        f"{NOT_USABLE}: no operator was ever measured on a GPU like {h.name}, and of {judged.runs} published runs the "
        f"intervals of such answers held {100 * judged.inside:.0f} %"
    )


def are_doubted(notes: Iterable[str]) -> bool:
    """Whether the notes of an answer say that it is not usable."""
    return any(note.startswith(NOT_USABLE) for note in notes)


def _judged(h: Hardware, several: bool) -> JudgedKind:
    """Several GPUs of a kind that no run was compared with take the one of several with imported operators."""
    found = judged_kinds()
    return found.get((kind_of(h), several)) or found[IMPORTED, several]


class JudgedKind(NamedTuple):
    """A kind of GPU, one or several, as runs judged it."""

    scale: float
    runs: int
    inside: float  # the part of them that intervals hold unscaled


@lru_cache(maxsize=1)
def judged_kinds() -> dict[tuple[str, bool], JudgedKind]:
    _about, _head, *lines = artifact.read_text(FILE).splitlines()
    rows = (line.split(";") for line in lines)
    return {
        (kind, gpus == "several"): JudgedKind(float(scale), int(runs), float(inside))
        for kind, gpus, scale, runs, _, inside, *_ in rows
    }
