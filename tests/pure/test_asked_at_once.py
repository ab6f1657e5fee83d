"""Threads that ask at once get what each would get alone: nothing that is remembered can be seen half made.

Here one question interrupts another while a row of times is made, where a thread would.
"""

import threading

import pytest

from chip.predict.rising_grid import RisingGrid

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


def grid_times(count, lengths):
    return [(count**0.5 + k * (1 + (k * 7) % 5), 0.1) for k in lengths]


def rising_grid(at, ask):
    return RisingGrid(interrupted(grid_times, at, ask))


@pytest.mark.parametrize("at", range(1, 7))
def test_a_question_asked_while_another_is_answered_changes_neither(at):
    alone = [rising_grid(at, lambda: None)(*sizes) for sizes in ASKED]
    answers = []
    times = rising_grid(at, lambda: answers.append(times(*ASKED[0])))
    assert [times(*sizes) for sizes in ASKED] == alone
    assert answers == alone[:1]
