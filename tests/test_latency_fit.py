"""Fits of all-reduce times: planted lines are found, noise is not followed."""

import numpy as np
import pytest

from simulator.hardware import Interconnect, Segment
from simulator.latency_fit import fit_times

SIZES = [2**power for power in range(8, 27)]


def planted(*segments):
    wire = Interconnect(segments=[Segment(from_bytes=f, latency_us=us, bandwidth_gbps=b) for f, us, b in segments])
    return [wire.all_reduce_us(size) for size in SIZES]


def test_one_line_is_found_exactly():
    fit = fit_times(SIZES, planted((0, 3.7, 110.0)))
    (segment,) = fit.segments
    assert (segment.latency_us, segment.bandwidth_gbps) == pytest.approx((3.7, 110.0), rel=1e-6)
    assert fit.largest_error < 1e-9


def test_a_change_of_algorithm_is_found():
    fit = fit_times(SIZES, planted((0, 5.0, 10.0), (65_536, 25.0, 40.0)))
    small, large = fit.segments
    assert (small.latency_us, small.bandwidth_gbps) == pytest.approx((5.0, 10.0), rel=1e-6)
    assert (large.from_bytes, large.latency_us, large.bandwidth_gbps) == pytest.approx((65_536, 25.0, 40.0), rel=1e-6)


def test_noise_does_not_make_a_second_line():
    noise = 1 + 0.03 * np.random.default_rng(0).standard_normal(len(SIZES))
    fit = fit_times(SIZES, planted((0, 20.0, 20.0)) * noise)
    assert len(fit.segments) == 1
    assert fit.segments[0].latency_us == pytest.approx(20.0, rel=0.05)
    assert 0.005 < fit.median_error < 0.05


def test_times_that_do_not_grow_are_latency_alone():
    fit = fit_times([256, 1024, 4096], [24.6, 24.1, 24.2])
    (segment,) = fit.segments
    assert segment.latency_us == pytest.approx(24.3, rel=0.01)
    assert 4096 / segment.bandwidth_gbps / 1e3 < 0.01


def test_times_that_grow_with_size_alone_have_no_negative_latency():
    fit = fit_times([1000, 2000, 4000], [0.9, 2.0, 4.2])
    assert fit.segments[0].latency_us == 0.0


def test_one_size_is_no_fit():
    with pytest.raises(ValueError, match="two sizes at least; got 1"):
        fit_times([8, 8], [3.0, 3.1])


def test_a_user_given_latency_replaces_the_fit():
    wire = Interconnect(segments=[Segment(from_bytes=0, latency_us=5.0, bandwidth_gbps=10.0)], bandwidth_gbps=50.0)
    assert wire.all_reduce_us(10_000) == pytest.approx(6.0)
