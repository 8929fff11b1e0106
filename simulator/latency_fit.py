"""Latency and bandwidth of an all-reduce from its times at several sizes: straight lines, joined where they must be.

An all-reduce of b bytes takes latency + b / bandwidth as long as the library uses one algorithm; where it changes to
another, a second line begins. Errors are relative, since times span decades. No torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from simulator.hardware import Segment

Floats = npt.NDArray[np.float64]

LEAST_POINTS = 2
"""Points that a line needs; a second line is tried where each side has one more."""

WORTH_A_SECOND_LINE = 0.5
"""A second line must leave at most this share of the squared error, or it is noise that it follows."""


EXACT_ENOUGH = 1e-3
"""Root mean square of the relative errors under which one line will do: times are printed with few digits."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """One or two segments, and how far they are from the points they were fitted to, as shares of the times."""

    segments: tuple[Segment, ...]
    median_error: float
    largest_error: float


def fit_times(sizes_bytes: Sequence[int], times_us: Sequence[float]) -> Fit:
    """Fit times in microseconds over sizes in bytes, sorted by size.

    Raises:
        ValueError: fewer than two different sizes.
    """
    sizes, times = np.asarray(sizes_bytes, dtype=np.float64), np.asarray(times_us, dtype=np.float64)
    if len(np.unique(sizes)) < LEAST_POINTS:
        raise ValueError(f"a fit needs times at two sizes at least; got {len(np.unique(sizes))}")
    best = [_line(sizes, times)]
    best_error = _squared_error(best, sizes, times)
    if best_error / len(sizes) < EXACT_ENOUGH**2:
        return _finished(best, sizes, times)
    for split in range(LEAST_POINTS + 1, len(sizes) - LEAST_POINTS):
        parts = [_line(sizes[:split], times[:split]), _line(sizes[split:], times[split:])]
        error = _squared_error(parts, sizes, times)
        if error < best_error * (WORTH_A_SECOND_LINE if len(best) == 1 else 1.0):
            best, best_error = parts, error
    return _finished(best, sizes, times)


def _finished(best: list[Segment], sizes: Floats, times: Floats) -> Fit:
    """The fit, whose first segment reaches down to the smallest payload."""
    errors = np.abs(_predicted(best, sizes) / times - 1)
    best[0] = replace(best[0], from_bytes=0)
    return Fit(segments=tuple(best), median_error=float(np.median(errors)), largest_error=float(errors.max()))


def _line(sizes: Floats, times: Floats) -> Segment:
    """The line of least squared relative error with neither a negative latency nor a negative slope."""
    weights = 1 / times
    columns = np.stack([weights, sizes * weights], axis=1)
    latency, slope = np.linalg.lstsq(columns, np.ones_like(times), rcond=None)[0]
    if slope <= 0:
        # times that do not grow with size: the latency alone, over a wire too fast to show
        latency, slope = 1 / np.mean(weights), 1e-9
    if latency < 0:
        latency, slope = 0.0, 1 / np.mean(sizes * weights)
    return Segment(from_bytes=int(sizes[0]), latency_us=float(latency), bandwidth_gbps=float(1e-3 / slope))


def _predicted(segments: Sequence[Segment], sizes: Floats) -> Floats:
    chosen = np.searchsorted([segment.from_bytes for segment in segments[1:]], sizes, side="right")
    latency = np.array([segment.latency_us for segment in segments])[chosen]
    bandwidth = np.array([segment.bandwidth_gbps for segment in segments])[chosen]
    return np.asarray(latency + sizes / bandwidth / 1e3)


def _squared_error(segments: Sequence[Segment], sizes: Floats, times: Floats) -> float:
    return float(np.square(_predicted(segments, sizes) / times - 1).sum())
