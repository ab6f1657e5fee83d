"""The growing context of a decode, integrated at a few points instead of walked token by token."""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise


def decode_contexts(first: int, steps: int, bends: Collection[int] = ()) -> list[tuple[int, float]]:
    """(past tokens, weight) whose weighted mean stands for `steps` steps from `first` past tokens on; weights sum to 1.

    Simpson's rule between `bends`, contexts from which on a step's time grows otherwise. The mean is monotone in both
    arguments if that time is.
    """
    edges = [first, *sorted([b for b in bends if first < b < first + steps]), first + max(1, steps)]
    found: list[tuple[int, float]] = []
    for begin, end in pairwise(edges):
        part, last = (end - begin) / (edges[-1] - first), end - 1
        if begin == last:
            found.append((begin, part))
        else:
            found += [(begin, part / 6), ((begin + last) // 2, part * 4 / 6), (last, part / 6)]
    return found
