"""The growing context of a decode, integrated at a few points instead of walked token by token."""

from __future__ import annotations


FIRST, MIDDLE = 1 / 6, 4 / 6
LAST = 1 - (FIRST + MIDDLE)  # so that the three sum to 1 exactly


def decode_contexts(first: int, steps: int) -> tuple[tuple[int, float], ...]:
    """(past tokens, weight) whose weighted mean stands for `steps` steps from `first` past tokens on; weights sum to 1.

    Simpson's rule: exact for a time linear or quadratic in the context. The same rule at every length keeps the mean
    monotone in both arguments.
    """
    last = first + steps - 1
    if steps <= 1:
        return ((first, 1.0),)
    return ((first, FIRST), ((first + last) // 2, MIDDLE), (last, LAST))
