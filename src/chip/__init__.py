"""CHIP: how fast a language model will run on a GPU before it runs, and why it ran as fast as it did after.

    import chip
    p = chip.predict("llama-3.1-8b", gpu="h200", batch=8, prompt=1024, output=128)
    p.ttft_s, p.tpot_s, p.tokens_per_s, p.interval, p.lines

Everything is imported when it is first asked for: `import chip` itself costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chip.api import SweepRow, estimate, gpus, models, predict, sweep
    from chip.live import plan, simulate
    from chip.predictor.operator import Estimate
    from chip.predictor.prediction import Prediction
    from chip.simulator.answer import Simulation
    from chip.simulator.one_step import StepTimes
    from chip.simulator.plan import Plan
    from chip.types import ChipError

__version__ = "0.2.0"
__all__ = [
    "ChipError", "Estimate", "Plan", "Prediction", "Simulation", "StepTimes", "SweepRow", "estimate", "gpus", "models",
    "plan", "predict", "simulate", "sweep",
]  # fmt: skip


_HOMES = {
    **dict.fromkeys(("SweepRow", "estimate", "gpus", "models", "predict", "sweep"), "chip.api"),
    **dict.fromkeys(("plan", "simulate"), "chip.live"),
    "ChipError": "chip.types",
    "Estimate": "chip.predictor.operator",
    "Plan": "chip.simulator.plan",
    "Prediction": "chip.predictor.prediction",
    "Simulation": "chip.simulator.answer",
    "StepTimes": "chip.simulator.one_step",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'chip' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
