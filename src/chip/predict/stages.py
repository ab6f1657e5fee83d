"""What a prediction may rest on, stage by stage, so that it can be told what each one buys (`chip validate --ablate`).

A stage includes those before it. The engine's schedule and fusions are what is predicted, so every stage has them.
"""

from __future__ import annotations

from enum import IntEnum


class Stage(IntEnum):
    DATASHEET = 1
    MEASURED = 2
    FACTORS = 3
    POINTS = 4
    ENGINE = 5

    @property
    def title(self) -> str:
        return TITLES[self]


TITLES = {
    Stage.DATASHEET: "datasheet roofline",
    Stage.MEASURED: "measured roofline",
    Stage.FACTORS: "x calibration factors",
    Stage.POINTS: "measured points",
    Stage.ENGINE: "engine and host terms",
}
ALL = Stage.ENGINE
