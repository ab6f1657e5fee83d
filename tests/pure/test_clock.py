"""Points that were timed at the boost clock among those that were not."""

from __future__ import annotations

import pytest

from chip.predict.clock import Settling

CLOCK = Settling(boost=0.17, measured=0.93, time_s=0.15, flop_per_s=6.5e14)


@pytest.mark.parametrize("rate", [1e14, 5.5e14, 6.5e14, 7.2e14, 8e14])
def test_a_burst_is_predicted_as_it_was_timed(rate: float) -> None:
    """A call timed rested is brought to the tables' clock, and a short prompt brings it back."""
    flops, seconds = 1e12, 1e12 / rate
    kept = CLOCK.from_rest(seconds, flops)
    back = kept * (1 + (CLOCK.factor(0.0) - 1) * CLOCK.limited(flops / kept))
    assert back == pytest.approx(seconds, rel=1e-6)
    assert kept >= seconds
