"""The one seam of the instrument: everything above asks a replayer how long subsets of a step take. No torch."""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Protocol

import numpy as np
import numpy.typing as npt

Samples = npt.NDArray[np.float64]
"""Microseconds [rounds, subsets]: a round times every subset once, so that drift of clocks meets all alike."""

Subset = frozenset[int]
"""Indices of the operations that are kept."""

Enough = Callable[[Samples], bool]
"""Asked after every round: may the measurement end?"""

Advance = Callable[[str, int, int], None]
"""Progress: what is being done, how many are done, of how many."""


class Kind(StrEnum):
    """How a number came about."""

    PREDICTED = "predicted"
    EXECUTED = "executed"
    MEASURED = "measured"


class Replayer(Protocol):
    """Times subsets of one step."""

    @property
    def kind(self) -> Kind:
        """How its numbers come about."""

    @property
    def nodes_of_op(self) -> Sequence[int]:
        """Graph nodes of each operation; one each where there is no graph."""

    @property
    def notes(self) -> Sequence[str]:
        """What a reader must know about how it timed."""

    def measure(self, subsets: Sequence[Subset], *, enough: Enough, advance: Advance) -> Samples:
        """Time every subset, round after round, until `enough` says so."""

    def close(self) -> None:
        """Give back all memory."""


def no_progress(what: str, done: int, total: int) -> None:
    """Report to nobody."""
