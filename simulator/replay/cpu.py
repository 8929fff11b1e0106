"""Execution on the CPU: every operation runs as its torch reference. For tests, and for small models anywhere."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from time import perf_counter

import numpy as np
import torch

from simulator.replay.base import Advance, Enough, Kind, Samples, Subset


@dataclass(frozen=True, kw_only=True)
class CpuReplayer:
    """Runs subsets of a step one operation after another, by the wall clock."""

    launches: Sequence[Callable[[], None]]
    seed: int = 0
    extra_notes: Sequence[str] = ()
    kind: Kind = Kind.EXECUTED

    @property
    def nodes_of_op(self) -> Sequence[int]:
        """There is no graph: one each."""
        return [1] * len(self.launches)

    @property
    def notes(self) -> Sequence[str]:
        """What was run."""
        return ("executed on the CPU by torch references: the times are this machine's, not a GPU's", *self.extra_notes)

    def measure(self, subsets: Sequence[Subset], *, enough: Enough, advance: Advance) -> Samples:
        """Run each subset once unrecorded, then round after round in random order until `enough`."""
        with single_thread():
            return self._measure(subsets, enough, advance)

    def _measure(self, subsets: Sequence[Subset], enough: Enough, advance: Advance) -> Samples:
        order = list(range(len(subsets)))
        chosen = [sorted(subset) for subset in subsets]
        shuffle = Random(self.seed).shuffle
        self._run_us(range(len(self.launches)))
        rounds: list[list[float]] = []
        while not rounds or not enough(np.array(rounds)):
            shuffle(order)
            times = [0.0] * len(subsets)
            for index in order:
                times[index] = self._run_us(chosen[index])
            rounds.append(times)
            advance("rounds", len(rounds), 0)
        return np.array(rounds)

    def _run_us(self, ops: Sequence[int]) -> float:
        start = perf_counter()
        for op in ops:
            self.launches[op]()
        return (perf_counter() - start) * 1e6

    def close(self) -> None:
        """Nothing is held beyond the launches."""


@contextmanager
def single_thread() -> Iterator[None]:
    """One thread of torch: operations this small lose more to waking threads than they win."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)
