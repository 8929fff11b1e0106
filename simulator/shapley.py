"""Which subsets of groups to time, and each group's Shapley value from the times of those subsets. No torch.

A subset is a bit mask: bit i says that group i is kept. Shapley values are linear in the subsets' times, and what a
group adds along an order telescopes: they sum to full minus empty, exactly or sampled. `attribution` takes medians
and intervals on top.

Source: L. S. Shapley, "A value for n-person games", 1953. Antithetic orders: R. Mitchell et al., "Sampling
permutations for Shapley value estimation", JMLR 23, 2022.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import comb

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

# One pair of orders says nothing about how much pairs differ, so no interval could be given.
_LEAST_PAIRS = 2
# Up to so many groups every two are also left out together, for their interaction: 276 subsets at 24.
_MOST_GROUPS_WITH_INTERACTIONS = 24


@dataclass(frozen=True, kw_only=True)
class Design:
    """The subsets to time, and how they become Shapley values."""

    num_groups: int
    masks: tuple[int, ...]
    """Distinct; the full and the empty subset are among them."""
    exact: bool
    """Whether `masks` holds all subsets."""
    permutations: tuple[tuple[int, ...], ...] = ()
    """Sampled orders of the groups, each followed by its reverse; empty when exact."""

    def __post_init__(self) -> None:
        """Check that the subsets are those that the Shapley values need."""
        if len(set(self.masks)) != len(self.masks):
            raise ValueError("masks must be distinct")
        if missing := {0, self.full} - set(self.masks):
            raise ValueError(f"masks must contain the empty and the full subset, got none of {sorted(missing)}")
        if self.exact and len(self.masks) != 2**self.num_groups:
            raise ValueError(f"an exact design needs all {2**self.num_groups} subsets, got {len(self.masks)}")
        if not self.exact and self.num_pairs < _LEAST_PAIRS:
            raise ValueError(f"a sampled design needs at least {_LEAST_PAIRS} pairs of orders, got {self.num_pairs}")

    @property
    def full(self) -> int:
        """The subset that keeps everything."""
        return (1 << self.num_groups) - 1

    @property
    def num_pairs(self) -> int:
        """Pairs of an order and its reverse; 0 when exact."""
        return len(self.permutations) // 2

    @cached_property
    def columns(self) -> Mapping[int, int]:
        """Position of each subset in `masks`."""
        return {mask: column for column, mask in enumerate(self.masks)}

    @property
    def without(self) -> Indices:
        """Columns of the subsets that leave one group out, in group order."""
        return np.array([self.columns[self.full ^ (1 << group)] for group in range(self.num_groups)], dtype=np.int64)

    @property
    def alone(self) -> Indices:
        """Columns of the subsets that keep one group, in group order."""
        return np.array([self.columns[1 << group] for group in range(self.num_groups)], dtype=np.int64)

    def shapley(self, values: Floats, *, pair_weights: Floats | None = None) -> Floats:
        """Shapley values [..., groups] of the subsets' values [..., masks].

        `pair_weights` [..., pairs], rows summing to 1, weighs the pairs of a sampled design; None weighs them alike.
        """
        if self.exact:
            return values @ self._weights.T
        before_and_after = values[..., self._chains]
        added = np.diff(before_and_after, axis=-1)
        by_group = np.take_along_axis(added, np.broadcast_to(self._position_of_group, added.shape), axis=-1)
        by_pair = by_group.reshape(*by_group.shape[:-2], self.num_pairs, 2, self.num_groups).mean(axis=-2)
        if pair_weights is None:
            return np.asarray(by_pair.mean(axis=-2))
        return np.asarray(np.einsum("...p,...pg->...g", pair_weights, by_pair))

    @cached_property
    def _weights(self) -> Floats:
        """Shapley weights [groups, masks]: a group joins k others in k! (n - k - 1)! of n! orders."""
        num_groups = self.num_groups
        groups = np.arange(num_groups, dtype=np.int64)[:, None]
        kept = (np.array(self.masks, dtype=np.int64)[None, :] >> groups & 1).astype(bool)
        num_kept = kept.sum(axis=0)
        # The last entry is read for the full subset only, which no group can join.
        joins = np.array([1 / (num_groups * comb(num_groups - 1, k)) for k in range(num_groups)] + [0.0])
        weights: Floats = np.where(kept, joins[num_kept - 1], -joins[num_kept])
        return weights

    @cached_property
    def _chains(self) -> Indices:
        """Columns [orders, groups + 1] of the subsets met when groups join one by one."""
        return np.array([[self.columns[mask] for mask in _prefixes(order)] for order in self.permutations])

    @cached_property
    def _position_of_group(self) -> Indices:
        """Place [orders, groups] of each group in each order."""
        return np.argsort(np.array(self.permutations, dtype=np.int64), axis=-1)


def design_subsets(num_groups: int, *, max_exact_groups: int, num_permutations: int, seed: int) -> Design:
    """All subsets for up to `max_exact_groups` groups; above, those that sampled orders need.

    The sampled design holds the full and the empty subset, every leave-one-out, every group alone, what is met along
    `num_permutations` random orders (rounded up to an even number, at least 4: each order comes with its reverse),
    and, for up to 24 groups, every two left out together.
    """
    if num_groups < 0:
        raise ValueError(f"num_groups must be at least 0, got {num_groups}")
    if num_groups <= max_exact_groups:
        return Design(num_groups=num_groups, masks=tuple(range(2**num_groups)), exact=True)
    rng = np.random.default_rng(seed)
    orders: list[tuple[int, ...]] = []
    for _ in range(max(_LEAST_PAIRS, (num_permutations + 1) // 2)):
        order = tuple(int(group) for group in rng.permutation(num_groups))
        orders += [order, order[::-1]]
    full = (1 << num_groups) - 1
    singles = [1 << group for group in range(num_groups)]
    masks = [full, 0, *(full ^ single for single in singles), *singles]
    masks += [mask for order in orders for mask in _prefixes(order)]
    if num_groups <= _MOST_GROUPS_WITH_INTERACTIONS:
        masks += [full ^ (a | b) for a, b in combinations(singles, 2)]
    return Design(num_groups=num_groups, masks=tuple(dict.fromkeys(masks)), exact=False, permutations=tuple(orders))


def _prefixes(order: tuple[int, ...]) -> list[int]:
    """Subsets met when groups join in this order, from the empty one to the full one."""
    masks = [0]
    for group in order:
        masks.append(masks[-1] | 1 << group)
    return masks
