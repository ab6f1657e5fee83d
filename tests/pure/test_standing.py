"""Who stands first where figures are uncertain."""

from chip.predictor.standing import Figure, places


def test_the_order_goes_by_the_end_one_can_count_on():
    sure, bold = Figure(10, 9, 11, larger=True), Figure(50, 1, 900, larger=True)
    assert sorted([bold, sure], key=lambda f: f.order) == [sure, bold]
    cheap, unclear = Figure(3, 2, 4, larger=False), Figure(1, 0.1, 40, larger=False)
    assert sorted([unclear, cheap], key=lambda f: f.order) == [cheap, unclear]


def test_a_tie_is_mutual():
    sure, bold = Figure(10, 9, 11, larger=True), Figure(50, 1, 900, larger=True)
    assert not sure.ties_with(bold)
    assert not bold.ties_with(sure)
    assert sure.ties_with(Figure(9.5, 8, 12, larger=True))


def test_what_may_be_better_reaches_beyond_the_estimate():
    first = Figure(10, 9, 11, larger=True)
    assert Figure(5, 1, 10.5, larger=True).may_beat(first)
    assert not Figure(9, 8, 9.5, larger=True).may_beat(first)
    assert Figure(30, 9, 60, larger=False).may_beat(Figure(10, 9, 11, larger=False))


def test_a_place_is_shared_with_its_first_only():
    def of(value):
        return Figure(value, value - 1.5, value + 1.5, larger=True)

    assert places([of(v) for v in (10, 9, 8, 7, 3)]) == [(1, True), (1, True), (3, True), (3, True), (5, False)]
    assert places([]) == []
