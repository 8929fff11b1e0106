"""When a measurement ends: the interval is narrow enough, or the budget is spent, and then it says so."""

import numpy as np
import pytest

from simulator.config import MeasureConfig
from simulator.jobs import breakdown
from simulator.jobs.breakdown import StopRule


def samples(rounds, *, noise=0.0, seed=0):
    step = 1000 * (1 + noise * np.random.default_rng(seed).standard_normal(rounds))
    return np.stack([np.zeros(rounds), step], axis=1)


def test_it_ends_when_the_interval_is_narrow_enough():
    rule = StopRule(MeasureConfig(half_width=0.01, min_rounds=5), full_column=1)
    assert not rule.is_enough(samples(5, noise=1e-4))
    assert rule.is_enough(samples(6, noise=1e-4))
    assert rule.warning(samples(6, noise=1e-4)) is None


def test_the_budget_counts_from_the_first_round(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(breakdown.time, "monotonic", lambda: now[0])
    rule = StopRule(MeasureConfig(half_width=1e-6, budget_s=10.0), full_column=1)
    now[0] = 500.0
    assert not rule.is_enough(samples(1))
    now[0] = 509.0
    assert not rule.is_enough(samples(3, noise=0.1))
    now[0] = 510.0
    assert rule.is_enough(samples(8, noise=0.1))
    assert "measure.budget_s=10 ended the measurement after 8 rounds" in rule.warning(samples(8, noise=0.1))


@pytest.mark.parametrize("rounds", [1, 5])
def test_too_few_rounds_give_no_interval_and_say_so(rounds):
    rule = StopRule(MeasureConfig(max_rounds=5), full_column=1)
    assert rule.is_enough(samples(rounds)) is (rounds == 5)
    assert "without an interval" in rule.warning(samples(rounds))
