"""CHIP: how fast a language model will run on a GPU before it runs, and why it ran as fast as it did after."""

from __future__ import annotations

from importlib import import_module


__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """`chip.simulate(...)` and `chip.plan(...)`, imported when they are first asked for."""
    if name == "simulate":
        return import_module("chip.simulate")
    if name == "plan":
        return import_module("chip.simulate.plan").plan
    raise AttributeError(f"module 'chip' has no attribute {name!r}")
