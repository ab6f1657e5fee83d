"""The context of a decode grows by a token each step. Two contexts stand for all of them."""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise
from math import sqrt


def decode_contexts(first: int, steps: int, bends: Collection[int] = ()) -> list[tuple[int, float]]:
    """(past tokens, weight) whose weighted mean stands for `steps` steps from `first` past tokens on; weights sum to 1.

    `bends` are contexts from which on a step's time grows in another way, such as a sliding window. Between two of them
    the points are the mean context plus and minus the standard deviation (Gauss's rule): exact where time is linear in
    the context, nearly so where it bends evenly. The mean is monotone in both arguments if that time is.
    """
    edges = [first, *sorted([b for b in bends if first < b < first + steps]), first + max(1, steps)]
    found: list[tuple[int, float]] = []
    for begin, end in pairwise(edges):
        count, last = end - begin, end - 1
        part = count / (edges[-1] - first)
        if count == 1:
            found.append((begin, part))
        else:
            inside = round((count - 1) / 2 - sqrt((count * count - 1) / 12))
            found += [(begin + inside, part / 2), (last - inside, part / 2)]
    return found
