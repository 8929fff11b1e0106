"""Attribution against the Shapley axioms, games whose answer is known in closed form, and noise of known size."""

import math
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from simulator.attribution import Attribution, Interval, _medians, attribute, half_width_fraction, two_modes
from simulator.shapley import Design, design_subsets

Game = Callable[[frozenset[int]], float]
Floats = npt.NDArray[np.float64]


def exact_design(num_groups: int) -> Design:
    return design_subsets(num_groups, max_exact_groups=12, num_permutations=0, seed=0)


def sampled_design(num_groups: int, num_permutations: int, seed: int = 0) -> Design:
    return design_subsets(num_groups, max_exact_groups=0, num_permutations=num_permutations, seed=seed)


def groups_of(mask: int) -> frozenset[int]:
    return frozenset(group for group in range(mask.bit_length()) if mask >> group & 1)


def values_of(design: Design, game: Game) -> Floats:
    return np.array([game(groups_of(mask)) for mask in design.masks])


def play(design: Design, game: Game) -> Attribution:
    return attribute(design, values_of(design, game)[None], seed=0)


def shapley_of(attribution: Attribution) -> list[float]:
    return [group.shapley_us for group in attribution.groups]


def holds(interval: Interval | None, value: float) -> bool:
    assert interval is not None
    return interval[0] <= value <= interval[1]


# A first call pays for imports, and two busy cores for the rest: no deadline.
untimed = settings(deadline=None, max_examples=60)

# Any game: a value for each of the 2^n subsets, up to a second.
games = st.integers(0, 5).flatmap(
    lambda n: hnp.arrays(np.float64, 2**n, elements=st.floats(0, 1e6, allow_subnormal=False))
)


def num_groups_of(values: Floats) -> int:
    return len(values).bit_length() - 1


# --- the axioms, exact and sampled ---


@untimed
@given(values=games)
def test_shapley_values_sum_to_full_minus_empty(values: Floats) -> None:
    n = num_groups_of(values)
    for design in (exact_design(n), sampled_design(n, 6)):
        shapley = design.shapley(values[list(design.masks)])
        assert shapley.sum() == pytest.approx(values[-1] - values[0], rel=1e-9, abs=1e-9 * max(1.0, values.max()))


@untimed
@given(values=games, seed=st.integers(0, 99))
def test_relabelling_groups_relabels_shapley_values(values: Floats, seed: int) -> None:
    n = num_groups_of(values)
    new_name = np.random.default_rng(seed).permutation(n)
    relabelled = np.empty_like(values)
    for mask in range(2**n):
        relabelled[sum(1 << int(new_name[group]) for group in groups_of(mask))] = values[mask]
    design = exact_design(n)
    assert design.shapley(relabelled)[new_name] == pytest.approx(design.shapley(values), rel=1e-9, abs=1e-6)


@untimed
@given(others=games)
def test_a_group_that_adds_nothing_gets_nothing(others: Floats) -> None:
    n = num_groups_of(others)
    values = np.concatenate([others, others])  # the new highest bit changes no value
    for design in (exact_design(n + 1), sampled_design(n + 1, 4)):
        shapley = design.shapley(values[list(design.masks)])
        assert shapley[n] == pytest.approx(0.0, abs=1e-6)
    design = exact_design(n + 1)
    assert design.shapley(values)[:n] == pytest.approx(exact_design(n).shapley(others), rel=1e-9, abs=1e-6)


@untimed
@given(values=games, factor=st.floats(-3, 3), seed=st.integers(0, 99))
def test_shapley_values_are_linear(values: Floats, factor: float, seed: int) -> None:
    n = num_groups_of(values)
    other = np.random.default_rng(seed).uniform(0, 1e3, len(values))
    for design in (exact_design(n), sampled_design(n, 4)):
        columns = list(design.masks)
        together = design.shapley((values + factor * other)[columns])
        apart = design.shapley(values[columns]) + factor * design.shapley(other[columns])
        assert together == pytest.approx(apart, rel=1e-9, abs=1e-5)


# --- planted truths ---


def test_sequence_is_told_alike_three_ways() -> None:
    times_us, empty_us = [10.0, 20.0, 0.5, 7.0], 3.0
    attribution = play(exact_design(4), lambda kept: empty_us + sum(times_us[group] for group in kept))
    for group, time_us in zip(attribution.groups, times_us, strict=True):
        assert [group.shapley_us, group.leave_one_out_us, group.alone_us] == pytest.approx([time_us] * 3)
    assert [pair.us for pair in attribution.interactions] == pytest.approx([0.0] * 6, abs=1e-12)
    assert (attribution.full_us, attribution.empty_us) == (40.5, 3.0)


@untimed
@given(a=st.floats(0, 1e3), b=st.floats(0, 1e3), c=st.floats(0, 1e3))
def test_two_streams_share_their_overlap(a: float, b: float, c: float) -> None:
    """Time max(a, b) + c: each stream gets its time minus half the overlap, min(a, b) / 2."""
    cost = (a, b, c)

    def game(kept: frozenset[int]) -> float:
        stream_0, stream_1, after = (cost[group] if group in kept else 0.0 for group in range(3))
        return max(stream_0, stream_1) + after

    attribution = play(exact_design(3), game)
    overlap = min(a, b)
    assert shapley_of(attribution) == pytest.approx([a - overlap / 2, b - overlap / 2, c], abs=1e-9)
    left_out = [group.leave_one_out_us for group in attribution.groups]
    assert left_out == pytest.approx([a - overlap, b - overlap, c], abs=1e-9)
    assert [group.alone_us for group in attribution.groups] == pytest.approx([a, b, c], abs=1e-9)
    us = {(pair.a, pair.b): pair.us for pair in attribution.interactions}
    assert us == pytest.approx({(0, 1): -overlap, (0, 2): 0.0, (1, 2): 0.0}, abs=1e-9)


def test_interaction_is_positive_where_two_disturb_each_other() -> None:
    attribution = play(exact_design(2), lambda kept: 10.0 * len(kept) + (4.0 if len(kept) == 2 else 0.0))
    assert attribution.interactions == ((0, 1, 4.0),)
    assert shapley_of(attribution) == pytest.approx([12.0, 12.0])


@pytest.mark.parametrize("num_groups", [2, 3, 12, 24])
def test_sampled_design_gives_every_interaction_of_up_to_24_groups(num_groups: int) -> None:
    found = play(sampled_design(num_groups, 4), lambda kept: float(len(kept) ** 2)).interactions
    assert [(a, b) for a, b, _ in found] == [(a, b) for a in range(num_groups) for b in range(a + 1, num_groups)]
    assert [pair.us for pair in found] == pytest.approx([2.0] * len(found))


def test_sampled_design_of_many_groups_gives_the_interactions_it_timed() -> None:
    design = sampled_design(25, 4)
    found = play(design, lambda kept: float(len(kept) ** 2)).interactions
    assert found == tuple(sorted(found))
    assert {(a, b) for a, b, _ in found} == {tuple(sorted(order[-2:])) for order in design.permutations}
    assert [pair.us for pair in found] == pytest.approx([2.0] * len(found))


# --- the design ---


@pytest.mark.parametrize("num_groups", [0, 1, 2, 5, 10])
def test_exact_design_times_every_subset_once(num_groups: int) -> None:
    design = design_subsets(num_groups, max_exact_groups=10, num_permutations=100, seed=0)
    assert design.exact
    assert sorted(design.masks) == list(range(2**num_groups))
    assert design.permutations == ()


@pytest.mark.parametrize("num_groups", [1, 2, 11, 78])
def test_sampled_design_holds_what_it_needs(num_groups: int) -> None:
    design = design_subsets(num_groups, max_exact_groups=0, num_permutations=5, seed=3)
    full, masks = 2**num_groups - 1, set(design.masks)
    assert not design.exact
    assert len(masks) == len(design.masks)
    assert {full, 0} <= masks
    assert {1 << group for group in range(num_groups)} <= masks
    assert {full ^ 1 << group for group in range(num_groups)} <= masks
    assert len(design.permutations) == 6  # rounded up to pairs
    for order, reverse in zip(design.permutations[::2], design.permutations[1::2], strict=True):
        assert order == reverse[::-1]
        assert {sum(1 << group for group in order[:count]) for count in range(num_groups + 1)} <= masks


def test_design_follows_its_seed() -> None:
    assert sampled_design(12, 8, seed=1) == sampled_design(12, 8, seed=1)
    assert sampled_design(12, 8, seed=1) != sampled_design(12, 8, seed=2)


def test_designs_that_cannot_be_attributed_are_refused() -> None:
    with pytest.raises(ValueError, match="num_groups must be at least 0, got -1"):
        exact_design(-1)
    with pytest.raises(ValueError, match="distinct"):
        Design(num_groups=1, masks=(0, 1, 1), exact=True)
    with pytest.raises(ValueError, match="empty and the full"):
        Design(num_groups=2, masks=(0, 1, 2), exact=False)
    with pytest.raises(ValueError, match="all 4 subsets, got 3"):
        Design(num_groups=2, masks=(0, 1, 3), exact=True)
    with pytest.raises(ValueError, match="at least 2 pairs of orders, got 1"):
        Design(num_groups=2, masks=(0, 1, 2, 3), exact=False, permutations=((0, 1), (1, 0)))


def test_samples_that_do_not_fit_are_refused() -> None:
    design = exact_design(2)
    for shape in ((5, 3), (0, 4), (4,)):
        with pytest.raises(ValueError, match="must have shape"):
            attribute(design, np.ones(shape), seed=0)
    with pytest.raises(ValueError, match="must be finite, got 1"):
        attribute(design, np.array([[1.0, 2.0, np.nan, 3.0]]), seed=0)


# --- few groups, few rounds ---


@pytest.mark.parametrize("rounds", [1, 5, 6, 7])
def test_no_groups_leave_the_empty_step(rounds: int) -> None:
    attribution = attribute(exact_design(0), np.full((rounds, 1), 5.0), seed=0)
    assert (attribution.full_us, attribution.empty_us) == (5.0, 5.0)
    assert (attribution.groups, attribution.interactions) == ((), ())
    assert attribution.full_ci95_us == (None if rounds < 6 else (5.0, 5.0))


@pytest.mark.parametrize("design", [exact_design(1), sampled_design(1, 2)], ids=["exact", "sampled"])
def test_one_group_takes_full_minus_empty(design: Design) -> None:
    attribution = play(design, lambda kept: 2.0 + 9.0 * len(kept))
    (group,) = attribution.groups
    assert (group.shapley_us, group.leave_one_out_us, group.alone_us) == (9.0, 9.0, 9.0)
    assert attribution.interactions == ()


@pytest.mark.parametrize("rounds", [1, 2, 5])
@pytest.mark.parametrize("design", [exact_design(3), sampled_design(3, 4)], ids=["exact", "sampled"])
def test_too_few_rounds_have_no_intervals(design: Design, rounds: int) -> None:
    """Resampling 2 rounds would hold the truth in half the cases, not in 95%."""
    attribution = attribute(design, np.tile(values_of(design, lambda kept: float(len(kept))), (rounds, 1)), seed=0)
    assert attribution.full_ci95_us is None
    for group in attribution.groups:
        assert group.shapley_ci95_us is None
        assert group.leave_one_out_ci95_us is None


def test_numbers_of_the_whole_step() -> None:
    samples = np.stack([np.full(101, 1.0), np.arange(101.0)], axis=1)
    attribution = attribute(exact_design(1), samples, seed=0)
    assert (attribution.full_us, attribution.p95_us, attribution.empty_us) == (50.0, 95.0, 1.0)
    assert (attribution.rounds, attribution.num_subsets, attribution.exact) == (101, 2, True)


# --- intervals ---


def sequence_samples(design: Design, rounds: int, noise_us: float, rng: np.random.Generator) -> Floats:
    values = values_of(design, lambda kept: 20.0 + sum(10.0 * (group + 1) for group in kept))
    return values + rng.normal(0, noise_us, (rounds, len(values)))


@pytest.mark.parametrize("rounds", [6, 20, 41])
def test_intervals_hold_the_truth_about_as_often_as_they_say(rounds: int) -> None:
    design, rng, runs = exact_design(3), np.random.default_rng(0), 200
    hits = np.zeros((runs, 7))
    for run in range(runs):
        result = attribute(design, sequence_samples(design, rounds, 2.0, rng), seed=run, num_resamples=400)
        hits[run, 0] = holds(result.full_ci95_us, 80.0)
        for index, group in enumerate(result.groups):
            hits[run, 1 + index] = holds(group.shapley_ci95_us, 10.0 * (index + 1))
            hits[run, 4 + index] = holds(group.leave_one_out_ci95_us, 10.0 * (index + 1))
    assert ((hits.mean(axis=0) > 0.88) & (hits.mean(axis=0) <= 1.0)).all(), hits.mean(axis=0)
    assert hits.mean() == pytest.approx(0.95, abs=0.04)


def test_intervals_shrink_with_rounds_and_follow_the_seed() -> None:
    design, rng = exact_design(3), np.random.default_rng(1)
    samples = sequence_samples(design, 400, 2.0, rng)

    def width(rounds: int) -> float:
        low, high = attribute(design, samples[:rounds], seed=0).groups[0].shapley_ci95_us or (math.inf, -math.inf)
        return high - low

    assert width(400) < 0.5 * width(25)
    assert attribute(design, samples, seed=7) == attribute(design, samples, seed=7)


@pytest.mark.parametrize("design", [exact_design(3), sampled_design(6, 8)], ids=["exact", "sampled"])
def test_drift_common_to_a_round_cancels(design: Design) -> None:
    """Clocks that drift by 30 us move the step's interval, but no group's: a sequence has no sampling error either."""
    samples = sequence_samples(design, 31, 0.01, np.random.default_rng(2)) + np.linspace(0, 30, 31)[:, None]
    attribution = attribute(design, samples, seed=0)
    low, high = attribution.full_ci95_us or (0.0, 0.0)
    assert high - low > 5.0
    for index, group in enumerate(attribution.groups):
        for interval in (group.shapley_ci95_us, group.leave_one_out_ci95_us):
            assert interval is not None
            assert interval[1] - interval[0] < 0.1
        assert group.shapley_us == pytest.approx(10.0 * (index + 1), abs=0.05)


def overlapping_game(num_groups: int) -> Game:
    """Two streams of uneven groups, whose Shapley values depend on the order in which groups join."""
    return lambda kept: 5.0 + max(sum((g + 1.0) ** 1.5 for g in kept if g % 2 == side) for side in (0, 1))


def test_sampled_intervals_hold_the_exact_values() -> None:
    """Without noise all that is left is the error of sampling orders: the interval must know of it."""
    num_groups, runs = 8, 60
    game = overlapping_game(num_groups)
    truth = shapley_of(play(exact_design(num_groups), game))
    hits, widths = [], []
    for run in range(runs):
        design = sampled_design(num_groups, 40, seed=run)
        result = attribute(design, np.tile(values_of(design, game), (6, 1)), seed=run, num_resamples=400)
        assert not result.exact
        assert sum(shapley_of(result)) == pytest.approx(result.full_us - result.empty_us, rel=1e-9)
        for group, exact_us in zip(result.groups, truth, strict=True):
            hits.append(holds(group.shapley_ci95_us, exact_us))
            low, high = group.shapley_ci95_us or (0.0, 0.0)
            widths.append((high - low) / result.full_us)
    assert 0.88 < np.mean(hits) <= 1.0
    assert 0 < np.median(widths) < 0.2


@pytest.mark.parametrize("rounds", [2, 3, 8, 9])
def test_medians_are_those_of_numpy(rounds: int) -> None:
    gathered = np.random.default_rng(0).normal(100, 1, (3, 5, rounds))
    assert (_medians(gathered.copy()) == np.median(gathered, axis=-1)).all()


def test_resampling_is_quick() -> None:
    design = exact_design(9)
    samples = np.random.default_rng(0).normal(100, 1, (30, 512))
    start = time.perf_counter()
    result = attribute(design, samples, seed=0, num_resamples=1000)
    assert time.perf_counter() - start < 3.0
    assert sum(shapley_of(result)) == pytest.approx(result.full_us - result.empty_us, rel=1e-9, abs=1e-9)


# --- the step's own samples ---


@pytest.mark.parametrize("count", range(6))
def test_half_width_is_infinite_below_six_samples(count: int) -> None:
    assert half_width_fraction(np.full(count, 3.0)) == math.inf


@pytest.mark.parametrize(("count", "first"), [(6, 1), (10, 2), (20, 6), (50, 18), (100, 40)])
def test_half_width_follows_the_tables_of_order_statistics(count: int, first: int) -> None:
    """`first`: rank of the interval's lower end in published tables (Conover, Practical Nonparametric Statistics)."""
    samples = np.arange(1.0, count + 1)
    np.random.default_rng(0).shuffle(samples)
    expected = (count + 1 - 2 * first) / 2 / ((count + 1) / 2)
    assert half_width_fraction(samples) == pytest.approx(expected)


def test_half_width_covers_the_median_and_needs_a_positive_one() -> None:
    rng = np.random.default_rng(0)
    assert half_width_fraction(rng.normal(100, 1, 100_000)) < 2e-4
    assert half_width_fraction(np.zeros(10)) == math.inf
    assert half_width_fraction(np.full(10, 4.0)) == 0.0


UNIMODAL: dict[str, Callable[[np.random.Generator, int], Floats]] = {
    "normal": lambda rng, count: rng.normal(100, 5, count),
    "uniform": lambda rng, count: rng.uniform(80, 120, count),
    "exponential": lambda rng, count: 60 + rng.exponential(20, count),
    "lognormal": lambda rng, count: 100 * rng.lognormal(0, 0.8, count),
    "student": lambda rng, count: 200 + 5 * rng.standard_t(2, count),
    "drift": lambda rng, count: np.linspace(100, 130, count) + rng.normal(0, 1, count),
    "outliers": lambda rng, count: rng.normal(100, 1, count) + 300 * (np.arange(count) < 0.05 * count),
    "quantised": lambda rng, count: np.round(rng.normal(1000, 0.6, count)),
}


@pytest.mark.parametrize("kind", UNIMODAL)
def test_unimodal_noise_has_no_two_modes(kind: str) -> None:
    rng = np.random.default_rng(0)
    for count in (7, 12, 15, 20, 30, 60, 200):
        found = sum(two_modes(UNIMODAL[kind](rng, count)) is not None for _ in range(250))
        assert found <= 2, (count, found)


@pytest.mark.parametrize("count", [12, 20, 60, 200])
@pytest.mark.parametrize("spread_us", [0.1, 0.2, 0.4])
def test_ticks_of_the_event_clock_are_no_modes(count: int, spread_us: float) -> None:
    """A short step timed in ticks of 0.5 us: neighbouring ticks are 2.5% apart, with nothing between them."""
    rng = np.random.default_rng(0)
    for _ in range(250):
        assert two_modes(np.round(rng.normal(20.2, spread_us, count) * 2) / 2) is None


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_fast_and_slow_state_are_reported_with_shares(share: float) -> None:
    """63 against 94 ms, TRAPS S6, with two wild samples on top."""
    rng, count = np.random.default_rng(0), 60
    num_slow = int(share * count)
    samples = np.concatenate([rng.normal(63e3, 300, count - num_slow), rng.normal(94e3, 900, num_slow - 2), [5e5, 9e5]])
    rng.shuffle(samples)
    modes = attribute(exact_design(1), np.stack([np.ones(count), samples], axis=1), seed=0).bimodal
    assert modes is not None
    assert (modes.fast_share, modes.slow_share) == pytest.approx((1 - share, share))
    assert (modes.fast_us, modes.slow_us) == pytest.approx((63e3, 94e3), rel=0.02)


def test_modes_without_noise_are_found_and_close_ones_are_not() -> None:
    assert two_modes(np.array([63.0] * 10 + [94.0] * 10)) is not None
    assert two_modes(np.array([100.0] * 10 + [101.0] * 10)) is None
    assert two_modes(np.full(20, 5.0)) is None
    assert two_modes(np.empty(0)) is None
