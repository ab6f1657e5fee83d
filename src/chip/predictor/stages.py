"""What a prediction may rest on, in stages, to show what each of them adds (`chip validate --ablate`).

A stage includes those before it. All of them have the engine's schedule and fusions, which are the thing predicted.
"""

from __future__ import annotations

from enum import IntEnum


class Stage(IntEnum):
    title: str

    DATASHEET = 1, "datasheet roofline"
    MEASURED = 2, "measured roofline"
    CALIBRATED = 3, "calibrated operators"
    POINTS = 4, "measured points"
    ENGINE = 5, "engine and host terms"
    CALIBRATE_ONLY = 6, "calibrate only"  # the third with terms: a GPU of which nobody measured points

    def __new__(cls, number: int, title: str) -> Stage:
        made = int.__new__(cls, number)
        made._value_, made.title = number, title
        return made

    @property
    def has_points(self) -> bool:
        return self in (Stage.POINTS, Stage.ENGINE)

    @property
    def has_terms(self) -> bool:
        return self in (Stage.ENGINE, Stage.CALIBRATE_ONLY)


ALL = Stage.ENGINE
