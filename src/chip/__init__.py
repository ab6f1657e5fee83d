"""CHIP: how fast a language model will run on a GPU before it runs, and why it ran as fast as it did after.

    import chip
    p = chip.predict("llama-3.1-8b", gpu="h200", batch=8, prompt=1024, output=128)
    p.ttft_s, p.tpot_s, p.tokens_per_s, p.interval, p.lines

Everything is imported when it is first asked for: `import chip` itself costs nothing.
"""

from __future__ import annotations

from importlib import import_module

__version__ = "0.2.0"
__all__ = ["estimate", "gpus", "models", "plan", "predict", "simulate", "sweep"]
_HOMES = {
    **dict.fromkeys(("estimate", "gpus", "models", "predict", "sweep"), "chip.api"),
    "plan": "chip.simulator.plan",
    "simulate": "chip.simulator.simulation",
    "Prediction": "chip.predictor.prediction",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'chip' has no attribute {name!r}")
