"""What times rest on, in a word: operators that CHIP measured, tables that others published, either of them for another
GPU of the same chip, or a datasheet."""

from __future__ import annotations

from collections.abc import Mapping

from chip.hardware import Hardware
from chip.predict import limits

MEASURED, IMPORTED, SAME_CHIP, DATASHEET = "measured", "imported", "same chip", "datasheet"
OF_SOURCE = {
    limits.INTERPOLATED: MEASURED,
    "roofline": MEASURED,  # under ceilings that were
    limits.IMPORTED: IMPORTED,
    limits.SCALED: SAME_CHIP,
    limits.DATASHEET: DATASHEET,
}


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
