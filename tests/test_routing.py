"""The routing plan: reproducible, without repeats, as uneven as chance makes it."""

import numpy as np
import pytest

from simulator.routing import Routing, describe_load, distinct_experts, expected_distinct_experts, plan_expert_ids


def plan(tokens, *, layers=200, seed=0):
    return plan_expert_ids(Routing(), num_layers=layers, tokens=tokens, num_experts=256, top_k=8, seed=seed)


def test_a_seed_gives_the_same_plan():
    np.testing.assert_array_equal(plan(4), plan(4))
    assert (plan(4) != plan(4, seed=1)).any()


def test_no_token_chooses_an_expert_twice():
    ids = np.sort(plan(16), axis=-1)
    assert (np.diff(ids, axis=-1) > 0).all()
    assert ids.min() >= 0
    assert ids.max() < 256


@pytest.mark.parametrize("tokens", [1, 8, 64])
def test_distinct_experts_follow_the_closed_form(tokens):
    mean = np.mean([distinct_experts(layer) for layer in plan(tokens)])
    assert mean == pytest.approx(expected_distinct_experts(256, 8, tokens), rel=0.01)


def test_one_token_hits_exactly_its_choices():
    assert expected_distinct_experts(256, 8, 1) == pytest.approx(8)


def test_the_load_is_described_with_its_closed_form():
    assert "closed form: 57.4" in describe_load(Routing(), plan(8), 256)
