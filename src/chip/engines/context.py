"""The growing context of a decode, integrated at a few points instead of walked token by token."""

from __future__ import annotations

from functools import reduce
from operator import add

PANELS = 2  # of Simpson's rule: with one, the bend where a context outgrows a sliding window costs over a percent


def _weights(panels: int) -> tuple[float, ...]:
    """1, 4, 2, 4, ... 4, 1: the last is what is left, so that added up in order they make 1 exactly."""
    weights = [(1 if i == 0 else 4 if i % 2 else 2) / (6 * panels) for i in range(2 * panels)]
    return (*weights, 1 - reduce(add, weights))


WEIGHTS = {panels: _weights(panels) for panels in (1, PANELS)}


def decode_contexts(first: int, steps: int, panels: int = PANELS) -> tuple[tuple[int, float], ...]:
    """(past tokens, weight) whose weighted mean stands for `steps` steps from `first` past tokens on; weights sum to 1.

    Simpson's rule, exact for a time linear or quadratic in the context; with no panels the middle, exact for a linear
    one. The same rule at every length keeps the mean monotone in both arguments.
    """
    if steps <= 1:
        return ((first, 1.0),)
    if not panels:
        return ((first + (steps - 1) // 2, 1.0),)
    parts = 2 * panels
    return tuple((first + (i * (steps - 1) + panels) // parts, weight) for i, weight in enumerate(WEIGHTS[panels]))
