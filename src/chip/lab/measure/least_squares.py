"""Least squares of residuals that are not linear in a few numbers; large residuals count little (soft L1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt

STEP = 5e-3  # of each number, for the slopes
MOST_ROUNDS = 60
ENOUGH = 1e-7  # a round that lowers the cost by less than this part of it is the last
FIRST_DAMPING, EASED, DAMPED, MOST_DAMPING = 1e-3, 0.3, 4.0, 1e8
Residuals = Callable[[Sequence[float]], list[float]]


def minimise(residuals: Residuals, start: Sequence[float], scale: float) -> list[float]:
    """The numbers with the least cost, by Levenberg and Marquardt's rule. `scale`: residuals beyond it count less than
    their square."""
    at, found = list(start), residuals(start)
    cost, damping = _cost(found, scale), FIRST_DAMPING
    for _ in range(MOST_ROUNDS):
        slopes = _slopes(residuals, at, found)
        weights = [1 / sqrt(1 + (r / scale) ** 2) for r in found]
        weighted = [[w * s for w, s in zip(weights, column)] for column in slopes]
        normal = [[_dot(a, b) for b in slopes] for a in weighted]
        down = [-_dot(column, found) for column in weighted]
        while damping < MOST_DAMPING:
            damped = [
                [v * (1 + damping * (i == j)) + 1e-12 * (i == j) for j, v in enumerate(row)]
                for i, row in enumerate(normal)
            ]
            tried = [x + step for x, step in zip(at, _solve(damped, down))]
            there = residuals(tried)
            if (lower := _cost(there, scale)) < cost:
                break
            damping *= DAMPED
        else:
            return at
        gained, at, found, cost, damping = cost - lower, tried, there, lower, damping * EASED
        if gained < ENOUGH * cost:
            break
    return at


def _cost(found: Sequence[float], scale: float) -> float:
    return sum([sqrt(1 + (r / scale) ** 2) - 1 for r in found])


def _slopes(residuals: Residuals, at: list[float], found: Sequence[float]) -> list[list[float]]:
    """Of all residuals, by each number."""
    columns = []
    for i, x in enumerate(at):
        moved = residuals([*at[:i], x + STEP, *at[i + 1 :]])
        columns.append([(b - a) / STEP for a, b in zip(found, moved)])
    return columns


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum([x * y for x, y in zip(a, b)])


def _solve(rows: list[list[float]], right: Sequence[float]) -> list[float]:
    """Of linear equations, by elimination."""
    n, table = len(rows), [[*row, value] for row, value in zip(rows, right)]
    for i in range(n):
        pivot = max(range(i, n), key=lambda j: abs(table[j][i]))
        table[i], table[pivot] = table[pivot], table[i]
        for j in range(i + 1, n):
            share = table[j][i] / table[i][i]
            table[j] = [a - share * b for a, b in zip(table[j], table[i])]
    found = [0.0] * n
    for i in reversed(range(n)):
        found[i] = (table[i][n] - _dot(table[i][i + 1 : n], found[i + 1 :])) / table[i][i]
    return found
