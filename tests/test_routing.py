"""The routing plan: reproducible, without repeats, as uneven as chance makes it."""

import json

import numpy as np
import pytest

from simulator.errors import BadInputError
from simulator.routing import (
    Distribution,
    Routing,
    describe_load,
    distinct_experts,
    expected_distinct_experts,
    plan_expert_ids,
)


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


def planned(routing, tokens=64, layers=50):
    return plan_expert_ids(routing, num_layers=layers, tokens=tokens, num_experts=64, top_k=4, seed=0)


def zipf(exponent):
    return Routing(distribution=Distribution.zipf, exponent=exponent)


def test_zipf_hits_fewer_experts_than_uniform_the_steeper_it_is():
    distinct = [
        np.mean(
            [distinct_experts(layer) for layer in planned(Routing(distribution=Distribution.zipf, exponent=exponent))]
        )
        for exponent in (0.0, 1.0, 2.0)
    ]
    uniform = np.mean([distinct_experts(layer) for layer in planned(Routing())])
    assert distinct[0] == pytest.approx(uniform, rel=0.02)
    assert distinct[0] > distinct[1] > distinct[2]


def test_zipf_favours_other_experts_in_each_layer():
    favourites = [
        np.bincount(layer.ravel()).argmax() for layer in planned(Routing(distribution=Distribution.zipf, exponent=2.0))
    ]
    assert len(set(favourites)) > 10


RECORDED = np.array([[[0, 1, 2, 3], [4, 5, 6, 7]], [[8, 9, 10, 11], [12, 13, 14, 15]]])


@pytest.mark.parametrize("suffix", [".npy", ".json"])
def test_a_recording_is_followed_and_repeated(suffix, tmp_path):
    path = tmp_path / f"ids{suffix}"
    if suffix == ".npy":
        np.save(path, RECORDED)
    else:
        path.write_text(json.dumps(RECORDED.tolist()))
    ids = planned(Routing(distribution=Distribution.file, path=str(path)), tokens=3, layers=3)
    np.testing.assert_array_equal(ids[:, 0], [RECORDED[0, 0], RECORDED[1, 0], RECORDED[0, 0]])
    np.testing.assert_array_equal(ids[0], [RECORDED[0, 0], RECORDED[0, 1], RECORDED[0, 0]])


WRONG_RECORDINGS = [
    (np.zeros((0, 4), dtype=int), "holds no expert ids"),
    (np.array([[0.5, 1, 2, 3]]), "must hold whole numbers, not float64"),
    (np.array([[0, 1, 2]]), r"must have shape \[layers, tokens, 4\] or \[tokens, 4\], not \[1, 1, 3\]"),
    (np.array([[0, 1, 2, 64]]), "has expert ids from 0 to 64; the model has 0 to 63"),
    (np.array([[0, 1, -2, 4]]), "has expert ids from -2 to 4"),
    (np.array([[0, 1, 1, 4]]), "chooses one expert twice"),
    (np.array([[{}, 1, 1, 4]], dtype=object), "cannot be read as expert ids: .*allow_pickle"),
]


@pytest.mark.parametrize(("ids", "message"), WRONG_RECORDINGS, ids=[message[:20] for _, message in WRONG_RECORDINGS])
def test_wrong_recordings_are_refused(ids, message, tmp_path):
    np.save(tmp_path / "ids.npy", ids, allow_pickle=True)
    with pytest.raises(BadInputError, match=message):
        planned(Routing(distribution=Distribution.file, path=str(tmp_path / "ids.npy")))


def test_no_recording_and_no_json(tmp_path):
    with pytest.raises(BadInputError, match=r"must name a \.npy or \.json file"):
        planned(Routing(distribution=Distribution.file))
    (tmp_path / "ids.json").write_text("[[1, 2")
    with pytest.raises(BadInputError, match="cannot be read as expert ids"):
        planned(Routing(distribution=Distribution.file, path=str(tmp_path / "ids.json")))
    with pytest.raises(BadInputError, match="No such file"):
        planned(Routing(distribution=Distribution.file, path=str(tmp_path / "nothing.npy")))


def test_the_routers_own_choice_is_warned_about():
    assert "unlike a trained model" in describe_load(Routing(distribution=Distribution.from_router), plan(8), 256)


def test_an_empty_file_and_a_header_that_claims_too_much_are_refused(tmp_path):
    path = tmp_path / "ids.npy"
    path.write_bytes(b"")
    with pytest.raises(BadInputError, match="cannot be read as expert ids"):
        planned(Routing(distribution=Distribution.file, path=str(path)))
    header = np.lib.format.header_data_from_array_1_0(RECORDED) | {"shape": (2**40, 8, 4)}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
    with pytest.raises(BadInputError, match="cannot be read as expert ids"):
        planned(Routing(distribution=Distribution.file, path=str(path)))
