"""Cases folded into one test: all of them are tried, and each that fails is told."""

import pytest
from folding import each


def test_every_case_that_fails_is_told():
    tried = []

    @each([(1, 2), (2, 1), (3, 3)])
    def test_they_rise(a, b):
        """Of two."""
        tried.append(a)
        with pytest.raises(ZeroDivisionError):
            _ = 1 / (b > a)  # nothing is raised where it rises
        assert b <= a

    with pytest.raises(BaseExceptionGroup, match="1 of 3 cases") as told:
        test_they_rise()
    assert tried == [1, 2, 3]
    (failed,) = told.value.exceptions
    assert "DID NOT RAISE" in str(failed)
    assert failed.__notes__ == ["case: (1, 2)"]
    assert (test_they_rise.__name__, test_they_rise.__doc__) == ("test_they_rise", "Of two.")


def test_no_cases_are_no_test():
    with pytest.raises(AssertionError):
        each([])
