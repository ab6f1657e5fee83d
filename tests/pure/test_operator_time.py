"""Times of operators: their sums, and the limits that hold them up."""

import pytest

from chip import ops
from chip.hardware import gpus
from chip.ops.attention import Attention
from chip.ops.linear import Linear
from chip.predictor.estimator import estimator_of
from chip.predictor.operator_time import OperatorTime, weighted_sum
from chip.predictor.peaks import peaks_of
from chip.types import Seq

SHORT = OperatorTime(1.0, 0.5, 2.0, "memory", "interpolated", 10.0, 20.0, 0.25, 3.0)
LONG = OperatorTime(4.0, 3.0, 5.0, "compute", "datasheet", 40.0, 2.0)


def test_a_sum_has_the_bound_and_source_of_its_longest_part():
    total = weighted_sum([(SHORT, 2.0), (LONG, 1.0)])
    assert total == OperatorTime(6.0, 4.0, 9.0, "compute", "datasheet", 60.0, 42.0, 0.5, 6.0)
    assert weighted_sum([(SHORT, 8.0), (LONG, 1.0)]).bound == "memory"
    assert weighted_sum([(SHORT, 1.0)]) == SHORT


def test_a_time_is_raised_with_its_interval_and_scaled_without_its_work():
    assert SHORT.at_least(0.9) == SHORT
    assert SHORT.at_least(1.5)[:3] == (1.5, 1.5, 2.0)
    assert SHORT.scaled(2.0) == OperatorTime(2.0, 1.0, 4.0, "memory", "interpolated", 10.0, 20.0, 0.5, 3.0)


@pytest.mark.parametrize("gpu", ["h200", "h100", "h800", "a100", "mi325x"])
def test_a_curve_is_the_time_of_every_call_and_none_beats_the_datasheet(gpu):
    h = gpus.find(gpu)
    e, peaks = estimator_of(h), peaks_of(h)
    for op in (Linear(1, 4096, 4096), ops.build("rms_norm", {"rows": 1, "cols": 4096})):
        axis = next(iter(ops.axes(type(op))))
        for n in (1, 7, 64, 1000, 70_000):
            call = ops.build(op.kind, {**{a: getattr(op, a) for a in ops.axes(type(op))}, axis: n})
            time, (flops, read, written) = e.curve(op).time(n), call.cost()
            assert time == e.time(call)
            assert (time.flops, time.bytes) == (pytest.approx(flops), pytest.approx(read + written))
            assert time.low_s <= time.seconds <= time.high_s
            assert time.seconds >= peaks.least_s(op.compute, flops, read + written)


@pytest.mark.parametrize("gpu", ["h200", "h100", "a100"])
def test_attention_over_a_sequence_is_that_of_the_call(gpu):
    e = estimator_of(gpus.find(gpu))
    curve = e.curve(Attention(1, 32, 8, 128, 1, 1)).time
    for seq in (Seq(1, 999, 3), Seq(700, 0, 2), Seq(512, 3000, 1)):
        time = e.time(Attention(seq.count, 32, 8, 128, seq.new, seq.new + seq.past))
        assert curve(seq) == time
        assert 0 < time.low_s <= time.seconds <= time.high_s


def test_a_window_takes_its_part_of_the_pairs():
    """Of a prompt of 4,096 tokens each sees 1,024 keys, not half of all of them on average."""
    time = estimator_of(gpus.find("h200")).time
    whole, windowed = (time(Attention(2, 32, 8, 128, 4096, 4096, window=w)) for w in (0, 1024))
    assert windowed.seconds / whole.seconds == pytest.approx(windowed.flops / whole.flops, rel=1e-6)
    assert windowed.high_s / windowed.seconds > whole.high_s / whole.seconds
