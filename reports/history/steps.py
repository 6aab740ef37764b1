"""Steps in a trend: an exact piecewise-constant fit in the L1 norm.

L1 because a night on a busy machine is an outlier, not a level. Exact by dynamic programming over
segment ends (Jackson and others 2005, "An algorithm for optimal partitioning of data on an
interval"); the penalty is that of an information criterion times a robust scale of the noise.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

LEAST_SEGMENT = 3
"""Nights that make a level."""
LEAST_NIGHTS = 8
"""Shorter series have no steps worth telling from noise."""
_NORMAL = 0.954
"""Median absolute difference of two neighbours of a series with unit Gaussian noise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A change of level.

    Attributes:
        index: First night of the new level.
        before: Median of the old level, after of the new one.
        sigmas: Size of the step in units of the noise.
        confirmed: Nights of the new level.
    """

    index: int
    before: float
    after: float
    sigmas: float
    confirmed: int

    @property
    def ratio(self) -> float:
        """After / before; infinite from zero."""
        return self.after / self.before if self.before else math.inf


def noise(values: Sequence[float]) -> float:
    """Return a robust estimate of the noise: steps and outliers hardly move it."""
    if len(values) < 2:
        return 0.0
    differences = [abs(b - a) for a, b in pairwise(values)]
    return median(differences) / _NORMAL


def steps(values: Sequence[float]) -> tuple[Step, ...]:
    """Return the steps of a series, oldest first.

    Args:
        values: Finite values, oldest first; O(n^2 log n) time.
    """
    n = len(values)
    if n < LEAST_NIGHTS:
        return ()
    # A series without any noise still must not have a step for every rounding.
    scale = max(noise(values), 1e-9 * max(1.0, abs(median(values))))
    bounds = _fit(values, penalty=3.0 * math.log(n) * scale)
    levels = [median(values[a:b]) for a, b in pairwise(bounds)]
    return tuple(
        Step(
            index=bounds[i],
            before=levels[i - 1],
            after=levels[i],
            sigmas=abs(levels[i] - levels[i - 1]) / scale,
            confirmed=bounds[i + 1] - bounds[i],
        )
        for i in range(1, len(levels))
    )


def _fit(values: Sequence[float], penalty: float) -> list[int]:
    """Return the bounds of the best segments, 0 and the length included."""
    n = len(values)
    best = [math.inf] * (n + 1)
    best[0] = -penalty
    origin = [0] * (n + 1)
    for start in range(n - LEAST_SEGMENT + 1):
        if math.isinf(best[start]):
            continue
        for end, cost in _costs(values, start):
            if end - start >= LEAST_SEGMENT and best[start] + penalty + cost < best[end]:
                best[end] = best[start] + penalty + cost
                origin[end] = start
    bounds = [n]
    while bounds[-1] > 0:
        bounds.append(origin[bounds[-1]])
    return bounds[::-1]


def _costs(values: Sequence[float], start: int) -> list[tuple[int, float]]:
    """Return (end, sum of distances from the median) of each segment that begins at ``start``."""
    low: list[float] = []  # a heap of negated values: the lower half
    high: list[float] = []
    low_sum = high_sum = 0.0
    found = []
    for end in range(start, len(values)):
        value = values[end]
        if low and value < -low[0]:
            heapq.heappush(low, -value)
            low_sum += value
        else:
            heapq.heappush(high, value)
            high_sum += value
        if len(low) > len(high):
            moved = -heapq.heappop(low)
            heapq.heappush(high, moved)
            low_sum, high_sum = low_sum - moved, high_sum + moved
        elif len(high) > len(low) + 1:
            moved = heapq.heappop(high)
            heapq.heappush(low, -moved)
            low_sum, high_sum = low_sum + moved, high_sum - moved
        centre = high[0]
        found.append((end + 1, high_sum - centre * len(high) + centre * len(low) - low_sum))
    return found
