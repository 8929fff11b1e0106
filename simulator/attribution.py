"""How much of a step's time each group of operations takes, with intervals: arithmetic on samples. No torch.

The value of a subset is the median of its samples over rounds. A round times every subset once, interleaved, so
intervals come from resampling whole rounds: what a round has in common (drift of clocks, temperature) cancels in
differences. This module does not know what a subset is made of or how it was timed; `shapley` chooses the subsets.
"""

from dataclasses import dataclass
from math import inf, log
from typing import NamedTuple

import numpy as np

from simulator.shapley import Design, Floats

Interval = tuple[float, float]
"""Low and high end of a 95% interval."""

_TAILS = (2.5, 97.5)
# The lowest and the highest of 5 samples hold the median in 93.75% of cases, those of 6 in 96.9%: no fewer rounds can
# give a 95% interval without assuming what the noise looks like (resampling 2, 3, 4 of them: 50%, 75%, 90%).
_LEAST_ROUNDS = 6
# Samples gathered at a time while resampling: 32 MiB of float64.
_CHUNK_ELEMENTS = 4 << 20

# Two modes: what the rarer one must hold, how far apart they must be relative to the lower one, and how wide the
# valley between them (90th percentile of the lower to 10th of the upper) must be relative to their own
# interquartile ranges together. Chosen by simulation: ten kinds of noise with one mode, 12 to 300 samples, fire in less
# than 0.5% of runs, while 63 against 94 us (70:30, sigma 1.5) is found in 96% of runs from 30 samples on.
_LEAST_MODE_SHARE = 0.1
_LEAST_MODE_SAMPLES = 6
_LEAST_MODE_DISTANCE = 0.02
# Two ticks: neighbouring ticks of a coarse clock look like modes. A CUDA event's is "around 0.5 microseconds" (CUDA
# Runtime API, cudaEventElapsedTime, 2026).
_LEAST_MODE_DISTANCE_US = 1.0
_LEAST_VALLEY = 3.0


@dataclass(frozen=True, kw_only=True)
class GroupTimes:
    """What one group takes, told in three ways. Intervals are None below 6 rounds."""

    shapley_us: float
    """Its fair share of the step: over all groups they sum to full minus empty."""
    shapley_ci95_us: Interval | None
    leave_one_out_us: float
    """What the step would save without it."""
    leave_one_out_ci95_us: Interval | None
    alone_us: float
    """What it takes with nothing else in the step, above the empty step."""


class Interaction(NamedTuple):
    """What two groups (a < b) cost together beyond the sum of each: negative where they overlap."""

    a: int
    b: int
    us: float


@dataclass(frozen=True, kw_only=True)
class TwoModes:
    """A step that has a fast and a slow state: the median of each, and the share of samples in it."""

    fast_us: float
    fast_share: float
    slow_us: float
    slow_share: float


@dataclass(frozen=True, kw_only=True)
class Attribution:
    """Times of the whole step and of its groups. Intervals are None below 6 rounds."""

    full_us: float
    full_ci95_us: Interval | None
    p95_us: float
    empty_us: float
    rounds: int
    exact: bool
    """Whether Shapley values come from all subsets; otherwise from sampled orders, whose error the interval holds."""
    num_subsets: int
    groups: tuple[GroupTimes, ...]
    interactions: tuple[Interaction, ...]
    """Of every pair of groups whose subsets were timed."""
    bimodal: TwoModes | None


def attribute(design: Design, samples: Floats, *, seed: int, num_resamples: int = 1000) -> Attribution:
    """Attribute the step's time to the groups of `design`, from samples in microseconds [rounds, masks]."""
    samples = np.asarray(samples, dtype=np.float64)
    if samples.ndim != 2 or samples.shape[0] < 1 or samples.shape[1] != len(design.masks):
        raise ValueError(f"samples must have shape [rounds >= 1, {len(design.masks)} masks], got {samples.shape}")
    if not np.isfinite(samples).all():
        raise ValueError(f"samples must be finite, got {np.count_nonzero(~np.isfinite(samples))} that are not")
    values = np.median(samples, axis=0)
    full, empty = design.columns[design.full], design.columns[0]
    times = _times(design, values)
    intervals = _intervals(design, samples, times, seed=seed, num_resamples=num_resamples)
    num_groups = design.num_groups
    groups = tuple(
        GroupTimes(
            shapley_us=float(times[1 + group]),
            shapley_ci95_us=intervals[1 + group],
            leave_one_out_us=float(times[1 + num_groups + group]),
            leave_one_out_ci95_us=intervals[1 + num_groups + group],
            alone_us=float(values[column] - values[empty]),
        )
        for group, column in enumerate(design.alone)
    )
    return Attribution(
        full_us=float(values[full]),
        full_ci95_us=intervals[0],
        p95_us=float(np.percentile(samples[:, full], 95)),
        empty_us=float(values[empty]),
        rounds=len(samples),
        exact=design.exact,
        num_subsets=len(design.masks),
        groups=groups,
        interactions=_interactions(design, values),
        bimodal=two_modes(samples[:, full]),
    )


def half_width_fraction(full_step_samples: Floats) -> float:
    """Half the 95% interval of the median over the median: how well the step is known. Infinite below 6 samples.

    The interval lies between two samples (order statistics), so it assumes nothing about the noise but independence.
    """
    ordered = np.sort(np.asarray(full_step_samples, dtype=np.float64))
    num_samples = len(ordered)
    if num_samples < _LEAST_ROUNDS:
        return inf
    below = np.arange(num_samples // 2)
    # Chance that `below` samples lie below the true median: binomial, each sample on either side of it alike.
    log_chance = np.cumsum(np.log((num_samples - below) / (below + 1))) - num_samples * log(2)
    chance = np.concatenate([[0.5**num_samples], np.exp(log_chance)])
    first = int(np.searchsorted(np.cumsum(chance), 0.025, side="right")) - 1
    median = float(np.median(ordered))
    half_width = float(ordered[num_samples - 1 - first] - ordered[first]) / 2
    return half_width / median if median > 0 else inf


def two_modes(full_step_samples: Floats) -> TwoModes | None:
    """The step's fast and slow state, where its samples fall into two clearly separate heaps; None otherwise."""
    ordered = np.sort(np.asarray(full_step_samples, dtype=np.float64))
    num_samples = len(ordered)
    least = max(_LEAST_MODE_SAMPLES, int(np.ceil(_LEAST_MODE_SHARE * num_samples)))
    if num_samples < 2 * least:
        return None
    # The split that leaves the least variance within both sides (Otsu), blind to how far outliers lie.
    clipped = np.clip(ordered, *np.percentile(ordered, (5, 95)))
    sizes = np.arange(least, num_samples - least + 1)
    sums = np.concatenate([[0.0], np.cumsum(clipped - clipped.mean())])
    between = sums[sizes] ** 2 * (1 / sizes + 1 / (num_samples - sizes))
    split = int(sizes[np.argmax(between)])
    fast, slow = ordered[:split], ordered[split:]
    fast_us, slow_us = float(np.median(fast)), float(np.median(slow))
    spread = float(np.subtract(*np.percentile(fast, (75, 25))) + np.subtract(*np.percentile(slow, (75, 25))))
    valley = float(np.percentile(slow, 10) - np.percentile(fast, 90))
    least_distance_us = max(_LEAST_MODE_DISTANCE * fast_us, _LEAST_MODE_DISTANCE_US)
    if valley <= _LEAST_VALLEY * spread or slow_us - fast_us <= least_distance_us:
        return None
    share = split / num_samples
    return TwoModes(fast_us=fast_us, fast_share=share, slow_us=slow_us, slow_share=1 - share)


def _times(design: Design, values: Floats, pair_weights: Floats | None = None) -> Floats:
    """What gets an interval: [..., full step, then Shapley values, then leave-one-out times, in group order]."""
    full = values[..., [design.columns[design.full]]]
    shapley = design.shapley(values, pair_weights=pair_weights)
    return np.concatenate([full, shapley, full - values[..., design.without]], axis=-1)


def _intervals(
    design: Design, samples: Floats, times: Floats, *, seed: int, num_resamples: int
) -> list[Interval] | list[None]:
    """Percentile bootstrap intervals of `times`; each holds the estimate itself. None below 6 rounds."""
    rounds = len(samples)
    if rounds < _LEAST_ROUNDS:
        return [None] * len(times)
    rng = np.random.default_rng(seed)
    drawn_rounds = rng.integers(rounds, size=(num_resamples, rounds))
    pair_weights = None if design.exact else _draw_pair_weights(rng, num_resamples, design.num_pairs)
    by_mask = np.ascontiguousarray(samples.T)
    elements = max(samples.size, len(design.permutations) * (design.num_groups + 1))
    chunk = max(1, _CHUNK_ELEMENTS // elements)
    resampled = np.empty((num_resamples, len(times)))
    for start in range(0, num_resamples, chunk):
        part = slice(start, start + chunk)
        values = _medians(by_mask[:, drawn_rounds[part]]).T
        resampled[part] = _times(design, values, None if pair_weights is None else pair_weights[part])
    low, high = np.percentile(resampled, _TAILS, axis=0)
    ends = zip(np.minimum(low, times), np.maximum(high, times), strict=True)
    return [(float(lowest), float(highest)) for lowest, highest in ends]


def _draw_pair_weights(rng: np.random.Generator, num_resamples: int, num_pairs: int) -> Floats:
    """Weights [resamples, pairs] of pairs of orders drawn with replacement.

    One fewer is drawn than there are: that makes the spread of a mean of few pairs come out right, not too small.
    """
    counts = rng.multinomial(num_pairs - 1, np.full(num_pairs, 1 / num_pairs), size=num_resamples)
    return counts / (num_pairs - 1)


def _medians(gathered: Floats) -> Floats:
    """Medians over the last axis, which is reordered in place."""
    size = gathered.shape[-1]
    low, high = (size - 1) // 2, size // 2
    gathered.partition((low, high) if low != high else low, axis=-1)
    return (gathered[..., low] + gathered[..., high]) / 2


def _interactions(design: Design, values: Floats) -> tuple[Interaction, ...]:
    """v(all) - v(without a) - v(without b) + v(without both), for the pairs whose subsets are in the design."""
    full, columns = design.full, design.columns
    found = []
    for b in range(design.num_groups):
        for a in range(b):
            without_both = columns.get(full ^ (1 << a | 1 << b))
            if without_both is None:
                continue
            without_a, without_b = columns[full ^ 1 << a], columns[full ^ 1 << b]
            us = values[columns[full]] - values[without_a] - values[without_b] + values[without_both]
            found.append(Interaction(a, b, float(us)))
    return tuple(sorted(found))
