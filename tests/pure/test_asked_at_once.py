"""Threads that ask at once get what each would get alone: nothing that is remembered can be seen half made.

Here one question interrupts another while a row of times is made, where a thread would.
"""

import threading

import pytest
from test_interpolate import bundled

from chip import ops
from chip.ops.attention import single
from chip.predict.rising_grid import RisingGrid
from chip.predict.sheet import FINE, BaseSheet, Sheet

ASKED = [(4, 1000), (4, 100), (3, 5000), (8, 70_000), (4, 600_000)]


def interrupted(times, at, ask):
    """`times`, in which call number `at` waits for a question of another thread."""
    calls = iter(range(1_000_000))

    def slow(*sizes):
        if next(calls) == at:
            other = threading.Thread(target=ask)
            other.start()
            other.join()
        return times(*sizes)

    return slow


def grid_times(count, queries, keys):
    return [(count**0.5 * queries + k * (1 + (k * 7) % 5), 0.1) for k in keys]


def base(count, _, length):
    return count**0.5 + length * (1 + (length * 7) % 5)


def rising_grid(at, ask):
    grid = RisingGrid(interrupted(grid_times, at, ask))
    return lambda count, length: grid(count, 16, length)


def base_sheet(at, ask):
    return BaseSheet(None, single, interrupted(base, at, ask), base, base)


def sheet(at, ask):
    _, found = bundled("attention (fa3, bf16, cold)")
    op = ops.build("attention", {"batch": 1, "heads": 32, "kv_heads": 8, "head_dim": 128, "q_len": 1, "kv_len": 1})
    return Sheet(interrupted(op.sized, at, ask), single, found.base.over(op.sized), FINE, found).at


@pytest.mark.parametrize("make", [rising_grid, base_sheet, sheet])
@pytest.mark.parametrize("at", range(1, 7))
def test_a_question_asked_while_another_is_answered_changes_neither(make, at):
    alone = [make(at, lambda: None)(*sizes) for sizes in ASKED]
    answers = []
    times = make(at, lambda: answers.append(times(*ASKED[0])))
    assert [times(*sizes) for sizes in ASKED] == alone
    assert answers == alone[:1]
